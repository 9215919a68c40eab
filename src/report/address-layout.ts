import { KiB } from '../units.js';
import { matchingAllocations, matchingBlocks } from './held-bytes.js';
import type { ReportRun } from './report-run.js';

/** A stretch of addresses without a long empty part. */
export interface AddressSegment {
  readonly start: number;
  /** The first address behind it. */
  readonly end: number;
  /** Where it begins when the segments are put one behind the other. */
  readonly offset: number;
}

/** Addresses with the empty stretches between them removed. */
export interface AddressLayout {
  /** Ascending. */
  readonly segments: readonly AddressSegment[];
  /** Of all segments. */
  readonly totalBytes: number;
  /** For each of {@link ReportRun.addresses} its offset, or -1 where the layer does not use it. */
  readonly offsetOf: Float64Array;
  /** For each of {@link ReportRun.addresses} the number of its segment. */
  readonly segmentOf: Uint32Array;
}

/**
 * Lays out what a layer's allocations, and the blocks they lie in, ever used. An empty stretch is removed where it is longer than 1/256 of what
 * was used and than 4 KiB.
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
 * The stretches that ranges of addresses lie in.
 * @param addresses where they begin; ascending
 * @param ends where the longest that begins there ends, or 0 for an address that is not used
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

/** The address at an offset of a layout, or `undefined` outside. */
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
