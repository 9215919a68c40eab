import { InvalidArgumentError, Option } from 'commander';
import { type Backend, currentBackend, selectBackend } from '../driver/backend.js';
import { configureSoftwareDevice } from '../driver/software-device.js';
import { parseBytes } from '../units.js';
import { type Terminal, warn } from './terminal.js';

/** What the options about the device give. */
export interface DeviceOptions {
  readonly device?: 'auto' | Backend;
  readonly deviceMemory?: number;
}

/** `--device`. */
export function deviceOption(): Option {
  return new Option('--device <device>', 'which device to use (default: what CISTERN_DEVICE says, else auto)').choices([
    'auto',
    'cuda',
    'software',
  ]);
}

/** `--device-memory`. */
export function deviceMemoryOption(): Option {
  return new Option('--device-memory <size>', "the software device's memory, such as 2GiB").argParser(parseSize);
}

/** `--json`. */
export function jsonOption(): Option {
  return new Option('--json', 'print JSON');
}

/** An option's argument as an integer from 1. */
export function parsePositiveInteger(text: string): number {
  const value = Number(text);
  if (!/^\d+$/.test(text) || !Number.isSafeInteger(value) || value < 1) throw new InvalidArgumentError('It must be an integer from 1.');
  return value;
}

/** Opens the device that the options name. */
export function openDevice(options: DeviceOptions, terminal: Terminal): Backend {
  if (options.deviceMemory !== undefined) configureSoftwareDevice({ totalBytes: options.deviceMemory });
  const backend = options.device === undefined ? currentBackend() : selectBackend(options.device);
  if (options.deviceMemory !== undefined && backend !== 'software') {
    warn(terminal, '--device-memory sets the memory of the software device, which is not used');
  }
  return backend;
}

function parseSize(text: string): number {
  const bytes = parseBytes(text);
  if (bytes === undefined || bytes < 1) throw new InvalidArgumentError('It must be a size such as 512MiB.');
  return bytes;
}
