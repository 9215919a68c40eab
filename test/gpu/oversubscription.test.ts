import { freemem } from 'node:os';
import { expect, test } from 'vitest';
import { copyToHostSync, Device, GiB, ManagedMemoryResource, MiB, Stream, set } from '../../src/index.js';
import { mayOversubscribe, oversubscriptionReason } from '../support/real-gpu.js';

const chunkBytes = 64 * MiB;

test("managed memory beyond the device's size keeps its contents", ({ skip }) => {
  if (!mayOversubscribe) skip(oversubscriptionReason);
  const device = Device.get();
  if (device.attribute('concurrentManagedAccess') !== 1) skip('the device and the host cannot use managed memory at the same time');
  const { totalBytes } = device.memoryInfo();
  const bytes = Math.ceil((totalBytes * 1.1) / chunkBytes) * chunkBytes;
  if (freemem() < bytes + 2 * GiB) skip('the host has too little memory to hold more than the device has');
  using managed = new ManagedMemoryResource();
  using stream = new Stream({ nonBlocking: true });
  const pointer = managed.allocate(bytes, stream);
  const chunks = Array.from({ length: bytes / chunkBytes }, (_, i) => pointer + i * chunkBytes);
  for (const [i, chunk] of chunks.entries()) set(chunk, (i % 250) + 1, 1, chunkBytes, stream);
  const first = new Uint8Array(1);
  const last = new Uint8Array(1);
  for (const [i, chunk] of chunks.entries()) {
    copyToHostSync(first, chunk, stream);
    copyToHostSync(last, chunk + chunkBytes - 1, stream);
    expect([first[0], last[0]]).toEqual([(i % 250) + 1, (i % 250) + 1]);
  }
  managed.deallocate(pointer, bytes, stream);
}, 240_000);
