import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';
import { Kernels } from './kernels.js';

const program = fileURLToPath(new URL('../../examples/kernels/main.js', import.meta.url));

test('a program launches kernels on the memory of buffers through koffi, also in a capture', async ({ skip }) => {
  const loaded = Kernels.load();
  if (typeof loaded === 'string') return skip(loaded);
  loaded[Symbol.dispose]();
  const { stdout, stderr } = await promisify(execFile)(process.execPath, [program], { timeout: 60_000 });
  expect([stdout, stderr]).toEqual(['a kernel wrote 7\na graph wrote 9\n', '']);
});
