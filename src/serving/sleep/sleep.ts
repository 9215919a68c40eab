import { layersOf } from '../../adaptors/layers.js';
import { attemptEach, formatValue, invalidValue, throwFirst, UnsupportedError } from '../../basics/errors.js';
import { assertBytes, assertName, assertOneOf, assertOptions, optionNames } from '../../basics/validation.js';
import { assertMemoryResource, type MemoryResource } from '../../memory-resource.js';
import { canSleep } from '../../observing/sleepable.js';
import { Sleeper } from './sleeping-memory.js';

/** Options of {@link sleepResource}. */
export interface SleepOptions {
  /**
   * What happens to the contents: `'host'` keeps them in pinned host memory until the memory wakes;
   * `'nothing'` discards them.
   */
  readonly keep: 'host' | 'nothing';
  /**
   * Puts only memory of resources with this tag to sleep ({@link
   * VirtualMemoryResourceOptions.tag}).
   * @defaultValue all memory that can sleep
   */
  readonly tag?: string | undefined;
  /**
   * Whether no kernel, graph or other library has written to the memory since it last woke, as with the weights of a model. What that wake has left on
   * the host ({@link WakeOptions.stagingBytes}) is then not copied again. cistern cannot know that; if it is not true, the memory wakes with the older
   * contents. What cistern itself has written since (copies, fills, buffers that had left) is copied again, and so is what a
   * {@link VirtualMemoryResource} has allocated since.
   * @defaultValue false
   */
  readonly unchanged?: boolean | undefined;
}

/** Options of {@link wakeResource}. */
export interface WakeOptions {
  /**
   * Wakes only memory of resources with this tag.
   * @defaultValue all memory that is asleep
   */
  readonly tag?: string | undefined;
  /**
   * How many bytes of the page-locked host memory that kept the contents stay with each resource for its next sleep, which then need not take
   * and pin that memory again. A later wake with fewer, or disposing of the resource, frees what is more.
   * @defaultValue 0
   */
  readonly stagingBytes?: number | undefined;
}

/** The result of {@link sleepResource}. */
export interface SleepReport {
  /** Bytes that were returned to the device. */
  readonly releasedBytes: number;
  /** Bytes of the contents that are kept on the host. */
  readonly keptBytes: number;
  /** Those of them that were copied; fewer than all only with {@link SleepOptions.unchanged}. */
  readonly copiedBytes: number;
  readonly elapsedMilliseconds: number;
}

/** The result of {@link wakeResource}. */
export interface WakeReport {
  /** Bytes that were taken from the device. */
  readonly mappedBytes: number;
  /** Bytes of the contents that were copied back from the host. */
  readonly restoredBytes: number;
  readonly elapsedMilliseconds: number;
}

const sleepOptions = optionNames<SleepOptions>({ keep: true, tag: true, unchanged: 'boolean' });
const wakeOptions = optionNames<WakeOptions>({ stagingBytes: true, tag: true });
const keepWords = ['host', 'nothing'] as const;

