import { createHash } from 'node:crypto';
import { describe, expect, test } from 'vitest';
import { MiB } from '../../../src/index.js';
import {
  type AllocationLog,
  type GenerateLogOptions,
  generateLog,
  readAllocationLog,
  type WorkloadName,
  workloadNames,
} from '../../../src/tools/replay/index.js';

async function textOf(workload: WorkloadName, options?: GenerateLogOptions): Promise<string> {
  const pieces: Uint8Array[] = [];
  for await (const piece of generateLog(workload, options)) pieces.push(piece);
  return Buffer.concat(pieces).toString();
}

function read(workload: WorkloadName, options?: GenerateLogOptions): Promise<AllocationLog> {
  return readAllocationLog(generateLog(workload, options));
}

/** The sizes of all allocations. */
function sizesOf(log: AllocationLog): number[] {
  const events = Array.from({ length: log.eventCount }, (_, i) => log.event(i));
  return events.filter(({ action }) => action === 'allocate').map(({ bytes }) => bytes);
}

describe.each(workloadNames)('the workload %s', (workload) => {
  test('is a log that frees everything, with about the requested number of events', async () => {
    const log = await read(workload, { events: 30_000 });
    expect([log.unfreedCount, log.failureCount, log.allocationCount]).toEqual([0, 0, log.eventCount / 2]);
    expect(log.eventCount).toBeGreaterThanOrEqual(30_000);
    expect(log.eventCount).toBeLessThan(31_500);
  });

  test('is the same for the same seed, and differs for another', async () => {
    const events = 2_000;
    const first = await textOf(workload, { seed: 2, events });
    expect(await textOf(workload, { seed: 2, events })).toBe(first);
    expect(await textOf(workload, { seed: 3, events })).not.toBe(first);
    expect(await textOf(workload, { events })).toBe(await textOf(workload, { seed: 1, events }));
  });

  test('can be as short as two events', async () => {
    expect((await read(workload, { events: 2 })).eventCount).toBeGreaterThanOrEqual(2);
  });
});

describe('the events of a generated log', () => {
  test("of rmm-random are those of RMM's benchmark as libstdc++ runs it", async () => {
    const rows = (await textOf('rmm-random')).trimEnd().split('\n').slice(1);
    const actions = rows.map((row) => row.split(',')).map(([, , action, , bytes]) => `${action} ${bytes}\n`);
    expect(actions.slice(0, 4)).toEqual(['allocate 9\n', 'free 9\n', 'allocate 558920\n', 'allocate 229708\n']);
    // From the output of the C++ program for 10,000 allocations of up to 1 MiB.
    const hash = createHash('sha256').update(actions.join('')).digest('hex');
    expect(hash).toBe('092c7366c0510a7222cfd2e884a6b7f4e05af0526e1626d95fec8766f8476ec4');
  });

  test('are a microsecond apart, and reuse an address once it is free', async () => {
    const rows = (await textOf('random', { events: 3_000 })).split('\n');
    expect(rows[0]).toBe('Thread,Time,Action,Pointer,Size,Stream');
    expect(rows[1]).toMatch(/^1,10:00:00\.000000,allocate,0x100000000000,\d+,0$/);
    expect(rows[2_000]).toContain('1,10:00:00.001999,');
    expect(new Set(rows.slice(1).map((row) => row.split(',')[3])).size).toBeLessThan(1_200);
  });

  test('of random are evenly spread up to 4 MiB', async () => {
    const sizes = sizesOf(await read('random', { events: 3_000 }));
    const mean = sizes.reduce((sum, bytes) => sum + bytes, 0) / sizes.length;
    expect(Math.max(...sizes)).toBeLessThanOrEqual(4 * MiB);
    expect(mean / (2 * MiB)).toBeGreaterThan(0.95);
    expect(mean / (2 * MiB)).toBeLessThan(1.05);
  });

  test('of dl-training have 200 sizes and repeat from iteration to iteration', async () => {
    const log = await read('dl-training', { events: 20_000 });
    const sizes = sizesOf(log);
    expect(new Set(sizes).size).toBe(200);
    expect(sizes.every((bytes) => bytes % 512 === 0 && bytes <= 256e6)).toBe(true);
    const iteration = 400;
    expect(sizes.slice(300, 300 + iteration)).toEqual(sizes.slice(300 + iteration, 300 + 2 * iteration));
  });

  test('of dataframe have a median of 1 MiB and long tails', async () => {
    const sizes = sizesOf(await read('dataframe', { events: 40_000 })).sort((a, b) => a - b);
    const quantile = (share: number) => sizes[Math.floor(share * sizes.length)] as number;
    expect(Math.abs(Math.log2(quantile(0.5) / MiB))).toBeLessThan(0.1);
    // Two standard deviations of the logarithm; one is 2.
    expect(Math.log(quantile(0.9772) / quantile(0.5))).toBeGreaterThan(3.8);
    expect(Math.log(quantile(0.9772) / quantile(0.5))).toBeLessThan(4.2);
  });

  test('of dataframe live for at least 45 allocations, and one in twelve for ten times as many', async () => {
    const log = await read('dataframe', { events: 40_000 });
    const births = new Map<number, number>();
    const lifetimes: number[] = [];
    let allocations = 0;
    for (let i = 0; i < log.eventCount && allocations < 19_000; i++) {
      const { action, slot } = log.event(i);
      if (action === 'allocate') births.set(slot, allocations++);
      else lifetimes.push(allocations - (births.get(slot) as number));
    }
    expect(Math.min(...lifetimes)).toBeGreaterThanOrEqual(45);
    // A fraction of 10 ** -1.1, as in the tail of a Pareto distribution with that exponent.
    const long = lifetimes.filter((lifetime) => lifetime > 450).length / lifetimes.length;
    expect(long).toBeGreaterThan(0.069);
    expect(long).toBeLessThan(0.09);
  });

  test('of multi-stream are on four streams', async () => {
    const { streams } = await read('multi-stream', { events: 20_000 });
    expect([...streams].sort()).toEqual(['0x55d000001000', '0x55d000002000', '0x55d000003000', '0x55d000004000']);
  });

  test('of small-hot keep 10,000 allocations live', async () => {
    const log = await read('small-hot', { events: 40_000 });
    expect(log.slotCount).toBe(10_000);
    expect(Math.max(...sizesOf(log))).toBeLessThanOrEqual(4096);
  });
});

test('progress is reported as the number of events generated', async () => {
  const counts: number[] = [];
  const log = await read('random', { events: 10_000, onProgress: (events) => counts.push(events) });
  expect(counts.length).toBeGreaterThan(3);
  expect(counts.at(-1)).toBe(log.eventCount);
});

test.each([
  ['fluid' as WorkloadName, {}, /^workload must be 'random', .*, got "fluid"$/],
  ['random', { seed: -1 }, /^seed must be an integer from 0 to 2\^53 - 1, got -1$/],
  ['random', { seed: 0.5 }, /^seed must be/],
  ['random', { events: 1 }, /^events must be an integer from 2 to 2147483648, got 1$/],
  ['random', { events: 2 ** 31 + 1 }, /^events must be/],
] as const)('generateLog(%j, %j) is refused at once', (workload, options, message) => {
  expect(() => generateLog(workload as WorkloadName, options)).toThrow(message);
});
