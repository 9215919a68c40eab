import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { afterAll, describe, expect, test } from 'vitest';
import type { RecordedRun } from '../../../src/tools/formats/index.js';
import { unpackReportRun } from '../../../src/tools/formats/report/report-data.js';
import { writeReport } from '../../../src/tools/report/index.js';
import { packReportRun } from '../../../src/tools/report/pack-report-run.js';
import { phaseIntervals } from '../../../src/tools/report/phase-intervals.js';
import type { ReportContents } from '../../../src/tools/report/report-contents.js';
import { createReportRun } from './create-report-run.js';
import { RunWriter, trainingRun } from './runs.js';

const folder = await mkdtemp(join(tmpdir(), 'cistern-report-'));
afterAll(() => rm(folder, { recursive: true }));

/** The elements of a page that hold its data. */
function dataOf(html: string): { contents: ReportContents; runs: ReturnType<typeof unpackReportRun>[] } {
  const json = /<script type="application\/json" id="contents">(.*?)<\/script>/s.exec(html)?.[1] as string;
  const runs = [...html.matchAll(/<script type="application\/octet-stream" class="run">([\w+/=]*)<\/script>/g)];
  return {
    contents: JSON.parse(json) as ReportContents,
    runs: runs.map(([, text]) => unpackReportRun(gunzipSync(Buffer.from(text as string, 'base64')))),
  };
}

