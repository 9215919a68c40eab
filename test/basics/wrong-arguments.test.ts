import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { planAllocations, plannedRun, readMinimallocCsv } from '../../src/tools/planning/index.js';
import * as cistern from '../support/package.js';
import { arrowEtl } from '../tools/formats/logs.js';

const wrongType = (begins: RegExp) => expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE', message: expect.stringMatching(begins) });
const wrong = [undefined, null, 1, {}, () => {}];

test.each([
  ['readRecordedRun', cistern.readRecordedRun],
  ['readAllocationLog', cistern.readAllocationLog],
  ['readReportRun', cistern.readReportRun],
  ['convertLog', (source: cistern.LogSource) => cistern.convertLog(source, '/dev/null', { to: 'recording' })],
] as const)(
  '%s takes a path, a URL or bytes in pieces, and nothing else',
  async (_, read: (source: cistern.LogSource) => Promise<unknown>) => {
    const bytes = readFileSync(arrowEtl);
    for (const source of [...wrong, bytes, new DataView(bytes.buffer)]) {
      await expect(read(source as never)).rejects.toThrow(
        wrongType(/^source must be a path, a file: URL, or an iterable of Uint8Arrays, got /),
      );
    }
    for (const piece of ['text', 1, null]) {
      await expect(read([piece] as never)).rejects.toThrow(wrongType(/^source must give pieces that are Uint8Arrays, got /));
    }
    await expect(read([bytes] as never)).resolves.toBeDefined();
  },
);

test('a file to write is named by a path', async () => {
  for (const path of wrong) {
    await expect(cistern.writeWhole(path as never, async () => {})).rejects.toThrow(wrongType(/^path must be a string, got /));
    await expect(cistern.convertLog(arrowEtl, path as never)).rejects.toThrow(wrongType(/^output must be a path, got /));
  }
  await expect(cistern.writeWhole('/dev/null', undefined as never)).rejects.toThrow(wrongType(/^write must be a function, got /));
});

test('what takes a run takes nothing else', async () => {
  const run = await cistern.readRecordedRun(arrowEtl);
  const sink = { write: async () => {} };
  for (const value of [...wrong, [run]]) {
    expect(() => cistern.diffRuns(value as never, run)).toThrow(wrongType(/^before must be a RecordedRun/));
    expect(() => cistern.diffRuns(run, value as never)).toThrow(wrongType(/^after must be a RecordedRun/));
    expect(() => plannedRun(value as never, {} as never)).toThrow(wrongType(/^run must be a RecordedRun/));
    await expect(cistern.writeReport([value as never], sink)).rejects.toThrow(wrongType(/^each of the runs must be a RecordedRun/));
    expect(
      () =>
        new cistern.RunEstimator([
          { run, value: 1 },
          { run: value as never, value: 2 },
        ]),
    ).toThrow(wrongType(/^the run of each sample must be a RecordedRun/));
    expect(() => readMinimallocCsv(value as never)).toThrow(wrongType(/^text must be a string/));
  }
});

test('an option that is a function is one', async () => {
  const log = await cistern.readAllocationLog(arrowEtl);
  const run = await cistern.readRecordedRun(arrowEtl);
  const upstream = new cistern.CudaMemoryResource();
  const sink = { write: async () => {} };
  const takers: readonly (readonly [string, (value: never) => unknown])[] = [
    ['onProgress', (onProgress) => cistern.readRecordedRun(arrowEtl, { onProgress })],
    ['onProgress', (onProgress) => cistern.readAllocationLog(arrowEtl, { onProgress })],
    ['onProgress', (onProgress) => cistern.readReportRun(arrowEtl, { onProgress })],
    ['onProgress', (onProgress) => cistern.convertLog(arrowEtl, '/dev/null', { to: 'recording', onProgress })],
    ['onProgress', (onProgress) => cistern.writeReport([run], sink, { onProgress })],
    ['onProgress', (onProgress) => cistern.fitLog(log, 'cuda', { onProgress })],
    ['onProgress', (onProgress) => cistern.generateLog('rmm-random', { onProgress })],
    ['onReplay', (onReplay) => cistern.replayLog(log, () => cistern.createResourceStack('cuda'), { onReplay })],
    ['createStack', (createStack) => cistern.replayLog(log, createStack)],
    ['onAttempt', (onAttempt) => planAllocations([log], { onAttempt })],
    ['onViolation', (onViolation) => cistern.checkOrder({ onViolation })],
    ['onViolation', (onViolation) => new cistern.SanitizingResourceAdaptor(upstream, { onViolation })],
    ['planner', (planner) => new cistern.PlannedMemoryResource(upstream, undefined, { planner })],
    ['planner', (planner) => new cistern.GraphMemoryResource(upstream, { planner })],
    ['onSoftLimit', (onSoftLimit) => new cistern.Account({ name: 'one', onSoftLimit })],
  ];
  for (const [name, take] of takers) {
    for (const value of [null, 1, 'text', {}]) {
      await expect((async () => take(value as never))()).rejects.toThrow(wrongType(new RegExp(`^${name} must be a function, got `)));
    }
  }
});

test('a report has a title that is text, and figures of graphs', async () => {
  const run = await cistern.readRecordedRun(arrowEtl);
  const sink = { write: async () => {} };
  await expect(cistern.writeReport([run], sink, { title: 1 as never })).rejects.toThrow(wrongType(/^title must be a string, got 1/));
  for (const graphs of [[null], [1], [{}], {}]) {
    await expect(cistern.writeReport([run], sink, { graphs: graphs as never })).rejects.toThrow(
      wrongType(/^graphs must be an array of figures of graphs, got /),
    );
  }
});
