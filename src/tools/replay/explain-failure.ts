import { isKeeping } from '../../adaptors/pooling/keeper.js';
import { OutOfMemoryError, SpecificationError } from '../../basics/errors.js';
import { alignDown, alignUp } from '../../basics/units.js';
import { assertOptions, optionNames } from '../../basics/validation.js';
import { Device } from '../../driver/device.js';
import type { Stream } from '../../driver/streams/stream.js';
import type { DeallocationEvents, MemoryResource } from '../../memory-resource.js';
import { formatSpecification } from '../../specification/format-specification.js';
import { parseSpecification } from '../../specification/parse-specification.js';
import { resolveShares } from '../../specification/resolve-shares.js';
import { createResourceStack } from '../../specification/resource-stack.js';
import type { Specification } from '../../specification/specification.js';
import type { AllocationLog } from './allocation-log.js';
import { assertReplayable, type LiveAllocation, Replay, type ReplayStop } from './replay-log.js';
import type { ReplayFailure, ReplayStreams } from './replay-result.js';
import { maximumGranularityBytes, mostBytes, smallestMaximum } from './smallest-maximum.js';
import { maximumLayers, withInitial, withPolicy } from './specification-maximum.js';

/** Options of {@link explainFailure}. */
export interface ExplainFailureOptions {
  /**
   * The streams on which to replay the events.
   * @defaultValue `'log'`
   */
  readonly streams?: ReplayStreams | undefined;
  /**
   * How many of the largest live allocations to list.
   * @defaultValue 10
   */
  readonly largest?: number | undefined;
  /** Called after each replay. */
  readonly onReplay?: (() => void) | undefined;
}

const knownOptions = optionNames<ExplainFailureOptions>({ largest: true, onReplay: 'function', streams: true });

/** The live allocations when memory ran out. */
export interface LiveMemory {
  readonly bytes: number;
  readonly count: number;
  /** By stream of the allocation, the most bytes first. */
  readonly streams: readonly { readonly stream: string; readonly bytes: number; readonly count: number }[];
  /** The largest allocations, in descending order. */
  readonly largest: readonly {
    readonly bytes: number;
    /** The line of the log with the allocation, from 1. */
    readonly line: number;
    readonly stream: string;
    readonly thread: string;
  }[];
}

/** The state of a pooling resource in the stack when memory ran out. */
export interface KeptMemoryState {
  /** The name of the resource's class. */
  readonly layer: string;
  /** Bytes reserved from its upstream, in `upstreamBlocks` blocks. */
  readonly reservedBytes: number;
  readonly upstreamBlocks: number;
  /** Allocated bytes, each allocation rounded up. */
  readonly allocatedBytes: number;
  /** Reserved bytes that were not allocated, and the largest free block. */
  readonly freeBytes: number;
  readonly largestFreeBytes: number;
  /**
   * Bytes that were free just before the request but held back from its stream until other streams
   * were known to be idle. Before memory ran out, the host waited for those streams, so these bytes
   * are included in `freeBytes`.
   */
  readonly heldBackBytes: number;
}

/**
 * Why there was no memory:
 *
 * | value | meaning |
 * |---|---|
 * | `'maximum'` | the live bytes and the request together exceed the limit: no allocator could serve it |
 * | `'rounding'` | they exceed the limit only after they are rounded up |
 * | `'fragmentation'` | enough was free, but no free block was large enough |
 * | `'held-back'` | memory was held back for other streams just before |
 * | `'reserved'` | too little was free, and the resource below had no more, or the limit left too little for a block |
 */
export type FailureReason = 'maximum' | 'rounding' | 'fragmentation' | 'held-back' | 'reserved';

/** Another stack, and whether it would have been enough. */
export interface FailureAlternative {
  /** What differs: the policy, the maximum of a layer, or the initial size of a pool. */
  readonly change: 'events' | 'maximum' | 'initial';
  /** Its specification. */
  readonly resource: string;
  /** Whether it served the failed request and everything before it. */
  readonly survives: boolean;
  /** Whether it completed the whole log. */
  readonly completes: boolean;
  /** The first allocation that it could not serve, or null if it completed the log. */
  readonly failure: ReplayFailure | null;
}

/** Why a replay ran out of memory, and what would have prevented that. You can write it as JSON. */
export interface FailureExplanation {
  /** The given specification in canonical form. */
  readonly resource: string;
  /** The policy in force where freed memory is kept, or null if no resource keeps any. */
  readonly events: DeallocationEvents | null;
  readonly streams: ReplayStreams;
  readonly failure: ReplayFailure;
  /** The limit that the error names, or null if the device's memory was the limit. */
  readonly limitBytes: number | null;
  readonly reasons: readonly FailureReason[];
  readonly live: LiveMemory;
  /** The state of the stack's pooling resources, outermost first. */
  readonly kept: readonly KeptMemoryState[];
  /** The alternatives that were tried. */
  readonly alternatives: readonly FailureAlternative[];
}

