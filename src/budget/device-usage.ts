import { readFileSync } from 'node:fs';
import { ArgumentTypeError, formatValue, resultOrNothing, UnsupportedError } from '../basics/errors.js';
import { formatBytes, formatCount } from '../basics/units.js';
import { Device } from '../driver/device.js';
import { nvmlUnavailableReason, nvmlUsage } from '../driver/nvml.js';
import type { DeviceUser } from './device-user.js';

/** How much memory of a device is used, and by whom. */
export interface DeviceUsage {
  readonly totalBytes: number;
  readonly freeBytes: number;
  readonly usedBytes: number;
  /** The processes, those that hold the most first; not set if NVML does not tell this user, or for this device. */
  readonly users: readonly DeviceUser[] | undefined;
}

/** How many processes a text names. */
const mostNamed = 3;

/**
 * How much memory of a device is used, and which processes hold it, by NVML: without a context on the device, so it costs the device nothing, and
 * works for devices that this process does not use.
 * @param device a device, or the UUID of any device or MIG instance of the machine, as `nvidia-smi -L` prints it
 * @defaultValue device 0
 * @throws UnsupportedError if NVML cannot be loaded, or does not know the device, such as a software device.
 * @throws ArgumentTypeError if `device` is neither.
 * @example
 * ```ts
 * const users = Device.get().backend === 'cuda' ? deviceUsage().users : undefined;
 * for (const { name, pid, bytes = 0 } of users ?? []) console.log(`${name} ${pid} holds ${formatBytes(bytes)}`);
 * ```
 */
export function deviceUsage(device: Device | string = Device.get()): DeviceUsage {
  if (!(device instanceof Device) && typeof device !== 'string') {
    throw new ArgumentTypeError(`device must be a Device or the UUID of one, got ${formatValue(device)}`);
  }
  const what = typeof device === 'string' ? device : `device ${device.index}`;
  const isSoftware = device instanceof Device && device.backend === 'software';
  if (isSoftware) throw new UnsupportedError(`cannot tell who uses ${what}: it is a software device, which belongs to this process alone`);
  const usage = nvmlUsage(typeof device === 'string' ? device : device.uuid);
  if (usage === undefined)
    throw new UnsupportedError(`cannot tell who uses ${what}: ${nvmlUnavailableReason() ?? 'NVML does not know it'}`);
  const { totalBytes, freeBytes, usedBytes, processes } = usage;
  const users = processes
    ?.map(({ pid, bytes }): DeviceUser => ({ pid, name: nameOf(pid), bytes, isOwn: pid === process.pid }))
    .sort((one, other) => (other.bytes ?? 0) - (one.bytes ?? 0));
  return Object.freeze({ totalBytes, freeBytes, usedBytes, users: users === undefined ? undefined : Object.freeze(users) });
}

/** The last text about other users, and when it was made: a program may run out of memory in a loop. */
const lastTexts: { readonly text: string; readonly at: number }[] = [];
const textMilliseconds = 1000;

/** What to add to the message of an error of a device that is full: who else holds its memory. Empty if nobody does, or nobody knows. */
export function describeOtherUsers(device: Device): string {
  if (device.backend === 'software') return '';
  const now = performance.now();
  const last = lastTexts[device.index];
  if (last !== undefined && now - last.at < textMilliseconds) return last.text;
  const others = resultOrNothing(() => deviceUsage(device))?.users?.filter(({ isOwn }) => !isOwn) ?? [];
  const text = others.length === 0 ? '' : `; ${describeUsers(others)}`;
  lastTexts[device.index] = { text, at: now };
  return text;
}

/** As in `python 1234 holds 61 GiB, node 77 (this process) holds 2 GiB`. */
export function describeUsers(users: readonly DeviceUser[]): string {
  const named = users.slice(0, mostNamed).map(({ pid, name, bytes, isOwn }) => {
    const holds = bytes === undefined ? 'an unknown amount' : formatBytes(bytes);
    return `${name ?? 'process'} ${pid}${isOwn ? ' (this process)' : ''} holds ${holds}`;
  });
  const rest = users.length - named.length;
  return `${named.join(', ')}${rest > 0 ? `, and ${formatCount(rest)} more` : ''}`;
}

function nameOf(pid: number): string | undefined {
  return resultOrNothing(() => readFileSync(`/proc/${pid}/comm`, 'utf8').trim());
}
