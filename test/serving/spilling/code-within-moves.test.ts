import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { type OwnedMemory, watchedBuffers, watchedMemory } from '../../../src/collector/free-unreachable-buffers.js';
import {
  CudaMemoryResource,
  type MemoryResource,
  MiB,
  PassThroughAdaptor,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  Stream,
} from '../../../src/index.js';
import { SpillableBuffer, SpillingResourceAdaptor } from '../../../src/serving/index.js';
import { caught, code } from '../../support/errors.js';
import { checkOrderInEachTest } from '../../support/order-checked-tests.js';

/** Calls something before an allocation and after a free, as host functions and resources of a program do. */
class Calling extends PassThroughAdaptor {
  onAllocate: (() => void) | undefined;
  onDeallocate: (() => void) | undefined;

  constructor(upstream: MemoryResource) {
    super(upstream, {}, new Map());
  }

  override allocate(bytes: number, stream: Stream): number {
    this.onAllocate?.();
    return this.upstream.allocate(bytes, stream);
  }

  override deallocate(pointer: number, bytes: number, stream: Stream): void {
    this.upstream.deallocate(pointer, bytes, stream);
    this.onDeallocate?.();
  }
}

let stream: Stream;
let leaf: CudaMemoryResource;
let pool: PoolMemoryResource;
let device: Calling;
let pinned: PinnedHostMemoryResource;
let host: Calling;
let resource: SpillingResourceAdaptor;

beforeEach(() => {
  stream = new Stream({ nonBlocking: true });
  leaf = new CudaMemoryResource();
  pool = new PoolMemoryResource(leaf);
  device = new Calling(pool);
  pinned = new PinnedHostMemoryResource();
  host = new Calling(pinned);
  resource = new SpillingResourceAdaptor(device, host);
});

afterEach(() => {
  for (const each of [resource, device, pool, host, leaf, pinned, stream]) each[Symbol.dispose]();
  expect([leaf.reservedBytes, pinned.reservedBytes, watchedBuffers().count]).toEqual([0, 0, 0]);
});

checkOrderInEachTest();

function made(value: number): SpillableBuffer {
  const buffer = new SpillableBuffer(MiB, { stream, resource });
  using pin = buffer.pinSync();
  pin.fill(value);
  return buffer;
}

async function contents(buffer: SpillableBuffer): Promise<number[]> {
  using pin = await buffer.pin();
  return [...new Set(await pin.toHost())];
}

const moments: [string, (call: () => void) => void][] = [
  ['takes memory of the host', (call) => (host.onAllocate = call)],
  ['frees memory of the device', (call) => (device.onDeallocate = call)],
  ['takes memory of the device', (call) => (device.onAllocate = call)],
  ['frees memory of the host', (call) => (host.onDeallocate = call)],
];

describe.each(moments)('while its move %s, a buffer', (_moment, during) => {
  function calledOnce(action: () => void): void {
    let wasCalled = false;
    during(() => {
      if (wasCalled) return;
      wasCalled = true;
      action();
    });
  }

  test.each<[string, (buffer: SpillableBuffer, memory: OwnedMemory) => void]>([
    ['disposed', (buffer) => buffer.dispose()],
    ['pinned', (buffer) => buffer.pinSync()],
    ['prefetched', (buffer) => buffer.prefetch()],
    ['freed by the collector', (_, memory) => memory.free()],
  ])('is not %s, and keeps its contents', async (_operation, operate) => {
    using buffer = made(1);
    const [memory] = [...watchedMemory()] as [OwnedMemory];
    let error: unknown;
    calledOnce(() => {
      error = caught(() => operate(buffer, memory));
    });
    resource.spill();
    buffer.prefetch();
    expect(error).toEqual(code('ERR_CISTERN_INVALID_STATE'));
    expect([buffer.isDisposed, buffer.isPinned, buffer.isOnDevice]).toEqual([false, false, true]);
    expect(await contents(buffer)).toEqual([1]);
    expect(resource.spill()).toBe(MiB);
    expect(await contents(buffer)).toEqual([1]);
  });

  test('does not leave once more, but others do', async () => {
    using first = made(1);
    using second = made(2);
    let spilled = 0;
    let canLeave: boolean[] = [];
    calledOnce(() => {
      canLeave = Array.from(resource.members, (member) => member.canLeave);
      spilled = resource.spill(2 * MiB);
    });
    resource.spill(MiB);
    first.prefetch();
    expect([spilled, canLeave]).toEqual([MiB, [false, true]]);
    expect([await contents(first), await contents(second)]).toEqual([[1], [2]]);
  });
});

test.each(['leaves', 'comes back'])('a buffer whose contents are taken back while it %s is not moved', (way) => {
  const hostPool = new PoolMemoryResource(host);
  using above = new SpillingResourceAdaptor(device, hostPool);
  using buffer = new SpillableBuffer(MiB, { stream, resource: above });
  if (way === 'leaves') {
    host.onAllocate = () => pool.dispose();
    expect(caught(() => above.spill())).toEqual(code('ERR_CISTERN_DISPOSED'));
  } else {
    above.spill();
    device.onAllocate = () => hostPool.dispose();
    expect(caught(() => buffer.prefetch())).toEqual(code('ERR_CISTERN_DISPOSED'));
    expect(pool.statistics().allocatedBytes).toBe(0);
  }
  expect([buffer.isDisposed, buffer.isOnDevice, above.statistics().returns, above.statistics().spills]).toEqual([
    true,
    false,
    0,
    way === 'leaves' ? 0 : 1,
  ]);
  if (way === 'leaves') expect(hostPool.statistics().allocatedBytes).toBe(0);
  hostPool.dispose();
});
