import type { OrderedSequence, Plan, StreamWait } from '../../src/plans/index.js';
import { planAllocations } from '../../src/tools/planning/index.js';

/** The unit of sizes and offsets in words. */
export const page = 256;

/**
 * The operations of a pass, in words: `+4@1` requests 4 pages on stream 1, `-0@1` frees allocation 0
 * on stream 1, and `w1<0` makes stream 1 wait for stream 0. Stream 0 may be left out.
 */
export function sequenceOf(text: string): OrderedSequence {
  const operations: number[] = [];
  const sizes: number[] = [];
  const streams: number[] = [];
  const freeStreams: number[] = [];
  const waits: StreamWait[] = [];
  for (const word of text.match(/\S+/g) ?? []) {
    const [, kind, first, second] = /^([+\-w])(\d+)(?:[@<](\d))?(?::\d+)?$/.exec(word) as unknown as string[];
    const value = Number(first);
    const stream = Number(second ?? 0);
    if (kind === '+') {
      operations.push(sizes.push(value * page) - 1);
      streams.push(stream);
      freeStreams.push(-1);
    } else if (kind === '-') {
      operations.push(~value);
      freeStreams[value] = stream;
    } else {
      const { length } = operations;
      waits.push({ at: length, stream: value, recordedOn: stream, recordedAt: length, recordedAfter: waits.length });
    }
  }
  return { operations, sizes, streams, freeStreams, waits };
}

/**
 * A plan of a pass. `+4@1:8` puts an allocation at page 8; if no word does, `planAllocations` finds
 * the places.
 */
export function planOf(text: string): Plan {
  const sequence = sequenceOf(text);
  const offsets = Array.from(text.matchAll(/:(\d+)/g), ([, offset]) => Number(offset) * page);
  if (offsets.length === 0) return planAllocations(sequence);
  const { operations, sizes, streams, freeStreams } = sequence;
  const totalBytes = Math.max(...offsets.map((offset, a) => offset + (sizes[a] as number)));
  const columns = { operations, sizes, streams, freeStreams, offsets };
  return { ...columns, alignmentBytes: page, totalBytes, lowerBoundBytes: totalBytes, isOptimal: false, gap: 0 };
}
