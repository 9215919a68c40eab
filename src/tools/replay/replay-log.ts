import {
  ArgumentTypeError,
  attemptEach,
  formatValue,
  InvalidLogError,
  OutOfMemoryError,
  ReplayError,
  throwFirst,
} from '../../basics/errors.js';
import { assertFunction, assertInteger, assertOneOf, assertOptions, optionNames } from '../../basics/validation.js';
import type { Device } from '../../driver/device.js';
import { Event } from '../../driver/streams/event.js';
import { Stream } from '../../driver/streams/stream.js';
import type { ReservingMemoryResource, TrimmingMemoryResource } from '../../memory-resource.js';
import type { ResourceStack } from '../../specification/resource-stack.js';
import { driverCallCounts } from '../testing/driver-call-counts.js';
import { AllocationLog, chunkCapacity, type EventChunk } from './allocation-log.js';
import { failedPointer, type LoopState, Observations, observeOnStreams, replayOnOneStream, replayOnStreams } from './replay-loops.js';
import type { ReplayDriverCalls, ReplayFailure, ReplayResult, ReplayStreams, ReplayTime } from './replay-result.js';

/** Options of {@link replayLog}. */
export interface ReplayOptions {
  /**
   * The streams on which to replay the events.
   * @defaultValue `'log'`
   */
  readonly streams?: ReplayStreams | undefined;
  /**
   * How many times to measure the replay, each time on a fresh stack; at least 1. One more replay
   * comes first, which is observed instead of measured.
   * @defaultValue {@link defaultRepeat}
   */
  readonly repeat?: number | undefined;
  /** Called after each of the `repeat + 1` replays. */
  readonly onReplay?: (() => void) | undefined;
}

const knownOptions = optionNames<ReplayOptions>({ onReplay: 'function', repeat: true, streams: true });

/**
 * Replays a log through a stack of resources, and reports time, memory, driver calls and failures.
 *
 * Before a free on a stream other than the allocation's, the replay makes the wait that a correct
 * program would have made: it records its own event on the allocating stream, and the freeing
 * stream waits for it. An allocation that runs out of memory is counted, its free is skipped, and
 * the replay goes on. The call blocks until the replay is done.
 *
 * The streams are non-blocking streams made for the replay, on the stack's device. The log's legacy
 * default stream (`0x0`) becomes one of them, so it waits for no other stream. The per-thread
 * default stream (`0x2`) becomes one stream per thread.
 * @param createStack makes a stack, which the replay disposes; called once per replay
 * @throws InvalidLogError if the log has no events.
 * @throws ReplayError, naming the line, for any error other than a lack of memory.
 * @throws any error that `createStack` throws.
 * @example
 * ```ts
 * const log = await readAllocationLog('trace.csv.gz');
 * const result = replayLog(log, () => createResourceStack('pool(cuda, deallocationEvents=deferred)'), { streams: 'thread' });
 * console.log(result.nanosecondsPerOperation.median, result.driver.eventRecords);
 * ```
 */
export function replayLog(log: AllocationLog, createStack: () => ResourceStack, options: ReplayOptions = {}): ReplayResult {
  assertFunction(createStack, 'createStack');
  assertOptions(options, knownOptions);
  assertReplayable(log, options);
  const { streams = 'log', repeat = defaultRepeat(log), onReplay } = options;
  const replay = new Replay(log, createStack, streams);
  try {
    const observed = replay.observe();
    onReplay?.();
    const times: number[] = [];
    for (let i = 0; i < repeat; i++) {
      times.push(replay.measure());
      onReplay?.();
    }
    return { ...observed, repetitions: repeat, nanosecondsPerOperation: timePerOperation(times, log) };
  } finally {
    replay.end();
  }
}

/** @internal Throws unless a log can be replayed with these options. */
export function assertReplayable(log: AllocationLog, { streams, repeat }: Pick<ReplayOptions, 'streams' | 'repeat'>): void {
  if (!(log instanceof AllocationLog)) throw new ArgumentTypeError(`log must be an AllocationLog, got ${formatValue(log)}`);
  if (streams !== undefined) assertOneOf(streams, ['log', 'thread', 'single'], 'streams');
  if (repeat !== undefined) assertInteger(repeat, 'repeat', 1);
  if (log.eventCount === 0) throw new InvalidLogError(log.source, undefined, 'has no events to replay');
}

