import type { ReportRun } from '../../formats/report/report-run.js';
import { type AddressLayout, layOutAddresses } from '../../report/address-layout.js';
import { explainGrowth, type Growth } from '../../report/answers.js';
import { CallTree } from '../../report/call-tree.js';
import { Extremes, lastAtMost } from '../../report/extremes.js';
import { externalFragmentation, FragmentationSweep } from '../../report/fragmentation.js';
import {
  GroupedBytes,
  type Grouping,
  groupSpans,
  heldBytes,
  matchingAllocations,
  matchingBlocks,
  type SpanFilter,
  type SpanGroups,
} from '../../report/held-bytes.js';
import { ownersOfPages } from '../../report/managed-moves.js';
import { MapSpans } from '../../report/map-raster.js';
import { dimmedStyle } from './textures.js';

/** The holes in a layer's memory after each change. */
export interface FragmentationCurves {
  readonly share: Extremes;
  readonly holes: Extremes;
  readonly largestHole: Extremes;
}

/** Number of changes swept before other work gets a turn. */
const sweepLength = 16_384;

/**
 * Everything computed from a run for the current view. Values are computed on demand and cached.
 */
export class RunModel {
  readonly run: ReportRun;
  #filter: SpanFilter;
  #kept = new Map<string, unknown>();
  readonly #keptForever = new Map<string, unknown>();

  constructor(run: ReportRun, layer: number) {
    this.run = run;
    this.#filter = { layer };
  }

  get filter(): SpanFilter {
    return this.#filter;
  }

  setFilter(filter: SpanFilter): void {
    this.#filter = filter;
    this.#kept = new Map();
  }

  /** For the filter's layer, regardless of its stream and phase. */
  get layerMask(): Uint8Array {
    return this.#forever(`allocations ${this.#filter.layer}`, () => matchingAllocations(this.run, { layer: this.#filter.layer }));
  }