/**
 * Returns the memory of a stack to the device, while every address stays the same: pointers, buffers,
 * tensors of other libraries and captured graphs are valid again after {@link wakeResource}. Only the
 * memory of each {@link VirtualMemoryResource} in the stack sleeps; memory of other leaves stays where it
 * is. Pooling resources above it first return free memory ({@link TrimmingMemoryResource.trim}), so that
 * only memory in use is kept. Memory that is already asleep stays asleep.
 *
 * Stream order: memory is returned after everything queued on the devices before this call has run. The
 * event loop goes on while the devices work and contents are copied; only unmapping, and a wait for streams
 * that this worker does not know, block it. From this call until the memory is awake, cistern refuses to use
 * it (`ERR_CISTERN_ASLEEP`): allocations, copies, fills, {@link DeviceBuffer.ptr}, launches of graphs of a
 * {@link GraphMemoryResource} over it. Memory that is asleep can be freed. cistern does not see work that
 * other libraries queue themselves, or a {@link GraphExec} captured without such a resource: do not run
 * these before the memory is awake.
 *
 * While a stream is held, this waits until the hold is released.
 *
 * RMM has no counterpart; vLLM's is its sleep mode.
 * @throws UnsupportedError if no memory of the stack can sleep; ArgumentRangeError
 * (`ERR_INVALID_ARG_VALUE`) if no resource has the tag.
 * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) while an earlier call for the same memory has not
 * resolved, or if another worker has part of the memory; (`ERR_CISTERN_CAPTURING`) while a stream is
 * captured.
 * @throws OutOfMemoryError if the host does not have the memory for the contents.
 * @throws DriverError. Only after this error may some of the memory be asleep: memory that the driver refused to
 * unmap stays mapped, and the next call unmaps it. After any other error, the memory is awake, with its contents.
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
  const releasedBytes = mappedBytesOf(sleepers);
  const falling = sleepers.filter(({ isAwake }) => isAwake);
  for (const sleeper of sleepers) sleeper.begin();
  try {
    for (const sleeper of sleepers) await sleeper.prepare(options.keep === 'host', options.unchanged === true);
  } catch (error) {
    for (const sleeper of sleepers) sleeper.cancel();
    throw error;
  }
  await everyOne(sleepers, (sleeper) => sleeper.fallAsleep());
  return Object.freeze({
    releasedBytes,
    keptBytes: falling.reduce((sum, { keptBytes }) => sum + keptBytes, 0),
    copiedBytes: falling.reduce((sum, { copiedBytes }) => sum + copiedBytes, 0),
    elapsedMilliseconds: performance.now() - started,
  });
}

/**
 * Takes memory from the device again for the memory that {@link sleepResource} returned, at the same addresses,
 * with the contents if they were kept, and then frees the host memory that kept them, but for {@link WakeOptions.stagingBytes}. If it fails, because of a
 * lack of memory or for another reason, everything stays asleep, nothing is lost, and you can call it again.
 *
 * Stream order: when the promise resolves, all streams can use the contents. The event loop goes on while
 * contents are copied; mapping blocks it.
 * @throws OutOfMemoryError if the device does not have the memory.
 * @throws UnsupportedError, ArgumentRangeError, and CisternError (`ERR_CISTERN_INVALID_STATE`), as
 * {@link sleepResource}.
 * @throws DriverError. If only the host memory of the contents cannot be freed, the memory is awake, and
 * the next call frees the host memory.
 * @example
 * ```ts
 * using upstream = new VirtualMemoryResource();
 * await sleepResource(upstream, { keep: 'host' });
 * const { elapsedMilliseconds } = await wakeResource(upstream);
 * ```
 */
export async function wakeResource(resource: MemoryResource, options: WakeOptions = {}): Promise<WakeReport> {
  assertOptions(options, wakeOptions);
  const { stagingBytes = 0 } = options;
  assertBytes(stagingBytes, 'stagingBytes');
  const sleepers = sleepersOf(resource, options.tag, 'wake');
  const started = performance.now();
  const before = mappedBytesOf(sleepers);
  const waking = sleepers.filter(({ isAwake }) => !isAwake);
  const restoredBytes = waking.reduce((sum, { keptBytes }) => sum + keptBytes, 0);
  for (const sleeper of waking) sleeper.beginWaking();
  try {
    for (const sleeper of waking) await sleeper.wake();
  } catch (error) {
    await Promise.allSettled(waking.map((sleeper) => sleeper.sleepOn()));
    throw error;
  }
  throwFirst(attemptEach(sleepers, (sleeper) => sleeper.finishWaking(stagingBytes)));
  return Object.freeze({ mappedBytes: mappedBytesOf(sleepers) - before, restoredBytes, elapsedMilliseconds: performance.now() - started });
}

function sleepersOf(resource: MemoryResource, tag: string | undefined, operation: string): Sleeper[] {
  assertMemoryResource(resource, 'resource');
  if (tag !== undefined) assertName(tag, 'tag');
  const sleeping = layersOf(resource).filter(canSleep);
  const name = resource.constructor.name;
  if (sleeping.length === 0) {
    throw new UnsupportedError(
      `the ${name} cannot ${operation}: only the memory of a VirtualMemoryResource can, and there is none below it`,
    );
  }
  const tagged = sleeping.filter((each) => tag === undefined || each.tag === tag);
  if (tagged.length === 0) {
    throw invalidValue(`tag must be one of a resource below the ${name}, got ${formatValue(tag)}`);
  }
  const sleepers = tagged.map(({ sleepable }) => Sleeper.of(sleepable));
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
