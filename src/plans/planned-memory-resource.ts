/**
 * Serves a pass from a plan.
 *
 * Data structure. The operations of the plan, and a cursor. While the program does what the plan
 * says, each call is compared with the operation at the cursor, which moves on by one; nothing else
 * is needed, because everything before the cursor has happened as planned.
 *
 *     operations   + a   + b   - a   + c   - b   - c
 *     addresses      0    512    0     0   512     0
 *                                ^ cursor
 *
 * Anything else takes the slow path. The i-th request of a pass still stands for the i-th of the
 * plan:
 *  - memory whose free is due but has not come is `overdue`: a request whose place overlaps it is a
 *    deviation;
 *  - memory that was freed on another stream than planned, or after it was overdue and with several
 *    streams, is `unordered`: only its freeing stream may have the bytes, until the next pass;
 *  - a deviation is served by the fallback, and the cursor moves on.
 * While there is overdue or unordered memory, every request takes the slow path.
 *
 * The pass becomes `irregular` once the plan no longer determines which stream waits for which:
 * with several streams, once the fallback has served a request, whose wait is then missing; and
 * always, once a stream has ended or free memory was gathered on another. Until the next pass,
 * every request then takes the slow path and waits for all other streams that have used the block.
 *
 * Order. Within a pass, a stream waits before it takes memory of another stream: the plan lists
 * these places. Before a stream's first request in a pass, it waits for all other streams that have
 * used the block. With one stream, nothing is recorded.
 *
 * Learning. A recorded pass is served by the fallback. Once enough passes in a row had the same
 * operations, the planner makes a plan of them, and the next pass is served from it. The block of
 * the plan before goes back to the upstream when nothing is live in it. While
 * earlier blocks with live memory have more bytes than the block of the plan, no pass is recorded.
 *
 * Invariants: live allocations do not overlap; an allocation is made only if its stream is ordered
 * after every earlier free of its bytes.
 */

import { readFileSync } from 'node:fs';
import { Keeper, type KeepingResource, type StreamOrderedStatistics } from '../adaptors/pooling/keeper.js';
import type { GrowthObserver } from '../adaptors/pooling/upstream-blocks.js';
import { ArgumentRangeError, ArgumentTypeError, CisternError, formatValue, OutOfMemoryError } from '../basics/errors.js';
import { ALLOCATION_ALIGNMENT } from '../basics/units.js';
import {
  assertAlignment,
  assertBytes,
  assertFunction,
  assertInteger,
  assertMilliseconds,
  assertOneOf,
  assertOptions,
  optionNames,
} from '../basics/validation.js';
import type { Device } from '../driver/device.js';
import type { MemoryKind } from '../driver/memory/plain-memory.js';
import { noStream, Stream } from '../driver/streams/stream.js';
import type { StreamIdentity } from '../driver/streams/stream-identity.js';
import { type Inspect, type InspectionOptions, inspected } from '../driver/workers/local-object.js';
import {
  assertFallback,
  assertMemoryResource,
  type DeallocationEvents,
  type DeallocationEventsOption,
  type DeallocationFence,
  type DevicePointer,
  type MemoryResource,
  type TrimOptions,
} from '../memory-resource.js';
import { noteFree } from '../ownership/served-memory.js';
import { defineAdaptor, stackName } from '../resource-kind.js';
import { untilSettled, withResource } from '../scopes/resource-scope.js';
import { noLane, StreamLane } from '../stream-ordering/stream-lane.js';
import { assertFence } from '../stream-ordering/stream-ordering.js';
import { isWithin, none, type Segment } from '../suballocation/blocks.js';
import type { PassRecorder } from './pass-recorder.js';
import { checkedPlan, type Plan, parsePlan } from './plan.js';
import { PlanLearner, type Planner } from './plan-learner.js';
import { PlannedBlock } from './planned-block.js';
import { withPredecessors } from './predecessors.js';
import { invalidPlan } from './sequence.js';

/** How a request or a free can differ from the plan. */
export type PlanDeviation =
  /** More bytes than planned. */
  | 'larger'
  /** A larger alignment than the place has. */
  | 'alignment'
  /** Another stream than planned. */
  | 'stream'
  /** One more request than planned. */
  | 'extra'
  /**
   * The place is still in use, or its free is not ordered before the request, because memory was kept
   * longer than planned.
   */
  | 'in-use'
  /** A free on another stream than planned. It is carried out. */
  | 'free-stream'
  /** A free that came later than planned. It is carried out. */
  | 'late-free';

/** Options of {@link PlannedMemoryResource}. */
export interface PlannedMemoryResourceOptions extends DeallocationEventsOption {
  /**
   * Makes plans from recorded passes: `planAllocations` of `cistern/planning`. It runs when a pass
   * ends, and blocks the thread meanwhile.
   * @defaultValue none: the plan given to the constructor stays
   */
  readonly planner?: Planner | undefined;
  /**
   * How many consecutive passes must have the same operations before a plan is made from them. Each
   * place gets the largest of their sizes.
   * @defaultValue 2
   */
  readonly recordedPasses?: number | undefined;
  /**
   * How long the planner may search for a better plan, in milliseconds. The first plan is computed
   * even if that takes longer.
   * @defaultValue 100
   */
  readonly planningMilliseconds?: number | undefined;
  /**
   * Passes are recorded again after this many passes in a row in which a request deviated. If no
   * pass follows the new plan either, it takes twice as many the next time, and so on. `Infinity`:
   * only {@link PlannedMemoryResource.record} does that.
   * @defaultValue 3
   */
  readonly replanAfter?: number | undefined;
  /**
   * Serves requests that are not in the plan, and everything outside passes; must be on the same
   * device.
   * @defaultValue the upstream
   */
  readonly fallback?: MemoryResource | undefined;
  /**
   * How to treat a request that differs from the plan: `'fallback'` serves it, `'refuse'` throws a
   * CisternError (`ERR_CISTERN_PLAN_DEVIATION`) with the expected and the actual request.
   * @defaultValue `'fallback'`
   */
  readonly deviations?: 'fallback' | 'refuse' | undefined;
  /**
   * Whether passes begin automatically: with the first request, and with the first one after the last
   * of the plan. For programs that cannot call `begin`, such as a replay. Cannot be combined with a
   * planner, which must know where a pass ends.
   * @defaultValue false
   */
  readonly repeats?: boolean | undefined;
}

