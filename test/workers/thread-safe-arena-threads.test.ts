import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { Device, type DeviceBuffer, KiB, PoolMemoryResource, Stream, set } from '../../src/index.js';
import { addonInterface } from '../../src/interchange/index.js';
import { GlobalArenaMemoryResource, ThreadSafeArenaMemoryResource } from '../../src/workers/index.js';
import { loadThreads, type ThreadsAddon } from '../property/arena-programs.js';
import { builtForTests } from '../support/built-for-tests.js';
import { code } from '../support/errors.js';

const stream = new Stream({ nonBlocking: true });
const other = new Stream({ nonBlocking: true });
const options = { name: 'threads', arenaBytes: 256 * KiB, superblockBytes: 64 * KiB, memoryKind: 'pinned-host' } as const;
const outOfMemory = -1;
let addon: ThreadsAddon;
let thread: number;
/** Why the addon is not there. */
let missing: string | undefined;

beforeAll(async () => {
  const built = await builtForTests('buildThreads', 'the addon with threads of its own');
  ({ missing } = built);
  if (built.path === undefined) return;
  addon = loadThreads(built.path);
  thread = addon.start();
}, 240_000);

beforeEach(({ skip }) => {
  if (missing !== undefined) skip(missing);
});

afterAll(() => {
  if (missing === undefined) addon.end(thread);
  stream.dispose();
  other.dispose();
});

/** What a thread of its own delivers. */
function delivered(resource: ThreadSafeArenaMemoryResource, bytes: number): Promise<DeviceBuffer> {
  return new Promise((resolve, reject) => {
    addon.deliver(resource, bytes, stream.nativeHandle, (error, buffer) => {
      if (buffer === undefined) reject(error);
      else resolve(buffer);
    });
  });
}

describe('a native thread', () => {
  test('delivers its memory to JavaScript as a buffer, and says why it has none', async () => {
    using resource = new ThreadSafeArenaMemoryResource(options);
    const buffers = await Promise.all([100, 1000, 10_000].map((bytes) => delivered(resource, bytes)));
    expect(buffers.map(({ byteLength, resource: from }) => [byteLength, from])).toEqual(
      [100, 1000, 10_000].map((bytes) => [bytes, resource]),
    );
    expect(resource.statistics()).toMatchObject({ liveBytes: 11_100, liveAllocations: 3 });
    await expect(delivered(resource, 257 * KiB)).rejects.toThrow('out of memory: 263168 bytes were asked for');
    for (const buffer of buffers) buffer.dispose();
    const late = delivered(resource, 100);
    resource.dispose();
    await expect(late).rejects.toThrow(code('ERR_CISTERN_DISPOSED'));
  });

  test('has its memory freed by JavaScript, alone and with what JavaScript has allocated, and frees that itself', () => {
    using resource = new ThreadSafeArenaMemoryResource(options);
    const table = addon.table(resource);
    const far = [1, 2].map(() => addon.allocate(thread, table, 5000, 256, stream.nativeHandle));
    const near = resource.allocate(3000, stream);
    resource.deallocateMany(Float64Array.of(near, far[0] as number), Float64Array.of(3000, 5000), other);
    resource.deallocate(far[1] as number, 5000, other);
    const next = resource.allocate(3000, stream);
    expect(addon.deallocate(thread, table, next, 2999, stream.nativeHandle)).toBe(3);
    expect(addon.deallocate(thread, table, next, 3000, stream.nativeHandle)).toBe(0);
    expect(resource.statistics()).toMatchObject({ liveBytes: 0, liveAllocations: 0, threads: 2 });
    addon.release(table);
  });

  test('gets the superblocks of a pool at the next turn of the event loop, and of its own resource and others at once', async () => {
    using resource = new ThreadSafeArenaMemoryResource({ ...options, deallocationEvents: 'off' });
    using second = new ThreadSafeArenaMemoryResource(options);
    using pool = new PoolMemoryResource(new GlobalArenaMemoryResource(options));
    const table = addon.table(second);
    const all = (bytes: number) => {
      const pointer = addon.allocate(thread, table, bytes, 256, stream.nativeHandle);
      if (pointer > 0) expect(addon.deallocate(thread, table, pointer, bytes, stream.nativeHandle)).toBe(0);
      return pointer;
    };
    // Of JavaScript's thread of another resource, which has recorded no event.
    resource.deallocate(resource.allocate(256 * KiB, other), 256 * KiB, other);
    expect(all(256 * KiB)).toBeGreaterThan(0);
    pool.deallocate(pool.allocate(256 * KiB, other), 256 * KiB, other);
    expect(all(256 * KiB)).toBe(outOfMemory);
    await expect.poll(() => all(256 * KiB)).toBeGreaterThan(0);
    addon.release(table);
  });
});

test("memory that a buffer has adopted is not adopted again, and stays its next owner's", () => {
  using resource = new ThreadSafeArenaMemoryResource(options);
  const pointer = resource.allocate(5000, stream);
  const buffer = addonInterface.adopt(resource, pointer, 5000, stream.nativeHandle);
  expect(() => addonInterface.adopt(resource, pointer, 5000, stream.nativeHandle)).toThrow(code('ERR_CISTERN_INVALID_STATE'));
  buffer.dispose();
  expect(resource.allocate(5000, stream)).toBe(pointer);
  expect(resource.statistics().liveAllocations).toBe(1);
  resource.deallocate(pointer, 5000, stream);
});

test('a pool gets what an arena without events has freed, once the device has done its work', () => {
  using resource = new ThreadSafeArenaMemoryResource({ ...options, deallocationEvents: 'off' });
  using pool = new PoolMemoryResource(new GlobalArenaMemoryResource(options));
  const pointer = resource.allocate(256 * KiB, stream);
  using hold = stream.hold();
  set(pointer, 1, 1, 256 * KiB, stream);
  resource.deallocate(pointer, 256 * KiB, stream);
  // The stream waits for JavaScript, so nobody may wait for it.
  expect(() => pool.allocate(256 * KiB, other)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
  hold.release();
  pool.deallocate(pool.allocate(256 * KiB, other), 256 * KiB, other);
  expect(resource.reservedBytes).toBe(0);
  Device.get().synchronizeSync();
});
