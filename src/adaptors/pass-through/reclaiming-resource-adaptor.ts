/**
 * Responds to an out-of-memory error in stages, each of which costs more than the one before:
 *
 *     allocate ──► upstream ──► served
 *                    │ out of memory
 *                    ▼
 *     settle ──► trim ──► minor collection ──► major collection ──► callback ──► OutOfMemoryError
 *                               └──────────────────┴── recovered something: settle and trim again
 *
 * After each stage, the upstream is called again, unless the stage certainly recovered nothing.
 * Memory that the later stages free may still be in use by queued work, or be in a resource below
 * in pieces that do not fit. So if one of them recovered memory but the request still failed,
 * settle and trim run again.
 *
 * The stages are one generator, which yields when there is something to wait for: `allocate`
 * blocks, `allocateAsync` awaits.
 */

import { setImmediate } from 'node:timers/promises';
import {
  ArgumentRangeError,
  ArgumentTypeError,
  formatValue,
  invalidValue,
  OutOfMemoryError,
  type RecoveryStage,
} from '../../basics/errors.js';
import { formatBytes } from '../../basics/units.js';
import { assertBytes, assertOneOf, optionNames } from '../../basics/validation.js';
import { formatReclaimTimings, type ReclaimStage, type ReclaimTimings, reclaimStages, StageSums } from '../../collector/stage-timings.js';
import { type CollectionStage, runCollectionStage } from '../../collector/when-memory-is-short.js';
import { mayUseMemoryOf } from '../../driver/device.js';
import { isNotPermitted } from '../../driver/status.js';
import type { Stream } from '../../driver/streams/stream.js';
import type {
  DeallocationEventsOption,
  DeallocationFence,
  DevicePointer,
  MemoryResource,
  MemoryResourceAdaptor,
  ReservingMemoryResource,
  TrimmingMemoryResource,
} from '../../memory-resource.js';
import { defineAdaptor } from '../../resource-kind.js';
import { layersOf } from '../layers.js';
import { PassThroughAdaptor } from './pass-through-adaptor.js';

/** Options of {@link ReclaimingResourceAdaptor}. */
export interface ReclaimingResourceAdaptorOptions extends DeallocationEventsOption {
  /**
   * The stages to use. Their order is always the same.
   * @defaultValue all of them
   */
  readonly stages?: readonly ReclaimStage[] | undefined;
  /**
   * The last stage: recovers memory that only your program knows about, for example by dropping a
   * cache. It may use this resource; its own allocations start no stages. If it throws, the
   * allocation throws that error.
   * @param bytes the size that could not be allocated
   * @param stream the stream of that allocation
   * @returns the recovered bytes, or, if you do not know the number, whether you recovered any
   * @defaultValue not set: the stage is left out
   */
  readonly onOutOfMemory?: ((bytes: number, stream: Stream) => number | boolean) | undefined;
  /**
   * Live bytes above which garbage is collected although memory is left; from 0 to 2^53 -
   * 1. Excludes `softLimitFraction`.
   * @defaultValue not set: garbage is collected when memory runs out
   */
  readonly softLimitBytes?: number | undefined;
  /**
   * The same limit as a share of the device's total memory, above 0 and at most 1.
   * @defaultValue not set
   */
  readonly softLimitFraction?: number | undefined;
}

const knownOptions = optionNames<ReclaimingResourceAdaptorOptions>({
  deallocationEvents: true,
  onOutOfMemory: 'function',
  softLimitBytes: true,
  softLimitFraction: true,
  stages: true,
});

/** An allocation that ran out of memory. */
interface Request {
  readonly bytes: number;
  readonly stream: Stream;
  readonly alignment: number | undefined;
  /** The upstream's latest error. */
  error: OutOfMemoryError;
  readonly tried: RecoveryStage[];
  /** Set once the request is served. */
  pointer: DevicePointer | undefined;
}

/**
 * What to wait for: all work queued on the device, or a turn of the event loop if the caller can
 * wait for one.
 */
type Pause = 'device' | 'turn';

/** Stages in progress. The answer to each pause says whether the wait was possible. */
type Steps<Result> = Generator<Pause, Result, boolean>;