const knownOptions = optionNames<PlannedMemoryResourceOptions>({
  deallocationEvents: true,
  deviations: true,
  fallback: true,
  planner: 'function',
  planningMilliseconds: true,
  recordedPasses: true,
  repeats: 'boolean',
  replanAfter: true,
});

/** Statistics of a {@link PlannedMemoryResource}. */
export interface PlannedStatistics extends StreamOrderedStatistics {
  /** Passes that have begun. */
  readonly passes: number;
  /** Whether the next pass is recorded, and served by the fallback. */
  readonly isRecording: boolean;
  /** How many plans the planner has made. */
  readonly plans: number;
  /** Passes of a plan in which a request deviated. */
  readonly deviatingPasses: number;
  /**
   * Why the last recorded pass cannot be planned together with the one before; `undefined` if it
   * can. More passes are then recorded.
   */
  readonly difference: string | undefined;
  /**
   * The error of the planner, or why its plan is invalid; `undefined` if neither. After an error,
   * no pass is recorded until you call {@link PlannedMemoryResource.record}.
   */
  readonly planningError: unknown;
  /**
   * Bytes of the blocks of earlier plans that still have live allocations. While these exceed the
   * current plan's block, passes are not recorded again, because another plan would add a block.
   */
  readonly pinnedBytes: number;
  /** Allocations of a plan that are live. */
  readonly plannedAllocations: number;
  /** Requests that the fallback served, in passes or outside them. */
  readonly fallbackAllocations: number;
  /** How often each kind of deviation occurred. */
  readonly deviations: Readonly<Record<PlanDeviation, number>>;
}

/** Serves nothing. */
const noPlan: Plan = {
  operations: [],
  sizes: [],
  streams: [],
  freeStreams: [],
  offsets: [],
  alignmentBytes: ALLOCATION_ALIGNMENT,
  totalBytes: 0,
  lowerBoundBytes: 0,
  isOptimal: true,
  gap: 0,
};

/** Freed bytes that only one stream may have. */
interface UnorderedRange {
  readonly start: number;
  readonly end: number;
  readonly identity: StreamIdentity;
}

const deviationWords = ['fallback', 'refuse'] as const;

/**
 * Serves the requests of a repeated pass from a {@link Plan}: one block of the upstream, in which
 * the i-th request of each pass gets the i-th offset. There is no search, and as long as the
 * program follows the plan on one stream, no event is recorded.
 *
 * A pass is a call of {@link PlannedMemoryResource.run}, or everything after {@link
 * PlannedMemoryResource.begin}. Passes are not scopes: every request to this resource counts, from
 * any code. Requests outside passes go to the fallback.
 *
 * A request that differs from the plan (more bytes, another stream, one too many, or a place whose
 * memory the program keeps longer than planned) is served by the fallback and counted, or refused.
 * It never gets memory that is in use. A smaller request, or an earlier free, is no deviation.
 *
 * With the option `planner`, it learns: the first passes are recorded, and served by the fallback.
 * Once several of them had the same operations, a plan is made from them, and serves the passes
 * that follow. If those deviate repeatedly, passes are recorded again. Memory of an earlier plan
 * that is still allocated stays where it is, and keeps the whole block of that plan. While such
 * blocks have more bytes than the current plan's, the current plan stays in use.
 *
 * Stream order: if memory goes from one stream to another within the plan, the second waits for an
 * event that is recorded at that point. Before its first request in a pass, a stream waits for the
 * work of all other streams that used the block in the previous pass. The host never waits. Streams
 * created outside cistern whose end is not announced are served by the fallback. Under
 * `deallocationEvents`, frees go to the fallback; for planned memory the policy has no effect.
 *
 * The upstream and the fallback must outlive this resource, and are not disposed with it. Disposing
 * it returns the block, ordered on the legacy default stream after every use. Memory from the
 * fallback stays allocated there, and can still be freed through this resource.
 *
 * RMM has no counterpart.
 * @example
 * ```ts
 * using upstream = new CudaMemoryResource();
 * using stream = new Stream();
 * const plan = { operations: [0, ~0], sizes: [1024], streams: [0], freeStreams: [0], offsets: [0],
 *   alignmentBytes: 256, totalBytes: 1024, lowerBoundBytes: 1024, isOptimal: true, gap: 0 };
 * using resource = new PlannedMemoryResource(upstream, plan);
 * for (let step = 0; step < 100; step++) {
 *   resource.run(() => {
 *     const pointer = resource.allocate(1024, stream); // the same address in every step
 *     resource.deallocate(pointer, 1024, stream);
 *   });
 * }
 * ```
 * @example
 * ```ts
 * using pool = new PoolMemoryResource(new CudaMemoryResource());
 * using resource = new PlannedMemoryResource(pool, undefined, { planner: planAllocations });
 * for (let step = 0; step < 100; step++) resource.run(() => train(resource)); // planned from the third on
 * ```
 */
