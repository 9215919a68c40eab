/**
 * How much memory this process may use: the one place that asks the machine. Device memory is limited by the device, by an instance or a
 * server that gives out parts of it, and, if the device has no memory of its own, by the host. All other memory presses on the host, managed
 * memory too: its pages come from there, and nobody refuses them.
 */
import { totalmem } from 'node:os';
import { formatValue, invalidValue } from '../basics/errors.js';
import { bytesOf, formatBytes, parseShare, shareOf } from '../basics/units.js';
import { Device, type MemoryKind } from '../driver/device.js';
import { setting } from '../settings.js';
import { controlGroupLimits, read } from './control-groups.js';

/** One limit of what a process may use. */
export interface MemoryLimit {
  /** Who sets it: the machine, a control group (a container), the device, or NVIDIA's MPS. */
  readonly source: 'machine' | 'control group' | 'device' | 'MPS';
  /** The file, the device or the variable that says so. */
  readonly detail: string;
  readonly bytes: number;
  /** What is left of it, if that is known. */
  readonly availableBytes?: number | undefined;
}

/** How much memory of a kind a process may use. */
export interface MemoryBudget {
  /** The lowest of the limits. */
  readonly bytes: number;
  /** The least that any of the limits leaves now. */
  readonly availableBytes: number;
  /** All limits, the lowest first. */
  readonly limits: readonly MemoryLimit[];
}

let root = '';

/** @internal The folder that stands for `/`. */
export function setMachineRoot(folder: string): void {
  root = folder;
}

/**
 * How much memory of a kind this process may use, and who says so: the machine, control groups of versions 1 and 2 (containers), the device or
 * its MIG instance, and the limit of an MPS server. Memory that is not a device's own counts against the host: pinned and managed memory, and
 * that of integrated and software devices.
 * @param memoryKind `'device'` by default
 * @param device the first device by default
 * @throws DriverError if the driver does not answer.
 * @example
 * ```ts
 * const { bytes, limits } = memoryBudget('pinned-host');
 * console.log(formatBytes(bytes), limits[0]?.source); // 1 GiB control group
 * ```
 */
export function memoryBudget(memoryKind: MemoryKind = 'device', device: Device = Device.get()): MemoryBudget {
  const limits = limitsOf(memoryKind, device).map((limit) =>
    limit.source === 'device' ? { ...limit, availableBytes: device.memoryInfo().freeBytes } : limit,
  );
  const availableBytes = limits.reduce((least, limit) => Math.min(least, limit.availableBytes ?? limit.bytes), Number.POSITIVE_INFINITY);
  return Object.freeze({ bytes: (limits[0] as MemoryLimit).bytes, availableBytes, limits: Object.freeze(limits) });
}

/** `bytes` of the budget, without a context on the device. */
export function budgetBytes(memoryKind: MemoryKind, device: Device): number {
  return (limitsOf(memoryKind, device)[0] as MemoryLimit).bytes;
}

/** The memory of the host that this process may use. */
export function hostBytes(): number {
  return Math.min(...hostLimits().map(({ bytes }) => bytes));
}

/** Whether a device has no memory of its own, but uses that of the host. */
export function usesHostMemory(device: Device): boolean {
  return device.backend === 'software' || device.attribute('integrated') === 1;
}

/**
 * The bytes of a size such as `8GiB`, or of a share such as `80%` of what the process may use.
 * @throws ArgumentRangeError for any other text
 */
export function bytesOfSizeOrShare(text: string, name: string, memoryKind: MemoryKind, device: Device): number {
  const share = parseShare(text);
  const bytes = share === undefined ? bytesOf(text) : shareOf(budgetBytes(memoryKind, device), share);
  if (bytes !== undefined) return bytes;
  throw invalidValue(`${name} must be a number of bytes, a size such as '8GiB', or a share such as '80%', got ${formatValue(text)}`);
}

function limitsOf(memoryKind: MemoryKind, device: Device): MemoryLimit[] {
  const limits = memoryKind === 'device' ? [...deviceLimits(device), ...(usesHostMemory(device) ? hostLimits() : [])] : hostLimits();
  return limits.sort((one, other) => one.bytes - other.bytes);
}

function deviceLimits(device: Device): MemoryLimit[] {
  const { index, name, totalBytes } = device;
  const limits: MemoryLimit[] = [{ source: 'device', detail: `device ${index}, ${name}`, bytes: totalBytes }];
  const bytes = device.backend === 'cuda' ? servedBytes(setting('CUDA_MPS_PINNED_DEVICE_MEM_LIMIT') ?? '', device) : undefined;
  if (bytes !== undefined) limits.push({ source: 'MPS', detail: 'CUDA_MPS_PINNED_DEVICE_MEM_LIMIT', bytes });
  return limits;
}

/** What the variable of an MPS server leaves a device: `0=2G,1=512M`. */
export function servedBytes(variable: string, { index }: Pick<Device, 'index'>): number | undefined {
  for (const part of variable.split(',')) {
    const [device = '', size = ''] = part.split('=').map((text) => text.trim());
    const [, number, unit = ''] = /^(\d+)([KMGT]?)B?$/i.exec(size) ?? [];
    if (number !== undefined && /^\d+$/.test(device) && Number(device) === index)
      return Number(number) * 1024 ** 'BKMGT'.indexOf(unit.toUpperCase() || 'B');
  }
  return undefined;
}

function hostLimits(): MemoryLimit[] {
  const groups = controlGroupLimits(root).map(({ file, bytes, usedBytes }): MemoryLimit => {
    const availableBytes = usedBytes === undefined ? undefined : Math.max(0, bytes - usedBytes);
    return { source: 'control group', detail: file, bytes, availableBytes };
  });
  return [machineLimit(), ...groups];
}

function machineLimit(): MemoryLimit {
  const info = read(`${root}/proc/meminfo`) ?? '';
  const bytes = kibibytesIn(info, 'MemTotal') ?? totalmem();
  // Node counts the file cache of a control group as used, which the group would give up.
  const availableBytes = kibibytesIn(info, 'MemAvailable') ?? process.availableMemory();
  return { source: 'machine', detail: `${formatBytes(bytes)} of memory`, bytes, availableBytes };
}

/** As in `MemTotal:       24643212 kB`. */
function kibibytesIn(info: string, name: string): number | undefined {
  const line = info.split('\n').find((each) => each.startsWith(`${name}:`));
  const number = Number.parseInt(line?.slice(name.length + 1) ?? '', 10);
  return Number.isNaN(number) ? undefined : number * 1024;
}
