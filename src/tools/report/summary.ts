import type { RecordedLayer } from '../formats/layers.js';
import type { PackedColumn } from '../formats/report/column.js';
import type { ReportColumns } from '../formats/report/report-data.js';
import { poolAmong } from '../formats/report/report-run.js';
import { segmentsOf } from './address-layout.js';
import { externalFragmentation } from './fragmentation.js';

/** Figures about one layer. */
export interface LayerSummary {
  readonly layer: number;
  readonly allocationCount: number;
  readonly freeCount: number;
  readonly failureCount: number;
  readonly neverFreedCount: number;
  readonly neverFreedBytes: number;
  readonly peakLiveBytes: number;
  /** Nanoseconds since the first event. */
  readonly peakLiveAt: number;
  /**
   * Bytes of the blocks that hold the layer's allocations, or `null` if the log does not have them.
   */
  readonly peakReservedBytes: number | null;
  /** At the end of the log. */
  readonly reservedBytes: number | null;
  /** Number of blocks that this layer itself took from its upstream. */
  readonly growthCount: number;
  readonly releaseCount: number;
  /** At the live peak; see {@link externalFragmentation}. */
  readonly fragmentationAtPeak: number;
  readonly holesAtPeak: number;
  readonly largestHoleAtPeak: number;
}

/** Counts a layer's allocations and blocks, change by change. */
export class LayerTally {
  allocationCount = 0;
  freeCount = 0;
  failureCount = 0;
  growthCount = 0;
  releaseCount = 0;
  liveBytes = 0;
  peakLiveBytes = 0;
  /** The change at which the peak was reached. */
  peakChange = 0;
  /** Nanoseconds since the first event, or `undefined` if nothing was ever live. */
  peakLiveAt: number | undefined;
  /** Bytes in blocks that the layer took from its upstream. */
  reservedBytes = 0;
  peakReservedBytes = 0;

  begin(isBlock: boolean, bytes: number, change: number, time: number): void {
    if (isBlock) {
      this.growthCount++;
      this.reservedBytes += bytes;
      if (this.reservedBytes > this.peakReservedBytes) this.peakReservedBytes = this.reservedBytes;
      return;
    }
    this.allocationCount++;
    this.liveBytes += bytes;
    if (this.liveBytes <= this.peakLiveBytes) return;
    this.peakLiveBytes = this.liveBytes;
    this.peakChange = change;
    this.peakLiveAt = time;
  }

  end(isBlock: boolean, bytes: number): void {
    if (isBlock) {
      this.releaseCount++;
      this.reservedBytes -= bytes;
    } else {
      this.freeCount++;
      this.liveBytes -= bytes;
    }
  }
}

/**
 * Figures about each layer, in the order of the layers.
 * @param tallies one per layer
 * @param addresses every address at which a span begins; ascending
 * @param firstChangeAt nanoseconds since the first event
 */
export function summarizeLayers(
  layers: readonly RecordedLayer[],
  tallies: readonly LayerTally[],
  columns: PackedSpans,
  addresses: Float64Array,
  firstChangeAt: number,
): LayerSummary[] {
  const pools = new Set([...layers.keys()].filter((layer) => (tallies[layer] as LayerTally).growthCount > 0));
  return layers.map((_, layer) => {
    const tally = tallies[layer] as LayerTally;
    const pool = poolAmong(layers, pools, layer);
    const blocks = pool === undefined ? undefined : tallies[pool];
    const { holes, largest } = holesAt(tally.peakChange, layer, pool, columns, addresses);
    return {
      layer,
      allocationCount: tally.allocationCount,
      freeCount: tally.freeCount,
      failureCount: tally.failureCount,
      neverFreedCount: tally.allocationCount - tally.freeCount,
      neverFreedBytes: tally.liveBytes,
      peakLiveBytes: tally.peakLiveBytes,
      peakLiveAt: tally.peakLiveAt ?? firstChangeAt,
      peakReservedBytes: blocks?.peakReservedBytes ?? null,
      reservedBytes: blocks?.reservedBytes ?? null,
      growthCount: tally.growthCount,
      releaseCount: tally.releaseCount,
      fragmentationAtPeak: externalFragmentation(largest, holes),
      holesAtPeak: holes,
      largestHoleAtPeak: largest,
    };
  });
}

