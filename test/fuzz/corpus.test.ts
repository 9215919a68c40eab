import { spawnSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import * as logReader from './log-reader.js';
import * as packedLogs from './packed-logs.js';
import * as specification from './specification.js';

function inputsOf(target: string): string[] {
  const folder = fileURLToPath(new URL(`corpus/${target}/`, import.meta.url));
  const files = readdirSync(folder).map((file) => `${folder}${file}`);
  expect(files.length).toBeGreaterThan(0);
  return files;
}

/** The initial inputs of the fuzzers (`npm run fuzz`), and those that found faults. */
describe('inputs of the fuzzers', () => {
  test('are read as logs, or refused', async () => {
    for (const file of inputsOf('log-reader')) await logReader.run(readFileSync(file));
  });

  test('are packed and read as logs, or refused', async () => {
    for (const file of inputsOf('packed-logs')) await packedLogs.run(readFileSync(file));
  });

  test('are read as specifications, or refused', () => {
    for (const file of inputsOf('specification')) specification.run(readFileSync(file));
  });

  // In a separate process, because a fault may be a crash.
  test('are calls of the addon, which it survives', () => {
    const files = inputsOf('native-boundary');
    const script = fileURLToPath(new URL('fuzz-process.mjs', import.meta.url));
    const { status, signal, stdout, stderr } = spawnSync(process.execPath, [script, '--replay', 'native-boundary', ...files], {
      encoding: 'utf8',
      env: { ...process.env, CISTERN_DEVICE: 'software', CISTERN_SOFTWARE_MEMORY: '16MiB', CISTERN_SOFTWARE_DEVICES: '2' },
      timeout: 100_000,
      killSignal: 'SIGKILL',
    });
    expect({ status, signal, stderr }).toEqual({ status: 0, signal: null, stderr: '' });
    expect(stdout).toBe(`${files.length} inputs passed\n`);
  });
});