/**
 * When its upstream is out of memory, recovers memory in stages, and tries again after each: {@link
 * ReclaimStage} says what they do. With it, programs that drop buffers without disposing them need
 * only a fraction of the memory.
 *
 * Put it above resources that keep memory, such as a pool, because its frees go through them, and
 * it trims them.
 *
 * Stream order and alignment are those of the upstream. While there is memory, `allocate` only
 * passes the call on. When memory runs out, it blocks until the device has run all queued work,
 * including host functions, which may use this very resource; inside a host function, which must
 * not wait, it skips that wait. {@link ReclaimingResourceAdaptor.allocateAsync} does not block.
 *
 * With a soft limit, an allocation that brings the live bytes of this resource above it first
 * starts a collection: a minor one and, if that recovers too little, a major one. It never refuses
 * an allocation. The next collection comes only after the live bytes have grown, from their value
 * after the last one, by an eighth of the limit (or of the live bytes, if greater). So a program
 * that needs more than its soft limit does not collect constantly.
 *
 * RMM has only the callback: `rmm::mr::failure_callback_resource_adaptor`. The stages and their
 * timings are those of the split pool of CuArrays.jl.
 * @example
 * ```ts
 * using upstream = new CudaAsyncMemoryResource();
 * using pool = new PoolMemoryResource(upstream);
 * using resource = new ReclaimingResourceAdaptor(pool, { softLimitFraction: 0.75 });
 * train(resource);
 * console.log(resource.report());
 * ```
 */
export class ReclaimingResourceAdaptor extends PassThroughAdaptor {
  /** @internal */
  static override readonly name = 'ReclaimingResourceAdaptor';
  /** Live bytes above which garbage is collected; Infinity without a soft limit. */
  readonly softLimitBytes: number;
  /** Not set once this is disposed. */
  #onOutOfMemory: ((bytes: number, stream: Stream) => number | boolean) | undefined;
  #sums: readonly StageSums[];
  /** A collection is due once the live bytes exceed this. */
  #collectAtBytes: number;
  #liveBytes = 0;
  #served = 0;
  #exhaustions = 0;
  #softCollections = 0;
  #beganAt = performance.now();
  /**
   * Whether a stage is running. Stages run foreign code, whose own allocations must not start the
   * stages again.
   */
  #isReclaiming = false;

  /**
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid option, or two that exclude each
   * other.
   */
  constructor(upstream: MemoryResource, options: ReclaimingResourceAdaptorOptions = {}) {
    super(upstream, options, knownOptions);
    const { stages = reclaimStages, onOutOfMemory } = options;
    if (!Array.isArray(stages)) throw new ArgumentTypeError(`stages must be an array, got ${formatValue(stages)}`);
    for (const stage of stages) assertOneOf(stage, reclaimStages, 'a stage');
    if (onOutOfMemory !== undefined && typeof onOutOfMemory !== 'function') {
      throw new ArgumentTypeError(`onOutOfMemory must be a function, got ${formatValue(onOutOfMemory)}`);
    }
    this.#onOutOfMemory = onOutOfMemory;
    const active = reclaimStages.filter((stage) => stages.includes(stage) && (stage !== 'callback' || onOutOfMemory !== undefined));
    this.#sums = active.map((stage) => new StageSums(stage));
    this.softLimitBytes = softLimitOf(options, this.device.totalBytes);
    this.#collectAtBytes = this.softLimitBytes;
    if (this.softLimitBytes !== Number.POSITIVE_INFINITY && !active.some(isCollection)) {
      throw invalidValue('stages must include a collection if there is a soft limit, got none');
    }
  }

  /** Bytes allocated through this resource and not freed, as requested. */
  get liveBytes(): number {
    return this.#liveBytes;
  }

  /**
   * Allocates from the upstream. If the upstream is out of memory, runs the stages and tries again
   * after each.
   * @throws OutOfMemoryError if no stage helped, with `stages`; its `cause` is the upstream's
   * latest error.
   */
  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    assertBytes(bytes);
    if (bytes > this.#collectAtBytes - this.#liveBytes) this.#collectEarly(bytes);
    try {
      return this.#serve(bytes, stream, alignment);
    } catch (error) {
      return this.#reclaim(this.#requestOf(error, bytes, stream, alignment));
    }
  }