describe('writing a report', () => {
  test('puts all runs into one page that loads nothing', async () => {
    const path = join(folder, 'report.html');
    const runs = [trainingRun({ steps: 1 }), trainingRun({ steps: 2, seed: 2, source: 'second.cistern' })];
    await writeReport(runs, path, { title: 'Both' });
    const html = await readFile(path, 'utf8');
    const { contents, runs: read } = dataOf(html);
    expect(read).toEqual(runs.map(createReportRun));
    expect(contents.title).toBe('Both');
    expect(contents.runs.map(({ source }) => source)).toEqual(runs.map(({ source }) => source));
    expect(html).toContain('<title>Both</title>');
    expect(html).toContain("default-src 'none'");
    expect(html).not.toMatch(/<(?:script|link|img|iframe)[^>]+(?:src|href)="(?!data:)/);
    expect(await readdir(folder)).toEqual(['report.html']);
  });

  test('never treats a text of a log as markup', async () => {
    const pieces: string[] = [];
    const evil = '</script><script>alert(1)</script><!-- & "';
    const run = new RunWriter(evil).allocate(256, 8, { stream: evil, thread: evil, phase: evil, stack: evil }).label(256, evil);
    await writeReport([run.finish({ source: evil })], { write: async (text) => void pieces.push(String(text)) });
    const html = pieces.join('');
    expect(html).not.toContain('alert(1)</script>');
    expect(html).toContain('<title>&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;&lt;!-- &amp; "</title>');
    const { contents, runs } = dataOf(html);
    expect(contents.runs[0]?.source).toBe(evil);
    expect(runs[0]?.labels).toEqual(['', evil]);
  });

  test('keeps the figures of graphs, and nothing else of them', async () => {
    const pieces: string[] = [];
    const sink = { write: async (text: unknown) => void pieces.push(String(text)) };
    const sums = { lowerBoundBytes: 1, poolsBytes: 2, sharedPoolBytes: 3, plannedApartBytes: 4, plannedBytes: 5 };
    const graph = { name: '<graph>', allocationCount: 6, peakLiveBytes: 7, lowerBoundBytes: 8, poolBytes: 9, plannedBytes: 10 };
    const given = { graphs: [{ ...graph, plan: 'not shown' }], ...sums };
    await writeReport([new RunWriter().finish(), new RunWriter().finish()], sink, { graphs: [undefined, given] });
    expect(dataOf(pieces.join('')).contents.runs.map(({ graphs }) => graphs)).toEqual([null, { graphs: [graph], ...sums }]);
    await expect(writeReport([new RunWriter().finish()], sink, { graphs: 3 as never })).rejects.toThrow(
      'graphs must be an array of figures of graphs, got 3',
    );
  });

  test('accepts a log without events', async () => {
    const pieces: string[] = [];
    await writeReport([new RunWriter().finish()], { write: async (text) => void pieces.push(String(text)) });
    expect(dataOf(pieces.join('')).runs[0]?.spans.count).toBe(0);
  });

  test('reports its progress', async () => {
    const shares: number[] = [];
    const sink = { write: async () => {} };
    await writeReport([trainingRun({ steps: 1 }), trainingRun({ steps: 1 })], sink, { onProgress: (done) => shares.push(done) });
    expect(shares).toEqual([...shares].sort((a, b) => a - b));
    expect(shares[0]).toBe(0);
    expect(shares.length).toBeGreaterThan(4);
    expect(shares.at(-1)).toBe(1);
  });

  test('refuses an empty list and invalid runs, and leaves no file if it fails', async () => {
    const path = join(folder, 'refused.html');
    await expect(writeReport([], path)).rejects.toThrow('runs must hold at least one run, got none');
    await expect(writeReport(trainingRun() as unknown as RecordedRun[], path)).rejects.toMatchObject({ code: 'ERR_INVALID_ARG_TYPE' });
    await expect(writeReport([trainingRun()], path, { fits: [1] as never })).rejects.toMatchObject({ code: 'ERR_INVALID_ARG_TYPE' });
    await expect(writeReport([trainingRun()], path, { onProgress: 1 as never })).rejects.toMatchObject({ code: 'ERR_INVALID_ARG_TYPE' });
    const failing = () => {
      throw new Error('stopped');
    };
    await expect(writeReport([trainingRun()], path, { onProgress: failing })).rejects.toThrow('stopped');
    await expect(writeReport([trainingRun()], join(folder, 'missing', 'report.html'))).rejects.toMatchObject({ code: 'ENOENT' });
    expect(await readdir(folder)).not.toContain('refused.html');
  });
});

describe('the summary of a layer', () => {
  test('gives the live peak, what was reserved then, and what was never freed', () => {
    const run = packReportRun(
      new RunWriter('statistics', 'pool')
        .grow(4096, 4096, { layer: 'pool' })
        .allocate(4096, 1024, { layer: 'statistics' })
        .allocate(6144, 1024)
        .free(4096, 1024)
        .fail(1 << 30)
        .finish(),
    );
    expect(run.overview.layers).toEqual([
      {
        name: 'statistics',
        layer: 0,
        allocationCount: 2,
        freeCount: 1,
        failureCount: 1,
        neverFreedCount: 1,
        neverFreedBytes: 1024,
        peakLiveBytes: 2048,
        peakLiveAt: 2000,
        peakReservedBytes: 4096,
        reservedBytes: 4096,
        growthCount: 0,
        releaseCount: 0,
        fragmentationAtPeak: 0.5,
        holesAtPeak: 2048,
        largestHoleAtPeak: 1024,
      },
      expect.objectContaining({ layer: 1, growthCount: 1, releaseCount: 0, allocationCount: 0, peakLiveBytes: 0 }),
    ]);
  });
});

describe('phase intervals', () => {
  test('end with the phase, nest, and last to the end of the log if the phase does not end', () => {
    const run = createReportRun(
      new RunWriter()
        .beginPhase('step')
        .allocate(256, 8)
        .beginPhase('forward', 'step')
        .free(256, 8)
        .endPhase('forward')
        .beginPhase('forward')
        .allocate(256, 8)
        .finish(),
    );
    expect(phaseIntervals(run)).toEqual([
      { phase: 1, depth: 0, from: 0, to: 3000 },
      { phase: 2, depth: 1, from: 1000, to: 2000 },
      { phase: 2, depth: 1, from: 2000, to: 3000 },
    ]);
  });

  test('of a phase within itself end from the inside', () => {
    const run = createReportRun(
      new RunWriter().beginPhase('f').allocate(256, 8).beginPhase('f').free(256, 8).endPhase('f').allocate(256, 8).endPhase('f').finish(),
    );
    expect(phaseIntervals(run)).toEqual([
      { phase: 1, depth: 0, from: 0, to: 3000 },
      { phase: 1, depth: 0, from: 1000, to: 2000 },
    ]);
  });
});
