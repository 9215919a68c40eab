import { ArgumentRangeError, ArgumentTypeError, formatValue } from '../../basics/errors.js';
import { assertFunction, assertMilliseconds, assertOptions, optionNames } from '../../basics/validation.js';
import { Device, type DeviceMemoryInfo } from '../../driver/device.js';

/** How much of a device's memory is used, by whomever. */
export interface BudgetEvent {
  readonly device: Device;
  /** The share of the device's memory above which its use has risen. */
  readonly share: number;
  /** Bytes that are used: by this process, by all others, and by the driver. */
  readonly usedBytes: number;
  readonly freeBytes: number;
  readonly totalBytes: number;
}

/** Options of {@link observeBudget}. */
export interface BudgetOptions {
  /** @defaultValue device 0 */
  readonly device?: Device;
  /**
   * The shares of the device's memory to be told of, each above 0 and at most 1.
   * @defaultValue 0.8, 0.9 and 0.95
   */
  readonly shares?: readonly number[];
  /**
   * How often the device is asked, in milliseconds. A question takes some microseconds.
   * @defaultValue 1000
   */
  readonly intervalMilliseconds?: number;
}

/** Looks at a device's memory until it is disposed. */
export interface BudgetObserver extends Disposable {
  /**
   * Looks now, as before work that needs much.
   * @throws CudaError if the driver cannot tell.
   */
  check(): void;
  /** Ends the looks. A second call does nothing. */
  dispose(): void;
}

const knownOptions = optionNames<BudgetOptions>({ device: true, intervalMilliseconds: true, shares: true });
const defaultShares = [0.8, 0.9, 0.95];
const longestInterval = 2 ** 31 - 1;

/**
 * Tells when the memory of a device is about to run out: its use, memory of other processes and libraries included, has risen
 * above a share of it. Each share is told of once, and again after use was at or below it. What the function
 * frees, such as caches, serves what comes next.
 *
 * The looks do not keep the process alive. A device that cannot be asked is not told of.
 *
 * Counterpart of the budget of Vulkan's memory allocator (VMA), for whoever looks at it now and then.
 * @param tell called with the highest share that was passed since the last look
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
  return { check: () => look(device.memoryInfo()), dispose, [Symbol.dispose]: dispose };
}

/** `undefined` if the driver fails: nobody could catch the error. */
function memoryOf(device: Device): DeviceMemoryInfo | undefined {
  try {
    return device.memoryInfo();
  } catch {
    return undefined;
  }
}

function assertShares(shares: unknown): asserts shares is readonly number[] {
  if (!Array.isArray(shares)) throw new ArgumentTypeError(`shares must be an array, got ${formatValue(shares)}`);
  for (const share of shares) {
    if (typeof share !== 'number') throw new ArgumentTypeError(`shares must be numbers, got ${formatValue(share)}`);
    if (!(share > 0 && share <= 1)) throw new ArgumentRangeError(`shares must be above 0 and at most 1, got ${share}`);
  }
}