type PackedSpans = Pick<ReportColumns<PackedColumn>, 'changes' | 'addressOf' | 'bytes' | 'isBlock' | 'layerOf'>;

/**
 * The holes between a layer's live allocations after one change; {@link FragmentationSweep} finds
 * them after every change.
 */
function holesAt(
  change: number,
  layer: number,
  pool: number | undefined,
  columns: PackedSpans,
  addresses: Float64Array,
): { holes: number; largest: number } {
  const isLive = liveAfter(change, columns.changes, columns.bytes.head.count);
  /** What is live at each address: an allocation and a block. */
  const allocations = new Float64Array(addresses.length);
  const blocks = new Float64Array(pool === undefined ? 0 : addresses.length);
  /**
   * The end of the longest allocation ever made at each address, which determines where segments
   * end.
   */
  const ends = new Float64Array(pool === undefined ? addresses.length : 0);
  forEachSpan(columns, (span, index, bytes, isBlock, of) => {
    if (of !== (isBlock ? pool : layer)) return;
    if (pool === undefined) ends[index] = Math.max(ends[index] as number, (addresses[index] as number) + bytes);
    if (isLive[span] === 1) (isBlock ? blocks : allocations)[index] = bytes;
  });

  const segments = pool === undefined ? segmentsOf(addresses, ends) : [];
  let segment = 0;
  let holes = 0;
  let largest = 0;
  /**
   * The end of the last allocation, or the start of the last block, and how far a hole behind it
   * may reach.
   */
  let end = 0;
  let limit = 0;
  const measure = (next: number) => {
    const hole = Math.max(0, Math.min(limit, next) - end);
    holes += hole;
    largest = Math.max(largest, hole);
  };
  for (let index = 0; index < addresses.length; index++) {
    const start = addresses[index] as number;
    if (pool === undefined) {
      if (start >= (segments[segment + 1]?.start ?? Number.POSITIVE_INFINITY)) {
        segment++;
        limit = 0;
      }
    } else if ((blocks[index] as number) > 0) {
      measure(start);
      end = start;
      limit = start + (blocks[index] as number);
    }
    if (allocations[index] === 0) continue;
    measure(start);
    end = start + (allocations[index] as number);
    if (pool === undefined) limit = Number.POSITIVE_INFINITY;
  }
  if (pool !== undefined) measure(limit);
  return { holes, largest };
}

/** 1 for each span that is live after a change. */
function liveAfter(change: number, changes: PackedColumn, spanCount: number): Uint8Array {
  const isLive = new Uint8Array(spanCount);
  let begun = 0;
  let left = change + 1;
  for (const distances of changes.chunks()) {
    for (let i = 0; i < Math.min(left, distances.length); i++) {
      const distance = distances[i] as number;
      if (distance === 0) isLive[begun++] = 1;
      else isLive[begun - distance] = 0;
    }
    left -= distances.length;
    if (left <= 0) break;
  }
  return isLive;
}

function forEachSpan(
  columns: PackedSpans,
  look: (span: number, address: number, bytes: number, isBlock: boolean, layer: number) => void,
): void {
  const bytes = columns.bytes.chunks();
  const isBlock = columns.isBlock.chunks();
  const layerOf = columns.layerOf.chunks();
  let span = 0;
  for (const addressOf of columns.addressOf.chunks()) {
    const [sizes, kinds, layers] = [bytes, isBlock, layerOf].map((chunks) => chunks.next().value as Float64Array) as [
      Float64Array,
      Float64Array,
      Float64Array,
    ];
    for (let i = 0; i < addressOf.length; i++, span++) {
      look(span, addressOf[i] as number, sizes[i] as number, kinds[i] === 1, layers[i] as number);
    }
  }
}
