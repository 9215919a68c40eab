import { ArgumentRangeError, attemptEach, formatValue, throwFirst, UnsupportedError } from '../basics/errors.js';
import { assertName, assertOneOf, assertOptions, optionNames } from '../basics/validation.js';
import { isSleeping, type Sleeper } from '../lifetimes/sleeper.js';
import { assertMemoryResource, type MemoryResource } from '../memory-resource.js';
import { layersOf } from './layers.js';

/** Options of {@link sleepResource}. */
export interface SleepOptions {
  /**
   * What becomes of the contents: `'host'` keeps them in pinned host memory until the memory wakes;
   * `'nothing'` loses them.
   */
  readonly keep: 'host' | 'nothing';
  /**
   * Only memory of resources with this tag sleeps ({@link VirtualMemoryResourceOptions.tag}).
   * @defaultValue all that can
   */
  readonly tag?: string;
}

/** Options of {@link wakeResource}. */
export interface WakeOptions {
  /**
   * Only memory of resources with this tag wakes.
   * @defaultValue all that is asleep
   */
  readonly tag?: string;
}

/** What {@link sleepResource} did. */
export interface SleepReport {
  /** Bytes that went back to the device. */
  readonly releasedBytes: number;
  /** Bytes whose contents are kept on the host. */
  readonly keptBytes: number;
  readonly elapsedMilliseconds: number;
}

/** What {@link wakeResource} did. */
export interface WakeReport {
  /** Bytes that were taken from the device. */
  readonly mappedBytes: number;
  /** Bytes whose contents came back from the host. */
  readonly restoredBytes: number;
  readonly elapsedMilliseconds: number;
}

const sleepOptions = optionNames<SleepOptions>({ keep: true, tag: true });
const wakeOptions = optionNames<WakeOptions>({ tag: true });
const keepWords = ['host', 'nothing'] as const;

/**
 * Gives the memory of a stack back to the device, while every address stays as it is: pointers, buffers,
 * tensors of other libraries and captured graphs are valid again after {@link wakeResource}. What sleeps is
 * the memory of each {@link VirtualMemoryResource} in the stack; what other leaves have stays where it is.
 * Resources that keep memory of it give back what is free first ({@link TrimmingMemoryResource.trim}), so
 * that only memory in use is kept. Memory that is asleep already stays so.
 *
 * Stream order: memory goes after everything that was queued on the devices before this call. The event loop
 * goes on while the devices work and contents are copied; only unmapping, and a wait for streams that this
 * worker does not know, block it. From the call on until the memory is awake, cistern refuses to use
 * it (`ERR_CISTERN_ASLEEP`): allocations, copies, fills, {@link DeviceBuffer.ptr}, launches of graphs of a
 * {@link GraphMemoryResource} over it. Memory that sleeps can be freed. What other libraries queue
 * on their own, or a {@link GraphExec} captured without such a resource, cistern does not see: it
 * must not run before the memory is awake.
 *
 * While a stream is held, this waits for the hold's end.
 *
 * RMM has no counterpart; vLLM's is its sleep mode.
 * @throws UnsupportedError if nothing in the stack can sleep; ArgumentRangeError
 * (`ERR_INVALID_ARG_VALUE`) if nothing has the tag.
 * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) while an earlier call for the same memory has not
 * resolved, or if another worker has a part of the memory; (`ERR_CISTERN_CAPTURING`) while a stream is
 * captured.
 * @throws OutOfMemoryError if the host does not have the memory for the contents.
 * @throws DriverError. After this one alone some memory may be asleep: what the driver refused to unmap
 * stays mapped, and is unmapped by the next call. After every other error the memory is awake, with its contents.
 * @example
 * ```ts
 * using weights = new PoolMemoryResource(new VirtualMemoryResource());
 * const { releasedBytes } = await sleepResource(weights, { keep: 'host' });
 * console.log(`${formatBytes(releasedBytes)} for others`);
 * await wakeResource(weights);
 * ```
 */