  /**
   * The same as {@link ReclaimingResourceAdaptor.allocate}, but waits for the device without
   * blocking the event loop. It also waits a turn of the event loop before each stage, so that
   * objects which the current job still holds can be collected, and memory that other code frees is
   * found.
   * @throws the same errors, as a rejection.
   */
  async allocateAsync(bytes: number, stream: Stream, alignment?: number): Promise<DevicePointer> {
    assertBytes(bytes);
    if (bytes > this.#collectAtBytes - this.#liveBytes) this.#collectEarly(bytes);
    let pointer: DevicePointer;
    try {
      pointer = this.#serve(bytes, stream, alignment);
    } catch (error) {
      pointer = await this.#reclaimAsync(this.#requestOf(error, bytes, stream, alignment));
    }
    return this.remember(pointer, bytes, stream);
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    this.freed(this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents));
    if (pointer !== 0) this.#liveBytes -= bytes;
  }

  /**
   * Ends allocation through this object, and releases the callback. Memory allocated through it can
   * still be freed through it. Does not dispose the upstream. A second call does nothing.
   */
  override [Symbol.dispose](): void {
    super[Symbol.dispose]();
    this.#onOutOfMemory = undefined;
  }

  /** The times of the stages, and the bytes that they recovered. */
  timings(): ReclaimTimings {
    const elapsedMilliseconds = performance.now() - this.#beganAt;
    const rescues = this.#sums.reduce((sum, stage) => sum + stage.rescues, 0);
    return Object.freeze({
      elapsedMilliseconds,
      allocations: this.#served - rescues + this.#exhaustions,
      exhaustions: this.#exhaustions,
      softCollections: this.#softCollections,
      stages: Object.freeze(this.#sums.map((stage) => stage.snapshot(elapsedMilliseconds))),
    });
  }

  /** Resets the timings. */
  resetTimings(): void {
    this.#sums = this.#sums.map(({ stage }) => new StageSums(stage));
    this.#served = 0;
    this.#exhaustions = 0;
    this.#softCollections = 0;
    this.#beganAt = performance.now();
  }

  /** {@link ReclaimingResourceAdaptor.timings} as a table to print. */
  report(): string {
    return formatReclaimTimings(this.timings());
  }

  #serve(bytes: number, stream: Stream, alignment: number | undefined): DevicePointer {
    this.assertUsable(stream);
    // Counted before the call, because host functions that run while an upstream waits for a stream
    // may allocate through this adaptor.
    this.#liveBytes += bytes;
    try {
      const pointer = this.served(this.upstream.allocate(bytes, stream, alignment), bytes, stream);
      this.#served++;
      return pointer;
    } catch (error) {
      this.#liveBytes -= bytes;
      throw error;
    }
  }

  /** @throws `error` if the stages cannot help with it. */
  #requestOf(error: unknown, bytes: number, stream: Stream, alignment: number | undefined): Request {
    if (!(error instanceof OutOfMemoryError)) throw error;
    this.#exhaustions++;
    if (this.#isReclaiming || this.#sums.length === 0) throw this.passOn(error);
    return { bytes, stream, alignment, error, tried: [...error.stages], pointer: undefined };
  }

  #reclaim(request: Request): DevicePointer {
    const steps = this.#stages(request);
    this.#isReclaiming = true;
    try {
      let step = steps.next(false);
      while (step.done !== true) step = steps.next(step.value === 'device' && this.#synchronizeSync());
      return step.value;
    } finally {
      this.#isReclaiming = false;
    }
  }