/** The state at the moment of a failure. */
interface Moment {
  readonly stop: ReplayStop;
  readonly failure: ReplayFailure;
  readonly live: readonly LiveAllocation[];
  readonly described: LiveMemory;
  readonly kept: readonly KeptMemoryState[];
  readonly events: DeallocationEvents | null;
}

/**
 * Replays a log through a stack up to the first allocation that runs out of memory, and describes
 * the memory at that point. Then replays it through other stacks to find out what would have
 * prevented the failure: each other policy, a larger maximum, a pool that takes all of its memory
 * at once.
 *
 * @param specification text or object
 * @returns null if the stack completes the log
 * @throws SpecificationError if the specification is invalid.
 * @throws OutOfMemoryError if the stack itself cannot be constructed because there is no memory for
 * an initial size.
 * @throws InvalidLogError if the log has no events.
 * @throws ReplayError, naming the line, for any error other than a lack of memory.
 * @example
 * ```ts
 * const log = await readAllocationLog('trace.csv.gz');
 * const explanation = explainFailure(log, 'pool(cuda, maximumBytes=512MiB)');
 * if (explanation !== null) console.log(explanation.reasons, explanation.alternatives.filter(({ completes }) => completes));
 * ```
 */
export function explainFailure(
  log: AllocationLog,
  specification: string | Specification,
  options: ExplainFailureOptions = {},
): FailureExplanation | null {
  assertOptions(options, knownOptions);
  assertReplayable(log, options);
  return new Explanation(log, parseSpecification(specification), options).explain();
}

class Explanation {
  readonly #log: AllocationLog;
  readonly #specification: Specification;
  readonly #streams: ReplayStreams;
  readonly #largest: number;
  readonly #onReplay: () => void;

  constructor(log: AllocationLog, specification: Specification, { streams = 'log', largest = 10, onReplay }: ExplainFailureOptions) {
    this.#log = log;
    this.#specification = specification;
    this.#streams = streams;
    this.#largest = largest;
    this.#onReplay = onReplay ?? (() => {});
  }

