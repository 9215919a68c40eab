import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import {
  ArenaMemoryResource,
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  type DeallocationEvents,
  Device,
  DeviceBuffer,
  Event,
  FixedSizeMemoryResource,
  type MemoryResource,
  MiB,
  PoolMemoryResource,
  Stream,
} from '../../src/index.js';
import { policies } from '../support/stream-order.js';
import { Kernels } from './kernels.js';

const bytes = 4 * MiB;
const words = bytes / 4;

type MakePool = (upstream: MemoryResource, deallocationEvents: DeallocationEvents) => MemoryResource;

/** Room for one block: the next allocation gets the freed one. */
const poolingResources: readonly [string, MakePool][] = [
  [
    'pool',
    (upstream, deallocationEvents) => new PoolMemoryResource(upstream, { initialBytes: bytes, maximumBytes: bytes, deallocationEvents }),
  ],
  ['arena', (upstream, deallocationEvents) => new ArenaMemoryResource(upstream, { arenaBytes: bytes, deallocationEvents })],
  [
    'fixed-size',
    (upstream, deallocationEvents) =>
      new FixedSizeMemoryResource(upstream, { blockBytes: bytes, blocksToPreallocate: 1, maximumBytes: bytes, deallocationEvents }),
  ],
];
const leaves: readonly [string, () => MemoryResource & Disposable][] = [
  ['cuda', () => new CudaMemoryResource()],
  ['cuda-async', () => new CudaAsyncMemoryResource()],
];
const cases = poolingResources.flatMap(([pool, make]) =>
  leaves.flatMap(([leaf, makeLeaf]) =>
    policies.map((events) => [`${pool}(${leaf}, deallocationEvents=${events})`, make, makeLeaf, events] as const),
  ),
);

// A kernel reads and writes memory while it runs, which copies and fills might not: a missing wait
// shows as wrong words.
describe('kernels', () => {
  let kernels: Kernels;
  let missing: string | undefined;
  let a: Stream;
  let b: Stream;
  beforeAll(() => {
    const loaded = Kernels.load();
    if (typeof loaded === 'string') missing = loaded;
    else kernels = loaded;
  });
  afterAll(() => kernels?.[Symbol.dispose]());
  beforeEach(({ skip }) => {
    if (missing !== undefined) skip(missing);
    a = new Stream({ nonBlocking: true });
    b = new Stream({ nonBlocking: true });
  });
  afterEach(() => {
    if (missing !== undefined) return;
    kernels.release();
    for (const stream of [a, b]) {
      stream.synchronizeSync();
      stream.dispose();
    }
  });

  test('find words that are written too early: so a missing wait would show', () => {
    using leaf = new CudaMemoryResource();
    const pointer = leaf.allocate(bytes, a);
    kernels.fill(a, pointer, bytes, 1);
    a.synchronizeSync();
    kernels.hold(a);
    kernels.countWrong(a, pointer, bytes, 1);
    kernels.fill(b, pointer, bytes, 2);
    b.synchronizeSync();
    expect(a.query()).toBe(false);
    kernels.release();
    expect(kernels.wrongWords(a)).toBe(words);
    leaf.deallocate(pointer, bytes, a);
  });

  describe.each(cases)('over %s', (_name, make, makeLeaf, events) => {
    let leaf: MemoryResource & Disposable;
    let pool: MemoryResource;
    beforeEach(() => {
      leaf = makeLeaf();
      pool = make(leaf, events);
    });
    afterEach(() => {
      kernels?.release();
      Device.get().synchronizeSync();
      pool?.[Symbol.dispose]();
      leaf?.[Symbol.dispose]();
    });

    /**
     * Allocates on `b` the memory that `a` freed. Without events it is found only after `a` is
     * idle, which the call waits for.
     */
    const take = (): number => {
      if (events === 'off') kernels.release();
      return pool.allocate(bytes, b);
    };

    test('a stream writes memory only after the one that freed it has read it', () => {
      const pointer = pool.allocate(bytes, a);
      kernels.fill(a, pointer, bytes, 1);
      a.synchronizeSync();
      kernels.hold(a);
      kernels.countWrong(a, pointer, bytes, 1);
      pool.deallocate(pointer, bytes, a);
      const next = take();
      expect(next).toBe(pointer);
      kernels.fill(b, next, bytes, 2);
      pool.deallocate(next, bytes, b);
      kernels.release();
      expect(kernels.wrongWords(a)).toBe(0);
    });

    test('a stream writes memory only after the one that freed it has written it', () => {
      const pointer = pool.allocate(bytes, a);
      kernels.hold(a);
      kernels.fill(a, pointer, bytes, 1);
      pool.deallocate(pointer, bytes, a);
      const next = take();
      kernels.fill(b, next, bytes, 2);
      kernels.release();
      a.synchronizeSync();
      b.synchronizeSync();
      kernels.countWrong(b, next, bytes, 2);
      expect(kernels.wrongWords(b)).toBe(0);
      pool.deallocate(next, bytes, b);
    });

    test('memory that is freed with a fence waits for what the fence covers', () => {
      const pointer = pool.allocate(bytes, a);
      kernels.fill(a, pointer, bytes, 1);
      a.synchronizeSync();
      kernels.hold(a);
      kernels.countWrong(a, pointer, bytes, 1);
      using event = new Event();
      event.record(a);
      pool.deallocate(pointer, bytes, a, event);
      const next = take();
      kernels.fill(b, next, bytes, 2);
      pool.deallocate(next, bytes, b);
      kernels.release();
      expect(kernels.wrongWords(a)).toBe(0);
    });
  });

  test('see the initial contents of buffers, and buffers see what kernels wrote', () => {
    using resource = new CudaAsyncMemoryResource();
    using buffer = new DeviceBuffer(new Uint32Array(1000).fill(7), { resource, stream: a });
    kernels.countWrong(a, buffer.ptr, buffer.byteLength, 7);
    expect(kernels.wrongWords(a)).toBe(0);
    kernels.fill(a, buffer.ptr, buffer.byteLength, 8);
    expect(new Set(new Uint32Array(buffer.toHostSync().buffer))).toEqual(new Set([8]));
    buffer.setStream(b);
    kernels.countWrong(b, buffer.ptr, buffer.byteLength, 8);
    expect(kernels.wrongWords(b)).toBe(0);
  });
});
