import { logCapture } from '../adaptors/pass-through/graph-outputs.js';
import { PassThroughAdaptor } from '../adaptors/pass-through/pass-through-adaptor.js';
import { alreadyFreed, CisternError, formatPointer, throwFirst, wrongSize } from '../basics/errors.js';
import { ALLOCATION_ALIGNMENT, alignUp, formatBytes } from '../basics/units.js';
import {
  assertAlignment,
  assertBytes,
  assertFunction,
  assertMilliseconds,
  assertName,
  assertNoPromise,
  assertOneOf,
  assertOptions,
  optionNames,
} from '../basics/validation.js';
import type { CaptureMode } from '../driver/graphs/capture.js';
import type { Graph } from '../driver/graphs/graph.js';
import { assertAwake } from '../driver/memory/guarded-addresses.js';
import { assertStream, assertStreamOf, type Stream } from '../driver/streams/stream.js';
import { observeEvents, unobserveEvents } from '../driver/streams/stream-identity.js';
import {
  assertFallback,
  type DeallocationEventsOption,
  type DeallocationFence,
  type DevicePointer,
  type MemoryResource,
  type ReservingMemoryResource,
  type TrimmingMemoryResource,
  type TrimOptions,
  trimOptionNames,
} from '../memory-resource.js';
import { markAsTaker, type RefusedFree, rememberedSoFar, takeBack } from '../ownership/bulk-frees.js';
import { Extents } from '../plans/extents.js';
import { PassRecorder } from '../plans/pass-recorder.js';
import type { Plan } from '../plans/plan.js';
import type { Planner } from '../plans/plan-learner.js';
import type { PlanWithPredecessors } from '../plans/predecessors.js';
import type { OrderedSequence } from '../plans/sequence.js';
import { annotateGraph } from '../recording/annotate.js';
import { defineAdaptor } from '../resource-kind.js';
import { isWithin, leastBlockBytes, none, type Segment } from '../suballocation/blocks.js';
import { AddressesOfGraphs } from './addresses-of-graphs.js';
import { CaptureAllocator, type GraphDeviation } from './capture-allocator.js';
import { CapturedMemory } from './captured-memory.js';
import { CapturedRequests } from './captured-requests.js';
import { GraphRegion } from './graph-region.js';
import { KeptGraphMemory } from './kept-graph-memory.js';
import { LaunchOrder } from './launch-order.js';
import { LearntCaptures } from './learnt-captures.js';

/** Options of {@link GraphMemoryResource}. */
export interface GraphMemoryResourceOptions extends DeallocationEventsOption {
  /**
   * Computes a place for each allocation of a capture: `planAllocations` of `cistern/planning`. It runs at
   * the beginning of a capture, and blocks the thread meanwhile.
   * @defaultValue none: each capture searches for free memory, as a pool does
   */
  readonly planner?: Planner | undefined;
  /**
   * How long the planner may search for a better plan, in milliseconds.
   * @defaultValue 1000
   */
  readonly planningMilliseconds?: number | undefined;
  /**
   * How to treat a request that differs from the plan of its capture: `'fallback'` serves it from other
   * memory of the region, `'refuse'` throws a CisternError (`ERR_CISTERN_PLAN_DEVIATION`).
   * @defaultValue `'fallback'`
   */
  readonly deviations?: 'fallback' | 'refuse' | undefined;
  /**
   * Serves allocations outside captures; must be on the same device.
   * @defaultValue the upstream
   */
  readonly fallback?: MemoryResource | undefined;
  /**
   * The most bytes to reserve from the upstream for graphs.
   * @defaultValue Infinity
   */
  readonly maximumBytes?: number | undefined;
}

const knownOptions = optionNames<GraphMemoryResourceOptions>({
  deallocationEvents: true,
  deviations: true,
  fallback: true,
  maximumBytes: true,
  planner: 'function',
  planningMilliseconds: true,
});

/** Options of {@link GraphMemoryResource.capture}. */
export interface GraphCaptureOptions {
  /**
   * A name for the captured work. Captures with the same name should request the same memory in the
   * same order, because they share a plan. The plans of the last 1,024 names are remembered.
   * @defaultValue `'graph'`
   */
  readonly name?: string | undefined;
  /**
   * As for {@link Stream.beginCapture}.
   * @defaultValue `'thread-local'`
   */
  readonly mode?: CaptureMode | undefined;
}