  explain(): FailureExplanation | null {
    const freeBytes = alignDown(Device.get().memoryInfo().freeBytes, maximumGranularityBytes);
    const moment = this.#replay(this.#specification, (replay) => this.#untilFailure(replay));
    if (moment === undefined) return null;
    const { stop, failure, live, described, kept, events } = moment;
    const limitBytes = stop.error.limitBytes ?? null;
    return {
      resource: formatSpecification(this.#specification),
      events,
      streams: this.#streams,
      failure,
      limitBytes,
      reasons: reasonsOf(failure.bytes, live, kept, limitBytes),
      live: described,
      kept,
      alternatives: this.#alternatives(moment, described.bytes + failure.bytes, freeBytes),
    };
  }

  #untilFailure(replay: Replay): Moment | undefined {
    const after = replay.untilFailure(this.#log.eventCount, (stack, stop) => {
      if (stop === undefined) return undefined;
      const live = replay.liveAfter(stop.event);
      return {
        stop,
        failure: replay.failureOf(stop),
        live,
        described: this.#describe(live, replay),
        kept: stack.layers.flatMap((layer) => keptMemory(layer, replay.streamOf(stop.event))),
        events: stack.deallocationEvents,
      };
    });
    if (after === undefined) return undefined;
    // Before it failed, the resource waited for the streams that it held memory back for. Only the
    // state before the request shows what it held back.
    const { event } = after.stop;
    const before = replay.untilFailure(event, (stack) => stack.layers.flatMap((layer) => keptMemory(layer, replay.streamOf(event))));
    const kept = after.kept.map((state, i) => ({ ...state, heldBackBytes: before[i]?.heldBackBytes ?? 0 }));
    return { ...after, kept };
  }

  #describe(live: readonly LiveAllocation[], replay: Replay): LiveMemory {
    const streams = new Map<string, { bytes: number; count: number }>();
    for (const allocation of live) {
      const stream = replay.streamNameOf(allocation.event);
      const total = streams.get(stream) ?? { bytes: 0, count: 0 };
      streams.set(stream, { bytes: total.bytes + allocation.bytes, count: total.count + 1 });
    }
    const largest = [...live].sort((a, b) => b.bytes - a.bytes || a.event - b.event).slice(0, this.#largest);
    return {
      bytes: sum(live, ({ bytes }) => bytes),
      count: live.length,
      streams: [...streams].map(([stream, total]) => ({ stream, ...total })).sort((a, b) => b.bytes - a.bytes),
      largest: largest.map(({ event, bytes }) => {
        const { line, thread } = this.#log.event(event);
        return { bytes, line, stream: replay.streamNameOf(event), thread: this.#log.threads[thread] as string };
      }),
    };
  }

  /**
   * @param neededBytes the least that any allocator needs to serve the request
   * @param freeBytes the device's free memory without the stack
   */
  #alternatives(moment: Moment, neededBytes: number, freeBytes: number): FailureAlternative[] {
    const alternatives: FailureAlternative[] = [];
    const specification = resolveShares(this.#specification, Device.get());
    for (const events of ['eager', 'deferred', 'off'] as const) {
      const other = moment.events === null || events === moment.events ? undefined : withPolicy(specification, events);
      if (other !== undefined) alternatives.push(this.#try('events', other, moment));
    }
    const { limitBytes } = moment.stop.error;
    for (const { bytes: maximum, kind, replaced } of maximumLayers(specification)) {
      // An arena always has a maximum.
      const bytes = maximum ?? (kind === 'arena' ? limitBytes : undefined);
      if (bytes === undefined) continue;
      // First the maximum that serves the request; if that does not complete the log, the one that
      // does.
      let least = alignUp(Math.max(bytes + maximumGranularityBytes, neededBytes), maximumGranularityBytes);
      for (const eventCount of [moment.stop.event + 1, this.#log.eventCount]) {
        const enough = smallestMaximum((more) => this.#serves(replaced(more), eventCount), least, mostBytes(Device.get()));
        if (enough === undefined) break;
        const alternative = this.#try('maximum', replaced(enough), moment);
        alternatives.push(alternative);
        if (alternative.completes) break;
        least = enough + maximumGranularityBytes;
      }
    }
    if (moment.stop.error.path.includes('PoolMemoryResource')) {
      const maximum = maximumLayers(specification).find(({ kind }) => kind === 'pool')?.bytes ?? freeBytes;
      const atOnce = withInitial(specification, maximum);
      if (atOnce !== undefined) alternatives.push(this.#try('initial', atOnce, moment));
    }
    return alternatives;
  }

  #try(change: FailureAlternative['change'], specification: Specification, { stop }: Moment): FailureAlternative {
    const failure = this.#firstFailure(specification, this.#log.eventCount);
    return {
      change,
      resource: formatSpecification(specification),
      survives: failure === null || failure.event > stop.event,
      completes: failure === null,
      failure,
    };
  }

  #serves(specification: Specification, eventCount: number): boolean {
    return this.#firstFailure(specification, eventCount) === null;
  }

  /** A stack that cannot be constructed counts as failing at the first event. */
  #firstFailure(specification: Specification, eventCount: number): ReplayFailure | null {
    return this.#replay(specification, (replay) => {
      try {
        return replay.untilFailure(eventCount, (_, stop) => (stop === undefined ? null : replay.failureOf(stop)));
      } catch (error) {
        if (!(error instanceof OutOfMemoryError || error instanceof SpecificationError)) throw error;
        const { line, bytes } = this.#log.event(0);
        return { line, event: 0, bytes, stream: replay.streamNameOf(0), message: error.message };
      }
    });
  }

  #replay<T>(specification: Specification, use: (replay: Replay) => T): T {
    const replay = new Replay(this.#log, () => createResourceStack(specification), this.#streams);
    try {
      return use(replay);
    } finally {
      replay.end();
      this.#onReplay();
    }
  }
}

function keptMemory(layer: MemoryResource, stream: Stream): KeptMemoryState[] {
  if (!isKeeping(layer)) return [];
  const statistics = layer.statistics?.();
  if (statistics === undefined) return [];
  const { reservedBytes, upstreamBlocks, allocatedBytes, largestFreeBytes } = statistics;
  const freeBytes = reservedBytes - allocatedBytes;
  const heldBackBytes = layer.heldBackFrom(stream);
  return [{ layer: layer.constructor.name, reservedBytes, upstreamBlocks, allocatedBytes, freeBytes, largestFreeBytes, heldBackBytes }];
}

function reasonsOf(
  requestedBytes: number,
  live: readonly LiveAllocation[],
  kept: readonly KeptMemoryState[],
  limitBytes: number | null,
): FailureReason[] {
  const roundedUp = (bytes: number) => alignUp(bytes, maximumGranularityBytes);
  const liveBytes = sum(live, ({ bytes }) => bytes);
  const limit = limitBytes ?? Number.POSITIVE_INFINITY;
  if (liveBytes + requestedBytes > limit) return ['maximum'];
  const reasons: FailureReason[] = [];
  const allocatedBytes = Math.max(
    sum(live, ({ bytes }) => roundedUp(bytes)),
    ...kept.map((pool) => pool.allocatedBytes),
  );
  if (allocatedBytes + roundedUp(requestedBytes) > limit) reasons.push('rounding');
  if (kept.some((pool) => pool.freeBytes >= requestedBytes && pool.largestFreeBytes < requestedBytes)) reasons.push('fragmentation');
  if (kept.some((pool) => pool.heldBackBytes > 0)) reasons.push('held-back');
  return reasons.length === 0 ? ['reserved'] : reasons;
}

function sum<T>(items: readonly T[], value: (item: T) => number): number {
  return items.reduce((total, item) => total + value(item), 0);
}