/**
 * The default number of measured replays: enough for a million operations, so that a short log is
 * measured warm, but at least 3 and at most 100.
 */
export function defaultRepeat(log: AllocationLog): number {
  return Math.min(100, Math.max(3, Math.ceil(1e6 / log.eventCount)));
}

/** An allocation that is live at some point of a log. */
export interface LiveAllocation {
  /** The number of the allocation's event. */
  readonly event: number;
  readonly slot: number;
  readonly bytes: number;
  readonly streamIndex: number;
}

/** @internal An allocation in a replay that ran out of memory. */
export interface ReplayStop {
  readonly event: number;
  readonly error: OutOfMemoryError;
}

/** Ends a replay from within. */
class Stopped extends Error {
  readonly stop: ReplayStop;

  constructor(stop: ReplayStop) {
    super();
    this.stop = stop;
  }
}

/** @internal Replays one log through identical stacks. */
export class Replay {
  readonly #log: AllocationLog;
  readonly #createStack: () => ResourceStack;
  readonly #mode: ReplayStreams;
  readonly #streamNames: readonly string[];
  #device: Device | undefined;
  #streams: Stream[] = [];
  #events: Event[] = [];
  readonly #pointers: Float64Array;
  readonly #owners: Uint32Array;
  readonly #oneStream = new Uint32Array(chunkCapacity);

  #chunkIndex = 0;
  /** The allocations that the log does not free. */
  #unfreed: readonly LiveAllocation[] | undefined;
  /** The event at which the replay failed. */
  #stoppedAt = 0;
  #failures = 0;
  #firstFailure: ReplayFailure | null = null;

  constructor(log: AllocationLog, createStack: () => ResourceStack, mode: ReplayStreams) {
    this.#log = log;
    this.#createStack = createStack;
    this.#mode = mode;
    this.#streamNames = mode === 'log' ? log.streams : mode === 'thread' ? log.threads : ['all'];
    this.#pointers = new Float64Array(log.slotCount);
    this.#owners = new Uint32Array(log.slotCount);
  }