export async function sleepResource(resource: MemoryResource, options: SleepOptions): Promise<SleepReport> {
  assertOptions(options, sleepOptions);
  assertOneOf(options.keep, keepWords, 'keep');
  const sleepers = sleepersOf(resource, options.tag, 'sleep');
  const started = performance.now();
  const before = mappedBytesOf(sleepers);
  const falling = sleepers.filter(({ isAwake }) => isAwake);
  for (const sleeper of sleepers) sleeper.begin();
  try {
    for (const sleeper of sleepers) await sleeper.prepare(options.keep === 'host');
  } catch (error) {
    for (const sleeper of sleepers) sleeper.cancel();
    throw error;
  }
  await everyOne(sleepers, (sleeper) => sleeper.fallAsleep());
  return Object.freeze({
    releasedBytes: before - mappedBytesOf(sleepers),
    keptBytes: falling.reduce((sum, { keptBytes }) => sum + keptBytes, 0),
    elapsedMilliseconds: performance.now() - started,
  });
}

/**
 * Takes memory of the device again for what {@link sleepResource} gave back, at the same addresses, with the
 * contents if they were kept. If it fails, for want of memory or for another reason, everything stays asleep and
 * nothing is lost, and it can be called again. The host memory that kept the contents is given back.
 *
 * Stream order: when the promise resolves, the contents are there for every stream. The event loop goes on
 * while contents are copied; mapping blocks it.
 * @throws OutOfMemoryError if the device does not have the memory.
 * @throws UnsupportedError, ArgumentRangeError, and CisternError (`ERR_CISTERN_INVALID_STATE`), as
 * {@link sleepResource}.
 * @throws DriverError. If it is about host memory that is not needed any more, the memory is awake, and the
 * next call frees the host's.
 * @example
 * ```ts
 * using upstream = new VirtualMemoryResource();
 * await sleepResource(upstream, { keep: 'host' });
 * const { elapsedMilliseconds } = await wakeResource(upstream);
 * ```
 */
export async function wakeResource(resource: MemoryResource, options: WakeOptions = {}): Promise<WakeReport> {
  assertOptions(options, wakeOptions);
  const sleepers = sleepersOf(resource, options.tag, 'wake');
  const started = performance.now();
  const before = mappedBytesOf(sleepers);
  const waking = sleepers.filter(({ isAwake }) => !isAwake);
  const restoredBytes = waking.reduce((sum, { keptBytes }) => sum + keptBytes, 0);
  try {
    for (const sleeper of waking) await sleeper.wake();
  } catch (error) {
    await Promise.allSettled(waking.map((sleeper) => sleeper.sleepOn()));
    throw error;
  }
  throwFirst(attemptEach(sleepers, (sleeper) => sleeper.finishWaking()));
  return Object.freeze({ mappedBytes: mappedBytesOf(sleepers) - before, restoredBytes, elapsedMilliseconds: performance.now() - started });
}

function sleepersOf(resource: MemoryResource, tag: string | undefined, operation: string): Sleeper[] {
  assertMemoryResource(resource, 'resource');
  if (tag !== undefined) assertName(tag, 'tag');
  const sleeping = layersOf(resource).filter(isSleeping);
  const name = resource.constructor.name;
  if (sleeping.length === 0) {
    throw new UnsupportedError(`the ${name} cannot ${operation}: no VirtualMemoryResource is below it, and only the memory of those can`);
  }
  const tagged = sleeping.filter((each) => tag === undefined || each.tag === tag);
  if (tagged.length === 0) {
    throw new ArgumentRangeError(`tag must be one of a resource below the ${name}, got ${formatValue(tag)}`, 'ERR_INVALID_ARG_VALUE');
  }
  const sleepers = tagged.map(({ sleeper }) => sleeper);
  for (const sleeper of sleepers) sleeper.assertSettled(`${operation} the ${name}`);
  return sleepers;
}

function mappedBytesOf(sleepers: readonly Sleeper[]): number {
  return sleepers.reduce((sum, { mappedBytes }) => sum + mappedBytes, 0);
}

/** Calls an action for each, even if some fail, and throws the first error. */
async function everyOne(sleepers: readonly Sleeper[], action: (sleeper: Sleeper) => Promise<void>): Promise<void> {
  const results = await Promise.allSettled(sleepers.map(action));
  throwFirst(results.flatMap((result) => (result.status === 'rejected' ? [result.reason] : [])));
}
