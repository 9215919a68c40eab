import fc from 'fast-check';
import type { RecordedRun } from '../../../src/tools/formats/index.js';
import type { ReportRun } from '../../../src/tools/formats/report/report-run.js';
import { createReportRun } from './create-report-run.js';
import { RunWriter } from './runs.js';

/** A slot of memory: a step allocates it if it is free, and frees it otherwise. */
interface Step {
  readonly slot: number;
  readonly bytes: number;
  readonly stream: number;
  readonly phase: number;
  readonly after: number;
}

const slotBytes = 4096;
const base = 0x7000_0000;

const steps: fc.Arbitrary<Step[]> = fc.array(
  fc.record({
    slot: fc.nat({ max: 24 }),
    bytes: fc.integer({ min: 1, max: slotBytes / 256 }).map((units) => units * 256),
    stream: fc.nat({ max: 8 }),
    phase: fc.nat({ max: 2 }),
    after: fc.constantFrom(0, 1, 1000, 50_000),
  }),
  { maxLength: 400, size: 'max' },
);

/**
 * Programs that allocate and free in slots. With blocks, a pool first takes four slots at a time
 * from its upstream, and may return them.
 */
export function anyReportRun({ hasBlocks = false } = {}): fc.Arbitrary<ReportRun> {
  return anyRecordedRun({ hasBlocks }).map(createReportRun);
}

/** The same programs, as they are recorded. */
export function anyRecordedRun({ hasBlocks = false } = {}): fc.Arbitrary<RecordedRun> {
  return steps.map((program) => {
    const writer = new RunWriter(...(hasBlocks ? ['statistics', 'pool'] : ['pool']));
    const live = new Map<number, number>();
    const blocks = new Set<number>();
    for (const { slot, bytes, stream, phase, after } of program) {
      const pointer = base + slot * slotBytes;
      const place = {
        after,
        stream: `0x${stream}`,
        phase: ['', 'forward', 'backward'][phase] || undefined,
        layer: hasBlocks ? 'statistics' : 'pool',
      };
      const held = live.get(pointer);
      const block = Math.floor(slot / 4);
      if (held !== undefined) {
        writer.free(pointer, held, place);
        live.delete(pointer);
        const isEmpty = ![...live.keys()].some((other) => Math.floor((other - base) / slotBytes / 4) === block);
        if (hasBlocks && isEmpty && bytes > slotBytes / 2) {
          writer.release(base + block * 4 * slotBytes, 4 * slotBytes, { layer: 'pool', after: 0 });
          blocks.delete(block);
        }
        continue;
      }
      if (hasBlocks && !blocks.has(block)) {
        writer.grow(base + block * 4 * slotBytes, 4 * slotBytes, { layer: 'pool', after: 0 });
        blocks.add(block);
      }
      writer.allocate(pointer, bytes, place);
      live.set(pointer, bytes);
    }
    return writer.finish();
  });
}

/** The spans live after a change. */
export function liveAfter(run: ReportRun, change: number): number[] {
  const { starts, ends, count } = run.spans;
  const live: number[] = [];
  for (let span = 0; span < count; span++) {
    if ((starts[span] as number) <= change && (ends[span] as number) > change) live.push(span);
  }
  return live;
}
