import { ArgumentRangeError, ArgumentTypeError, formatValue } from '../../basics/errors.js';
import { assertFunction, assertMilliseconds, assertOptions, optionNames } from '../../basics/validation.js';
import { memoryBudget, usesHostMemory } from '../../budget/memory-budget.js';
import { Device, type DeviceMemoryInfo } from '../../driver/device.js';

/** How much of a device's memory is in use, by any process; of what the process may use, if the device has no memory of its own. */
export interface BudgetEvent {
  readonly device: Device;
  /** The share of the device's memory that the use has exceeded. */
  readonly share: number;
  /** The used bytes, including those of other processes and of the driver. */
  readonly usedBytes: number;
  readonly freeBytes: number;
  readonly totalBytes: number;
}

/** Options of {@link observeBudget}. */
export interface BudgetOptions {
  /** @defaultValue device 0 */
  readonly device?: Device | undefined;
  /**
   * The shares of the device's memory to report, each above 0 and at most 1.
   * @defaultValue 0.8, 0.9 and 0.95
   */
  readonly shares?: readonly number[] | undefined;
  /**
   * The time between two checks, in milliseconds. A check takes a few microseconds.
   * @defaultValue 1000
   */
  readonly intervalMilliseconds?: number | undefined;
}

/** Checks a device's memory until it is disposed. */
export interface BudgetObserver extends Disposable {
  /**
   * Checks immediately. Call it before work that needs much memory.
   * @throws DriverError if the driver refuses.
   */
  check(): void;
  /** Ends the checks. A second call does nothing. */
  dispose(): void;
}

const knownOptions = optionNames<BudgetOptions>({ device: true, intervalMilliseconds: true, shares: true });
const defaultShares = [0.8, 0.9, 0.95];
const longestInterval = 2 ** 31 - 1;

/**
 * Calls a function when the memory of a device is about to run out: when the memory in use, including that
 * of other processes and libraries, rises above a share of it (of what the process may use, if it is the host's memory). Each share is reported once, and again after
 * the use was at or below it. In the function, free memory that you can do without, such as caches.
 *
 * Managed memory counts only as far as its pages are on the device; watch the host's memory as well if you use much of it.
 *
 * The checks do not keep the process alive. If the driver refuses a check, nothing is reported.
 *
 * Counterpart of the budget of Vulkan's memory allocator (VMA), which a program must poll.
 * @param tell called with the highest share that was exceeded since the last check
 * @throws ArgumentTypeError, ArgumentRangeError for invalid arguments.
 * @example
 * ```ts
 * using upstream = new CudaMemoryResource();
 * using pool = new PoolMemoryResource(upstream);
 * using stream = new Stream();
 * using budget = observeBudget(({ usedBytes, totalBytes }) => {
 *   console.warn(`${formatBytes(usedBytes)} of ${formatBytes(totalBytes)} are used`);
 *   pool.trim(stream);
 * });
 * ```
 */
export function observeBudget(tell: (event: BudgetEvent) => void, options: BudgetOptions = {}): BudgetObserver {
  assertFunction(tell, 'tell');
  assertOptions(options, knownOptions);
  const { device = Device.get(), shares = defaultShares, intervalMilliseconds = 1000 } = options;
  if (!(device instanceof Device)) throw new ArgumentTypeError(`device must be a Device, got ${formatValue(device)}`);
  assertShares(shares);
  assertMilliseconds(intervalMilliseconds, 'intervalMilliseconds');
  const ascending = [...shares].sort((a, b) => a - b);
  let passed = 0;
  const look = ({ freeBytes, totalBytes }: DeviceMemoryInfo) => {
    const usedBytes = totalBytes - freeBytes;
    const before = passed;
    passed = ascending.filter((share) => usedBytes > share * totalBytes).length;
    const share = ascending[passed - 1];
    if (passed > before && share !== undefined) tell(Object.freeze({ device, share, usedBytes, freeBytes, totalBytes }));
  };
  const lookIfPossible = () => {
    const memory = memoryOf(device);
    if (memory !== undefined) look(memory);
  };
  const timer = setInterval(lookIfPossible, Math.min(intervalMilliseconds, longestInterval)).unref();
  const dispose = () => clearInterval(timer);
  return { check: () => look(memoryNow(device)), dispose, [Symbol.dispose]: dispose };
}

/** `undefined` if the driver fails: nobody could catch the error. */
function memoryOf(device: Device): DeviceMemoryInfo | undefined {
  try {
    return memoryNow(device);
  } catch {
    return undefined;
  }
}

/** A device without memory of its own is full when the host is, or the control group of the process. */
function memoryNow(device: Device): DeviceMemoryInfo {
  if (!usesHostMemory(device)) return device.memoryInfo();
  const { bytes, availableBytes } = memoryBudget('device', device);
  return { totalBytes: bytes, freeBytes: Math.min(bytes, availableBytes) };
}

function assertShares(shares: unknown): asserts shares is readonly number[] {
  if (!Array.isArray(shares)) throw new ArgumentTypeError(`shares must be an array, got ${formatValue(shares)}`);
  for (const share of shares) {
    if (typeof share !== 'number') throw new ArgumentTypeError(`shares must be numbers, got ${formatValue(share)}`);
    if (!(share > 0 && share <= 1)) throw new ArgumentRangeError(`shares must be above 0 and at most 1, got ${share}`);
  }
}
