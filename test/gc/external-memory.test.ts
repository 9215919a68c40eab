import { setImmediate } from 'node:timers/promises';
import { beforeEach, expect, it, vi } from 'vitest';
import { DeviceBuffer } from '../../src/buffers/device-buffer.js';
import { Stream } from '../../src/driver/stream.js';
import { MiB } from '../../src/units.js';
import { AddressCountingResource } from '../buffers/address-counting-resource.js';
import { collectGarbage } from './collection.js';

const reported = vi.hoisted(() => ({ bytes: 0, calls: 0 }));

vi.mock('../../src/driver/external-memory.js', async (importOriginal) => {
  const { adjustExternalMemory } = await importOriginal<typeof import('../../src/driver/external-memory.js')>();
  return {
    adjustExternalMemory(deltaBytes: number): boolean {
      const taken = adjustExternalMemory(deltaBytes);
      if (taken) reported.bytes += deltaBytes;
      reported.calls++;
      return taken;
    },
  };
});

const stream = Stream.legacyDefault();
let addresses: AddressCountingResource;

beforeEach(async () => {
  await collectGarbage();
  expect(reported.bytes).toBe(0);
  reported.calls = 0;
  addresses = new AddressCountingResource();
});

it('goes up with what buffers hold, and down to nothing with what is disposed, resized and collected', async () => {
  const held = Array.from({ length: 10 }, () => new DeviceBuffer(32 * MiB, { resource: addresses, stream }));
  expect(reported.bytes).toBe(320 * MiB);
  for (const buffer of held.splice(5)) buffer.dispose();
  expect(reported.bytes).toBe(160 * MiB);
  held[0]?.resize(0);
  held[0]?.shrinkToFit();
  expect(reported.bytes).toBe(128 * MiB);
  held.length = 0;
  await collectGarbage();
  expect(reported.bytes).toBe(0);
});

it('counts the capacity, not the length', () => {
  using buffer = new DeviceBuffer(1, { resource: addresses, stream, capacityBytes: 8 * MiB });
  expect(reported.bytes).toBe(8 * MiB);
  buffer.resize(2);
  expect(reported.bytes).toBe(8 * MiB);
});

it('is told once a MiB of small buffers, and exactly when all are gone', () => {
  const held = Array.from({ length: 10_000 }, () => new DeviceBuffer(4096, { resource: addresses, stream }));
  expect(addresses.liveBytes - reported.bytes).toBeLessThan(1 * MiB);
  for (const buffer of held) buffer.dispose();
  expect(reported.bytes).toBe(0);
  expect(reported.calls).toBeLessThan(80);
});

it('makes V8 collect by itself what a program drops', async () => {
  for (let i = 0; i < 200; i++) {
    new DeviceBuffer(64 * MiB, { resource: addresses, stream });
    await setImmediate();
  }
  expect(addresses.frees.length).toBeGreaterThan(100);
});
