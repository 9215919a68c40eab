import { ArgumentRangeError, formatValue, OutOfMemoryError, SpecificationError } from '../../basics/errors.js';
import { alignUp } from '../../basics/units.js';
import { assertOptions, optionNames } from '../../basics/validation.js';
import { Device } from '../../driver/device.js';
import { formatSpecification } from '../../specification/format-specification.js';
import { parseSpecification } from '../../specification/parse-specification.js';
import { createResourceStack } from '../../specification/resource-stack.js';
import type { Specification } from '../../specification/specification.js';
import type { AllocationLog } from './allocation-log.js';
import { assertReplayable, defaultRepeat, Replay, timePerOperation } from './replay-log.js';
import type { ReplayStreams, ReplayTime } from './replay-result.js';
import { maximumGranularityBytes, mostBytes, smallestMaximum } from './smallest-maximum.js';
import { type MemoryTaking, withMaxima } from './specification-maximum.js';

/** The progress of {@link fitLog}. */
export interface FitProgress {
  /** Number of replays done. */
  readonly replays: number;
  /** Approximate number of replays left. */
  readonly left: number;
}

/** Options of {@link fitLog}. */
export interface FitOptions {
  /**
   * The streams on which to replay the events.
   * @defaultValue `'log'`
   */
  readonly streams?: ReplayStreams | undefined;
  /**
   * How many times to measure the replay, alternating between the smallest maximum and none; at
   * least 1.
   * @defaultValue {@link defaultRepeat}
   */
  readonly repeat?: number | undefined;
  /**
   * How long to search, in milliseconds. After that, the result is the smallest maximum that was
   * found. A replay that is running, and the measured ones, are still finished.
   * @defaultValue no limit
   */
  readonly timeLimitMilliseconds?: number | undefined;
  /** Called after each replay. */
  readonly onProgress?: ((progress: FitProgress) => void) | undefined;
}

const knownOptions = optionNames<FitOptions>({ onProgress: 'function', repeat: true, streams: true, timeLimitMilliseconds: true });

/** The smallest maximum with which a stack completes a log. */
export interface FittedMaximum {
  /** The specification with this maximum. */
  readonly resource: string;
  /** A multiple of 256. */
  readonly bytes: number;
  /**
   * The excess of `bytes` over the peak of live bytes: 0.05 is 5 % more. Null if nothing is ever
   * live.
   */
  readonly overheadRatio: number | null;
}

/** The least memory that a stack needs for a log, and what it costs. You can write it as JSON. */
export interface FitResult {
  /** The given specification in canonical form. */
  readonly resource: string;
  /**
   * The specification with the smallest maximum, and the initial size if the memory is taken at
   * once; null if no maximum is enough.
   */
  readonly fitted: string | null;
  /**
   * How the fitted stack takes its memory; at once only if that needs less. Null if no maximum is
   * enough.
   */
  readonly taking: MemoryTaking | null;
  readonly streams: ReplayStreams;
  /** Allocations and frees in the log. */
  readonly operations: number;
  /** The most bytes live at once, as requested: what a perfect allocator would need. */
  readonly peakLiveBytes: number;
  /** The smallest maximum that completes the log, a multiple of 256, or null if none does. */
  readonly smallestMaximumBytes: number | null;
  /**
   * Whether the search was complete. If not, the time was over, and a smaller maximum may be
   * enough.
   */
  readonly isComplete: boolean;
  /**
   * The excess over `peakLiveBytes`: 0.05 is 5 % more. Null if there is no such maximum, or nothing
   * is ever live.
   */
  readonly overheadRatio: number | null;
  /**
   * The maximum that each way of taking memory needs. Null if no maximum is enough, or if the stack
   * has no choice, for example without a pool.
   */
  readonly maxima: { readonly asNeeded: FittedMaximum | null; readonly atOnce: FittedMaximum | null };
  readonly nanosecondsPerOperation: {
    /** With the smallest maximum, or null if there is none. */
    readonly smallest: ReplayTime | null;
    /**
     * Without a maximum; null if the log does not complete then, for example on a device with too
     * little memory.
     */
    readonly unlimited: ReplayTime | null;
  };
  /** Number of replays of the log, complete or up to a failure. */
  readonly replays: number;
}