const captureOptions = optionNames<GraphCaptureOptions>({ mode: true, name: true });
const defaultName = 'graph';
/** Of how many names it is known what they allocate. */
const deviationWords = ['fallback', 'refuse'] as const;

/** A graph in {@link GraphMemoryStatistics}. */
export interface GraphMemoryOfGraph {
  readonly name: string;
  /** The number of allocations during its capture. */
  readonly allocations: number;
  /** The bytes that it uses of the shared memory. */
  readonly regionBytes: number;
  /** The bytes that its plan needs; `undefined` if it was captured without a plan, or differed from it. */
  readonly lowerBoundBytes: number | undefined;
  /** The bytes that it has for itself ({@link GraphMemoryResource.kept}). */
  readonly keptBytes: number;
}

/** Statistics of a {@link GraphMemoryResource}. */
export interface GraphMemoryStatistics {
  /**
   * Bytes taken from the upstream and not returned: shared ones, and those that each graph has for
   * itself.
   */
  readonly reservedBytes: number;
  readonly peakReservedBytes: number;
  /** The bytes that the graphs share. */
  readonly regionBytes: number;
  /** The bytes that graphs have for themselves. */
  readonly keptBytes: number;
  /** The graphs that are not disposed, or of which an executable graph is not. */
  readonly graphs: readonly GraphMemoryOfGraph[];
  /**
   * Captures that produced a graph, and those of them in which every request had its place in a plan.
   */
  readonly captures: number;
  readonly plannedCaptures: number;
  /** How often a request differed from a plan, by the kind of difference. */
  readonly deviations: Readonly<Record<GraphDeviation, number>>;
  /**
   * Bytes that were freed in captures on a stream that did not come after their allocation, and so were
   * not reused in that capture.
   */
  readonly unorderedBytes: number;
  /** The last error of the planner; `undefined` if its last plan is valid. */
  readonly planningError: unknown;
}

/** Memory that a graph has for itself. */
interface KeptSegment extends Segment {
  readonly memory: CapturedMemory;
}

/**
 * Serves allocations and frees during the capture of CUDA graphs. All graphs of one resource share one
 * region, as large as the largest of them needs, because they never run at the same time.
 *
 * Within a capture ({@link GraphMemoryResource.capture}), you can allocate and free on every stream that has
 * joined it. Freed memory is reused in the same capture by work that comes after the free in the order of
 * the graph; no edge is added for that. Memory that is not freed is an output of the graph: it stays where
 * it is, and is valid until the next launch of any graph of this resource. Allocate memory that must live
 * longer from {@link GraphMemoryResource.kept}.
 *
 * With the option `planner`, the second capture of a name gets addresses that were planned from the first
 * one, or from a warm-up ({@link GraphMemoryResource.warmUp}): nothing is searched, and the region is hardly
 * larger than the peak of live bytes. A request that differs from the plan never gets memory that is in use.
 *
 * Stream order: each launch comes after the previous launch of any graph of this resource, on any stream.
 * `deallocationEvents` determines how: an event is recorded after each launch (`'eager'`), or before a launch
 * on another stream (`'deferred'`), or the host waits before a launch on another stream (`'off'`). If a
 * buffer in the memory of a graph is disposed on a stream, the next launch comes after that. Outside
 * captures, calls go to the fallback, with `deallocationEvents` for the frees.
 *
 * The upstream is called on a separate stream, which is never captured. Over an upstream that grows in
 * place ({@link VirtualMemoryResource}), you can capture graphs in any order; over others, capture or warm
 * up the largest first. The upstream and the fallback must outlive this resource, and are not disposed with
 * it. Disposing it ends the memory of its graphs, which can then no longer be launched.
 *
 * RMM has no counterpart; PyTorch's is a private pool of a graph, `torch.cuda.graph_pool_handle`.
 * @example
 * ```ts
 * using upstream = new VirtualMemoryResource();
 * using graphs = new GraphMemoryResource(upstream);
 * using stream = new Stream({ nonBlocking: true });
 * let output = 0;
 * using graph = graphs.capture(stream, () => {
 *   const scratch = graphs.allocate(1 * MiB, stream);
 *   output = graphs.allocate(4096, stream);
 *   set(scratch, 1, 1, 1 * MiB, stream);
 *   copy(output, scratch, 4096, stream);
 *   graphs.deallocate(scratch, 1 * MiB, stream);
 * });
 * using exec = graph.instantiate();
 * exec.launch(stream);
 * ```
 */
