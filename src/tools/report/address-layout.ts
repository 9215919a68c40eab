import { KiB } from '../../basics/units.js';
import type { ReportRun } from '../formats/report/report-run.js';
import { matchingAllocations, matchingBlocks } from './held-bytes.js';

/** A range of addresses without long unused gaps. */
export interface AddressSegment {
  readonly start: number;
  /** The first address after it. */
  readonly end: number;
  /** The offset of its start when the segments are placed one after another. */
  readonly offset: number;
}

/** Addresses with the long gaps between segments removed. */
export interface AddressLayout {
  /** Ascending. */
  readonly segments: readonly AddressSegment[];
  /** The sum over all segments. */
  readonly totalBytes: number;
  /** The offset of each of {@link ReportRun.addresses}, or -1 if the layer does not use it. */
  readonly offsetOf: Float64Array;
  /** The segment number of each of {@link ReportRun.addresses}. */
  readonly segmentOf: Uint32Array;
}

/**
 * Lays out the addresses ever used by a layer's allocations and the blocks they lie in. A gap is
 * removed if it is longer than 4 KiB and longer than 1/256 of the used addresses.
 */
export function layOutAddresses(run: ReportRun, layer: number): AddressLayout {
  const { addresses, spans } = run;
  const allocations = matchingAllocations(run, { layer });
  const blocks = matchingBlocks(run, layer);
  const ends = new Float64Array(addresses.length);
  for (let span = 0; span < spans.count; span++) {
    if (allocations[span] !== 1 && blocks?.[span] !== 1) continue;
    const index = spans.addressOf[span] as number;
    ends[index] = Math.max(ends[index] as number, (addresses[index] as number) + (spans.bytes[span] as number));
  }

  const segments = segmentsOf(addresses, ends);
  const offsetOf = new Float64Array(addresses.length).fill(-1);
  const segmentOf = new Uint32Array(addresses.length);
  let current = 0;
  for (let index = 0; index < addresses.length; index++) {
    if (ends[index] === 0) continue;
    const start = addresses[index] as number;
    while (start >= (segments[current + 1]?.start ?? Number.POSITIVE_INFINITY)) current++;
    const segment = segments[current] as AddressSegment;
    offsetOf[index] = segment.offset + start - segment.start;
    segmentOf[index] = current;
  }
  const last = segments.at(-1);
  return { segments, totalBytes: last === undefined ? 0 : last.offset + last.end - last.start, offsetOf, segmentOf };
}

/**
 * The segments that ranges of addresses lie in.
 * @param addresses the starts of the ranges; ascending
 * @param ends for each start, the end of the longest range, or 0 for an unused address
 */
export function segmentsOf(addresses: Float64Array, ends: Float64Array): readonly AddressSegment[] {
  let usedBytes = 0;
  let reached = 0;
  for (let index = 0; index < addresses.length; index++) {
    const end = ends[index] as number;
    if (end <= reached) continue;
    usedBytes += end - Math.max(reached, addresses[index] as number);
    reached = end;
  }
  const longestGap = Math.max(4 * KiB, usedBytes / 256);

  const segments: { start: number; end: number; offset: number }[] = [];
  for (let index = 0; index < addresses.length; index++) {
    const end = ends[index] as number;
    if (end === 0) continue;
    const start = addresses[index] as number;
    const segment = segments.at(-1);
    if (segment === undefined || start - segment.end > longestGap) {
      const offset = segment === undefined ? 0 : segment.offset + segment.end - segment.start;
      segments.push({ start, end, offset });
    } else segment.end = Math.max(segment.end, end);
  }
  return segments;
}

/** The address at an offset of a layout, or `undefined` if the offset is outside. */
export function addressAt({ segments }: AddressLayout, offset: number): number | undefined {
  let low = 0;
  let high = segments.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((segments[middle] as AddressSegment).offset <= offset) low = middle + 1;
    else high = middle;
  }
  const segment = segments[low - 1];
  if (segment === undefined) return undefined;
  const address = segment.start + offset - segment.offset;
  return address < segment.end ? address : undefined;
}