/** A way to give a stack a maximum, and the search for the smallest. */
interface Candidate {
  readonly taking: MemoryTaking;
  readonly limited: (bytes: number) => Specification;
  /** Where the search starts. */
  least: number;
  /** The result of the search. */
  smallest: number | undefined;
}

/**
 * Finds the smallest maximum with which a stack of resources completes a log, and measures the time
 * it costs.
 *
 * The maximum applies to the memory that the innermost resource that can have one (`pool`, `arena`,
 * `fixed-size`, `monotonic`) may hold from its upstream. If there is none, `limiting` is put around
 * the leaf, or around the whole stack if it has branches; a limit counts allocated bytes, each
 * allocation rounded up to 256 bytes. A pool whose specification has no `initialBytes` is tried in
 * two ways: it grows block by block, or it takes all of its maximum at once, which leaves fewer
 * boundaries that an allocation cannot cross. The way that needs less is the result.
 *
 * Guaranteed: a replay with the result completed, and one with 256 bytes less did not. Completion
 * is not monotonic, because a pool with a larger maximum grows in different steps, and may be more
 * fragmented. So a much smaller maximum may be enough, too, and a larger one may not. The call
 * blocks until the search is done or the time is up.
 * @param specification text or object, without a maximum of its own
 * @throws SpecificationError if the specification is invalid; ArgumentRangeError if it has a
 * maximum.
 * @throws InvalidLogError if the log has no events.
 * @throws ReplayError, naming the line, for any error other than a lack of memory.
 * @example
 * ```ts
 * const log = await readAllocationLog('trace.csv.gz');
 * const { fitted, taking, smallestMaximumBytes, peakLiveBytes } = fitLog(log, 'pool(cuda, deallocationEvents=deferred)');
 * ```
 */
export function fitLog(log: AllocationLog, specification: string | Specification, options: FitOptions = {}): FitResult {
  assertOptions(options, knownOptions);
  assertReplayable(log, options);
  const { streams = 'log', repeat = defaultRepeat(log), timeLimitMilliseconds: timeLimit = Number.POSITIVE_INFINITY, onProgress } = options;
  if (!(typeof timeLimit === 'number' && timeLimit >= 0)) {
    throw new ArgumentRangeError(`timeLimitMilliseconds must be a number from 0, got ${formatValue(timeLimit)}`);
  }
  const began = performance.now();
  const unlimited = parseSpecification(specification);
  const peak = alignUp(log.peakLiveBytes, maximumGranularityBytes);
  const candidates = [...withMaxima(unlimited)].map(
    ([taking, limited]): Candidate => ({ taking, limited, least: peak, smallest: undefined }),
  );
  // Reports an invalid specification before any search starts.
  const most = mostBytes(deviceOf(unlimited));

  let replays = 0;
  const replayed = (left: number): void => {
    replays++;
    onProgress?.({ replays, left });
  };
  let isComplete = true;
  const search = (candidate: Candidate, searchesLeft: number) => {
    const end = began + timeLimit / (1 + searchesLeft);
    const isTimeUp = () => {
      const isUp = performance.now() >= end;
      if (isUp) isComplete = false;
      return isUp;
    };
    candidate.smallest = smallestMaximum(
      (bytes) => completes(log, candidate.limited(bytes), streams),
      candidate.least,
      most,
      // The searches that follow take about as long.
      ({ tried, left }) => replayed(left + searchesLeft * (tried + left) + 2 * repeat),
      isTimeUp,
    );
  };
  for (const [i, candidate] of candidates.entries()) search(candidate, candidates.length - 1 - i);
  for (;;) {
    const best = candidates.reduce((first, second) => ((second.smallest ?? most + 1) < (first.smallest ?? most + 1) ? second : first));
    const { smallest } = best;
    const fitted = smallest === undefined ? undefined : best.limited(smallest);
    const times = measureBoth(log, fitted, unlimited, streams, repeat, replayed);
    // If the host and the device run concurrently, a maximum may be enough in one replay and not in
    // the next. That counts as not enough.
    if (smallest !== undefined && times.smallest === null) {
      best.least = smallest + maximumGranularityBytes;
      search(best, 0);
      continue;
    }
    const maximumOf = (taking: MemoryTaking) =>
      fittedMaximum(
        candidates.find((candidate) => candidate.taking === taking),
        log,
      );
    const maxima = { asNeeded: maximumOf('as-needed'), atOnce: maximumOf('at-once') };
    return {
      resource: formatSpecification(unlimited),
      fitted: fitted === undefined ? null : formatSpecification(fitted),
      taking: fitted === undefined ? null : best.taking,
      streams,
      operations: log.eventCount,
      peakLiveBytes: log.peakLiveBytes,
      smallestMaximumBytes: smallest ?? null,
      isComplete,
      overheadRatio: (best.taking === 'at-once' ? maxima.atOnce : maxima.asNeeded)?.overheadRatio ?? null,
      maxima,
      nanosecondsPerOperation: times,
      replays,
    };
  }
}

