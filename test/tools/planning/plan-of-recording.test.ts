import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, expect, test } from 'vitest';
import { CudaMemoryResource, type DevicePointer, Event, Stream } from '../../../src/index.js';
import { Recording, RecordingResourceAdaptor } from '../../../src/recording/index.js';
import { readRecordedRun } from '../../../src/tools/formats/index.js';
import { planAllocations } from '../../../src/tools/planning/index.js';
import { Lifetimes } from '../../../src/tools/planning/lifetimes.js';
import { sequenceOfLog, sequenceOfRun } from '../../../src/tools/planning/sequences.js';
import { readAllocationLog } from '../../../src/tools/replay/index.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-plan-'));
afterAll(() => rmSync(folder, { recursive: true }));
const file = join(folder, 'run.cistern');

const streamCount = 3;
const eventCount = 2;

interface Step {
  readonly kind: 'allocate' | 'free' | 'record' | 'wait' | 'end-stream';
  readonly stream: number;
  /** Which event, or which live allocation. */
  readonly which: number;
  readonly bytes: number;
}

const step: fc.Arbitrary<Step> = fc.record({
  kind: fc.oneof(
    { weight: 6, arbitrary: fc.constant('allocate' as const) },
    { weight: 5, arbitrary: fc.constant('free' as const) },
    { weight: 4, arbitrary: fc.constant('record' as const) },
    { weight: 4, arbitrary: fc.constant('wait' as const) },
    { weight: 1, arbitrary: fc.constant('end-stream' as const) },
  ),
  stream: fc.nat(streamCount - 1),
  which: fc.nat(5),
  // In a free: if odd, it is on the stream of the step, else on that of the allocation.
  bytes: fc.integer({ min: 1, max: 2000 }),
});

/**
 * Runs a program that is recorded. By allocation: the allocations whose frees its stream is ordered
 * after at that point. Each stream and each event is the set of the frees that it is ordered after.
 */
function record(steps: readonly Step[]): ReadonlySet<number>[] {
  using recording = new Recording({ file });
  using resource = new RecordingResourceAdaptor(new CudaMemoryResource(), { recording });
  const streams = Array.from({ length: streamCount }, () => ({ stream: new Stream({ nonBlocking: true }), after: new Set<number>() }));
  const events = Array.from({ length: eventCount }, () => ({ event: new Event(), after: new Set<number>() }));
  const live: { readonly number: number; readonly pointer: DevicePointer; readonly bytes: number; readonly owner: number }[] = [];
  const follows: ReadonlySet<number>[] = [];
  try {
    for (const { kind, stream: index, which, bytes } of steps) {
      const on = streams[index] as (typeof streams)[number];
      const awaited = events[which % eventCount] as (typeof events)[number];
      if (kind === 'allocate') {
        live.push({ number: follows.length, pointer: resource.allocate(bytes, on.stream), bytes, owner: index });
        follows.push(new Set(on.after));
      } else if (kind === 'free') {
        const [freed] = live.splice(which % Math.max(1, live.length), 1);
        if (freed === undefined) continue;
        const by = streams[bytes % 2 === 1 ? index : freed.owner] as (typeof streams)[number];
        resource.deallocate(freed.pointer, freed.bytes, by.stream);
        by.after.add(freed.number);
      } else if (kind === 'record') {
        awaited.event.record(on.stream);
        awaited.after = new Set(on.after);
      } else if (kind === 'wait') {
        on.stream.wait(awaited.event);
        for (const free of awaited.after) on.after.add(free);
      } else {
        // What comes next on this number is another stream, ordered after nothing.
        on.stream.dispose();
        streams[index] = { stream: new Stream({ nonBlocking: true }), after: new Set() };
      }
    }
  } finally {
    for (const { pointer, bytes, owner } of live) resource.deallocate(pointer, bytes, (streams[owner] as (typeof streams)[number]).stream);
    for (const { stream } of streams) stream.dispose();
    for (const { event } of events) event[Symbol.dispose]();
  }
  return follows;
}

test('allocations of a recorded program share bytes exactly where its waits permit it', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(step, { minLength: 20, maxLength: 60 }), async (steps) => {
      const follows = record([{ kind: 'allocate', stream: 0, which: 0, bytes: 1 }, ...steps]);
      const run = await readRecordedRun(file);
      const log = await readAllocationLog(file);
      const sequences = [sequenceOfRun(run).sequence, sequenceOfLog(log)];
      for (const sequence of sequences) {
        const lifetimes = new Lifetimes(sequence, 256);
        expect(lifetimes.count).toBe(follows.length);
        follows.forEach((frees, b) => {
          for (let a = 0; a < b; a++) expect(lifetimes.overlaps(a, b), `${a} and ${b}`).toBe(!frees.has(a));
        });
      }
      for (const source of [run, log]) {
        const { offsets, sizes } = planAllocations(source, { timeLimitMilliseconds: 0 });
        const end = (a: number) => (offsets[a] as number) + (sizes[a] as number);
        follows.forEach((frees, b) => {
          for (let a = 0; a < b; a++) {
            const isShared = (offsets[a] as number) < end(b) && (offsets[b] as number) < end(a);
            if (isShared) expect(frees.has(a), `${a} and ${b} share bytes`).toBe(true);
          }
        });
      }
    }),
    { numRuns: 200 },
  );
});