  get mask(): Uint8Array {
    if (this.#filter.only === undefined) return this.wholeMask;
    return this.#once('mask', () => matchingAllocations(this.run, this.#filter));
  }

  /** The same, not restricted to a group that the reader chose. */
  get wholeMask(): Uint8Array {
    const { layer, stream, phase } = this.#filter;
    if (stream === undefined && phase === undefined) return this.layerMask;
    return this.#once('whole mask', () => matchingAllocations(this.run, { layer, stream, phase }));
  }

  get blocks(): Uint8Array | undefined {
    return this.#forever(`blocks ${this.#filter.layer}`, () => matchingBlocks(this.run, this.#filter.layer));
  }

  /** The changes at which blocks begin. */
  get growth(): Uint32Array {
    return this.#forever(`growth ${this.#filter.layer}`, () => {
      const { blocks, run } = this;
      return blocks === undefined ? new Uint32Array() : run.spans.starts.filter((_, span) => blocks[span] === 1);
    });
  }

  get live(): Extremes {
    return this.#once('live', () => new Extremes(heldBytes(this.run, this.mask)));
  }

  /** Live bytes, not restricted to a group that the reader chose. */
  get wholeLive(): Extremes {
    if (this.#filter.only === undefined) return this.live;
    return this.#once('whole live', () => new Extremes(heldBytes(this.run, this.wholeMask)));
  }

  get reserved(): Extremes | undefined {
    return this.reservedOf(this.#filter.layer);
  }

  liveOf(layer: number): Extremes {
    return this.#forever(`live ${layer}`, () => new Extremes(heldBytes(this.run, matchingAllocations(this.run, { layer }))));
  }

  reservedOf(layer: number): Extremes | undefined {
    return this.#forever(`reserved ${layer}`, () => {
      const blocks = matchingBlocks(this.run, layer);
      return blocks === undefined ? undefined : new Extremes(heldBytes(this.run, blocks));
    });
  }

  get layout(): AddressLayout {
    return this.#forever(`layout ${this.#filter.layer}`, () => layOutAddresses(this.run, this.#filter.layer));
  }

  /** The positions of the layer's allocations on the map. */
  get mapSpans(): MapSpans {
    return this.#forever(`map ${this.#filter.layer}`, () => new MapSpans(this.run, this.layout, this.layerMask));
  }

  /** The positions of the blocks that they lie in. */
  get mapBlocks(): MapSpans | undefined {
    const { blocks } = this;
    if (blocks === undefined) return undefined;
    return this.#forever(`map blocks ${this.#filter.layer}`, () => new MapSpans(this.run, this.layout, blocks));
  }

  /** The style of each span on the map. */
  mapStyles(by: Grouping): Uint8Array {
    return this.#once(`styles ${by}`, () => {
      const { mask } = this;
      return this.groups(by).of.map((group, span) => (mask[span] === 1 ? group : dimmedStyle));
    });
  }

  groups(by: Grouping): SpanGroups {
    return this.#once(`groups ${by}`, () => groupSpans(this.run, this.mask, by));
  }

  grouped(by: Grouping): GroupedBytes {
    return this.#once(`grouped ${by}`, () => new GroupedBytes(this.run, this.mask, this.groups(by)));
  }

  /** For each page of managed memory, the allocation of a layer that it held when it came. */
  ownersOfPages(layer: number): Int32Array {
    return this.#forever(`owners ${layer}`, () => ownersOfPages(this.run, layer));
  }

  get callTree(): CallTree {
    return this.#forever('calls', () => new CallTree(this.run.stacks));
  }

  /** Why each block was taken. */
  growths(): Promise<readonly Growth[]> {
    return this.#forever(`growths ${this.#filter.layer}`, async () => {
      const { blocks, layerMask, run } = this;
      if (blocks === undefined) return [];
      const { holes, largestHole } = await this.fragmentation();
      return explainGrowth(run, layerMask, blocks, holes.values, largestHole.values);
    });
  }

  /** The fragmentation curves. Computing them takes a while, during which the page stays usable. */
  fragmentation(): Promise<FragmentationCurves> {
    const { layer } = this.#filter;
    return this.#forever(`fragmentation ${layer}`, async () => {
      const sweep = new FragmentationSweep(this.run, layer, this.layout);
      for (let until = sweepLength; sweep.sweep(until); until += sweepLength) await new Promise((resolve) => setTimeout(resolve));
      const share = sweep.holes.map((holes, change) => externalFragmentation(sweep.largestHole[change] as number, holes));
      return { share: new Extremes(share), holes: new Extremes(sweep.holes), largestHole: new Extremes(sweep.largestHole) };
    });
  }

  /** The changes in a time range, from the one in effect at its start. */
  changesIn(range: TimeRange): { from: number; to: number } {
    return { from: Math.max(0, lastAtMost(this.run.times, range.from)), to: lastAtMost(this.run.times, range.to) + 1 };
  }

  /** Equal parts of a time range: when each starts, and its changes. */
  partsOf({ from: start, to: end }: TimeRange, count: number): readonly { start: number; from: number; to: number }[] {
    const timeOf = (part: number) => start + ((end - start) * part) / count;
    return Array.from({ length: count }, (_, part) => ({
      start: timeOf(part),
      ...this.changesIn({ from: timeOf(part), to: timeOf(part + 1) }),
    }));
  }

  /** The change in a time range after which the most was live; -1 if there is none. */
  peakIn(range: TimeRange): number {
    const { from, to } = this.changesIn(range);
    return this.live.indexOfMaximum(from, to);
  }

  #once<T>(key: string, compute: () => T): T {
    return keep(this.#kept, key, compute);
  }

  #forever<T>(key: string, compute: () => T): T {
    return keep(this.#keptForever, key, compute);
  }
}

function keep<T>(kept: Map<string, unknown>, key: string, compute: () => T): T {
  if (!kept.has(key)) kept.set(key, compute());
  return kept.get(key) as T;
}

/** A time range, in nanoseconds since the first event. */
export interface TimeRange {
  readonly from: number;
  readonly to: number;
}