function fittedMaximum(candidate: Candidate | undefined, log: AllocationLog): FittedMaximum | null {
  if (candidate?.smallest === undefined) return null;
  const { limited, smallest } = candidate;
  const overheadRatio = log.peakLiveBytes === 0 ? null : smallest / log.peakLiveBytes - 1;
  return { resource: formatSpecification(limited(smallest)), bytes: smallest, overheadRatio };
}

/**
 * Whether a stack replays a log without running out of memory. `false` if a resource refuses the
 * maximum as too small.
 */
function completes(log: AllocationLog, specification: Specification, streams: ReplayStreams): boolean {
  return withReplay(log, specification, streams, (replay) => {
    try {
      return replay.untilFailure(log.eventCount, (_, stop) => stop === undefined);
    } catch (error) {
      if (error instanceof OutOfMemoryError || error instanceof SpecificationError) return false;
      throw error;
    }
  });
}

function measureBoth(
  log: AllocationLog,
  smallest: Specification | undefined,
  unlimited: Specification,
  streams: ReplayStreams,
  repeat: number,
  onReplay: (left: number) => void,
): FitResult['nanosecondsPerOperation'] {
  // Alternating, so that both find the JavaScript engine in the same state.
  const subjects = [smallest, unlimited].map((specification) => ({
    specification,
    times: [] as number[],
    isComplete: specification !== undefined,
  }));
  for (let i = 0; i < repeat; i++) {
    for (const subject of subjects) {
      if (subject.specification === undefined || !subject.isComplete) continue;
      const time = measure(log, subject.specification, streams);
      onReplay(2 * (repeat - i) - 1);
      if (time === undefined) subject.isComplete = false;
      else subject.times.push(time);
    }
  }
  const [first, second] = subjects.map(({ isComplete, times }) => (isComplete ? timePerOperation(times, log) : null));
  return { smallest: first ?? null, unlimited: second ?? null };
}

/** The nanoseconds of a replay, or `undefined` if memory ran out. */
function measure(log: AllocationLog, specification: Specification, streams: ReplayStreams): number | undefined {
  return withReplay(log, specification, streams, (replay) => {
    try {
      const time = replay.measure();
      return replay.failures === 0 ? time : undefined;
    } catch (error) {
      if (error instanceof OutOfMemoryError) return undefined;
      throw error;
    }
  });
}

function withReplay<T>(log: AllocationLog, specification: Specification, streams: ReplayStreams, use: (replay: Replay) => T): T {
  const replay = new Replay(log, () => createResourceStack(specification), streams);
  try {
    return use(replay);
  } finally {
    replay.end();
  }
}

function deviceOf(specification: Specification): Device {
  try {
    using stack = createResourceStack(specification);
    return stack.resource.device;
  } catch (error) {
    if (error instanceof OutOfMemoryError) return Device.get();
    throw error;
  }
}
