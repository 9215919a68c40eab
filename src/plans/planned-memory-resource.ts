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
 * plan; a deviation is served by the fallback, and the cursor moves on. What did not come back as
 * planned is in `LateMemory`, and which stream waits for which in `PassOrder`: with memory of the
 * one, or in a pass that the other calls irregular, every request takes the slow path.
 *
 * Learning. A recorded pass is served by the fallback. Once enough passes in a row had the same
 * operations, the planner makes a plan of them, and the next pass is served from it. The block of
 * the plan before goes back to the upstream when nothing is live in it. While
 * earlier blocks with live memory have more bytes than the block of the plan, no pass is recorded.
 *
 * Invariants: live allocations do not overlap; an allocation is made only if its stream is ordered
 * after every earlier free of its bytes.
 */

import { Keeper, type KeepingResource } from '../adaptors/pooling/keeper.js';
import type { GrowthObserver } from '../adaptors/pooling/upstream-blocks.js';
import { ArgumentTypeError, CisternError, invalidValue, OutOfMemoryError } from '../basics/errors.js';
import { ALLOCATION_ALIGNMENT } from '../basics/units.js';
import {
  assertAlignment,
  assertBytes,
  assertFunction,
  assertInteger,
  assertMilliseconds,
  assertOneOf,
  assertOptions,
} from '../basics/validation.js';
import type { Device, MemoryKind } from '../driver/device.js';
import { noStream, Stream } from '../driver/streams/stream.js';
import { type Inspection, inspected } from '../driver/workers/local-object.js';
import {
  assertFallback,
  assertMemoryResource,
  type DeallocationEvents,
  type DeallocationFence,
  type DevicePointer,
  type MemoryResource,
  type TrimOptions,
} from '../memory-resource.js';
import { noteFree } from '../ownership/served-memory.js';
import { defineAdaptor, stackName } from '../resource-kind.js';
import { untilSettled, withResource } from '../scopes/resource-scope.js';
import { noLane } from '../stream-ordering/stream-lane.js';
import { assertFence } from '../stream-ordering/stream-ordering.js';
import { isWithin, none, type Segment } from '../suballocation/blocks.js';
import { LateMemory } from './late-memory.js';
import { PassOrder } from './pass-order.js';
import type { PassRecorder } from './pass-recorder.js';
import { checkedPlan, noPlan, type Plan, readPlan } from './plan.js';
import { PlanLearner } from './plan-learner.js';
import { PlannedBlock } from './planned-block.js';
import {
  deviationWords,
  type PlanDeviation,
  type PlannedMemoryResourceOptions,
  type PlannedStatistics,
  plannedOptionNames,
} from './planned-options.js';

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
  readonly #order: PassOrder;
  readonly #late = new LateMemory();
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
    assertOptions(options, plannedOptionNames);
    const { fallback = upstream, deviations = 'fallback', repeats = false, deallocationEvents } = options;
    const { planner, recordedPasses = 2, planningMilliseconds = 100, replanAfter = 3 } = options;
    assertOneOf(deviations, deviationWords, 'deviations');
    if (planner === undefined && plan === undefined) throw new ArgumentTypeError('a plan or the option planner must be given');
    if (planner !== undefined && repeats) {
      throw invalidValue('repeats and planner must not be given together');
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
    this.#order = new PassOrder(block, this.#keeper.ordering);
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
  [inspected](...inspection: Inspection): string {
    return this.#keeper.inspect(inspection);
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
    this.#order.begin();
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
    if (operation !== 'dispose' && operation !== 'trim') return;
    this.#order.gather(this.#lane.number);
    this.#stream = noStream;
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
    this.#deviated = 0;
    // It still has the block of a plan if recording waits.
    if (this.#learner.isLearning && this.#block.segment === undefined) {
      this.#learner.beginPass(this);
      // Nothing of the plan is due.
      this.#cursor = this.#plan.operations.length;
    }
    this.#late.begin(this.#block);
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
    this.#order.setPlan(plan, this.#isSingleStream);
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
    const before = { cursor: this.#cursor, overdue: this.#late.overdue.size };
    this.#passDueFrees();
    if (this.#cursor === this.#plan.operations.length && this.#repeats && this.#cursor > 0) {
      this.#beginAutomatically();
      this.enter(stream, 'allocate');
    }
    const deviation = this.#deviationOf(bytes, stream, alignment);
    if (deviation !== undefined) {
      if (this.#refuses) this.#refuse(deviation, bytes, stream, alignment, before);
      // It stands for the stream of the plan all the same.
      if (deviation !== 'extra' && deviation !== 'stream') this.#order.letStandFor(this.#operationStreams[this.#cursor] as number, stream);
      return this.#deviate(deviation, bytes, stream, alignment);
    }
    const k = this.#cursor;
    const number = this.#operationStreams[k] as number;
    this.#order.letStandFor(number, stream);
    this.#order.enter(stream, this.#lane.number);
    this.#order.waitForSources(this.#plan.operations[k] as number, stream);
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
    this.#order.touch(lane.number);
    this.#block.free(place);
    // It was of an earlier plan.
    if (place >= this.#owners.length) return;
    const wasOverdue = this.#late.overdue.delete(place);
    if (wasOverdue && this.#isInPass) this.#deviations['late-free']++;
    const a = this.#plan.operations[this.#owners[place] as number] as number;
    const planned = (this.#plan.freeStreams[a] as number) >= 0 ? (this.#plan.freeStreams[a] as number) : (this.#plan.streams[a] as number);
    if (!wasOverdue && this.#isFree(stream)) this.#order.letStandFor(planned, stream);
    const known = this.#order.standingFor(planned);
    const isPlanned = known?.identity === stream.identity;
    // Which stream a new pass uses is not known from memory of an earlier one.
    if (!isPlanned && (known !== undefined || !wasOverdue)) this.#deviations['free-stream']++;
    if (!isPlanned || (wasOverdue && !this.#isSingleStream))
      this.#late.leaveTo(stream.identity, this.#block.offsets[place] as number, this.#plan.sizes[a] as number);
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
      if (this.#isLive(~(operations[this.#cursor] as number), place)) this.#late.overdue.add(place);
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

  /** Whether the stream may stand for a stream of the plan that has none yet. */
  #isFree(stream: Stream): boolean {
    return this.#isInPass && stream.identity.announcesEnd && this.#order.standsForNone(stream);
  }

  /** How a request differs from the plan's at the cursor, if it does. */
  #deviationOf(bytes: number, stream: Stream, alignment: number): PlanDeviation | undefined {
    const k = this.#cursor;
    if (k === this.#plan.operations.length) return 'extra';
    const known = this.#order.standingFor(this.#operationStreams[k] as number);
    if (known === undefined ? !this.#isFree(stream) : known.identity !== stream.identity) return 'stream';
    if (bytes > (this.#limits[k] as number)) return 'larger';
    if (alignment > this.#plan.alignmentBytes) return 'alignment';
    const offset = this.#block.offsets[this.#places[k] as number] as number;
    return this.#late.isTaken(this.#block, offset, this.#limits[k] as number, stream.identity) ? 'in-use' : undefined;
  }

  #laneEnded(lane: number, ended: number): void {
    if (this.#order.laneEnded(lane, ended)) this.#stream = noStream;
  }

  #chooseFastPath(stream: Stream, number: number): void {
    const isRegular = this.#isInPass && !this.#order.isIrregular && this.#late.isEmpty && this.#order.isEachForItself;
    const isServed =
      isRegular &&
      this.#order.standingFor(number) === stream &&
      this.#order.hasWaited(this.#lane.number) &&
      this.#block.segment !== undefined;
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
    this.#order.tookBlock(this.#lane.number);
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
    this.#late.forgetLast(before.overdue);
    throw new CisternError('ERR_CISTERN_PLAN_DEVIATION', `the PlannedMemoryResource expected ${expected}; got ${came} (${deviation})`);
  }

  #deviate(deviation: PlanDeviation, bytes: number, stream: Stream, alignment: number): DevicePointer {
    this.#deviations[deviation]++;
    this.#deviated++;
    this.#stream = noStream;
    if (this.#cursor < this.#plan.operations.length) this.#cursor++;
    if (!this.#isSingleStream) this.#order.becomeIrregular();
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
