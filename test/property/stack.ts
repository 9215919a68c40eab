import { disposeAll } from '../../src/adaptors/layers.js';
import { formatSanitizerViolation, type SanitizingResourceAdaptor } from '../../src/checking/index.js';
import {
  ALLOCATION_ALIGNMENT,
  type AllocationStatistics,
  type BinningMemoryResource,
  type CachingMemoryResource,
  type CudaAsyncMemoryResource,
  CudaMemoryResource,
  Device,
  type FallbackResourceAdaptor,
  type FixedSizeMemoryResource,
  type LimitingResourceAdaptor,
  type MemoryResource,
  type MonotonicMemoryResource,
  type ReservingMemoryResource,
  type RoundingResourceAdaptor,
  type StatisticsResourceAdaptor,
  type StreamOrderedMemoryResource,
  type StreamOrderedStatistics,
  type TrackingResourceAdaptor,
} from '../../src/index.js';
import type { PlannedMemoryResource } from '../../src/plans/index.js';
import { resourceKind } from '../../src/specification/kinds-by-name.js';
import { everyKind } from '../../src/tools/every-kind.js';
import { QuickPool } from '../support/quick-pool.js';
import { Leaf, type Misuse, Probe } from './probe.js';
import { Violation } from './violation.js';

/** The lowest resource of a stack. */
export interface LeafPlan {
  readonly kind: 'cuda' | 'cuda-async' | 'managed' | 'pinned-host';
  /** @defaultValue Infinity */
  readonly limitBytes?: number;
}

/** An adaptor, with its options in a specification, or `isQuick` for a `QuickPool`. */
export interface LayerPlan {
  readonly kind: string;
  readonly options?: Readonly<Record<string, number | string | boolean | readonly number[]>>;
  /** A second leaf that the adaptor takes memory from, and the name of the option. */
  readonly alternate?: { readonly option: string; readonly leaf: LeafPlan };
}

/** A stack of resources, from the leaf up. */
export interface StackPlan {
  readonly leaf: LeafPlan;
  readonly layers: readonly LayerPlan[];
  /** A second resource on the upstream of one of the layers. */
  readonly side?: { readonly at: number; readonly layer: LayerPlan } | undefined;
}

/** A resource of a stack, with the probes around it. */
export interface Layer {
  readonly kind: string;
  readonly resource: MemoryResource;
  readonly above: Probe;
  readonly below: Probe;
  /** Also below, if the resource takes memory from two. */
  readonly alternate: Probe | undefined;
  /** Whether it is the one beside the others. */
  readonly isSide: boolean;
  /** Its number of calls at the last check. */
  checkedCalls: number;
  /** Reports of the program's deliberately wrong calls. */
  excusedViolations: number;
}

interface StackLeaf {
  readonly kind: LeafPlan['kind'];
  readonly leaf: Leaf;
  readonly above: Probe;
}

/** Kinds that keep no memory. */
const passThroughKinds = new Set(everyKind.filter(({ role }) => role === 'pass-through').map(({ name }) => name));
/**
 * Kinds that, when disposed, leave in the upstream what was allocated from it beyond the memory
 * that they keep.
 */
const passingKinds = new Set(['binning', 'caching', 'planned']);

/** Kinds that warn of outstanding allocations. */
const warningKinds = new Set(['tracking', 'sanitizing']);

/** A stack with a probe on every resource. */
export class Stack {
  /** From the outermost down. */
  readonly layers: readonly Layer[];
  readonly leaves: readonly StackLeaf[];
  readonly top: Probe;
  /** The resource beside the others, which shares their upstream. */
  readonly side: Probe | undefined;
  readonly #misuse: Misuse = { isGoingOn: false };
  /** What leaves without stream order counted before; leaves of a kind share their count. */
  readonly #foreignBytes = new Map<string, number>();

