import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import { generateLog, workloadNames } from '../../../src/tools/replay/index.js';
import { runCistern } from './run-cistern.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-'));
const path = join(folder, 'trace.csv');
afterAll(() => rmSync(folder, { recursive: true }));
beforeEach(() => {
  for (const name of readdirSync(folder)) rmSync(join(folder, name));
});

describe('cistern generate', () => {
  test("writes the library's output to standard output", async () => {
    const pieces: Uint8Array[] = [];
    for await (const piece of generateLog('multi-stream', { seed: 3, events: 5_000 })) pieces.push(piece);
    const { code, stdout, stderr } = await runCistern(['generate', 'multi-stream', '--seed', '3', '--events', '5000']);
    expect([code, stderr]).toEqual([0, '']);
    expect(stdout).toBe(Buffer.concat(pieces).toString());
  });

  test('writes a file that can be replayed, compressed if its name says so', async () => {
    const plain = await runCistern(['generate', 'small-hot', '--events', '3000', '-o', path]);
    expect(plain).toEqual({ code: 0, signal: null, stderr: '', stdout: `${path}: 3,000 events of small-hot, seed 1\n` });
    await runCistern(['generate', 'small-hot', '--events', '3000', '--output', `${path}.gz`]);
    expect(gunzipSync(readFileSync(`${path}.gz`))).toEqual(readFileSync(path));
    expect((await runCistern(['replay', `${path}.gz`, '--resource', 'host', '--repeat', '1'])).code).toBe(0);
  });

  test('lists every workload in its help', async () => {
    const { stdout } = await runCistern(['generate', '--help']);
    for (const name of workloadNames) expect(stdout).toMatch(new RegExp(`^  ${name} +\\S.*events\\)$`, 'm'));
  });

  test.each(['SIGINT', 'SIGTERM'] as const)('leaves no half-written file at %s', async (signal) => {
    const run = runCistern(['generate', 'random', '--events', '100000000', '-o', `${path}.gz`], (child) => {
      const timer = setInterval(() => {
        if (readdirSync(folder).length > 0) {
          clearInterval(timer);
          child.kill(signal);
        }
      }, 20);
    });
    expect(await run).toEqual({ code: null, signal, stdout: '', stderr: '' });
    expect(readdirSync(folder)).toEqual([]);
  });

  test('ends quietly if nobody reads its output', async () => {
    const { code, stderr } = await runCistern(['generate', 'random'], (child) => child.stdout?.once('data', () => child.stdout?.destroy()));
    expect([code, stderr]).toEqual([0, '']);
  });

  test.each([
    [['generate', 'multistream'], /Workloads are random, .*\. Did you mean multi-stream\?/],
    [['generate', 'random', '--seed', '-1'], /It must be an integer from 0/],
    [['generate', 'random', '--events', '1'], /It must be an integer from 2/],
    [['generate', 'random', '--events', '9007199254740991'], /events must be an integer from 2 to/],
    [['generate', 'random', '-o', '/nonexistent/trace.csv'], /^error: the folder \/nonexistent does not exist; create it first\n$/],
    [['generate'], /missing required argument 'workload'/],
  ])('refuses %j', async (args, message) => {
    const { code, stdout, stderr } = await runCistern(args);
    expect(stderr).toMatch(message);
    expect([code, stdout]).toEqual([2, '']);
  });
});
