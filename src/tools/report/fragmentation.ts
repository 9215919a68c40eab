/**
 * The holes between allocations, after every change. A hole is free memory between two neighbours:
 * from the end of an allocation (or the start of a block) to the next allocation (or the end of the
 * block). A log without blocks has no such edges; there, holes are the free ranges between live
 * allocations in the same segment of the {@link AddressLayout}.
 *
 * Data structure: a tournament tree over all places at which a hole may begin, in order of address:
 * two leaves for each address, one for a block that begins there and one for an allocation. A leaf
 * holds the bytes of the hole behind it, or -1 if nothing is live there; an inner node holds the
 * greater of its two children. The root is the largest hole, and a walk up and down finds the
 * nearest live neighbour.
 *
 * Invariants: leaf = -1 ⟺ nothing is live there; node = max(left, right); holes = Σ leaves > 0.
 * Cost: O(log n) per change.
 */

import type { ReportRun } from '../formats/report/report-run.js';
import { type AddressLayout, layOutAddresses } from './address-layout.js';
import { lastAtMost } from './extremes.js';
import { matchingAllocations, matchingBlocks } from './held-bytes.js';

const nothing = -1;

/**
 * Computes the holes in a layer's memory piece by piece, so that a page can do other work in
 * between.
 */
export class FragmentationSweep {
  /** Bytes of the largest hole after each swept change. */
  readonly largestHole: Float64Array;
  /** Bytes of all holes after each swept change. */
  readonly holes: Float64Array;
  readonly #run: ReportRun;
  readonly #layout: AddressLayout;
  readonly #allocations: Uint8Array;
  readonly #blocks: Uint8Array | undefined;
  readonly #leafCount: number;
  readonly #nodes: Float64Array;
  /**
   * The address where the hole behind each live leaf begins: the end of its allocation, or the
   * start of its block.
   */
  readonly #ends: Float64Array;
  /** The end of the block at each address. */
  readonly #blockEnds: Float64Array;
  /** Indexes of the addresses at which live blocks begin, ascending. There are few. */
  readonly #liveBlocks: number[] = [];
  #swept = 0;
  #holes = 0;

  constructor(run: ReportRun, layer: number, layout: AddressLayout = layOutAddresses(run, layer)) {
    this.#run = run;
    this.#layout = layout;
    this.#allocations = matchingAllocations(run, { layer });
    this.#blocks = matchingBlocks(run, layer);
    const leaves = 2 * run.addresses.length;
    let leafCount = 2;
    while (leafCount < leaves) leafCount *= 2;
    this.#leafCount = leafCount;
    this.#nodes = new Float64Array(2 * leafCount).fill(nothing);
    this.#ends = new Float64Array(leaves);
    this.#blockEnds = new Float64Array(run.addresses.length);
    this.largestHole = new Float64Array(run.changes.length);
    this.holes = new Float64Array(run.changes.length);
  }

  /** Sweeps up to, but not including, a change. Returns whether changes are left. */
  sweep(until: number = this.#run.changes.length): boolean {
    const { changes, spans, addresses } = this.#run;
    const stop = Math.min(until, changes.length);
    for (; this.#swept < stop; this.#swept++) {
      const change = changes[this.#swept] as number;
      const span = change >= 0 ? change : ~change;
      const index = spans.addressOf[span] as number;
      if (this.#allocations[span] === 1) {
        const leaf = 2 * index + 1;
        this.#ends[leaf] = (addresses[index] as number) + (spans.bytes[span] as number);
        this.#change(leaf, change >= 0);
      } else if (this.#blocks?.[span] === 1) {
        const leaf = 2 * index;
        this.#ends[leaf] = addresses[index] as number;
        this.#blockEnds[index] = (addresses[index] as number) + (spans.bytes[span] as number);
        const place = lastAtMost(this.#liveBlocks, index);
        if (change >= 0) this.#liveBlocks.splice(place + 1, 0, index);
        else this.#liveBlocks.splice(place, 1);
        this.#change(leaf, change >= 0);
      }
      this.largestHole[this.#swept] = Math.max(0, this.#nodes[1] as number);
      this.holes[this.#swept] = this.#holes;
    }
    return stop < changes.length;
  }

  #change(leaf: number, isLive: boolean): void {
    this.#set(leaf, isLive ? 0 : nothing);
    if (isLive) this.#measure(leaf);
    const before = this.#neighbour(leaf, -1);
    if (before >= 0) this.#measure(before);
  }

  /** Measures the hole behind a live leaf. */
  #measure(leaf: number): void {
    const { addresses } = this.#run;
    const end = this.#ends[leaf] as number;
    const next = this.#neighbour(leaf, 1);
    const nextStart = next < 0 ? Number.POSITIVE_INFINITY : (addresses[next >> 1] as number);
    let limit = 0;
    if (this.#blocks === undefined) {
      const { segmentOf } = this.#layout;
      if (next >= 0 && segmentOf[next >> 1] === segmentOf[leaf >> 1]) limit = nextStart;
    } else limit = Math.min(nextStart, this.#endOfBlock(leaf));
    this.#set(leaf, Math.max(0, limit - end));
  }

  /** The end of the block that a leaf lies in, or 0 if there is none. */
  #endOfBlock(leaf: number): number {
    const index = this.#liveBlocks[lastAtMost(this.#liveBlocks, leaf >> 1)];
    return index === undefined ? 0 : (this.#blockEnds[index] as number);
  }

  #set(leaf: number, hole: number): void {
    const nodes = this.#nodes;
    let node = this.#leafCount + leaf;
    this.#holes += Math.max(0, hole) - Math.max(0, nodes[node] as number);
    nodes[node] = hole;
    for (node >>= 1; node >= 1; node >>= 1) {
      const greater = Math.max(nodes[2 * node] as number, nodes[2 * node + 1] as number);
      if (nodes[node] === greater) break;
      nodes[node] = greater;
    }
  }

  /** The nearest live leaf before (-1) or behind (1) a leaf, or -1. */
  #neighbour(leaf: number, direction: -1 | 1): number {
    const nodes = this.#nodes;
    const isNear = direction === 1 ? 0 : 1;
    let node = this.#leafCount + leaf;
    // Go up until the other half on the wanted side has a live leaf.
    while (node > 1 && ((node & 1) !== isNear || (nodes[node + direction] as number) < 0)) node >>= 1;
    if (node <= 1) return -1;
    node += direction;
    // Go down on the near side.
    while (node < this.#leafCount) {
      const near = 2 * node + (direction === 1 ? 0 : 1);
      node = (nodes[near] as number) >= 0 ? near : near ^ 1;
    }
    return node - this.#leafCount;
  }
}

/** The share of free memory outside the largest hole: 0 if all of it is in one piece. */
export function externalFragmentation(largestHole: number, holes: number): number {
  return holes > 0 ? 1 - largestHole / holes : 0;
}
