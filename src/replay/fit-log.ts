import { Device } from '../driver/device.js';
import { OutOfMemoryError, SpecificationError } from '../errors.js';
import { formatSpecification } from '../specification/format-specification.js';
import { parseSpecification } from '../specification/parse-specification.js';
import { createResourceStack } from '../specification/resource-stack.js';
import type { Specification } from '../specification/specification.js';
import { alignUp } from '../units.js';
import { assertOptions, optionNames } from '../validation.js';
import type { AllocationLog } from './allocation-log.js';
import { assertReplayable, defaultRepeat, Replay, timePerOperation } from './replay-log.js';
import type { ReplayStreams, ReplayTime } from './replay-result.js';
import { maximumGranularityBytes, mostBytes, smallestMaximum } from './smallest-maximum.js';
import { type MemoryTaking, withMaxima } from './specification-maximum.js';

/** How far {@link fitLog} has come. */
export interface FitProgress {
  /** Replays so far. */
  readonly replays: number;
  /** How many are still to come, about. */
  readonly left: number;
}

/** Options of {@link fitLog}. */
export interface FitOptions {
  /**
   * Which streams the events go to.
   * @defaultValue `'log'`
   */
  readonly streams?: ReplayStreams;
  /**
   * How often the replay is measured, with the smallest maximum and without one in turn; at least 1.
   * @defaultValue what {@link defaultRepeat} says
   */
  readonly repeat?: number;
  /** Called after each replay. */
  readonly onProgress?: (progress: FitProgress) => void;
}

const knownOptions = optionNames<FitOptions>({ onProgress: true, repeat: true, streams: true });

/** The smallest maximum with which a stack completes a log. */
export interface FittedMaximum {
  /** The specification with that maximum in it. */
  readonly resource: string;
  /** A multiple of 256. */
  readonly bytes: number;
  /** How much larger that is than the peak of live bytes: 0.05 is 5 % more. Null where nothing is ever live. */
  readonly overheadRatio: number | null;
}

/** The least memory that a stack needs for a log, and what it costs. All of it can be written as JSON. */
export interface FitResult {
  /** The specification as it was given, in canonical form. */
  readonly resource: string;
  /** The specification with the smallest maximum in it, and what is to be taken at once, or null where no maximum is enough. */
  readonly fitted: string | null;
  /** How the fitted stack takes its memory; at once only if that needs less. Null where no maximum is enough. */
  readonly taking: MemoryTaking | null;
  readonly streams: ReplayStreams;
  /** Allocations and frees in the log. */
  readonly operations: number;
  /** The most bytes that are live at once, as asked for: what a perfect allocator would need. */
  readonly peakLiveBytes: number;
  /** The smallest maximum that completes the log, a multiple of 256, or null where none does. */
  readonly smallestMaximumBytes: number | null;
  /** How much larger that is than `peakLiveBytes`: 0.05 is 5 % more. Null where there is none, or nothing is live. */
  readonly overheadRatio: number | null;
  /** What each way of taking memory needs: null where no maximum is enough, or where a stack has not the choice, as without a pool. */
  readonly maxima: { readonly asNeeded: FittedMaximum | null; readonly atOnce: FittedMaximum | null };
  readonly nanosecondsPerOperation: {
    /** With the smallest maximum, or null where there is none. */
    readonly smallest: ReplayTime | null;
    /** Without a maximum, or null where the log is not completed then, as on a device with too little memory. */
    readonly unlimited: ReplayTime | null;
  };
  /** How often the log was replayed, wholly or up to a failure. */
  readonly replays: number;
}

/** A way of giving a stack a maximum, and the search for the smallest one. */
interface Candidate {
  readonly taking: MemoryTaking;
  readonly limited: (bytes: number) => Specification;
  /** Where the search begins. */
  least: number;
  /** What it found. */
  smallest: number | undefined;
}

/**
 * Finds the smallest maximum with which a stack of resources completes a log, and measures what it costs in time.
 *
 * The maximum is that of the innermost resource of the stack that can have one (`pool`, `arena`, `fixed-size`, `monotonic`): what it may hold of
 * its upstream. In a stack without one, `limiting` goes around the leaf, and in a stack with branches around the whole; those count what is
 * allocated, each allocation rounded up to 256 bytes. A pool whose specification has no `initial` is tried twice: it grows block by block, or
 * takes all of its maximum at once, which has fewer edges that an allocation cannot cross. The one that needs less is the result.
 *
 * What is guaranteed: a replay with the result completed, and one with 256 bytes less did not. Completion is not monotonic: a pool that may hold
 * more grows in other steps, and may be more fragmented; so a maximum further below may be enough, too, and not every one above must be.
 * Blocks until it is over.
 * @param specification text or object, without a maximum of its own
 * @throws SpecificationError for a wrong specification; ArgumentRangeError for one that has a maximum.
 * @throws InvalidLogError for a log without events.
 * @throws ReplayError, naming the line, for any other error than exhausted memory.
 * @example
 * ```ts
 * const log = await readAllocationLog('trace.csv.gz');
 * const { fitted, taking, smallestMaximumBytes, peakLiveBytes } = fitLog(log, 'pool(cuda, events=deferred)');
 * ```
 */
export function fitLog(log: AllocationLog, specification: string | Specification, options: FitOptions = {}): FitResult {
  assertOptions(options, knownOptions);
  assertReplayable(log, options);
  const { streams = 'log', repeat = defaultRepeat(log), onProgress } = options;
  const unlimited = parseSpecification(specification);
  const peak = alignUp(log.peakLiveBytes, maximumGranularityBytes);
  const candidates = [...withMaxima(unlimited)].map(
    ([taking, limited]): Candidate => ({ taking, limited, least: peak, smallest: undefined }),
  );
  // What is wrong with the specification itself is told before anything is searched for.
  const most = mostBytes(deviceOf(unlimited));

  let replays = 0;
  const replayed = (left: number): void => {
    replays++;
    onProgress?.({ replays, left });
  };
  const search = (candidate: Candidate, searchesLeft: number) => {
    candidate.smallest = smallestMaximum(
      (bytes) => completes(log, candidate.limited(bytes), streams),
      candidate.least,
      most,
      // The searches that follow take as long, about.
      ({ tried, left }) => replayed(left + searchesLeft * (tried + left) + 2 * repeat),
    );
  };
  for (const [i, candidate] of candidates.entries()) search(candidate, candidates.length - 1 - i);
  for (;;) {
    const best = candidates.reduce((first, second) => ((second.smallest ?? most + 1) < (first.smallest ?? most + 1) ? second : first));
    const { smallest } = best;
    const fitted = smallest === undefined ? undefined : best.limited(smallest);
    const times = measureBoth(log, fitted, unlimited, streams, repeat, replayed);
    // Where host and device run beside each other, a maximum may be enough in one replay and not in the next: then it is not enough.
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

/** Whether a stack replays a log without running out of memory. Where a resource refuses a maximum as too small, it does not. */
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
  // In turn, so that both meet the JavaScript engine in the same state.
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

/** The nanoseconds of a replay, or `undefined` where memory ran out. */
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