  /** Replays once and records everything except the time. */
  observe(): Omit<ReplayResult, 'repetitions' | 'nanosecondsPerOperation'> {
    const log = this.#log;
    const seen = new Observations(log.slotCount);
    const before = driverCallCounts();
    using stack = this.#createStack();
    const leaves = countedLeaves(stack);
    for (const leaf of leaves ?? []) leaf.resetPeakReservedBytes();
    const state = this.#state(stack);
    this.#run(state, () => {
      for (const chunk of this.#chunks()) observeOnStreams(chunk, this.#streamIndexes(chunk), state, seen);
    });
    const after = driverCallCounts();
    const peakReservedBytes = sum(leaves, (leaf) => leaf.peakReservedBytes);
    this.#freeRest(state, log.eventCount);
    return {
      resource: stack.name,
      events: stack.deallocationEvents,
      streams: this.#mode,
      streamCount: this.#streamNames.length,
      operations: log.eventCount,
      peakLiveBytes: seen.peakLiveBytes,
      peakReservedBytes: peakReservedBytes === null ? null : peakReservedBytes - stack.foreignReservedBytes,
      highWaterBytes: Math.max(0, seen.highestAddress - seen.lowestAddress),
      failures: this.#failures,
      firstFailure: this.#firstFailure,
      leakedBytes: leakedBytes(stack),
      logLeakedBytes: log.unfreedBytes,
      driver: driverCalls(before, after, seen.waits),
      replayer: { eventRecords: seen.waits, eventWaits: seen.waits },
    };
  }

  /** Replays once on a fresh stack. Returns the nanoseconds that the events took. */
  measure(): number {
    using stack = this.#createStack();
    const state = this.#state(stack);
    const isSingle = this.#streamNames.length === 1;
    const start = process.hrtime.bigint();
    this.#run(state, () => {
      if (isSingle) for (const chunk of this.#chunks()) replayOnOneStream(chunk, state);
      else for (const chunk of this.#chunks()) replayOnStreams(chunk, this.#streamIndexes(chunk), state);
    });
    const end = process.hrtime.bigint();
    this.#freeRest(state, this.#log.eventCount);
    stack.resource.device.synchronizeSync();
    return Number(end - start);
  }

  /**
   * Replays the first `eventCount` events on a fresh stack, up to the first allocation that runs
   * out of memory.
   * @param look receives the stack at that point, and the allocation that ran out of memory, if any
   * @returns what `look` returns
   */
  untilFailure<T>(eventCount: number, look: (stack: ResourceStack, stop: ReplayStop | undefined) => T): T {
    using stack = this.#createStack();
    const state: LoopState = { ...this.#state(stack), onError: (error, row) => this.#stopOnError(error, row) };
    let stop: ReplayStop | undefined;
    try {
      this.#run(state, () => {
        for (const chunk of this.#chunks()) {
          const count = Math.min(chunk.count, eventCount - this.#chunkIndex * chunkCapacity);
          if (count <= 0) break;
          replayOnStreams(count === chunk.count ? chunk : { ...chunk, count }, this.#streamIndexes(chunk), state);
        }
      });
    } catch (error) {
      if (!(error instanceof Stopped)) throw error;
      stop = error.stop;
    }
    const result = look(stack, stop);
    this.#freeRest(state, stop?.event ?? eventCount);
    stack.resource.device.synchronizeSync();
    return result;
  }

  /** Describes an event at which memory ran out. */
  failureOf({ event: index, error }: ReplayStop): ReplayFailure {
    const { line, bytes } = this.#log.event(index);
    return { line, event: index, bytes, stream: this.streamNameOf(index), message: error.message };
  }

  /** The name of the stream that an event is replayed on. */
  streamNameOf(index: number): string {
    return this.#streamNames[this.#streamIndexOf(index)] as string;
  }

  /** The stream itself, for inspecting a stack. */
  streamOf(index: number): Stream {
    return this.#streams[this.#streamIndexOf(index)] as Stream;
  }

  /** Number of allocations that ran out of memory, in all replays. */
  get failures(): number {
    return this.#failures;
  }

  /**
   * Destroys the streams and events.
   * @throws the driver's first error, after everything has been tried.
   */
  end(): void {
    throwFirst(attemptEach([...this.#events, ...this.#streams], (each) => each.dispose()));
  }

  #state(stack: ResourceStack): LoopState {
    const { resource } = stack;
    const { device } = resource;
    if (this.#device !== device) {
      this.end();
      this.#device = device;
      // One by one: if one cannot be created, those before it are destroyed.
      this.#streams = [];
      this.#events = [];
      for (const _ of this.#streamNames) this.#streams.push(new Stream({ device, nonBlocking: true }));
      if (this.#streamNames.length > 1) for (const _ of this.#streamNames) this.#events.push(new Event({ device }));
    }
    return {
      resource,
      streams: this.#streams,
      events: this.#events,
      pointers: this.#pointers,
      owners: this.#owners,
      onError: (error, row) => this.#onError(error, row),
    };
  }

  *#chunks(): Generator<EventChunk> {
    for (this.#chunkIndex = 0; this.#chunkIndex < this.#log.chunks.length; this.#chunkIndex++) {
      yield this.#log.chunks[this.#chunkIndex] as EventChunk;
    }
  }

  #streamIndexOf(index: number): number {
    return this.#streamIndexes(this.#log.chunks[Math.floor(index / chunkCapacity)] as EventChunk)[index % chunkCapacity] as number;
  }

  #streamIndexes(chunk: EventChunk): Uint32Array {
    return this.#mode === 'log' ? chunk.streams : this.#mode === 'thread' ? chunk.threads : this.#oneStream;
  }

  #onError(error: unknown, row: number): void {
    const index = this.#chunkIndex * chunkCapacity + row;
    const event = this.#log.event(index);
    if (event.action === 'allocate' && error instanceof OutOfMemoryError) {
      this.#failures++;
      this.#firstFailure ??= this.failureOf({ event: index, error });
      return;
    }
    this.#stoppedAt = index;
    const reason = error instanceof Error ? error.message : formatValue(error);
    throw new ReplayError(
      `${this.#log.source}, line ${event.line}: the replay of "${event.action} ${event.bytes} bytes" failed: ${reason}`,
      event.line,
      error,
    );
  }

  #stopOnError(error: unknown, row: number): void {
    const index = this.#chunkIndex * chunkCapacity + row;
    if (error instanceof OutOfMemoryError && this.#log.event(index).action === 'allocate') throw new Stopped({ event: index, error });
    this.#onError(error, row);
  }

  /** If the replay fails, frees what is live, so that the stack does not keep it. */
  #run(state: LoopState, replay: () => void): void {
    try {
      replay();
    } catch (error) {
      if (error instanceof Stopped) throw error;
      try {
        this.#freeRest(state, this.#stoppedAt);
      } catch {}
      throw error;
    }
  }

  /**
   * Frees what is live after `eventCount` events, each allocation on its own stream. A refused free
   * is tried a second time.
   */
  #freeRest(state: LoopState, eventCount: number): void {
    const errors: unknown[] = [];
    if (eventCount === this.#log.eventCount) this.#unfreed ??= this.liveAfter(eventCount);
    const live = eventCount === this.#log.eventCount ? this.#unfreed : this.liveAfter(eventCount);
    let left = (live ?? []).filter(({ slot }) => state.pointers[slot] !== failedPointer);
    for (let attempt = 0; attempt < 2; attempt++) {
      left = left.filter(({ slot, bytes, streamIndex }) => {
        try {
          state.resource.deallocate(state.pointers[slot] as number, bytes, state.streams[streamIndex] as Stream);
          return false;
        } catch (error) {
          errors.push(error);
          return true;
        }
      });
    }
    throwFirst(errors);
  }

  /**
   * The allocations live after `eventCount` events, if none of them failed, in order of allocation.
   */
  liveAfter(eventCount: number): LiveAllocation[] {
    const { chunks, slotCount } = this.#log;
    const events = new Int32Array(slotCount).fill(-1);
    for (let index = 0; index < eventCount; index++) {
      const slot = (chunks[Math.floor(index / chunkCapacity)] as EventChunk).operations[index % chunkCapacity] as number;
      if (slot < 0) events[~slot] = -1;
      else events[slot] = index;
    }
    const live: LiveAllocation[] = [];
    for (let slot = 0; slot < slotCount; slot++) {
      const event = events[slot] as number;
      if (event < 0) continue;
      const chunk = chunks[Math.floor(event / chunkCapacity)] as EventChunk;
      const row = event % chunkCapacity;
      live.push({ event, slot, bytes: chunk.sizes[row] as number, streamIndex: this.#streamIndexes(chunk)[row] as number });
    }
    return live.sort((a, b) => a.event - b.event);
  }
}

/**
 * The leaves that report what they hold, but only one of several equal leaves, which share a count;
 * `undefined` if any leaf does not report it.
 */
function countedLeaves(stack: ResourceStack): ReservingMemoryResource[] | undefined {
  const counted: ReservingMemoryResource[] = [];
  for (const leaf of stack.leaves) {
    if (!('resetPeakReservedBytes' in leaf)) return undefined;
    if (!counted.some((other) => other.isEqual(leaf))) counted.push(leaf as ReservingMemoryResource);
  }
  return counted;
}

/** Disposes everything except the leaves. Returns the bytes that the leaves still hold. */
function leakedBytes(stack: ResourceStack): number | null {
  const { device } = stack.resource;
  device.synchronizeSync();
  stack.disposeAdaptors();
  device.synchronizeSync();
  for (const leaf of stack.leaves) {
    // A leaf that keeps freed memory must first release it.
    if ('trim' in leaf) (leaf as TrimmingMemoryResource).trim(Stream.legacyDefault(leaf.device));
  }
  const reservedBytes = sum(countedLeaves(stack), (leaf) => leaf.reservedBytes);
  return reservedBytes === null ? null : Math.max(0, reservedBytes - stack.foreignReservedBytes);
}

function sum<T>(items: readonly T[] | undefined, value: (item: T) => number): number | null {
  return items === undefined ? null : items.reduce((total, item) => total + value(item), 0);
}

function driverCalls(before: ReplayDriverCalls, after: ReplayDriverCalls, replayerWaits: number): ReplayDriverCalls {
  return {
    allocations: after.allocations - before.allocations,
    frees: after.frees - before.frees,
    eventRecords: after.eventRecords - before.eventRecords - replayerWaits,
    eventWaits: after.eventWaits - before.eventWaits - replayerWaits,
    synchronizations: after.synchronizations - before.synchronizations,
  };
}

/** @internal Nanoseconds per operation, from the nanoseconds of whole replays. */
export function timePerOperation(nanoseconds: readonly number[], log: AllocationLog): ReplayTime {
  const sorted = nanoseconds.map((time) => time / log.eventCount).sort((a, b) => a - b);
  return { median: median(sorted), minimum: sorted[0] as number };
}

function median(sorted: readonly number[]): number {
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? (sorted[middle] as number) : ((sorted[middle - 1] as number) + (sorted[middle] as number)) / 2;
}
