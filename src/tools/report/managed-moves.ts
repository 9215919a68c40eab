/**
 * Finds out which allocations moved as pages of managed memory. A page, which is a span of a place,
 * belongs to the allocation of the program that it holds:
 *
 *     allocations   [ weights          ][ gradients  ]
 *     pages           [0][1][2][3][4][5][6][7]               page 6 came by a fault: of `gradients`
 */

import type { ReportRun } from '../formats/report/report-run.js';
import { lastAtMost } from './extremes.js';

/** Pages that came to a place for the same reason. */
export interface ManagedMoves {
  /** The place: an index into {@link ReportRun.layers}. */
  readonly layer: number;
  /** An index into {@link ReportRun.labels}. */
  readonly reason: number;
  /** The stream whose work caused it: an index into {@link ReportRun.streams}. */
  readonly stream: number;
  /** The label of the allocations that the pages hold: an index into {@link ReportRun.labels}. */
  readonly label: number;
  pages: number;
  bytes: number;
}

/** Whether a log says where managed memory is. */
export function hasPlaces({ layers }: ReportRun): boolean {
  return layers.some(({ isPlace }) => isPlace);
}

/**
 * The pages that came to each place between two changes, in descending order of bytes.
 * @param owners the result of {@link ownersOfPages}
 */
export function sumMoves(run: ReportRun, owners: Int32Array, from: number, to: number): ManagedMoves[] {
  const { layers, spans } = run;
  const sums = new Map<string, ManagedMoves>();
  for (let span = 0; span < spans.count; span++) {
    const layer = spans.layerOf[span] as number;
    const start = spans.starts[span] as number;
    if (!layers[layer]?.isPlace || start < from || start >= to) continue;
    const owner = owners[span] as number;
    const reason = spans.labelOf[span] as number;
    const stream = spans.streamOf[span] as number;
    const label = owner < 0 ? 0 : (spans.labelOf[owner] as number);
    const key = `${layer} ${reason} ${stream} ${label}`;
    const sum = sums.get(key) ?? { layer, reason, stream, label, pages: 0, bytes: 0 };
    sums.set(key, sum);
    sum.pages++;
    sum.bytes += spans.bytes[span] as number;
  }
  return [...sums.values()].sort((a, b) => b.bytes - a.bytes);
}

/**
 * For each page that came to a place: the span of the layer's allocation that holds the first byte
 * of the page then or, if there is none, of the last one that begins in the page; -1 if there is
 * none.
 */
export function ownersOfPages(run: ReportRun, layer: number): Int32Array {
  const { addresses, changes, layers, spans } = run;
  const owners = new Int32Array(spans.count).fill(-1);
  const live = new IndexSet(addresses.length);
  /** The live allocation at each address. */
  const liveAt = new Int32Array(addresses.length);
  const endOf = (span: number) => (addresses[spans.addressOf[span] as number] as number) + (spans.bytes[span] as number);
  for (let change = 0; change < changes.length; change++) {
    const at = changes[change] as number;
    const span = at >= 0 ? at : ~at;
    const index = spans.addressOf[span] as number;
    const of = spans.layerOf[span] as number;
    if (of === layer && spans.isBlock[span] === 0) {
      if (at >= 0) live.add(index);
      else live.remove(index);
      liveAt[index] = span;
    } else if (at >= 0 && layers[of]?.isPlace) {
      const start = addresses[index] as number;
      for (const last of [index, lastAtMost(addresses, endOf(span) - 1)]) {
        const found = live.lastAtMost(last);
        if (found < 0 || endOf(liveAt[found] as number) <= start) continue;
        owners[span] = liveAt[found] as number;
        break;
      }
    }
  }
  return owners;
}

/** A set of integers, as bits; a bit of the next level says whether any of 32 bits is set. */
class IndexSet {
  readonly #levels: Uint32Array[] = [];

  constructor(size: number) {
    for (let bits = size; ; ) {
      const words = Math.ceil(bits / 32);
      this.#levels.push(new Uint32Array(words));
      if (words <= 1) break;
      bits = words;
    }
  }

  add(index: number): void {
    let at = index;
    for (const words of this.#levels) {
      words[at >>> 5] = (words[at >>> 5] as number) | (1 << (at & 31));
      at >>>= 5;
    }
  }

  remove(index: number): void {
    let at = index;
    for (const words of this.#levels) {
      words[at >>> 5] = (words[at >>> 5] as number) & ~(1 << (at & 31));
      if (words[at >>> 5] !== 0) return;
      at >>>= 5;
    }
  }

  /** The greatest integer in the set up to `index`, or -1. */
  lastAtMost(index: number): number {
    let at = index;
    for (const [level, words] of this.#levels.entries()) {
      if (at < 0) return -1;
      let bits = (words[at >>> 5] as number) & (0xffff_ffff >>> (31 - (at & 31)));
      if (bits !== 0) {
        at = at >>> 5;
        for (let below = level; ; below--) {
          at = 32 * at + 31 - Math.clz32(bits);
          if (below === 0) return at;
          bits = (this.#levels[below - 1] as Uint32Array)[at] as number;
        }
      }
      at = (at >>> 5) - 1;
    }
    return -1;
  }
}
