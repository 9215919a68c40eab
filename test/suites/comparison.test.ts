import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';

test('a log goes through the resources of cistern, and allocators that are not there are skipped with a sentence', () => {
  const options = ['--json', '--log', 'arrow-etl', '--operations', '2000', '--rounds', '2', '--python', 'no-such-python'];
  const env = { ...process.env, CISTERN_DEVICE: 'software' };
  const { stdout, stderr } = spawnSync(process.execPath, ['bench/gpu/compare.mjs', ...options], { encoding: 'utf8', env });
  expect(stderr).toBe('');
  const { rows, skipped } = JSON.parse(stdout);
  expect(rows).toMatchObject([
    { subject: 'cistern pool, deferred', log: 'arrow-etl', operations: 2000, driverCalls: 0, capacity: expect.any(Number) },
    { subject: 'cistern pool, eager', capacity: expect.any(Number) },
    { subject: 'cistern cuda-async', driverCalls: expect.any(Number), capacity: 'no limit counts what it holds' },
  ]);
  const [deferred, eager, asynchronous] = rows;
  // An event for each free, and nothing else; the driver's pool is asked for each allocation and each free.
  expect(eager.driverCalls).toBeGreaterThan(900);
  expect(eager.driverCalls).toBeLessThan(1100);
  expect(asynchronous.driverCalls).toBeGreaterThanOrEqual(2000);
  for (const { reservedBytes, peakBytes } of rows) expect(reservedBytes).toBeGreaterThanOrEqual(peakBytes);
  expect(deferred.capacity).toBeLessThan(1.2);
  expect(skipped).toHaveLength(5);
  for (const reason of skipped) expect(reason).toMatch(/^(torch|cupy) .*: spawnSync no-such-python ENOENT$/);
});

const hasPython = spawnSync('python3', ['--version']).status === 0;

test.skipIf(!hasPython)('the program for PyTorch and CuPy replays in the same way, as one that only counts shows', () => {
  const folder = mkdtempSync(join(tmpdir(), 'cistern-comparison-'));
  try {
    const path = join(folder, 'log.json');
    // 10 and 5 bytes, of which the 5 are freed; then 15.
    writeFileSync(path, JSON.stringify({ name: 'small', peakBytes: 25, operations: [0, 1, ~1, 2], sizes: [10, 5, 15] }));
    const of = (subject: string) => {
      const { stdout } = spawnSync('python3', ['bench/gpu/through_peers.py', subject, '2', '10', path], { encoding: 'utf8' });
      return JSON.parse(stdout);
    };
    expect(of('python nothing')).toMatchObject({ log: 'small', operations: 4, reservedBytes: 25, capacity: 1 });
    expect(of('nobody').skipped).toBe("it cannot use the device: KeyError: 'nobody'");
  } finally {
    rmSync(folder, { recursive: true });
  }
});
