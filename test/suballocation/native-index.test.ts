import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { FreeSpaceIndex, maximumUnits, unitBytes } from '../../src/suballocation/free-space-index.js';
import { type AllocationLog, readAllocationLog } from '../../src/tools/replay/index.js';

interface Trace {
  readonly name: string;
  readonly path: string;
}

const wanted = ['arrow-etl', 'torch-ddp-training', 'torch-owlv2-inference', 'dl-training'];
const { findTraces, writeNativeTrace } = (await import(new URL('../../bench/support/traces.mjs', import.meta.url).href)) as {
  findTraces(names: readonly string[], skip: (reason: string) => void): Trace[];
  writeNativeTrace(log: AllocationLog, path: string): void;
};
const traces = findTraces(wanted, () => {});
const folder = mkdtempSync(join(tmpdir(), 'cistern-native-index-'));
let program: string;

beforeAll(async () => {
  const { buildNativeBenchmarks } = await import(new URL('../../scripts/build-for-tests.mjs', import.meta.url).href);
  program = buildNativeBenchmarks();
}, 240_000);

afterAll(() => rmSync(folder, { recursive: true }));

/** FNV-1a of the addresses that the index in WebAssembly gives, as `bench_native index` computes it. */
function hashOfAddresses(log: AllocationLog): string {
  const index = new FreeSpaceIndex();
  const lane = index.addLane();
  index.addSegment(2 ** 40, maximumUnits * unitBytes, lane);
  const addresses = new Float64Array(log.slotCount);
  const asked = new Float64Array(log.slotCount);
  let hash = 14695981039346656037n;
  for (const { operations, sizes, count } of log.chunks) {
    for (let row = 0; row < count; row++) {
      const operation = operations[row] as number;
      if (operation < 0) {
        if (!index.freeAt(addresses[~operation] as number, asked[~operation] as number, lane)) return 'a block is not live';
        continue;
      }
      const bytes = sizes[row] as number;
      const units = Math.ceil(bytes / unitBytes);
      const address = index.allocate(units, units * unitBytes - bytes, lane);
      addresses[operation] = address;
      asked[operation] = bytes;
      hash = BigInt.asUintN(64, (hash ^ BigInt(address)) * 1099511628211n);
    }
  }
  return hash.toString(16).padStart(16, '0');
}

describe('the free-space index in C++', () => {
  test.each(traces)('gives the addresses of the one in WebAssembly on $name', async ({ name, path }) => {
    const log = await readAllocationLog(path);
    const file = join(folder, `${name}.bin`);
    writeNativeTrace(log, file);
    const { stdout, stderr } = spawnSync(program, ['index', file, '--repetitions', '1'], { encoding: 'utf8' });
    expect(stderr).toBe('');
    expect(JSON.parse(stdout)).toMatchObject({ events: log.eventCount, hash: hashOfAddresses(log) });
  });

  const missing = wanted.filter((name) => !traces.some((trace) => trace.name === name));
  test.skipIf(missing.length === 0)(`is not compared on ${missing.join(', ')}, which ../shared/traces would have`, () => {});
});
