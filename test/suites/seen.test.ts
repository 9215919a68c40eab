import { existsSync, readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { claims } from '../gpu/claims.mjs';
import { hashOfDriverCode, hashOfFile, hashOfRow, isCurrent, rowsOf } from '../gpu/seen.mjs';
import { pagesWithSeen, settling } from '../gpu/seen-pages.mjs';
import { filesOf, gpuSuites, visitOrder } from '../gpu/suites.mjs';

const file = 'test/gpu/kernels.test.ts';
const visit = { gpu: 'NVIDIA H200', driver: '580', cuda: '13.0', commit: 'abc', day: '2026-11-28', driverCode: hashOfDriverCode() };
const ended = { file, name: 'the file itself', progress: 'ended', hash: hashOfFile(file), seconds: 2 };
const began = { file, name: 'the file itself', progress: 'began' };

test('the pages say what seen.json says', () => {
  for (const [path, text] of Object.entries(pagesWithSeen())) expect(readFileSync(path, 'utf8'), 'run npm run seen').toBe(text);
});

test('each claim names its page, and tests that a visit runs', () => {
  const run = new Set(visitOrder.flatMap((name) => filesOf(gpuSuites[name] as (typeof gpuSuites)[string])));
  const probes = new Set(
    readFileSync('test/gpu/probes.mjs', 'utf8')
      .match(/(?<=^ {2})(?:async )?\w+(?=\(\{)/gm)
      ?.map((name) => name.replace('async ', '')),
  );
  expect(probes.size).toBeGreaterThan(9);
  for (const claim of claims) {
    expect(existsSync(claim.page), claim.page).toBe(true);
    const names = settling(claim);
    expect(names.length, claim.claim).toBeGreaterThan(0);
    for (const name of names) {
      const probe = /^probe (.*)$/.exec(name)?.[1];
      expect(probe === undefined ? run.has(name) : probes.has(probe), name).toBe(true);
    }
  }
});

test('a row has what the tests of a file said, also those that only said themselves that they ended', () => {
  const lines = [
    { visit },
    began,
    { file, name: 'a', progress: 'ended', sofar: 'passed' },
    { file, name: 'a', state: 'passed' },
    { file, name: 'b', state: 'failed', message: 'one\ntwo' },
    { file, name: 'c', state: 'skipped', note: 'why' },
    { file, name: 'd', progress: 'ended', sofar: 'passed' },
    ended,
    { probe: 'machine', hash: 'x', answer: { name: 'y' } },
  ];
  expect(rowsOf(lines)).toEqual({
    [file]: { ...visit, file: ended.hash, passed: 2, failed: 1, skipped: 1, seconds: 2, failures: ['b: one'] },
    'probe machine': { ...visit, file: 'x', answer: { name: 'y' } },
  });
});

test('a file that a cut has stopped has no row, and its second run counts alone', () => {
  const passed = { file, name: 'a', state: 'passed' };
  expect(rowsOf([{ visit }, began, passed])).toEqual({});
  expect(rowsOf([{ visit }, began, passed, { visit }, began, passed, ended])).toMatchObject({ [file]: { passed: 1 } });
});

test('a row is of an older tree once its file or the code that calls the driver has changed', () => {
  const row = rowsOf([{ visit }, began, ended])[file];
  expect(isCurrent(file, row)).toBe(true);
  expect(isCurrent(file, { ...row, file: 'other' })).toBe(false);
  expect(isCurrent(file, { ...row, driverCode: 'other' })).toBe(false);
  expect(isCurrent(file, undefined)).toBe(false);
});

test('the pages name a GPU, and nothing that was not seen there', () => {
  const row = rowsOf([{ visit: { ...visit, gpu: 'NVIDIA L4' } }, began, ended])[file] ?? {};
  const pages = pagesWithSeen({ [file]: row });
  expect(pages['docs/gpu.md']).toContain('| NVIDIA L4, 2026-11-28 |');
  expect(pages['docs/gpu.md']?.match(/NVIDIA L4/g)).toHaveLength(1);
  expect(pages['README.md']).toContain('**It has run on 2 GPUs so far**');
  const failed = pagesWithSeen({ [file]: { ...row, failed: 1, failures: ['b: one'] } })['docs/gpu.md'];
  expect(failed).toContain('`test/gpu/kernels.test.ts`, NVIDIA L4, abc: b: one');
  expect(failed).not.toContain('| NVIDIA L4, 2026-11-28 |');
  const older = pagesWithSeen({ [file]: { ...row, driverCode: 'other' } })['docs/gpu.md'];
  expect(older).not.toContain('NVIDIA L4');
});

test('what was measured is shown with the GPU, also if the code has changed since', () => {
  const row = { log: 'a', subject: 'cistern pool', nanoseconds: 40, firstNanoseconds: 90, loopNanoseconds: 8, driverCalls: 0 };
  const answer = {
    rows: [{ ...row, reservedBytes: 30, peakBytes: 20, capacity: 1.02 }],
    skipped: ['cupy MemoryPool: cupy is not installed'],
  };
  const measured = (driverCode: string) => {
    const hash = hashOfRow('figures comparison');
    const lines = [{ visit: { ...visit, gpu: 'NVIDIA L4', driverCode } }, { figures: 'comparison', hash, answer }];
    return pagesWithSeen(rowsOf(lines))['docs/gpu.md'];
  };
  expect(measured(visit.driverCode)).toContain('| a | cistern pool | 40 | 90 | 8 | 0 | 1.50 | 1.020 |');
  expect(measured(visit.driverCode)).toContain('Measured on NVIDIA L4, driver 580, 2026-11-28, commit abc.\n');
  expect(measured(visit.driverCode)).toContain('- not measured: cupy MemoryPool: cupy is not installed');
  expect(measured('other')).toContain('commit abc, with older code.');
});

test('the four numbers of the decoder are said not to be seen until a visit has left them', () => {
  const page = (...answers: [string, object][]) => {
    const lines = answers.map(([figures, answer]) => ({ figures, hash: hashOfRow(`figures ${figures}`), answer }));
    return pagesWithSeen(rowsOf([{ visit: { ...visit, gpu: 'NVIDIA L4' } }, ...lines]))['docs/guides/decoder.md'];
  };
  expect(page()).toContain('| requests finished with half of the memory | not yet seen on a GPU | not yet seen on a GPU |');
  const own = {
    compiledBy: 'NVRTC',
    multipliedBy: 'cuBLAS',
    tokensASecond: 90.4,
    bytesOfGraphs: 3 * 2 ** 20,
    finished: 64,
    sleepSeconds: 3,
    wakeSeconds: 1,
  };
  const seen = page(['decoder', own], ['decoderInPyTorch', { skipped: 'torch is not installed' }]);
  expect(seen).toContain('| memory of the graphs | 3.0 MiB | not yet seen on a GPU |');
  expect(seen).toContain('Measured on NVIDIA L4');
  expect(page(['decoder', { failed: 'it did not end' }])).toContain('Not yet measured on a GPU.');
});
