import { attemptEach, throwFirst } from '../collect-errors.js';
import { driverCallCounts } from '../driver/call-counts.js';
import type { Device } from '../driver/device.js';
import { Event } from '../driver/event.js';
import { Stream } from '../driver/stream.js';
import { ArgumentRangeError, ArgumentTypeError, formatValue, InvalidLogError, OutOfMemoryError, ReplayError } from '../errors.js';
import type { ReservingMemoryResource, TrimmingMemoryResource } from '../memory-resource.js';
import type { ResourceStack } from '../specification/resource-stack.js';
import { assertOneOf, assertOptions, optionNames } from '../validation.js';
import { AllocationLog, chunkCapacity, type EventChunk } from './allocation-log.js';
import { failedPointer, type LoopState, Observations, observeOnStreams, replayOnOneStream, replayOnStreams } from './replay-loops.js';
import type { ReplayDriverCalls, ReplayFailure, ReplayResult, ReplayStreams, ReplayTime } from './replay-result.js';

/** Options of {@link replayLog}. */
export interface ReplayOptions {
  /**
   * Which streams the events go to.
   * @defaultValue `'log'`
   */
  readonly streams?: ReplayStreams;
  /**
   * How often the replay is measured, each time on a fresh stack; at least 1. One replay more comes first, which is observed instead.
   * @defaultValue what {@link defaultRepeat} says
   */
  readonly repeat?: number;
  /** Called after each of the `repeat + 1` replays. */
  readonly onReplay?: () => void;
}

const knownOptions = optionNames<ReplayOptions>({ onReplay: true, repeat: true, streams: true });

/**
 * Replays what a log recorded through a stack of resources, and says what that took: time, memory, driver calls, failures.
 *
 * A free on another stream than the allocation's comes after the wait that a correct program would have made: the replay records an event
 * of its own on the allocating stream, for which the freeing stream waits. An allocation that runs out of memory is counted, its free is
 * skipped, and the replay goes on. Blocks until it is over.
 *
 * The streams are non-blocking ones made for the replay, on the stack's device; also what the log calls the legacy default stream (`0x0`)
 * is one of them, so that it waits for no other. The per-thread default stream (`0x2`) is one stream per thread.
 * @param createStack makes a stack, which the replay disposes; called once per replay
 * @throws InvalidLogError for a log without events.
 * @throws ReplayError, naming the line, for any other error than exhausted memory.
 * @throws whatever `createStack` throws.
 * @example
 * ```ts
 * const log = await readAllocationLog('trace.csv.gz');
 * const result = replayLog(log, () => createResourceStack('pool(cuda, events=deferred)'), { streams: 'thread' });
 * console.log(result.nanosecondsPerOperation.median, result.driver.eventRecords);
 * ```
 */
export function replayLog(log: AllocationLog, createStack: () => ResourceStack, options: ReplayOptions = {}): ReplayResult {
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
  if (repeat !== undefined && (!Number.isSafeInteger(repeat) || repeat < 1))
    throw new ArgumentRangeError(`repeat must be an integer from 1, got ${formatValue(repeat)}`);
  if (log.eventCount === 0) throw new InvalidLogError(log.source, undefined, 'has no events to replay');
}

/**
 * How often a log is replayed to be measured where nobody says: until a million operations, so that a short log is measured warm, but from 3
 * to 100 times.
 */
export function defaultRepeat(log: AllocationLog): number {
  return Math.min(100, Math.max(3, Math.ceil(1e6 / log.eventCount)));
}

/** An allocation that is live at some point of a log. */
export interface LiveAllocation {
  /** The number of the event that made it. */
  readonly event: number;
  readonly slot: number;
  readonly bytes: number;
  readonly streamIndex: number;
}

/** @internal An allocation of a replay that ran out of memory. */
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

/** @internal Replays of one log through stacks that are made alike. */
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
  /** What the log does not free. */
  #unfreed: readonly LiveAllocation[] | undefined;
  /** The event that the replay could not go on from. */
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

  /** Replays once and notes everything but the time. */
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

  /** Replays once on a fresh stack, and returns the nanoseconds that the events took. */
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
   * Replays the first `eventCount` events on a fresh stack, up to the first allocation that runs out of memory.
   * @param look is shown the stack as it is then, and what ran out of memory if anything did
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

  /** An event at which memory ran out, for people. */
  failureOf({ event: index, error }: ReplayStop): ReplayFailure {
    const { line, bytes } = this.#log.event(index);
    return { line, event: index, bytes, stream: this.streamNameOf(index), message: error.message };
  }

  /** The name of the stream that an event goes to. */
  streamNameOf(index: number): string {
    return this.#streamNames[this.#streamIndexOf(index)] as string;
  }

  /** The stream itself, for what looks at a stack. */
  streamOf(index: number): Stream {
    return this.#streams[this.#streamIndexOf(index)] as Stream;
  }

  /** Allocations that ran out of memory so far, in all replays. */
  get failures(): number {
    return this.#failures;
  }

  /**
   * Gives streams and events back.
   * @throws what the driver refused first, once everything was tried.
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
      // One by one: where one cannot be made, those before it are given back.
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

  /** Where the replay fails, what is live then goes back to a stack that may keep none of it. */
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

  /** Frees what so many events leave, each allocation on its own stream. What is refused is tried once more. */
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

  /** The allocations that are live after so many events, if none of them failed, in the order in which they were made. */
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

/** The leaves that say what they hold, and of equal ones, which share their count, one; `undefined` where a leaf does not say. */
function countedLeaves(stack: ResourceStack): ReservingMemoryResource[] | undefined {
  const counted: ReservingMemoryResource[] = [];
  for (const leaf of stack.leaves) {
    if (!('resetPeakReservedBytes' in leaf)) return undefined;
    if (!counted.some((other) => other.isEqual(leaf))) counted.push(leaf as ReservingMemoryResource);
  }
  return counted;
}

/** Disposes everything but the leaves, and returns what those still hold. */
function leakedBytes(stack: ResourceStack): number | null {
  const { device } = stack.resource;
  device.synchronizeSync();
  stack.disposeAdaptors();
  device.synchronizeSync();
  for (const leaf of stack.leaves) {
    // A leaf that keeps freed memory has to let go of it first.
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

/** @internal Nanoseconds per operation out of the nanoseconds of whole replays. */
export function timePerOperation(nanoseconds: readonly number[], log: AllocationLog): ReplayTime {
  const sorted = nanoseconds.map((time) => time / log.eventCount).sort((a, b) => a - b);
  return { median: median(sorted), minimum: sorted[0] as number };
}

function median(sorted: readonly number[]): number {
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? (sorted[middle] as number) : ((sorted[middle - 1] as number) + (sorted[middle] as number)) / 2;
}