  async #reclaimAsync(request: Request): Promise<DevicePointer> {
    const steps = this.#stages(request);
    for (let pause = false; ; ) {
      this.#isReclaiming = true;
      let step: IteratorResult<Pause, DevicePointer>;
      try {
        step = steps.next(pause);
      } finally {
        // Allocations by other code during the pause have their own stages.
        this.#isReclaiming = false;
      }
      if (step.done === true) return step.value;
      if (step.value === 'device') await this.device.synchronize();
      else await setImmediate();
      pause = true;
    }
  }

  /** @throws OutOfMemoryError */
  *#stages(request: Request): Steps<DevicePointer> {
    const sums = this.#sums;
    for (const stage of sums) {
      const recoveredBytes = yield* this.#stage(stage, request);
      if (request.pointer !== undefined) return request.pointer;
      if (recoveredBytes === 0 || isEarly(stage)) continue;
      for (const again of sums.filter(isEarly)) {
        yield* this.#stage(again, request, stage.stage);
        if (request.pointer !== undefined) return request.pointer;
      }
    }
    throw this.#exhausted(request);
  }

  /**
   * Runs one stage and calls the upstream again. Returns how many bytes the stage recovered, as far
   * as known.
   * @param after the stage that this one follows, if it runs again
   */
  *#stage(sums: StageSums, request: Request, after?: ReclaimStage): Steps<number> {
    let isWorthATry = yield 'turn';
    const beganAt = performance.now();
    const layers = layersOf(this.upstream);
    const heldBefore = heldBytes(layers);
    let recoveredBytes = 0;
    try {
      switch (sums.stage) {
        case 'settle':
          recoveredBytes = runCollectionStage('settle');
          if (yield 'device') isWorthATry = true;
          break;
        case 'trim': {
          const released = yield* this.#trim(layers, request.stream);
          recoveredBytes = released.toBottomBytes;
          if (released.bytes > 0) isWorthATry = true;
          break;
        }
        case 'minor-collection':
        case 'major-collection':
          recoveredBytes = runCollectionStage(sums.stage);
          break;
        case 'callback': {
          const answer = this.#callBack(request);
          if (typeof answer === 'number') recoveredBytes = answer;
          else if (answer) isWorthATry = true;
        }
      }
      // A lower bound, because bytes that one resource reports as returned are often the same bytes
      // that the next one then returns.
      recoveredBytes = Math.max(recoveredBytes, heldBefore - heldBytes(layers));
    } finally {
      sums.calls++;
      sums.milliseconds += performance.now() - beganAt;
      sums.recoveredBytes += recoveredBytes;
    }
    request.tried.push({ stage: sums.stage, after, recoveredBytes });
    if (recoveredBytes === 0 && !isWorthATry) return 0;
    try {
      request.pointer = this.#serve(request.bytes, request.stream, request.alignment);
      sums.rescues++;
    } catch (error) {
      if (!(error instanceof OutOfMemoryError)) throw error;
      request.error = error;
    }
    return recoveredBytes;
  }

  /**
   * Blocks until the device is idle. Returns false inside a host function, which must not wait.
   */
  #synchronizeSync(): boolean {
    try {
      this.device.synchronizeSync();
      return true;
    } catch (error) {
      if (isNotPermitted(error)) return false;
      throw error;
    }
  }

  /**
   * Makes every layer return the memory that it keeps, the outermost first. Returns how many bytes
   * they returned in total, and how many of those did not go to another layer that keeps memory.
   */
  *#trim(layers: readonly MemoryResource[], stream: Stream): Steps<{ bytes: number; toBottomBytes: number }> {
    const trimming = layers.filter(isTrimming).filter(({ device }) => mayUseMemoryOf(stream.device, device));
    const released = { bytes: 0, toBottomBytes: 0 };
    for (const layer of trimming) {
      const { upstream } = layer as Partial<MemoryResourceAdaptor>;
      // A driver's pool returns only memory that a synchronization has seen to be free.
      if (upstream === undefined && released.bytes > 0) yield 'device';
      let bytes = 0;
      try {
        bytes = layer.trim(stream);
      } catch (error) {
        if (!isNotPermitted(error)) throw error;
      }
      released.bytes += bytes;
      if (upstream === undefined || !layersOf(upstream).some((below) => trimming.some((each) => each === below))) {
        released.toBottomBytes += bytes;
      }
    }
    return released;
  }

  #callBack({ bytes, stream }: Request): number | boolean {
    if (this.#onOutOfMemory === undefined) return false;
    const answer: unknown = this.#onOutOfMemory(bytes, stream);
    if (typeof answer === 'boolean') return answer;
    if (typeof answer !== 'number') {
      throw new ArgumentTypeError(`onOutOfMemory must return a number or a boolean, got ${formatValue(answer)}`);
    }
    assertBytes(answer, 'the result of onOutOfMemory');
    return answer;
  }

  /**
   * Collects garbage because the live bytes would exceed the soft limit: a minor collection, and a
   * major one if that was not enough.
   */
  #collectEarly(bytes: number): void {
    if (this.#isReclaiming) return;
    this.#softCollections++;
    this.#isReclaiming = true;
    try {
      for (const { stage } of this.#sums) {
        if (isCollection(stage)) this.#collect(stage);
        if (bytes <= this.softLimitBytes - this.#liveBytes) break;
      }
    } finally {
      this.#isReclaiming = false;
    }
    const liveBytes = this.#liveBytes + bytes;
    this.#collectAtBytes = Math.max(this.softLimitBytes, liveBytes + Math.max(this.softLimitBytes, liveBytes) / 8);
  }

  #collect(stage: CollectionStage): void {
    const sums = this.#sums.find((each) => each.stage === stage) as StageSums;
    const beganAt = performance.now();
    sums.recoveredBytes += runCollectionStage(stage);
    sums.calls++;
    sums.milliseconds += performance.now() - beganAt;
  }

  #exhausted({ bytes, error, tried }: Request): OutOfMemoryError {
    const gains = tried
      .map(({ stage, after, recoveredBytes }) => `${stage}${after === undefined ? '' : ` after ${after}`} ${formatBytes(recoveredBytes)}`)
      .join(', ');
    return new OutOfMemoryError(
      `${error.message}; reclaiming recovered too little: ${gains}`,
      {
        requestedBytes: bytes,
        ...(error.availableBytes === undefined ? {} : { availableBytes: error.availableBytes }),
        ...(error.limitBytes === undefined ? {} : { limitBytes: error.limitBytes }),
        path: [this.constructor.name, ...error.path],
        stages: tried,
      },
      { cause: error },
    );
  }
}

