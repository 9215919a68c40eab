import { gzipSync } from 'node:zlib';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { InvalidLogError } from '../../../../src/basics/errors.js';
import { type RecordedRun, readRecordedRun } from '../../../../src/tools/formats/index.js';
import type { ReportRun } from '../../../../src/tools/formats/report/report-run.js';
import { diffRuns, readReportRun, writeReport } from '../../../../src/tools/report/index.js';
import { createReportRun } from '../../report/create-report-run.js';
import { RunWriter, trainingRun } from '../../report/runs.js';
import { anyRun } from '../runs.js';

async function pageOf(...runs: readonly RecordedRun[]): Promise<Buffer> {
  const pieces: Buffer[] = [];
  await writeReport(runs, { write: async (piece) => void pieces.push(Buffer.from(piece)) });
  return Buffer.concat(pieces);
}

async function* inPieces(page: Uint8Array): AsyncGenerator<Uint8Array> {
  yield page.subarray(0, 3);
  yield page.subarray(3);
}

const readPage = (page: Uint8Array) => readRecordedRun(inPieces(page), { name: 'report.html' });

/** What a report shows, apart from what it does not keep, with times from the first change. */
function shown(run: RecordedRun): Partial<ReportRun> {
  const { times, failures, phaseMarks, ...report } = createReportRun(run);
  const { source, eventCount, eventRecordCount, eventWaitCount, unmatchedFreeCount, durationNanoseconds, startedAt, ...rest } = report;
  const since = (column: Float64Array) => column.map((time) => time - (times[0] ?? 0));
  const isAlone = times.length === 0;
  return {
    ...rest,
    times: since(times),
    failures: { ...failures, times: isAlone ? failures.times.fill(0) : since(failures.times) },
    phaseMarks: { ...phaseMarks, times: isAlone ? phaseMarks.times.fill(0) : since(phaseMarks.times) },
  };
}

describe('a report read as a log', () => {
  test('has the allocations, blocks, labels, failures and phases of its log', async () => {
    await fc.assert(
      fc.asyncProperty(anyRun, async (run) => {
        expect(shown(await readPage(await pageOf(run)))).toEqual(shown(run));
      }),
      { numRuns: 60 },
    );
  });

  test('is the same memory', async () => {
    const run = trainingRun({ steps: 2 });
    const read = await readPage(gzipSync(await pageOf(run)));
    expect(read).toMatchObject({ source: 'report.html', csv: undefined, damage: run.damage });
    expect(diffRuns(run, read, { by: 'label' }).rows.filter(({ before, after }) => before.peakBytes !== after.peakBytes)).toEqual([]);
    expect((await readReportRun(inPieces(await pageOf(run)))).overview.layers).toEqual(
      (await readReportRun(inPieces(await pageOf(read)))).overview.layers,
    );
  });

  test('of several logs, of another page, or damaged is refused', async () => {
    const run = new RunWriter().allocate(256, 8).finish();
    const page = await pageOf(run);
    const refused = async (bytes: Uint8Array, sentence: string) => {
      await expect(readPage(bytes)).rejects.toThrow(new InvalidLogError('report.html', undefined, sentence));
    };
    await refused(await pageOf(run, run), 'is a report of several logs; use a report of one');
    await refused(Buffer.from('<!DOCTYPE html><p>Hello'), 'is an HTML page, but not a report from cistern');
    const data = page.indexOf('class="run">') + 12;
    await refused(page.subarray(0, data + 10), 'is a report that ends early');
    await refused(Buffer.concat([page.subarray(0, data), page.subarray(data + 40)]), 'is a damaged report');
  });

  test('that names what is not there is refused', async () => {
    const run = new RunWriter().allocate(256, 8).finish();
    for (const names of ['streams', 'threads', 'stacks', 'phases', 'accounts'] as const) {
      await expect(readPage(await pageOf({ ...run, [names]: [] }))).rejects.toThrow('is a damaged report');
    }
  });
});
