import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { Kernels } from './kernels.js';

const program = fileURLToPath(new URL('../../examples/decoder/main.js', import.meta.url));
const small = ['--layers', '1', '--width', '32', '--tokens', '3', '--batch', '8', '--requests', '8', '--cache', '1MiB', '--sleep', '16MiB'];

test('the decoder computes what JavaScript computes, in graphs of 51 batch sizes, and finishes all requests with memory for half of them', async ({
  skip,
}) => {
  const loaded = Kernels.load();
  if (typeof loaded === 'string') return skip(loaded);
  loaded[Symbol.dispose]();
  const { stdout, stderr } = await promisify(execFile)(process.execPath, [program, '--json', ...small], { timeout: 60_000 });
  expect(stderr).toBe('');
  const numbers = JSON.parse(stdout);
  expect(numbers).toMatchObject({ graphs: 51, requests: 8, finished: 8, admittedAfterWait: 1, sleepBytes: 16 * 2 ** 20 });
  expect(numbers.tokensASecond).toBeGreaterThan(0);
  // Six rows of numbers at once, of the largest batch, in pages of 2 MiB.
  expect(numbers.bytesOfGraphs).toBe(2 * 2 ** 20);
  expect(numbers.spills).toBeGreaterThan(0);
});