/** `reclaiming` in a specification. */
export const reclaimingKind = defineAdaptor({
  name: 'reclaiming',
  role: 'pass-through',
  summary: 'recovers memory in stages when it runs out, and tries again',
  options: {
    softLimitBytes: { type: 'size', summary: 'live bytes at which garbage is collected early', default: 'none' },
    softLimitFraction: { type: 'number', summary: "the same as a share of the device's memory, up to 1", default: 'none' },
  },
  example: 'reclaiming(pool(cuda))',
  create: ({ upstream, options }) => new ReclaimingResourceAdaptor(upstream, options),
});

function softLimitOf({ softLimitBytes, softLimitFraction }: ReclaimingResourceAdaptorOptions, totalBytes: number): number {
  if (softLimitBytes !== undefined) {
    if (softLimitFraction !== undefined) {
      throw invalidValue(`softLimitFraction must not be given together with softLimitBytes, got ${formatValue(softLimitFraction)}`);
    }
    assertBytes(softLimitBytes, 'softLimitBytes');
    return softLimitBytes;
  }
  if (softLimitFraction === undefined) return Number.POSITIVE_INFINITY;
  if (typeof softLimitFraction !== 'number') {
    throw new ArgumentTypeError(`softLimitFraction must be a number, got ${formatValue(softLimitFraction)}`);
  }
  if (softLimitFraction > 0 && softLimitFraction <= 1) return Math.floor(softLimitFraction * totalBytes);
  throw new ArgumentRangeError(`softLimitFraction must be above 0 and at most 1, got ${softLimitFraction}`);
}

function isCollection(stage: ReclaimStage): stage is 'minor-collection' | 'major-collection' {
  return stage === 'minor-collection' || stage === 'major-collection';
}

/** Whether a stage only uses memory that is already free. */
function isEarly({ stage }: StageSums): boolean {
  return stage === 'settle' || stage === 'trim';
}

function isTrimming(layer: MemoryResource): layer is TrimmingMemoryResource {
  return typeof (layer as Partial<TrimmingMemoryResource>).trim === 'function';
}

/** The device memory that the leaves hold, as far as they report it. */
function heldBytes(layers: readonly MemoryResource[]): number {
  const counted: MemoryResource[] = [];
  let bytes = 0;
  for (const layer of layers) {
    const { upstream, reservedBytes } = layer as Partial<MemoryResourceAdaptor & ReservingMemoryResource>;
    // Equal resources count the same bytes.
    if (upstream !== undefined || reservedBytes === undefined || counted.some((other) => other.isEqual(layer))) continue;
    counted.push(layer);
    bytes += reservedBytes;
  }
  return bytes;
}