export class GraphMemoryResource extends PassThroughAdaptor implements ReservingMemoryResource, TrimmingMemoryResource {
  /** @internal */
  static override readonly name = 'GraphMemoryResource';
  /** Serves allocations outside captures. */
  readonly fallback: MemoryResource;
  /** The fallback, if it is not the upstream. */
  readonly alternates: readonly MemoryResource[];
  /**
   * Memory that graphs do not share: what a capture allocates from this resource belongs only to that
   * graph, stays valid whatever is launched, and is returned with the graph. It is not reused within the
   * capture. Outside captures, this is the fallback.
   */
  readonly kept: MemoryResource;
  readonly #refuses: boolean;
  readonly #order: LaunchOrder;
  readonly #region: GraphRegion;
  readonly #graphs = new Set<CapturedMemory>();
  /**
   * Graphs whose memory cannot be returned yet because a buffer in it cannot be freed, with the
   * reason for its end.
   */
  readonly #unended = new Map<CapturedMemory, string>();
  readonly #owned = new AddressesOfGraphs();
  /** Memory that graphs have for themselves. */
  readonly #kept = new Extents<KeptSegment>();
  readonly #requests = new CapturedRequests();
  readonly #learnt: LearntCaptures;
  #capture: CaptureAllocator | undefined;
  /** The memory of the graph that is being captured. */
  #captured: CapturedMemory | undefined;
  /** The graph whose memory is being taken back. */
  #ending: CapturedMemory | undefined;
  #recorder: PassRecorder | undefined;
  #recordedAlignment: number = ALLOCATION_ALIGNMENT;
  #captures = 0;
  #plannedCaptures = 0;
  #unorderedBytes = 0;
  readonly #deviations: Record<GraphDeviation, number> = { larger: 0, alignment: 0, extra: 0, 'in-use': 0 };
  /**
   * Whether a capture is about to begin, because the planner and the upstream can call this
   * resource.
   */
  #isBeginning = false;

  /** @throws ArgumentTypeError, ArgumentRangeError for an invalid upstream or option. */
  constructor(upstream: MemoryResource, options: GraphMemoryResourceOptions = {}) {
    super(upstream, options, knownOptions);
    const { fallback = upstream, planner, planningMilliseconds = 1000, deviations = 'fallback' } = options;
    const { maximumBytes = Number.POSITIVE_INFINITY, deallocationEvents = 'eager' } = options;
    assertOneOf(deviations, deviationWords, 'deviations');
    if (maximumBytes !== Number.POSITIVE_INFINITY) assertBytes(maximumBytes, 'maximumBytes');
    assertMilliseconds(planningMilliseconds, 'planningMilliseconds');
    assertFallback(fallback, this.device);
    this.fallback = fallback;
    this.alternates = fallback === upstream ? [] : [fallback];
    this.#learnt = new LearntCaptures(planner, planningMilliseconds);
    this.#refuses = deviations === 'refuse';
    this.#order = new LaunchOrder(deallocationEvents);
    this.#region = new GraphRegion(upstream, this.#order, maximumBytes);
    this.kept = new KeptGraphMemory(
      this,
      (bytes, alignment) => this.#keep(bytes, alignment),
      (stream) => this.#streamInCapture(stream) !== none,
    );
    markAsTaker(this);
  }

  get reservedBytes(): number {
    return this.#region.reservedBytes;
  }

  get peakReservedBytes(): number {
    return this.#region.peakReservedBytes;
  }

  resetPeakReservedBytes(): void {
    this.#region.peakReservedBytes = this.#region.reservedBytes;
  }

  /** Whether allocations outside captures come from the upstream. */
  override keepsPages(): boolean {
    return this.fallback === this.upstream;
  }

