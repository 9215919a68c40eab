import { expect, test } from 'vitest';
import { checkOrder } from '../../src/checking/index.js';
import {
  type CisternError,
  Device,
  DeviceBuffer,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  Stream,
  VirtualMemoryResource,
} from '../../src/index.js';
import { sleepResource, wakeResource } from '../../src/serving/index.js';
import { failCall } from '../../src/tools/testing/index.js';
import { Random } from '../../src/tools/testing/random.js';
import { settledFreeBytes } from '../support/device-memory.js';
import { skipTest } from '../support/skip-test.js';

// SLEEP_CYCLES=1000 is the long form.
const cycles = Number(process.env['SLEEP_CYCLES'] ?? 25);
const seed = Number(process.env['SLEEP_SEED'] ?? 1);

const functions = [
  'cuMemUnmap',
  'cuMemCreate',
  'cuMemMap',
  'cuMemSetAccess',
  'cuMemRelease',
  'cuMemHostAlloc',
  'cuMemFreeHost',
  'cuMemHostRegister',
  'cuMemHostUnregister',
  'cuMemcpyAsync',
];

/**
 * Memory sleeps and wakes while buffers come and go on two streams, which are held now and then; buffers are
 * freed on the way; and calls of the driver fail.
 */
test(`${cycles} cycles of sleep under load, seed ${seed}, lose nothing`, async () => {
  if (Device.get().attribute('virtualMemoryManagementSupported') !== 1) skipTest('the device has no virtual memory management');
  const before = settledFreeBytes();
  const random = new Random(seed);
  using upstream = new VirtualMemoryResource();
  using pinned = new PinnedHostMemoryResource();
  using pool = new PoolMemoryResource(upstream);
  using first = new Stream({ nonBlocking: true });
  using second = new Stream({ nonBlocking: true });
  using checker = checkOrder();
  const most = upstream.granularityBytes;
  let live: { readonly buffer: DeviceBuffer; readonly ptr: number; readonly value: number }[] = [];
  let failures = 0;

  const add = () => {
    const stream = random.below(2) === 0 ? first : second;
    const buffer = new DeviceBuffer(1 + random.below(most), { resource: pool, stream });
    const value = random.below(256);
    buffer.fill(value);
    live.push({ buffer, ptr: buffer.ptr, value });
  };
  const freeSome = () => {
    const [kept, freed] = [live.filter(() => random.below(4) > 0), live];
    live = kept.slice(-6);
    for (const each of freed) if (!live.includes(each)) each.buffer.dispose();
  };
  /** Repeats a step until nothing makes it fail. */
  const survive = async (step: () => Promise<unknown>) => {
    const name = functions[random.below(functions.length)] as string;
    if (random.below(3) === 0) failCall(name, 1 + random.below(6), random.below(2) === 0 ? 2 : 999);
    for (;;) {
      try {
        await step();
        break;
      } catch (error) {
        expect(['ERR_CISTERN_DRIVER', 'ERR_CISTERN_OUT_OF_MEMORY']).toContain((error as CisternError).code);
        failures++;
      }
    }
    failCall(name, 0);
  };

  for (let cycle = 0; cycle < cycles; cycle++) {
    for (let i = random.below(5); i > 0; i--) add();
    if (random.below(2) === 0) freeSome();
    const hold = random.below(4) === 0 ? second.hold() : undefined;
    if (hold !== undefined) setTimeout(() => hold.release(), 2);
    const keep = random.below(8) === 0 ? 'nothing' : 'host';
    await survive(() => {
      const sleeping = sleepResource(pool, { keep });
      if (random.below(4) === 0) freeSome();
      return sleeping;
    });
    expect(upstream.reservedBytes).toBe(0);
    expect(() => pool.allocate(1, first)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_ASLEEP' }));
    if (random.below(2) === 0) freeSome();
    await survive(() => {
      const waking = wakeResource(pool);
      if (random.below(4) === 0) freeSome();
      return waking;
    });
    if (pinned.reservedBytes > 0) await wakeResource(pool);
    expect(pinned.reservedBytes).toBe(0);
    for (const { buffer, ptr, value } of live) {
      expect(buffer.ptr).toBe(ptr);
      if (keep === 'nothing') buffer.fill(value);
      else expect(Buffer.from(buffer.toHostSync()).equals(Buffer.alloc(buffer.byteLength, value))).toBe(true);
    }
    pool.validate();
  }
  for (const { buffer } of live) buffer.dispose();
  pool.dispose();
  expect(checker.violations).toEqual([]);
  expect(failures).toBeGreaterThan(cycles / 20);
  expect(settledFreeBytes()).toBe(before);
}, 1_200_000);
