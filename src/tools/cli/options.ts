import { InvalidArgumentError, Option } from 'commander';
import { bytesOf, formatBytes, KiB, sizeMeant } from '../../basics/units.js';
import { type Backend, currentBackend, selectBackend } from '../../driver/backend.js';
import { configureSoftwareDevice, mostSoftwareBytes } from '../../driver/software-device.js';
import { convertedFormats } from '../formats/convert-log.js';
import type { ReplayStreams } from '../replay/replay-result.js';
import { SpecificationOption } from './command-files.js';
import type { OutputFormat } from './table.js';
import { type Terminal, warn } from './terminal.js';

/** The smallest software device that a command can replay on: one page. */
const leastDeviceBytes = 4 * KiB;

/** The values of the device options. */
export interface DeviceOptions {
  readonly device?: 'auto' | Backend | undefined;
  readonly deviceMemory?: number | undefined;
}

/** `--device`. */
export function deviceOption(): Option {
  return new Option('--device <device>', 'the device to use (default: the value of CISTERN_DEVICE, or auto)').choices([
    'auto',
    'cuda',
    'software',
  ]);
}

/** `--device-memory`. */
function deviceMemoryOption(): Option {
  return new Option('--device-memory <size>', "the software device's memory, such as 2GiB").argParser(parseDeviceMemory);
}

/** `--json`. */
export function jsonOption(): Option {
  return new Option('--json', 'print JSON');
}

/** `--format`, and `--json` as a short form of one of its values. */
export function formatOptions(): [Option, Option] {
  const format = new Option('--format <format>', 'how to print the results').choices(['table', 'json', 'markdown']).default('table');
  return [format, new Option('--json', 'short for --format json').conflicts('format')];
}

/** The values of those two options. */
export interface FormatOptions {
  readonly format: OutputFormat;
  readonly json?: boolean | undefined;
}

/** The requested format. */
export function formatOf({ format, json }: FormatOptions): OutputFormat {
  return json === true ? 'json' : format;
}

/** The values of the options of commands that replay a log through stacks. */
export interface StackOptions extends DeviceOptions, FormatOptions {
  readonly resource?: readonly string[] | undefined;
  readonly streams: ReplayStreams;
  readonly layer?: string | undefined;
  readonly repeat?: number | undefined;
}

/**
 * These options.
 * @param resources what `--resource` describes
 * @param own options of the command itself
 */
export function stackOptions(resources: string, defaults: readonly string[], own: readonly Option[] = []): readonly Option[] {
  const replayed = [resourceOption(resources, defaults), streamsOption(), layerOption(), repeatOption()];
  return [...replayed, ...own, deviceOption(), deviceMemoryOption(), ...formatOptions()];
}

/** `--resource`. */
function resourceOption(description: string, defaults: readonly string[]): Option {
  const option = new SpecificationOption('--resource <specification>', `${description}; repeatable (default: ${defaults.join('; ')})`);
  return option.argParser((text, previous: readonly string[] | undefined) => [...(previous ?? []), text]);
}

/** `--streams`. */
function streamsOption(): Option {
  return new Option('--streams <streams>', "replay on the log's own streams, one per thread, or a single one")
    .choices(['log', 'thread', 'single'])
    .default('log');
}

/** `--to`. */
export function toOption(): Option {
  return new Option('--to <format>', "the format to write (default: from the output's name)").choices(convertedFormats);
}

/** `--layer`. */
export function layerOption(): Option {
  return new Option('--layer <name>', 'the layer of a recording (default: the one nearest to the program)');
}

/** `--repeat`. */
function repeatOption(): Option {
  return new Option(
    '--repeat <n>',
    'how many times to measure each stack (default: enough for a million operations, 3 to 100 times)',
  ).argParser(integerParser(1));
}

/** Describes the streams of a replay. */
export function describeStreams(streams: ReplayStreams): string {
  return { log: "the log's streams", thread: 'one stream per thread', single: 'one stream' }[streams];
}

/**
 * Parses an option's argument as an integer.
 * @param what describes a valid argument, for the message
 */
export function integerParser(least: number, most = Number.MAX_SAFE_INTEGER, what = `an integer from ${least}`): (text: string) => number {
  return (text) => {
    const value = Number(text);
    if (/^\d+$/.test(text) && value >= least && value <= most) return value;
    throw new InvalidArgumentError(`It must be ${what}.`);
  };
}

/** Opens the device given by the options. */
export function openDevice(options: DeviceOptions, terminal: Terminal): Backend {
  if (options.deviceMemory !== undefined) configureSoftwareDevice({ totalBytes: options.deviceMemory });
  const backend = options.device === undefined ? currentBackend() : selectBackend(options.device);
  if (options.deviceMemory !== undefined && backend !== 'software') {
    warn(terminal, '--device-memory has no effect: it sets the memory of the software device, which is not in use');
  }
  return backend;
}

/** Parses an option's argument as a size. */
export function parseSize(text: string): number {
  const bytes = bytesOf(text);
  if (bytes === undefined || bytes < 1) {
    const meant = sizeMeant(text);
    throw new InvalidArgumentError(`It must be a size such as 512MiB${meant === undefined ? '.' : `: did you mean ${meant}?`}`);
  }
  return bytes;
}

/**
 * Parses the memory of a software device, which needs a unit, because nobody who writes 2 means two
 * bytes.
 */
function parseDeviceMemory(text: string): number {
  const bytes = parseSize(text);
  if (/^\d+$/.test(text)) throw new InvalidArgumentError(`It needs a unit, such as ${text}MiB, or ${text}B for bytes.`);
  if (bytes < leastDeviceBytes) throw new InvalidArgumentError(`It must be at least ${formatBytes(leastDeviceBytes)}, one page.`);
  if (bytes > mostSoftwareBytes) throw new InvalidArgumentError(`It must be at most ${formatBytes(mostSoftwareBytes)}.`);
  return bytes;
}

/** Parses an option's argument as a time, in milliseconds. */
export function parseTime(text: string): number {
  const [, value, unit] = /^(\d+(?:\.\d+)?)(ms|s|min)$/.exec(text) ?? [];
  if (value === undefined) throw new InvalidArgumentError('It must be a time with its unit, such as 60s, 500ms or 2min.');
  return Number(value) * { ms: 1, s: 1000, min: 60_000 }[unit as 'ms' | 's' | 'min'];
}