  /**
   * Captures the work that a function queues on a stream, and on streams that join, into a graph, which
   * owns the memory that the function allocates. If the function throws, the capture is abandoned, and its
   * memory is free again.
   * @param record a synchronous function: the capture ends when it returns
   * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) while this resource already captures or warms up; any
   * error that `record` throws; OutOfMemoryError if the upstream does not have the memory of the plan;
   * otherwise as {@link Stream.capture}
   */
  capture(stream: Stream, record: () => void, options: GraphCaptureOptions = {}): Graph {
    assertOptions(options, captureOptions);
    const { name = defaultName, mode } = options;
    assertName(name, 'name');
    this.#assertIdle('capture a graph');
    assertStream(stream, 'capture a graph');
    assertStreamOf(stream, this.device, 'allocate');
    assertFunction(record, 'record');
    for (const { address, bytes } of this.#region.extents) assertAwake(address, bytes, 'capture a graph');
    const { plan, capture } = this.#begin(name, stream);
    const memory = new CapturedMemory(name, this.#region, this.#order, (ended, reason) => this.#ended(ended, reason));
    memory.rememberedBefore = rememberedSoFar();
    this.#capture = capture;
    this.#captured = memory;
    observeEvents(capture);
    const capturing = () => {
      try {
        return stream.capture(record, mode);
      } finally {
        this.#adopt(capture, memory);
      }
    };
    try {
      const graph = annotateGraph(name, () => logCapture(this, capturing, (pointer, bytes) => this.#isOutput(memory, pointer, bytes)));
      this.#finish(capture, memory, plan);
      graph.useMemory(memory);
      return graph;
    } catch (error) {
      memory.rememberedLast = rememberedSoFar();
      memory.end('its capture was given up');
      throw error;
    } finally {
      unobserveEvents(capture);
      this.#capture = undefined;
      this.#captured = undefined;
      capture[Symbol.dispose]();
    }
  }

  /**
   * Runs a function that allocates from this resource without a capture. The fallback serves it, and its
   * allocations and frees are recorded, to plan the next capture of the name.
   * @param name as in {@link GraphCaptureOptions}
   * @param step a function that queues the work that will be captured
   * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) while this resource captures or warms up; any error
   * that `step` throws
   */
  warmUp(name: string, step: () => void): void {
    assertName(name, 'name');
    assertFunction(step, 'step');
    this.#assertIdle('warm up');
    const recorder = new PassRecorder(this);
    this.#recorder = recorder;
    this.#recordedAlignment = ALLOCATION_ALIGNMENT;
    let sequence: OrderedSequence | string;
    try {
      const result: unknown = step();
      assertNoPromise(result, 'step', 'the warm-up');
    } finally {
      this.#recorder = undefined;
      sequence = recorder.end();
    }
    if (typeof sequence === 'string') this.#learnt.planningError = new CisternError('ERR_CISTERN_INVALID_PLAN', sequence);
    else this.#learnt.learn(name, sequence, this.#recordedAlignment);
  }

  /** The plan that captures of a name follow; `undefined` if there is none yet. */
  plan(name: string = defaultName): Plan | undefined {
    return this.#learnt.madePlan(name);
  }

  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    const capture = this.#capture;
    const number = capture === undefined ? none : this.#streamInCapture(stream);
    if (capture === undefined || number === none) return this.#allocateOutside(bytes, stream, alignment);
    assertBytes(bytes);
    if (alignment !== undefined) assertAlignment(alignment);
    assertStreamOf(stream, this.device, 'allocate');
    if (bytes === 0) return 0;
    const multiple = alignment ?? ALLOCATION_ALIGNMENT;
    const deviation = capture.deviationOf(bytes, number, multiple);
    if (deviation !== undefined && this.#refuses) throw deviationError(deviation, capture.requests, bytes);
    try {
      return capture.allocate(bytes, number, multiple, deviation);
    } catch (error) {
      throw this.passOn(error, bytes);
    }
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    const capture = this.#capture;
    if (capture !== undefined && pointer !== 0) {
      const request = capture.requestAt(pointer);
      if (request !== none && !this.#mayBeOfOtherGraph(pointer, bytes)) {
        this.#freeCaptured(capture, pointer, bytes, request, stream);
        return;
      }
      if (request !== none && this.#ending === undefined) capture.doubt(pointer);
    }
    if (typeof pointer === 'number' && this.#owned.has(pointer)) this.#giveUp(pointer, bytes, stream);
    else if (this.#hasForGraphs(pointer)) throw alreadyFreed(refusalOf(pointer));
    else this.#deallocateOutside(pointer, bytes, stream, fence);
  }

  /**
   * Returns memory of the region that no graph needs any more, after every launch so far, in the order of a
   * separate stream.
   * @returns the bytes returned to the upstream
   */
  trim(stream: Stream, options: TrimOptions = {}): number {
    assertOptions(options, trimOptionNames);
    const { bytesToKeep = 0 } = options;
    assertBytes(bytesToKeep, 'bytesToKeep');
    this.assertLive('trim');
    assertStream(stream, 'trim');
    this.#assertIdle('trim');
    const before = this.reservedBytes;
    this.#endAgain();
    const needed = new Map<DevicePointer, number>();
    for (const { usedBytes } of this.#graphs) {
      for (const [address, bytes] of usedBytes) needed.set(address, Math.max(needed.get(address) ?? 0, bytes));
    }
    let left = bytesToKeep;
    for (const { address, bytes } of this.#region.extents) {
      needed.set(address, Math.max(needed.get(address) ?? 0, Math.min(left, bytes)));
      left -= Math.min(left, needed.get(address) as number);
    }
    this.#region.shrink(needed);
    return before - this.reservedBytes;
  }

  /** Current sizes and counts since the start. */
  statistics(): GraphMemoryStatistics {
    const { reservedBytes, peakReservedBytes } = this.#region;
    const graphs = [...this.#graphs].map(({ name, requests, regionBytes, lowerBoundBytes, keptBytes }) =>
      Object.freeze({ name, allocations: requests, regionBytes, lowerBoundBytes, keptBytes }),
    );
    return Object.freeze({
      reservedBytes,
      peakReservedBytes,
      regionBytes: this.#region.extents.reduce((sum, { bytes }) => sum + bytes, 0),
      keptBytes: graphs.reduce((sum, { keptBytes }) => sum + keptBytes, 0),
      graphs: Object.freeze(graphs),
      captures: this.#captures,
      plannedCaptures: this.#plannedCaptures,
      deviations: Object.freeze({ ...this.#deviations }),
      unorderedBytes: this.#unorderedBytes,
      planningError: this.#learnt.planningError,
    });
  }

  /** For tests: throws if the data structures are inconsistent. */
  validate(): void {
    this.#capture?.validate();
    const { extents, reservedBytes } = this.#region;
    const bytes = [...extents, ...[...this.#graphs].flatMap(({ kept }) => kept)].reduce((sum, each) => sum + each.bytes, 0);
    if (this.#capture === undefined && bytes > reservedBytes) throw new Error(`reserved ${reservedBytes} bytes, held ${bytes}`);
  }

  /**
   * Ends the memory of every graph, which can then no longer be launched, and returns it after their last
   * launch. Buffers in it are disposed. Memory from the fallback stays allocated there. A second call does
   * nothing, unless the first was refused in part.
   * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) within a capture; (`ERR_CISTERN_CAPTURING`) while a stream is
   * captured on which a graph was launched last, or a buffer in its memory is used: what must come after that stays, and
   * the call can be repeated; what the upstream throws
   */
  override [Symbol.dispose](): void {
    this.#assertIdle('dispose', true);
    this.isDisposed = true;
    for (const memory of [...this.#graphs]) memory.end();
    throwFirst(this.#endAgain().map(({ error }) => error));
    this.#region[Symbol.dispose]();
    this.#order[Symbol.dispose]();
  }

  #allocateOutside(bytes: number, stream: Stream, alignment: number | undefined): DevicePointer {
    this.assertUsable(stream);
    const { fallback } = this;
    const recorder = this.#recorder;
    const allocate = () => this.served(fallback.allocate(bytes, stream, alignment), bytes, stream, fallback);
    let pointer: DevicePointer;
    try {
      pointer = recorder === undefined ? allocate() : recorder.passOn(allocate);
    } catch (error) {
      throw this.passOn(error);
    }
    if (recorder === undefined) return pointer;
    if (pointer !== 0) recorder.allocated(pointer, bytes, stream.identity);
    this.#recordedAlignment = Math.max(this.#recordedAlignment, alignment ?? ALLOCATION_ALIGNMENT);
    return pointer;
  }

  #deallocateOutside(pointer: DevicePointer, bytes: number, stream: Stream, fence: DeallocationFence | undefined): void {
    const { fallback } = this;
    const free = () => this.freed(fallback.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents), fallback);
    if (this.#recorder === undefined) {
      free();
      return;
    }
    this.#recorder.passOn(free);
    this.#recorder.freed(pointer, stream.identity);
  }

  /** Whether an address is in memory for graphs, which may come from the fallback. */
  #hasForGraphs(pointer: DevicePointer): boolean {
    return isWithin(this.#region.extents, pointer) || this.#kept.at(pointer) !== undefined;
  }

  /** The number of a stream in the capture that is open, or -1. */
  #streamInCapture(stream: Stream): number {
    if (this.#capture !== undefined) return this.#capture.numberOf(stream);
    assertStream(stream, 'allocate');
    return none;
  }

  /**
   * Whether a free within a capture may be of an output of another graph, which the capture has an allocation on
   * top of. It then counts as that: the capture goes without the bytes, which is safe.
   */
  #mayBeOfOtherGraph(pointer: DevicePointer, bytes: number): boolean {
    if (this.#ending !== undefined) return true;
    return this.#owned.isHeld(pointer, bytes);
  }

  #freeCaptured(capture: CaptureAllocator, pointer: DevicePointer, bytes: number, request: number, stream: Stream): void {
    const allocated = capture.bytesOf(request);
    if (bytes !== allocated) {
      assertBytes(bytes);
      throw wrongSize(refusalOf(pointer), bytes, allocated);
    }
    const number = this.#streamInCapture(stream);
    if (number === none) {
      throw new CisternError(
        'ERR_CISTERN_CAPTURING',
        `${refusalOf(pointer)}: it belongs to a capture, which stream ${stream.id} has not joined`,
      );
    }
    capture.free(pointer, request, number);
  }

  /** Memory of a graph is not used any more by whoever had its address. The graph goes on using it. */
  #giveUp(pointer: DevicePointer, bytes: number, stream: Stream): void {
    assertStream(stream, 'deallocate');
    const owned = this.#owned.meantBy(pointer, bytes, this.#ending, refusalOf(pointer));
    // A later launch of a graph that is captured now comes after those before it, and needs no event.
    if (this.#streamInCapture(stream) === none) this.#region.follow(stream);
    owned.isGivenUp = true;
  }

  /** Allocates memory for the graph that is being captured. */
  #keep(bytes: number, alignment: number): DevicePointer {
    const memory = this.#captured as CapturedMemory;
    const segment = this.#obtain(() => this.#region.take(leastBlockBytes(bytes, alignment)));
    const pointer = alignUp(segment.address, alignment);
    memory.kept.push(segment);
    this.#kept.insert({ ...segment, memory });
    this.#owned.add(pointer, bytes, memory);
    return pointer;
  }

  /** Whether a graph has not freed an allocation in its capture, and other graphs may have one at the same address. */
  #isOutput(memory: CapturedMemory, pointer: DevicePointer, bytes: number): boolean {
    return this.#owned.isOf(memory, pointer, bytes) && this.#kept.at(pointer)?.memory !== memory;
  }

  /** Calls for memory of the upstream. */
  #obtain<T>(call: () => T): T {
    try {
      return call();
    } catch (error) {
      throw this.passOn(error);
    }
  }

  /** Memory that is still allocated at the end of a capture belongs to the graph. */
  #adopt(capture: CaptureAllocator, memory: CapturedMemory): void {
    for (const { pointer, bytes } of capture.live()) this.#owned.add(pointer, bytes, memory);
  }

  #finish(capture: CaptureAllocator, memory: CapturedMemory, plan: PlanWithPredecessors | undefined): void {
    memory.rememberedLast = rememberedSoFar();
    memory.usedBytes = capture.usedBytes();
    memory.requests = capture.requests;
    if (capture.isPlanned) memory.lowerBoundBytes = plan?.plan.lowerBoundBytes;
    this.#graphs.add(memory);
    this.#captures++;
    if (capture.isPlanned) this.#plannedCaptures++;
    this.#unorderedBytes += capture.limboBytes;
    for (const [name, count] of Object.entries(capture.deviations)) this.#deviations[name as GraphDeviation] += count;
    if (!this.#learnt.isPlanning || capture.isPlanned || capture.requests === 0) return;
    this.#learnt.learn(memory.name, capture.sequence(), capture.alignmentBytes);
  }

  /**
   * The memory of a graph goes, unless a buffer in it refuses to: then all of it stays, and it goes later. Returns
   * the refusals.
   */
  #ended(memory: CapturedMemory, reason: string): RefusedFree[] {
    const refused = this.#takeBack(memory, reason);
    if (refused.length > 0) {
      this.#unended.set(memory, reason);
      return refused;
    }
    this.#unended.delete(memory);
    this.#graphs.delete(memory);
    for (const segment of memory.kept) {
      this.#kept.cut(segment);
      this.#region.giveBack(segment);
    }
    this.#owned.forget(memory);
    return refused;
  }

  /** The memory of graphs whose end was refused goes, if it can. Returns the refusals. */
  #endAgain(): RefusedFree[] {
    return [...this.#unended].flatMap(([memory, reason]) => this.#ended(memory, reason));
  }

  /** Makes buffers in the memory of a graph give it up. Returns the refusals. */
  #takeBack(memory: CapturedMemory, reason: string): RefusedFree[] {
    const { rememberedBefore: since, rememberedLast } = memory;
    // What other graphs have there was remembered later; so was what could not be freed once.
    const has = (pointer: DevicePointer, number: number) =>
      this.#owned.isOf(memory, pointer) && (number <= rememberedLast || this.#owned.isOnlyOf(memory, pointer));
    this.#ending = memory;
    try {
      return takeBack({ by: this, since, reason, has });
    } finally {
      this.#ending = undefined;
    }
  }

  /** Plans the captures of a name, and takes the memory for one. What could not go back before goes first. */
  #begin(name: string, { identity }: Stream): { plan: PlanWithPredecessors | undefined; capture: CaptureAllocator } {
    this.#isBeginning = true;
    try {
      this.#endAgain();
      const plan = this.#planOf(name);
      return { plan, capture: this.#obtain(() => new CaptureAllocator(identity, this.#region, this.#requests, plan)) };
    } finally {
      this.#isBeginning = false;
    }
  }

  /** The plan for the captures of a name. Where extents do not grow, the first must be large enough for every graph that is known. */
  #planOf(name: string): PlanWithPredecessors | undefined {
    if (this.#learnt.knows(name) && !this.#region.growsInPlace) {
      const { bytes, alignment } = this.#learnt.largestNeed();
      if (bytes > 0) this.#region.reserve(bytes, alignment);
    }
    return this.#learnt.planFor(name);
  }

  #assertIdle(operation: string, mayBeDisposed = false): void {
    if (!mayBeDisposed) this.assertLive(operation);
    const captures = this.#isBeginning || this.#capture !== undefined;
    const busy = captures ? 'captures' : this.#recorder !== undefined ? 'warms up' : undefined;
    if (busy === undefined) return;
    throw new CisternError('ERR_CISTERN_INVALID_STATE', `cannot ${operation}: the ${GraphMemoryResource.name} ${busy} already`);
  }
}

function refusalOf(pointer: DevicePointer): string {
  return `the ${GraphMemoryResource.name} cannot free ${formatPointer(pointer)}`;
}

const deviationReasons: Readonly<Record<GraphDeviation, string>> = {
  larger: 'the plan has fewer bytes for it',
  alignment: 'the plan has no such alignment',
  extra: 'the plan has no more requests',
  'in-use': 'its place is in use, or was freed on a stream that this one does not come after',
};

function deviationError(deviation: GraphDeviation, request: number, bytes: number): CisternError {
  return new CisternError(
    'ERR_CISTERN_PLAN_DEVIATION',
    `request ${request} of the capture, of ${formatBytes(bytes)} (${bytes} bytes), is not as planned: ${deviationReasons[deviation]}`,
  );
}

/** `graph` in a specification. */
export const graphKind = defineAdaptor({
  name: 'graph',
  role: 'pass-through',
  summary: 'serves allocations in captured graphs, which share the memory; other calls pass through',
  options: {
    maximumBytes: { type: 'size', summary: 'the most it takes from the upstream for graphs', default: 'no limit' },
    fallback: { type: 'resource', summary: 'serves allocations outside captures', default: 'the upstream' },
  },
  example: 'graph(cuda)',
  create: ({ upstream, options }) => new GraphMemoryResource(upstream, options),
});
