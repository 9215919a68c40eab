import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { OrderedSequence, StreamWait } from '../../../src/plans/sequence.js';
import { type EventRecord, SequenceBuilder } from '../../../src/plans/sequence-builder.js';
import { Lifetimes } from '../../../src/tools/planning/lifetimes.js';

/** Streams below this number allocate and free, the others only record and wait. */
const operating = 3;
const streamCount = 6;

const steps = fc.array(
  fc.record({
    kind: fc.constantFrom('allocate', 'free', 'record', 'record', 'wait', 'wait', 'wait'),
    stream: fc.nat(streamCount - 1),
    which: fc.nat(1000),
  }),
  { maxLength: 60, size: 'max' },
);

/** The same steps with the builder, and with every wait. */
function built(all: typeof steps extends fc.Arbitrary<infer Steps> ? Steps : never): { kept: OrderedSequence; full: OrderedSequence } {
  const builder = new SequenceBuilder();
  const numbers: number[] = [];
  const live: number[] = [];
  const records: {
    readonly record: EventRecord | undefined;
    readonly plain: Pick<StreamWait, 'recordedOn' | 'recordedAt' | 'recordedAfter'>;
  }[] = [];
  const waits: StreamWait[] = [];
  let operations = 0;
  /** By order of their first operation, as the builder numbers them; the others come last. */
  const numberOf = (stream: number) => {
    if (!numbers.includes(stream)) numbers.push(stream);
    return numbers.indexOf(stream);
  };
  for (const { kind, stream, which } of all) {
    const own = stream % operating;
    if (kind === 'allocate') {
      numberOf(own);
      live.push(builder.allocate(256, own));
      operations++;
    } else if (kind === 'free') {
      const [freed] = live.splice(which % Math.max(live.length, 1), 1);
      if (freed === undefined) continue;
      numberOf(own);
      builder.free(freed, own);
      operations++;
    } else if (kind === 'record') {
      const plain = { recordedOn: stream, recordedAt: operations, recordedAfter: waits.length };
      records.push({ record: builder.record(stream), plain });
    } else if (records.length > 0) {
      const { record, plain } = records[which % records.length] as (typeof records)[number];
      if (record !== undefined) builder.wait(stream, record);
      waits.push({ at: operations, stream, ...plain });
    }
  }
  const kept = builder.finish();
  const full = waits.map((wait) => ({ ...wait, stream: numberOf(wait.stream), recordedOn: numberOf(wait.recordedOn) }));
  return { kept, full: { ...kept, waits: full } };
}

describe('the sequence of a pass', () => {
  test('lacks no wait that decides which allocations may share bytes', () => {
    fc.assert(
      fc.property(steps, (all) => {
        const { kept, full } = built(all);
        const some = new Lifetimes(kept, 256);
        const every = new Lifetimes(full, 256);
        for (let a = 0; a < some.count; a++) for (let b = 0; b < a; b++) expect(some.overlaps(a, b)).toBe(every.overlaps(a, b));
      }),
      { numRuns: 2000 },
    );
  });

  test('has only waits on a path from one stream that allocates or frees to another', () => {
    const builder = new SequenceBuilder();
    const wait = (stream: string, on: string) => {
      const record = builder.record(on);
      if (record !== undefined) builder.wait(stream, record);
    };
    const a = builder.allocate(256, 'a');
    wait('x', 'y'); // neither has done anything
    wait('x', 'a'); // from here…
    wait('x', 'a'); // nothing new
    wait('y', 'x'); // …through here, but no stream with operations follows
    wait('a', 'x'); // only what the stream did itself
    wait('b', 'x'); // …to here
    const b = builder.allocate(256, 'b');
    builder.free(a, 'a');
    builder.free(b, 'b');
    wait('a', 'b'); // no operation follows
    const [aNumber, bNumber, xNumber] = [0, 1, 2];
    expect(builder.finish().waits).toEqual([
      { at: 1, stream: xNumber, recordedOn: aNumber, recordedAt: 1, recordedAfter: 0 },
      { at: 1, stream: bNumber, recordedOn: xNumber, recordedAt: 1, recordedAfter: 1 },
    ]);
  });
});
