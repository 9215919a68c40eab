import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { checkOrder, formatOrderViolation, type OrderChecker } from '../../src/checking/index.js';
import {
  ArenaMemoryResource,
  CachingMemoryResource,
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  type DeallocationEvents,
  type DeallocationFence,
  Device,
  type DevicePointer,
  FixedSizeMemoryResource,
  LimitingResourceAdaptor,
  type MemoryResource,
  MiB,
  MonotonicMemoryResource,
  PassThroughAdaptor,
  PoolMemoryResource,
  Stream,
} from '../../src/index.js';
import { driverCallCounts } from '../../src/tools/testing/index.js';
import { InRunResource } from '../support/in-run-resource.js';
import { orderChecks } from '../support/order-checked-tests.js';
import { BusyBlock, expectOrdered, madeElsewhere, policies } from '../support/stream-order.js';
import { DeclaringResource } from './declaring-resource.js';

const bytes = MiB;

/** Frees by a reset, since single frees of a bump allocator give nothing back. */
class ResettingResource extends PassThroughAdaptor {
  readonly #monotonic: MonotonicMemoryResource;

  constructor(monotonic: MonotonicMemoryResource) {
    super(monotonic, {});
    this.#monotonic = monotonic;
  }

  allocate(size: number, stream: Stream, alignment?: number): DevicePointer {
    return this.upstream.allocate(size, stream, alignment);
  }

  deallocate(pointer: DevicePointer, size: number, stream: Stream, fence?: DeallocationFence): void {
    this.upstream.deallocate(pointer, size, stream, fence);
    this.#monotonic.reset();
  }

  override [Symbol.dispose](): void {
    this.#monotonic.dispose();
  }
}

type MakePool = (upstream: MemoryResource, deallocationEvents: DeallocationEvents) => MemoryResource;

/** Room for one block: the next allocation must get the freed block. */
const poolingResources: readonly [string, MakePool][] = [
  [
    'a pool',
    (upstream, deallocationEvents) => new PoolMemoryResource(upstream, { initialBytes: bytes, maximumBytes: bytes, deallocationEvents }),
  ],
  ['an arena', (upstream, deallocationEvents) => new ArenaMemoryResource(upstream, { arenaBytes: bytes, deallocationEvents })],
  [
    'fixed-size blocks',
    (upstream, deallocationEvents) =>
      new FixedSizeMemoryResource(upstream, { blockBytes: bytes, blocksToPreallocate: 1, maximumBytes: bytes, deallocationEvents }),
  ],
  [
    'a monotonic resource that is reset',
    (upstream, deallocationEvents) =>
      new ResettingResource(new MonotonicMemoryResource(upstream, { initialBytes: bytes, maximumBytes: bytes, deallocationEvents })),
  ],
  [
    'a cache in a run',
    (upstream, deallocationEvents) =>
      new InRunResource(new CachingMemoryResource(new LimitingResourceAdaptor(upstream, { limitBytes: bytes }), { deallocationEvents })),
  ],
];

let checker: OrderChecker;

beforeEach(() => {
  // Otherwise work that an earlier test left on the default stream would be waited for.
  Device.get().synchronizeSync();
  checker = checkOrder(orderChecks);
});

afterEach(() => {
  checker.dispose();
});

function deviceSynchronizations(): number {
  return driverCallCounts().byFunction['cuCtxSynchronize'] as number;
}

/**
 * A block that a stream has freed and is still writing; if the host is going to wait for the
 * stream, the write is over.
 */
function freedBlock(pool: MemoryResource, stream: Stream, waitsOnHost: boolean): BusyBlock {
  const block = BusyBlock.freed(pool, bytes, stream);
  if (waitsOnHost) block.hold.release();
  return block;
}

/** Fails unless waits order a stream that got the block after the stream that had it. */
function expectOrder(pointer: DevicePointer, stream: Stream): void {
  stream.touch(pointer, bytes, 'write');
  expect(checker.violations.map(formatOrderViolation)).toEqual([]);
}

/**
 * Fails unless a stream's next allocation gets the block, after the write: as the checker sees it,
 * and, if the write is not over, in fact.
 */
function expectTaken(block: BusyBlock, pool: MemoryResource, stream: Stream, waitsOnHost: boolean): void {
  expect(pool.allocate(bytes, stream)).toBe(block.pointer);
  expectOrder(block.pointer, stream);
  if (!waitsOnHost) expectOrdered(block.pointer, bytes, stream, block.hold);
}