export class PlannedMemoryResource implements KeepingResource {
  /** @internal */
  static readonly name = 'PlannedMemoryResource';
  readonly upstream: MemoryResource;
  readonly device: Device;
  readonly memoryKind: MemoryKind;
  /** The policy of a free that goes to the fallback, unless it was not set. */
  readonly deallocationEvents: DeallocationEvents;
  /** Serves requests that are not in the plan. */
  readonly fallback: MemoryResource;
  /** The fallback, if it is not the upstream. */
  readonly alternates: readonly MemoryResource[];
  readonly #block: PlannedBlock;
  readonly #keeper: Keeper;
  readonly #learner: PlanLearner;
  #plan: Plan = noPlan;
  readonly #refuses: boolean;
  readonly #repeats: boolean;
  readonly #fallbackEvents: DeallocationEvents | undefined;
  /** By operation, and one more: the most bytes of a request, 0 for a free. */
  #limits = new Float64Array(1);
  /** By operation: the address that a request gets, and the one that is freed. NaN, which equals no pointer, for the others. */
  #requested = new Float64Array(1);
  #freed = new Float64Array(1);
  #places = new Int32Array(1);
  #operationStreams = new Int32Array(1);
  /** By allocation: the streams of the plan whose memory it takes over. */
  #waits: ReadonlyMap<number, readonly number[]> = new Map();
  #isSingleStream = true;
  /** By place: the bytes that are live there, or 0. The block's own. */
  #asked = new Float64Array(0);
  /** By place: the allocation of the plan that was last served there. */
  #owners = new Int32Array(0);
  #cursor = 0;
  #isInPass = false;
  /** The stream of the last call on the slow path, and its lane. */
  #lastStream: Stream = noStream;
  #lane = noLane;
  /** The stream of the fast path, or `noStream`; and its number in the plan. */
  #stream: Stream = noStream;
  #streamNumber: number = none;
  /** By stream of the plan: the stream that the pass uses. */
  #bound: (Stream | undefined)[] = [];
  /** Places whose frees are due. */
  readonly #overdue = new Set<number>();
  #unordered: UnorderedRange[] = [];
  /** Lanes of streams that used the block in this pass; and those recorded when the pass began. */
  #touched = new Set<number>();
  #recorded = new Set<number>();
  /** Lanes of streams that have waited for the others in this pass. */
  #hasWaited = new Set<number>();
  #isIrregular = false;
  /** Whether the pass began by itself. */
  #isAutomatic = false;
  /** Requests that deviated from the plan since this pass began. */
  #deviated = 0;
  /** The blocks that this held when it was disposed, in address order. */
  #ended: readonly Segment[] = [];
  #isTaking = false;
  #passes = 0;
  #fallbackAllocations = 0;
  readonly #deviations: Record<PlanDeviation, number> = {
    larger: 0,
    alignment: 0,
    stream: 0,
    extra: 0,
    'in-use': 0,
    'free-stream': 0,
    'late-free': 0,
  };

  /**
   * @param plan the plan of the first passes; without one, `options.planner` makes it
   * @throws CisternError (`ERR_CISTERN_INVALID_PLAN`) for an invalid plan; OutOfMemoryError if the
   * upstream does not have `plan.totalBytes`; ArgumentTypeError, ArgumentRangeError for invalid
   * options.
   */
  constructor(upstream: MemoryResource, plan: Plan | undefined, options: PlannedMemoryResourceOptions = {}) {
    assertOptions(options, knownOptions);
    const { fallback = upstream, deviations = 'fallback', repeats = false, deallocationEvents } = options;
    const { planner, recordedPasses = 2, planningMilliseconds = 100, replanAfter = 3 } = options;
    assertOneOf(deviations, deviationWords, 'deviations');
    if (planner === undefined && plan === undefined) throw new ArgumentTypeError('a plan or the option planner must be given');
    if (planner !== undefined && repeats) {
      throw new ArgumentRangeError('repeats and planner must not be given together', 'ERR_INVALID_ARG_VALUE');
    }
    assertInteger(recordedPasses, 'recordedPasses', 1);
    if (replanAfter !== Number.POSITIVE_INFINITY) assertInteger(replanAfter, 'replanAfter', 1);
    assertMilliseconds(planningMilliseconds, 'planningMilliseconds');
    const checked = plan === undefined ? undefined : checkedPlan(plan);
    const block = new PlannedBlock();
    assertMemoryResource(upstream, 'upstream');
    this.upstream = upstream;
    this.device = upstream.device;
    this.memoryKind = upstream.memoryKind;
    this.deallocationEvents = deallocationEvents === undefined ? 'deferred' : deallocationEvents;
    this.#keeper = new Keeper(this, block, this.deallocationEvents);
    assertFallback(fallback, this.device);
    this.fallback = fallback;
    this.alternates = fallback === upstream ? [] : [fallback];
    this.#block = block;
    // Streams keep the block, but not this: its recorder must end if this is dropped within a pass.
    const self = new WeakRef(this);
    block.streamEnded = (lane, ended) => {
      const owner = self.deref();
      if (owner !== undefined) owner.#laneEnded(lane, ended);
    };
    block.moved = () => {
      const owner = self.deref();
      if (owner !== undefined) owner.#locate();
    };
    this.#refuses = deviations === 'refuse';
    this.#repeats = repeats === true;
    this.#fallbackEvents = deallocationEvents;
    this.#learner = new PlanLearner(planner, recordedPasses, planningMilliseconds, replanAfter, checked === undefined);
    if (checked === undefined) return;
    this.#setPlan(checked);
    if (checked.totalBytes > 0) {
      this.#keeper.takeInitial(block.segmentBytes, Stream.legacyDefault(this.device));
      this.#lane.query();
      // The block is there already: the first stream need not wait.
      if (this.#lane.isIdle) block.forget(this.#lane.number);
    }
  }

  /**
   * The plan that serves passes, or that served them before they are recorded again; `undefined`
   * until the first is made.
   */
  get plan(): Plan | undefined {
    return this.#plan === noPlan ? undefined : this.#plan;
  }

  /** The stack as a specification writes it, without options: `planned(cuda)`. */
  toString(): string {
    return stackName(this);
  }

  /** @internal What `console.log` shows. */
  [inspected](depth: number, options: InspectionOptions, inspect: Inspect): string {
    return this.#keeper.inspect(depth, options, inspect);
  }

  get reservedBytes(): number {
    return this.#keeper.held.reservedBytes;
  }

  get peakReservedBytes(): number {
    return this.#keeper.held.peakReservedBytes;
  }

  resetPeakReservedBytes(): void {
    this.#keeper.held.resetPeakReservedBytes();
  }

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  allocate(bytes: number, stream: Stream, alignment: number = ALLOCATION_ALIGNMENT): DevicePointer {
    const k = this.#cursor;
    if (
      stream === this.#stream &&
      stream.handle >= 0 &&
      bytes > 0 &&
      (bytes === this.#limits[k] || (bytes < (this.#limits[k] as number) && Math.floor(bytes) === bytes)) &&
      this.#operationStreams[k] === this.#streamNumber &&
      alignment === ALLOCATION_ALIGNMENT
    ) {
      const place = this.#places[k] as number;
      this.#asked[place] = bytes;
      this.#owners[place] = k;
      this.#cursor = k + 1;
      return this.#requested[k] as number;
    }
    return this.#allocateSlowly(bytes, stream, alignment);
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    const k = this.#cursor;
    if (
      pointer === this.#freed[k] &&
      stream === this.#stream &&
      stream.handle >= 0 &&
      this.#operationStreams[k] === this.#streamNumber &&
      this.#asked[this.#places[k] as number] === bytes &&
      fence === undefined
    ) {
      this.#asked[this.#places[k] as number] = 0;
      this.#cursor = k + 1;
      return;
    }
    this.#deallocateSlowly(pointer, bytes, stream, fence);
  }

  /**
   * Begins a pass, and ends the one before: the next request is the first of the plan. Memory that
   * is still allocated stays; requests whose places overlap it are deviations. If several streams
   * used the block, an event is recorded on each. With a planner, a plan may be made first, as in
   * {@link PlannedMemoryResource.run}.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if this is disposed; DriverError if an event
   * cannot be recorded.
   */
  begin(): void {
    this.#keeper.assertLive('begin a pass');
    this.#finishPass(true);
    // The planner may have used this.
    this.#keeper.assertLive('begin a pass');
    if (this.#learner.isLearning && !this.#isPinned) this.#block.retire();
    const { spareBytes } = this.#block;
    if (spareBytes > 0) {
      // Blocks of earlier plans go first, so the one of this plan stays.
      this.trim(Stream.legacyDefault(this.device), { bytesToKeep: this.reservedBytes - spareBytes });
      // Host functions may have run.
      this.#keeper.assertLive('begin a pass');
    }
    this.#leavePass();
    const recorded = new Set<number>();
    for (const number of this.#touched.size > 1 ? this.#touched : []) {
      const lane = this.#keeper.ordering.lane(number);
      if (!(lane instanceof StreamLane) || !lane.identity.announcesEnd || this.#block.isEmpty(number)) continue;
      lane.freeRecorded();
      recorded.add(number);
    }
    // Every stream of the last pass has waited for those that used the block before it.
    if (this.#hasWaited.size > 0) {
      for (const { number } of this.#keeper.ordering.lanes) if (!this.#touched.has(number)) this.#block.forget(number);
    }
    this.#recorded = recorded;
    this.#touched = new Set();
    this.#isIrregular = false;
    this.#isAutomatic = false;
    this.#begin();
  }

  /**
   * Ends the pass, if there is one. Until the next one begins, requests go to the fallback. Memory
   * that is still allocated stays. If enough passes have been recorded, makes a plan, which blocks
   * the thread for about `planningMilliseconds`.
   * @throws any error that the planner throws; then passes are no longer recorded until {@link
   * PlannedMemoryResource.record}.
   */
  end(): void {
    const before = this.#learner.failure;
    this.#finishPass(true);
    const { failure } = this.#learner;
    if (failure !== undefined && failure !== before) throw failure.error;
  }

  /**
   * Records passes again, beginning with the next one, and makes a plan from them. Until then, the
   * fallback serves them. While blocks of earlier plans are kept that have more bytes than the
   * current plan's, recording waits, and the current plan goes on serving.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if this is disposed; CisternError
   * (`ERR_CISTERN_INVALID_STATE`) if there is no planner.
   */
  record(): void {
    this.#keeper.assertLive('record passes');
    if (!this.#learner.hasPlanner) {
      throw new CisternError('ERR_CISTERN_INVALID_STATE', 'cannot record passes: the PlannedMemoryResource has no planner');
    }
    this.#learner.record();
  }

  /**
   * Runs a function as a pass: until it returns or throws; for an asynchronous function, until its
   * promise settles. During the call, this is the current resource, as in {@link withResource}. No
   * plan is made of a pass that fails. If the planner throws, the result of the pass is returned
   * nevertheless; the error is in {@link PlannedStatistics.planningError}, and passes are no longer
   * recorded until {@link PlannedMemoryResource.record}.
   * @returns what `fn` returns
   * @throws ArgumentTypeError if `fn` is not a function; CisternError (`ERR_CISTERN_INVALID_STATE`)
   * within a pass; as `begin`; any error that `fn` throws.
   */
  run<T>(fn: () => T): T {
    this.#keeper.assertLive('run a pass');
    assertFunction(fn, 'fn');
    if (this.#isInPass && !this.#isAutomatic)
      throw new CisternError('ERR_CISTERN_INVALID_STATE', 'cannot run a pass: the previous one has not ended');
    this.begin();
    const pass = this.#passes;
    return untilSettled(
      () => withResource(this, fn),
      (hasFailed) => {
        // Another may have begun.
        if (this.#passes === pass) this.#finishPass(!hasFailed);
      },
    );
  }

  /** Current sizes and counts since the start. Linear in the places of the plan. */
  statistics(): PlannedStatistics {
    return Object.freeze({
      ...this.#keeper.statistics(),
      passes: this.#passes,
      isRecording: this.#learner.isLearning && !this.#isPinned,
      plans: this.#learner.plans,
      deviatingPasses: this.#learner.deviatingPasses,
      difference: this.#learner.difference,
      planningError: this.#learner.failure?.error,
      pinnedBytes: this.#block.pinnedBytes,
      plannedAllocations: this.#block.liveCount,
      fallbackAllocations: this.#fallbackAllocations,
      deviations: Object.freeze({ ...this.#deviations }),
    });
  }

  /**
   * Returns the block of the plan to the upstream if it has no live allocations, and blocks of
   * earlier plans, ordered on `stream`, which first waits for all streams that used them.
   * @returns the bytes returned to the upstream
   */
  trim(stream: Stream, options: TrimOptions = {}): number {
    return this.#keeper.trim(stream, options);
  }

  /** Free bytes that a stream cannot use until other streams are known to be idle. */
  heldBackFrom(stream: Stream): number {
    return this.#keeper.heldBackFrom(stream);
  }

  /** For tests: throws if the data structures are inconsistent. Linear in the places of the plan. */
  validate(): void {
    this.#keeper.validate();
  }

  /**
   * Returns the blocks to the upstream, even memory that is still allocated; buffers in it are
   * disposed first. A second call only retries what the upstream refused.
   * @throws the error of a buffer's free, if the buffer still has its memory: this resource is then
   * not disposed. Otherwise the upstream's first error, after everything was tried.
   */
  [Symbol.dispose](): void {
    this.#keeper.dispose();
  }

  /** The same as `[Symbol.dispose]()`. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  /** @internal */
  get isTaking(): boolean {
    return this.#keeper.held.isTaking;
  }

  /** @internal */
  observeGrowth(observer: GrowthObserver): void {
    this.#keeper.held.observe(observer, Stream.legacyDefault(this.device));
  }

  /** @internal */
  enter(stream: Stream, operation: string): void {
    this.#lane = this.#keeper.laneOf(stream, operation);
    this.#lastStream = this.#keeper.isAsleep ? noStream : stream;
    // When these streams last freed memory is unknown.
    if (operation !== 'dispose' && operation !== 'trim') return;
    this.#markLanes();
    // The stream is about to wait for all others, and then stands for what they did. Those that
    // have live memory go on using it.
    this.#touched.add(this.#lane.number);
    this.#becomeIrregular();
  }

  /** @internal */
  forgetLastStream(): void {
    this.#lastStream = noStream;
    this.#stream = noStream;
    this.#lane = noLane;
  }

  /** @internal */
  ended(): void {
    this.forgetLastStream();
    this.#ended = [...this.#block.segments].sort((a, b) => a.address - b.address);
    this.#leavePass();
    this.#learner.end();
  }

  #begin(): void {
    this.#cursor = 0;
    this.#isInPass = true;
    this.#passes++;
    this.#stream = noStream;
    this.#bound = [];
    this.#hasWaited = new Set();
    this.#unordered = [];
    this.#overdue.clear();
    this.#deviated = 0;
    // It still has the block of a plan if recording waits.
    if (this.#learner.isLearning && this.#block.segment === undefined) {
      this.#learner.beginPass(this);
      // Nothing of the plan is due.
      this.#cursor = this.#plan.operations.length;
    }
    this.#asked.forEach((bytes, place) => {
      if (bytes > 0) this.#overdue.add(place);
    });
  }

  /** Ends the pass without looking at it. Returns what was recorded of it. */
  #leavePass(): ReturnType<PlanLearner['endPass']> {
    this.#isInPass = false;
    this.#stream = noStream;
    return this.#learner.endPass();
  }

  /** Ends the pass, if there is one, and learns from it if it is whole. */
  #finishPass(isWhole: boolean): void {
    if (!this.#isInPass) return;
    const sequence = this.#leavePass();
    if (!isWhole) return;
    if (sequence === undefined) {
      this.#learner.judge(this.#deviated > 0, !this.#isPinned);
      return;
    }
    const plan = this.#learner.learn(sequence);
    // The planner may have used this.
    if (plan === undefined || this.#keeper.isDisposed || this.#isInPass || this.#block.segment !== undefined) return;
    this.#setPlan(plan);
    this.#learner.adopted();
  }

  /** Whether earlier plans keep so much memory that another plan must wait. */
  get #isPinned(): boolean {
    const { segment, pinnedBytes, segmentBytes } = this.#block;
    return segment !== undefined && pinnedBytes > segmentBytes;
  }

  #setPlan(plan: Plan): void {
    const block = this.#block;
    this.#plan = Object.freeze(plan);
    block.setPlan(plan);
    this.#asked = block.asked;
    const { operations, sizes, streams, freeStreams, offsets } = plan;
    const length = operations.length + 1;
    this.#limits = new Float64Array(length);
    this.#requested = new Float64Array(length).fill(Number.NaN);
    this.#freed = new Float64Array(length).fill(Number.NaN);
    this.#places = new Int32Array(length);
    this.#operationStreams = new Int32Array(length).fill(none);
    this.#owners = new Int32Array(block.offsets.length).fill(none);
    for (let k = 0; k < operations.length; k++) {
      const operation = operations[k] as number;
      const a = operation < 0 ? ~operation : operation;
      if (operation >= 0) this.#limits[k] = sizes[a] as number;
      this.#places[k] = block.placeAt(offsets[a] as number);
      this.#operationStreams[k] = (operation >= 0 ? streams[a] : freeStreams[a]) as number;
    }
    this.#isSingleStream = Array.from(operations, (_, k) => this.#operationStreams[k]).every((stream) => stream === 0);
    this.#waits = this.#isSingleStream ? new Map() : streamChanges(plan);
  }

  /** The addresses of the plan in the block that is held now. */
  #locate(): void {
    this.#stream = noStream;
    const { base, offsets } = this.#block;
    for (let k = 0; k < this.#plan.operations.length; k++) {
      const address = base === none ? Number.NaN : base + (offsets[this.#places[k] as number] as number);
      if ((this.#limits[k] as number) > 0) this.#requested[k] = address;
      else this.#freed[k] = address;
    }
  }

  #allocateSlowly(bytes: number, stream: Stream, alignment: number): DevicePointer {
    if (stream !== this.#lastStream || stream.handle < 0) this.enter(stream, 'allocate');
    assertBytes(bytes);
    assertAlignment(alignment);
    if (bytes === 0) return 0;
    if (!this.#isInPass && !this.#repeats) return this.#allocateFromFallback(bytes, stream, alignment);
    if (!this.#isInPass) this.#beginAutomatically();
    if (this.#learner.recorder !== undefined) return this.#allocateRecorded(this.#learner.recorder, bytes, stream, alignment);
    // The planner threw before there was a plan.
    if (this.#plan === noPlan) return this.#allocateFromFallback(bytes, stream, alignment);
    const before = { cursor: this.#cursor, overdue: this.#overdue.size };
    this.#passDueFrees();
    if (this.#cursor === this.#plan.operations.length && this.#repeats && this.#cursor > 0) {
      this.#beginAutomatically();
      this.enter(stream, 'allocate');
    }
    const deviation = this.#deviationOf(bytes, stream, alignment);
    if (deviation !== undefined) {
      if (this.#refuses) this.#refuse(deviation, bytes, stream, alignment, before);
      // It stands for the stream of the plan all the same.
      if (deviation !== 'extra' && deviation !== 'stream') this.#bound[this.#operationStreams[this.#cursor] as number] ??= stream;
      return this.#deviate(deviation, bytes, stream, alignment);
    }
    const k = this.#cursor;
    const number = this.#operationStreams[k] as number;
    this.#bind(number, stream);
    this.#waitForStreams(this.#plan.operations[k] as number, stream);
    if (this.#block.segment === undefined) this.#takeAgain(stream);
    // Host functions may have run.
    if (this.#cursor !== k) return this.#allocateFromFallback(bytes, stream, alignment);
    const address = this.#requested[k] as number;
    if (Number.isNaN(address)) return this.#deviate('in-use', bytes, stream, alignment);
    const place = this.#places[k] as number;
    this.#asked[place] = bytes;
    this.#owners[place] = k;
    this.#cursor = k + 1;
    this.#chooseFastPath(stream, number);
    return address;
  }

  #deallocateSlowly(pointer: DevicePointer, bytes: number, stream: Stream, fence: DeallocationFence | undefined): void {
    if (typeof pointer !== 'number' || !this.#block.contains(pointer)) {
      if (this.#keeper.isDisposed && isWithin(this.#ended, pointer)) this.#keeper.assertLive('deallocate');
      // Also after the end: the fallback's memory outlives this.
      this.#deallocateToFallback(pointer, bytes, stream, fence ?? this.#fallbackEvents);
      if (!this.#keeper.isDisposed) this.#passDoneFrees();
      return;
    }
    if (stream !== this.#lastStream || stream.handle < 0) this.enter(stream, 'deallocate');
    const place = this.#block.usedBlock(pointer);
    if (place === none || this.#block.askedBytes(place) !== bytes) this.#keeper.refuseFree(pointer, bytes, place);
    if (fence !== undefined) assertFence(fence, stream);
    const lane = this.#lane;
    // Its owner may destroy the stream before the next pass waits for it, under any policy.
    if (!lane.identity.announcesEnd) lane.freeRecorded();
    this.#touch(lane.number);
    this.#block.free(place);
    // It was of an earlier plan.
    if (place >= this.#owners.length) return;
    const wasOverdue = this.#overdue.delete(place);
    if (wasOverdue && this.#isInPass) this.#deviations['late-free']++;
    const a = this.#plan.operations[this.#owners[place] as number] as number;
    const planned = (this.#plan.freeStreams[a] as number) >= 0 ? (this.#plan.freeStreams[a] as number) : (this.#plan.streams[a] as number);
    if (!wasOverdue && this.#isFree(stream)) this.#bound[planned] ??= stream;
    const known = this.#bound[planned];
    const isPlanned = known?.identity === stream.identity;
    // Which stream a new pass uses is not known from memory of an earlier one.
    if (!isPlanned && (known !== undefined || !wasOverdue)) this.#deviations['free-stream']++;
    if (!isPlanned || (wasOverdue && !this.#isSingleStream)) {
      const start = this.#block.offsets[place] as number;
      this.#unordered.push({ start, end: start + (this.#plan.sizes[a] as number), identity: stream.identity });
    }
    this.#passDoneFrees();
    if (isPlanned) this.#chooseFastPath(stream, planned);
    else this.#stream = noStream;
  }

  #deallocateToFallback(pointer: DevicePointer, bytes: number, stream: Stream, fence: DeallocationFence | undefined): void {
    const recorder = this.#learner.recorder;
    if (recorder === undefined) {
      noteFree(this.fallback.deallocate(pointer, bytes, stream, fence), this.fallback);
      return;
    }
    recorder.passOn(() => noteFree(this.fallback.deallocate(pointer, bytes, stream, fence), this.fallback));
    recorder.freed(pointer, stream.identity);
  }

  #allocateRecorded(recorder: PassRecorder, bytes: number, stream: Stream, alignment: number): DevicePointer {
    const pointer = recorder.passOn(() => this.#allocateFromFallback(bytes, stream, alignment));
    this.#learner.aligned(alignment);
    recorder.allocated(pointer, bytes, stream.identity);
    return pointer;
  }

  /** Moves the cursor past frees, up to the next request. What is still live becomes overdue. */
  #passDueFrees(): void {
    const { operations } = this.#plan;
    for (; this.#cursor < operations.length && (operations[this.#cursor] as number) < 0; this.#cursor++) {
      const place = this.#places[this.#cursor] as number;
      if (this.#isLive(~(operations[this.#cursor] as number), place)) this.#overdue.add(place);
    }
  }

  /** Moves the cursor past frees of what is not live. */
  #passDoneFrees(): void {
    const { operations } = this.#plan;
    while (this.#isInPass && this.#cursor < operations.length) {
      const operation = operations[this.#cursor] as number;
      if (operation >= 0 || this.#isLive(~operation, this.#places[this.#cursor] as number)) return;
      this.#cursor++;
    }
  }

  /** Whether an allocation of the plan is live at its place. */
  #isLive(a: number, place: number): boolean {
    return (this.#asked[place] as number) > 0 && this.#plan.operations[this.#owners[place] as number] === a;
  }

  /** Whether bytes are in use, or freed without order to a stream. */
  #isTaken(start: number, bytes: number, { identity }: Stream): boolean {
    const end = start + bytes;
    for (const place of this.#overdue) {
      const from = this.#block.offsets[place] as number;
      if (from < end && start < from + (this.#asked[place] as number)) return true;
    }
    return this.#unordered.some((range) => range.start < end && start < range.end && range.identity !== identity);
  }

  /** Whether the stream may stand for a stream of the plan that has none yet. */
  #isFree({ identity }: Stream): boolean {
    return this.#isInPass && identity.announcesEnd && !this.#bound.some((stream) => stream?.identity === identity);
  }

  /** How a request differs from the plan's at the cursor, if it does. */
  #deviationOf(bytes: number, stream: Stream, alignment: number): PlanDeviation | undefined {
    const k = this.#cursor;
    if (k === this.#plan.operations.length) return 'extra';
    const known = this.#bound[this.#operationStreams[k] as number];
    if (known === undefined ? !this.#isFree(stream) : known.identity !== stream.identity) return 'stream';
    if (bytes > (this.#limits[k] as number)) return 'larger';
    if (alignment > this.#plan.alignmentBytes) return 'alignment';
    const offset = this.#block.offsets[this.#places[k] as number] as number;
    return this.#isTaken(offset, this.#limits[k] as number, stream) ? 'in-use' : undefined;
  }

  /**
   * Makes a stream stand for one of the plan in this pass, after it has waited for the other
   * streams that used the block.
   */
  #bind(number: number, stream: Stream): void {
    this.#bound[number] ??= stream;
    const lane = this.#lane;
    if (this.#isIrregular || !this.#hasWaited.has(lane.number)) {
      for (const other of [...this.#keeper.ordering.laneNumbers()]) if (other !== lane.number) this.#waitForLane(other, stream);
      this.#hasWaited.add(lane.number);
    }
    this.#touch(lane.number);
  }

  #becomeIrregular(): void {
    this.#isIrregular = true;
    this.#stream = noStream;
    // What was recorded at the beginning does not cover this pass.
    this.#recorded.clear();
  }

  /** Another stream may get the number of a lane, and then seems to have waited: an irregular pass does not ask. */
  #laneEnded(lane: number, ended: number): void {
    if (!this.#touched.delete(lane)) return;
    this.#touched.add(ended);
    this.#becomeIrregular();
  }

  #waitForLane(number: number, stream: Stream): void {
    if (this.#block.isEmpty(number)) return;
    const lane = this.#keeper.ordering.lane(number);
    if (lane instanceof StreamLane && !this.#recorded.has(number) && lane.identity.announcesEnd) lane.freeUnrecorded();
    this.#keeper.ordering.order(stream, number);
  }

  /** Makes a stream wait for the streams whose memory an allocation takes over. */
  #waitForStreams(a: number, stream: Stream): void {
    for (const number of this.#waits.get(a) ?? []) {
      const other = this.#bound[number];
      if (other === undefined || other.identity === stream.identity) continue;
      if (other.isDisposed) {
        this.#waitForLane(this.#keeper.ordering.endedLane, stream);
        continue;
      }
      const lane = this.#keeper.ordering.laneOf(other, 'allocate');
      this.#recorded.delete(lane.number);
      this.#waitForLane(lane.number, stream);
    }
  }

  #touch(lane: number): void {
    this.#block.use(lane);
    this.#touched.add(lane);
  }

  #markLanes(): void {
    for (const lane of this.#keeper.ordering.lanes)
      if (!this.#block.isEmpty(lane.number) && lane.identity.announcesEnd) lane.freeUnrecorded();
  }

  #chooseFastPath(stream: Stream, number: number): void {
    const isRegular =
      this.#isInPass && !this.#isIrregular && this.#overdue.size === 0 && this.#unordered.length === 0 && this.#waits.size === 0;
    const isServed =
      isRegular && this.#bound[number] === stream && this.#hasWaited.has(this.#lane.number) && this.#block.segment !== undefined;
    this.#stream = isServed && !this.#keeper.isAsleep ? stream : noStream;
    this.#streamNumber = number;
  }

  /** Takes the block again after it was given back. */
  #takeAgain(stream: Stream): void {
    // A host function that runs in the upstream gets nothing.
    if (this.#plan.totalBytes === 0 || this.#isTaking) return;
    this.#isTaking = true;
    try {
      this.#keeper.tryTake(this.#block.segmentBytes, stream);
    } finally {
      this.#isTaking = false;
    }
    // The others wait for the upstream's earlier users through this stream.
    this.#hasWaited = new Set([this.#lane.number]);
    this.#recorded.clear();
    this.#touch(this.#lane.number);
  }

  #refuse(
    deviation: PlanDeviation,
    bytes: number,
    stream: Stream,
    alignment: number,
    before: { readonly cursor: number; readonly overdue: number },
  ): never {
    const k = this.#cursor;
    const a = this.#plan.operations[k];
    let expected = 'no further request';
    if (a !== undefined) expected = `request ${a} with at most ${this.#limits[k]} bytes on stream ${this.#operationStreams[k]} of the plan`;
    if (deviation === 'alignment') expected += `, aligned to at most ${this.#plan.alignmentBytes}`;
    if (deviation === 'in-use') expected += ', and its place to be free';
    const came = `${bytes} bytes on stream ${stream.id}${alignment === ALLOCATION_ALIGNMENT ? '' : `, aligned to ${alignment}`}`;
    this.#deviations[deviation]++;
    this.#deviated++;
    this.#cursor = before.cursor;
    for (const place of [...this.#overdue].slice(before.overdue)) this.#overdue.delete(place);
    throw new CisternError('ERR_CISTERN_PLAN_DEVIATION', `the PlannedMemoryResource expected ${expected}; got ${came} (${deviation})`);
  }

  #deviate(deviation: PlanDeviation, bytes: number, stream: Stream, alignment: number): DevicePointer {
    this.#deviations[deviation]++;
    this.#deviated++;
    this.#stream = noStream;
    if (this.#cursor < this.#plan.operations.length) this.#cursor++;
    if (!this.#isSingleStream) this.#becomeIrregular();
    return this.#allocateFromFallback(bytes, stream, alignment);
  }

  #allocateFromFallback(bytes: number, stream: Stream, alignment: number): DevicePointer {
    try {
      const pointer = this.#keeper.held.servedElsewhere(this.fallback.allocate(bytes, stream, alignment), bytes, stream, this.fallback);
      this.#fallbackAllocations++;
      return pointer;
    } catch (error) {
      throw error instanceof OutOfMemoryError ? error.through(this.constructor.name) : error;
    }
  }

  #beginAutomatically(): void {
    this.begin();
    this.#isAutomatic = true;
  }
}

/** `planned` in a specification. */
export const plannedKind = defineAdaptor({
  name: 'planned',
  role: 'pooling',
  summary: 'serves each pass from a plan made by `cistern plan`, without a search',
  options: {
    plan: { type: 'text', summary: 'the file with the plan, made by `cistern plan LOG -o FILE`', required: true, file: 'read' },
    fallback: { type: 'resource', summary: 'serves requests that are not in the plan', default: 'the upstream' },
    deviations: {
      type: 'word',
      words: deviationWords,
      summary: 'how to treat a request that differs from the plan',
      default: 'fallback',
    },
  },
  example: 'planned(cuda, plan=examples/plans/two-streams.json)',
  create: ({ upstream, options: { plan, ...options } }) =>
    new PlannedMemoryResource(upstream, readPlan(plan), { repeats: true, ...options }),
  eventsDefault: 'deferred',
});

/**
 * @throws ArgumentTypeError if it is not a path; CisternError (`ERR_CISTERN_INVALID_PLAN`) if the
 * file cannot be read, or does not hold a valid plan.
 */
function readPlan(path: string): Plan {
  // A number would be a file descriptor.
  if (typeof path !== 'string') throw new ArgumentTypeError(`plan must be the path of a file, got ${formatValue(path)}`);
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    throw invalidPlan(`the plan ${formatValue(path)} cannot be read: ${(error as NodeJS.ErrnoException).code}`, { cause: error });
  }
  return parsePlan(text, path);
}

/**
 * For each allocation that takes over bytes from other streams: those that allocated or freed them
 * last. The streams before those are ordered by the waits of the allocations in between, on the streams that allocated: of
 * memory that was never used, the stream of the free need not come after those.
 */
function streamChanges(plan: Plan): Map<number, readonly number[]> {
  const { starts, predecessors } = withPredecessors(plan);
  const changes = new Map<number, readonly number[]>();
  for (let a = 0; a < plan.sizes.length; a++) {
    const from = new Set<number>();
    for (const before of predecessors.subarray(starts[a], starts[a + 1])) {
      for (const stream of [plan.streams[before] as number, plan.freeStreams[before] as number])
        if (stream >= 0 && stream !== plan.streams[a]) from.add(stream);
    }
    if (from.size > 0) changes.set(a, [...from]);
  }
  return changes;
}