  /** @throws the error of a resource that cannot be created; nothing is left then. */
  constructor(plan: StackPlan) {
    const layers: Layer[] = [];
    const leaves: StackLeaf[] = [];
    const makeLeaf = ({ kind, limitBytes = Number.POSITIVE_INFINITY }: LeafPlan): Probe => {
      const resource = make(kind, {}, undefined) as ReservingMemoryResource;
      const leaf = new Leaf(resource, limitBytes);
      const above = new Probe(leaf, this.#misuse);
      if (!this.#foreignBytes.has(kind)) this.#foreignBytes.set(kind, resource.reservedBytes);
      leaves.push({ kind, leaf, above });
      return above;
    };
    const add = ({ kind, options = {}, alternate }: LayerPlan, below: Probe, isSide: boolean): Probe => {
      const second = alternate === undefined ? undefined : makeLeaf(alternate.leaf);
      const resource = make(kind, alternate === undefined ? options : { ...options, [alternate.option]: second }, below);
      const above = new Probe(resource, this.#misuse);
      layers.unshift({ kind, resource, above, below, alternate: second, isSide, checkedCalls: -1, excusedViolations: 0 });
      return above;
    };
    let below = makeLeaf(plan.leaf);
    let side: Probe | undefined;
    try {
      for (const [i, layer] of plan.layers.entries()) {
        const upstream = below;
        if (plan.side?.at === i) below = new Probe(upstream, this.#misuse);
        below = add(layer, below, false);
        if (plan.side?.at === i) side = add(plan.side.layer, new Probe(upstream, this.#misuse), true);
      }
    } catch (error) {
      disposeAll([...layers.map(({ resource }) => resource), ...leaves.map(({ leaf }) => leaf)]);
      throw error;
    }
    this.layers = layers;
    this.leaves = leaves;
    this.top = below;
    this.side = side;
  }

  /**
   * The layers of a kind that get the program's own calls, through resources that keep nothing.
   * `isTop` says whether nothing is above.
   */
  reachable(kind: string): { readonly layer: Layer; readonly isTop: boolean }[] {
    const found: { layer: Layer; isTop: boolean }[] = [];
    for (const [i, layer] of this.#main.entries()) {
      if (layer.kind === kind) found.push({ layer, isTop: i === 0 });
      if (!passThroughKinds.has(layer.kind) && !(kind === 'caching' && layer.kind === 'caching')) break;
    }
    return found;
  }

  /** Whether disposing the stack gives back what is still allocated. */
  get ownsAllocations(): boolean {
    const first = this.#main.find(({ kind }) => !passThroughKinds.has(kind));
    return (
      first !== undefined && !passingKinds.has(first.kind) && !this.layers.some(({ kind }) => warningKinds.has(kind) || kind === 'fallback')
    );
  }

  /**
   * Compares structures and counts with the probes: of all layers, or of those called since the
   * last check. The stack must not be within a call.
   */
  check(which: 'all' | 'called'): void {
    for (const layer of this.layers) {
      if (which === 'called' && layer.above.calls === layer.checkedCalls) continue;
      layer.checkedCalls = layer.above.calls;
      try {
        const check = checks[layer.kind] ?? (passThroughKinds.has(layer.kind) ? checkPassThrough : checkPooling);
        check(layer);
      } catch (error) {
        if (error instanceof Violation) throw error;
        throw new Violation(`the ${layer.kind} is not valid: ${error instanceof Error ? error.message : error}`, { cause: error });
      }
    }
    for (const { kind, leaf } of this.leaves) {
      if (leaf.isBlocking) equal('bytes of the leaf', this.#leafBytes(kind, leaf), this.#liveBytes(kind));
    }
  }

  /** Disposes everything, and checks that all memory went back. */
  end(): void {
    for (const { resource, below, alternate, kind } of this.layers) {
      resource[Symbol.dispose]();
      if (passThroughKinds.has(kind)) continue;
      for (const probe of [below, alternate]) if (probe !== undefined) equal(`bytes left by the ${kind}`, probe.liveBytes, 0);
    }
    for (const { kind, leaf, above } of this.leaves) {
      equal('bytes left on the leaf', above.liveBytes, 0);
      // A driver's pool counts a free only after a synchronization has seen it.
      if (!leaf.isBlocking) Device.get().synchronizeSync();
      equal('bytes that the leaf counts', this.#leafBytes(kind, leaf), 0);
      leaf[Symbol.dispose]();
    }
  }

  /** The alignment, or the default if some resource does not support it. */
  alignment(wanted: number): number {
    for (const { kind, alternate } of this.#main) {
      if (kind === 'pool' || kind === 'arena' || kind === 'aligned' || (kind === 'monotonic' && alternate === undefined)) return wanted;
      if (!passThroughKinds.has(kind) || kind === 'fallback') break;
    }
    return Math.min(wanted, ALLOCATION_ALIGNMENT);
  }

  /** Makes a wrong call, which resources may report. */
  misused(call: () => void): void {
    this.#misuse.isGoingOn = true;
    try {
      call();
    } finally {
      this.#misuse.isGoingOn = false;
      for (const layer of this.layers) {
        if (layer.kind === 'sanitizing') layer.excusedViolations = (layer.resource as SanitizingResourceAdaptor).violations.length;
      }
    }
  }

  /** Whether every wrong free is refused. */
  get checksFrees(): boolean {
    return this.#main.every(({ kind }) => kind !== 'monotonic');
  }

  get #main(): readonly Layer[] {
    return this.layers.filter(({ isSide }) => !isSide);
  }

  /** Gives back what can be, after a violation. */
  abandon(): void {
    for (const resource of [...this.layers.map((layer) => layer.resource), ...this.leaves.map(({ leaf }) => leaf)]) {
      try {
        resource[Symbol.dispose]();
      } catch {
        // The violation has been reported.
      }
    }
  }

  #leafBytes(kind: string, { isBlocking, upstream }: Leaf): number {
    if (!isBlocking) return (upstream as CudaAsyncMemoryResource).usage().usedBytes;
    return upstream.reservedBytes - (this.#foreignBytes.get(kind) as number);
  }

  #liveBytes(kind: string): number {
    return this.leaves.reduce((sum, leaf) => sum + (leaf.kind === kind ? leaf.above.liveBytes : 0), 0);
  }
}

function make(kind: string, { isQuick = false, ...options }: { isQuick?: boolean }, upstream: MemoryResource | undefined): MemoryResource {
  if (isQuick) return new QuickPool(upstream as MemoryResource, options);
  const definition = resourceKind(kind);
  if (definition === undefined) throw new Error(`there is no resource called ${kind}`);
  const upstreamOf = (device: Device) => new CudaMemoryResource({ device });
  return definition.create({ upstream, upstreamOf, device: Device.get(), options } as never);
}

function equal(what: string, found: number, expected: number): void {
  if (found !== expected) throw new Violation(`${what}: ${found}, but by the model ${expected}`);
}

function atMost(what: string, found: number, limit: number): void {
  if (found > limit) throw new Violation(`${what}: ${found}, but by the model at most ${limit}`);
}

interface Pooling extends StreamOrderedMemoryResource {
  statistics(): StreamOrderedStatistics;
}

/** Checks the statistics of a pooling resource about the memory below it, which only it uses. */
function checkPooling({ resource, below }: Layer): StreamOrderedStatistics {
  const pool = resource as Pooling;
  pool.validate();
  const statistics = pool.statistics();
  equal('reservedBytes', statistics.reservedBytes, below.liveBytes);
  equal('peakReservedBytes', statistics.peakReservedBytes, below.peakBytes);
  equal('upstreamBlocks', statistics.upstreamBlocks, below.live.size);
  equal('growths', statistics.growths, below.allocations);
  equal('releases', statistics.releases, below.allocations - below.live.size);
  atMost('largestFreeBytes', statistics.largestFreeBytes, statistics.reservedBytes - statistics.allocatedBytes);
  return statistics;
}

function checkSuballocating(layer: Layer): void {
  equal('allocatedBytes', checkPooling(layer).allocatedBytes, layer.above.roundedBytes);
}

/** Checks that a resource passes every call on unchanged. */
function checkPassThrough({ above, below }: Layer): void {
  equal('bytes of the upstream', below.liveBytes, above.liveBytes);
  equal('allocations of the upstream', below.live.size, above.live.size);
}

/** Checks of single kinds. */
const checks: Readonly<Record<string, (layer: Layer) => void>> = {
  pool: checkSuballocating,
  arena: checkSuballocating,
  'fixed-size': (layer) => {
    const { blockBytes } = layer.resource as FixedSizeMemoryResource;
    equal('allocatedBytes', checkPooling(layer).allocatedBytes, layer.above.live.size * blockBytes);
  },
  monotonic: (layer) => {
    const { resource, above, alternate } = layer;
    const statistics = (resource as MonotonicMemoryResource).statistics();
    checkPooling(layer);
    atMost('usedBytes', statistics.usedBytes, statistics.allocatedBytes);
    equal('fallbackBytes', statistics.fallbackBytes, alternate?.liveBytes ?? 0);
    atMost('bytes that are live', above.roundedBytes - (alternate?.roundedBytes ?? 0), statistics.usedBytes);
  },
  caching: ({ resource, above, below }) => {
    const cache = resource as CachingMemoryResource;
    cache.validate();
    const statistics = cache.statistics();
    atMost('reservedBytes', statistics.reservedBytes, below.liveBytes);
    atMost('bytes of the upstream', below.liveBytes, statistics.reservedBytes + above.liveBytes);
    const uncached = above.live.size - statistics.busyBlocks;
    equal('blocks of the upstream', below.live.size, statistics.upstreamBlocks + uncached);
    equal('upstreamBlocks', statistics.upstreamBlocks, statistics.growths - statistics.releases);
    equal('blocks', statistics.upstreamBlocks, statistics.busyBlocks + statistics.freeBlocks);
  },
  planned: ({ resource, above, below }) => {
    const planned = resource as PlannedMemoryResource;
    planned.validate();
    const { reservedBytes, upstreamBlocks, plannedAllocations } = planned.statistics();
    atMost('reservedBytes', reservedBytes, below.liveBytes);
    equal('blocks of the upstream', below.live.size, upstreamBlocks + above.live.size - plannedAllocations);
  },
  binning: ({ resource, above, below }) => {
    const { bins } = resource as BinningMemoryResource;
    let reserved = 0;
    let allocated = 0;
    for (const bin of bins) {
      const blocks = bin.resource as FixedSizeMemoryResource;
      blocks.validate();
      reserved += blocks.reservedBytes;
      allocated += blocks.statistics().allocatedBytes;
    }
    let inBins = 0;
    let larger = 0;
    for (const bytes of above.live.values()) {
      const bin = bins.find((each) => bytes <= each.bytes);
      if (bin === undefined) larger += bytes;
      else inBins += bin.bytes;
    }
    equal('bytes of the upstream', below.liveBytes, reserved + larger);
    equal('bytes in bins', allocated, inBins);
  },
  limiting: ({ resource, above }) => {
    const limiting = resource as LimitingResourceAdaptor;
    equal('allocatedBytes', limiting.allocatedBytes, above.roundedBytes);
    atMost('allocatedBytes', limiting.allocatedBytes, limiting.limitBytes);
  },
  statistics: ({ resource, above }) => {
    const { bytes, allocations }: AllocationStatistics = (resource as StatisticsResourceAdaptor).statistics();
    equal('current bytes', bytes.current, above.liveBytes);
    equal('total bytes', bytes.total, above.allocatedBytes);
    // Memory that is being freed counts until the free is done.
    atMost('bytes at the peak', above.peakBytes, bytes.peak);
    equal('current allocations', allocations.current, above.live.size);
    equal('total allocations', allocations.total, above.allocations);
  },
  tracking: ({ resource, above }) => {
    const tracking = resource as TrackingResourceAdaptor;
    equal('allocatedBytes', tracking.allocatedBytes, above.liveBytes);
    equal('outstanding allocations', tracking.outstandingAllocations().length, above.live.size);
  },
  sanitizing: ({ resource, above, excusedViolations }) => {
    const sanitizer = resource as SanitizingResourceAdaptor;
    equal('allocatedBytes', sanitizer.allocatedBytes, above.liveBytes);
    const report = sanitizer.violations[excusedViolations];
    if (report !== undefined) throw new Violation(formatSanitizerViolation(report));
  },
  rounding: ({ resource, above, below }) => {
    const rounding = resource as RoundingResourceAdaptor;
    equal('askedBytes', rounding.askedBytes, above.liveBytes);
    equal('roundedBytes', rounding.roundedBytes, below.liveBytes);
  },
  aligned: ({ above, below }) => equal('allocations of the upstream', below.live.size, above.live.size),
  fallback: ({ resource, above, below, alternate }) => {
    equal('fallbackBytes', (resource as FallbackResourceAdaptor).fallbackBytes, alternate?.liveBytes ?? 0);
    equal('allocations of both', below.live.size + (alternate?.live.size ?? 0), above.live.size);
  },
};