describe.each(poolingResources)('%s', (_name, make) => {
  describe.each(policies)('with %s events', (policy) => {
    // Under 'off', a stream that takes memory waits for the other stream on the host.
    const waitsOnHost = policy === 'off';
    const create = (upstream: MemoryResource = new CudaMemoryResource()) => new DeclaringResource(make(upstream, policy));

    test('makes a third stream wait for the first, whose memory the second had (rapidsai/rmm#2489)', () => {
      using pool = create();
      using a = new Stream({ nonBlocking: true });
      using b = new Stream({ nonBlocking: true });
      using c = new Stream({ nonBlocking: true });
      using block = freedBlock(pool, a, waitsOnHost);
      pool.deallocate(pool.allocate(bytes, b), bytes, b);
      expectTaken(block, pool, c, waitsOnHost);
    });

    test('makes a third stream wait for the first, whose memory the second tried to get (rapidsai/rmm#2489)', () => {
      using pool = create();
      using a = new Stream({ nonBlocking: true });
      using b = new Stream({ nonBlocking: true });
      using c = new Stream({ nonBlocking: true });
      // In trying, a cache gives the block back, and the upstream waits for it.
      const waits = waitsOnHost || pool.upstream instanceof InRunResource;
      using block = freedBlock(pool, a, waits);
      expect(() => pool.allocate(2 * bytes, b)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_OUT_OF_MEMORY' }));
      const pointer = pool.allocate(bytes, c);
      expectOrder(pointer, c);
      if (!waits) expectOrdered(pointer, bytes, c, block.hold);
    });

    test('makes a stream wait for another that is gone by then (rapidsai/rmm#510)', () => {
      using pool = create();
      const a = new Stream({ nonBlocking: true });
      using b = new Stream({ nonBlocking: true });
      using block = freedBlock(pool, a, waitsOnHost);
      a.dispose();
      expectTaken(block, pool, b, waitsOnHost);
    });

    test('does not mistake a new stream for the old one that it replaced (rapidsai/rmm#2251)', () => {
      using pool = create();
      const a = new Stream({ nonBlocking: true });
      using block = freedBlock(pool, a, waitsOnHost);
      a.dispose();
      using b = new Stream({ nonBlocking: true });
      expect(b.identity.slot).toBe(a.identity.slot);
      expect(pool.allocate(bytes, b)).toBe(block.pointer);
      expectOrder(block.pointer, b);
      pool.deallocate(block.pointer, bytes, b);
      using c = new Stream({ nonBlocking: true });
      expectTaken(block, pool, c, waitsOnHost);
    });

    test('makes a stream wait for one that its owner destroyed without notice (rapidsai/rmm#649)', () => {
      using pool = create();
      const foreign = madeElsewhere();
      const a = Stream.fromHandle(foreign.address);
      using b = new Stream({ nonBlocking: true });
      // No event can be recorded for a bump allocator at its reset: its blocks are held under every
      // policy.
      const waits = waitsOnHost || pool.upstream instanceof ResettingResource;
      using block = freedBlock(pool, a, waits);
      foreign.destroy();
      expectTaken(block, pool, b, waits);
      a.dispose();
    });

    test('orders the streams of a second device by events of that device (rapidsai/rmm#1333)', () => {
      const device = Device.get(1);
      using pool = create(new CudaMemoryResource({ device }));
      using a = new Stream({ device, nonBlocking: true });
      using b = new Stream({ device, nonBlocking: true });
      using block = freedBlock(pool, a, waitsOnHost);
      expectTaken(block, pool, b, waitsOnHost);
    });

    test('needs no wait on the host if a stream of a second device ends (rapidsai/rmm#1333)', () => {
      const device = Device.get(1);
      using pool = create(new CudaMemoryResource({ device }));
      const a = new Stream({ device, nonBlocking: true });
      BusyBlock.freed(pool, bytes, a).hold.release();
      const before = deviceSynchronizations();
      a.dispose();
      expect(deviceSynchronizations()).toBe(before);
    });
  });
});

describe('memory fresh from an upstream with stream order (part of rapidsai/rmm#2507)', () => {
  describe.each(policies)('with %s events', (deallocationEvents) => {
    test('is waited for by another stream than the one that a pool grew for', () => {
      using upstream = new CudaAsyncMemoryResource();
      using pool = new DeclaringResource(new PoolMemoryResource(upstream, { maximumBytes: 4 * bytes, deallocationEvents }));
      using a = new Stream({ nonBlocking: true });
      using b = new Stream({ nonBlocking: true });
      using _hold = a.hold();
      for (const stream of [a, b]) expectOrder(pool.allocate(bytes, stream), stream);
    });

    const initial: readonly [string, MakePool][] = [
      ['a pool', (upstream) => new PoolMemoryResource(upstream, { initialBytes: 4 * bytes, deallocationEvents })],
      ['an arena', (upstream) => new ArenaMemoryResource(upstream, { arenaBytes: 4 * bytes, deallocationEvents })],
      [
        'fixed-size blocks',
        (upstream) => new FixedSizeMemoryResource(upstream, { blockBytes: bytes, blocksToPreallocate: 4, deallocationEvents }),
      ],
    ];
    test.each(initial)('that %s begins with is waited for by every stream', (_name, make) => {
      using upstream = new CudaAsyncMemoryResource();
      const stalled = Stream.legacyDefault().hold();
      using pool = new DeclaringResource(make(upstream, deallocationEvents));
      using a = new Stream({ nonBlocking: true });
      using b = new Stream({ nonBlocking: true });
      using _hold = stalled;
      for (const stream of [a, b]) expectOrder(pool.allocate(bytes, stream), stream);
    });
  });
});
