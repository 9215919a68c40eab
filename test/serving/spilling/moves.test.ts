/** Buffers that leave, or come back, in one call: one copy for neighbours, one batch for the rest, and nothing lost if some of that is refused. */
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { watchedBuffers } from '../../../src/collector/free-unreachable-buffers.js';
import { type AddressRange, beginSleep, endSleep } from '../../../src/driver/memory/guarded-addresses.js';
import {
  CudaMemoryResource,
  KiB,
  type MemoryResource,
  MiB,
  PassThroughAdaptor,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  Stream,
  VirtualMemoryResource,
} from '../../../src/index.js';
import { SpillableBuffer, SpillingResourceAdaptor, type SpillPin } from '../../../src/serving/index.js';
import { driverCallCounts, failCall } from '../../../src/tools/testing/index.js';
import { caught, code } from '../../support/errors.js';
import { checkOrderInEachTest } from '../../support/order-checked-tests.js';

const size = 64 * KiB;
const driverError = code('ERR_CISTERN_DRIVER');
const outOfMemory = code('ERR_CISTERN_OUT_OF_MEMORY');
const calls = ['cuMemcpyAsync', 'cuMemcpyBatchAsync', 'cuEventRecord'];

let stream: Stream;
let leaf: CudaMemoryResource;
let pool: PoolMemoryResource;
let pinned: PinnedHostMemoryResource;
let host: PoolMemoryResource;
let resource: SpillingResourceAdaptor;

beforeEach(() => {
  stream = new Stream({ nonBlocking: true });
  leaf = new CudaMemoryResource();
  pool = new PoolMemoryResource(leaf, { initialBytes: 64 * MiB, maximumBytes: 64 * MiB, deallocationEvents: 'deferred' });
  pinned = new PinnedHostMemoryResource();
  host = new PoolMemoryResource(pinned, { initialBytes: 64 * MiB, deallocationEvents: 'deferred' });
  resource = new SpillingResourceAdaptor(pool, host);
});

afterEach(() => {
  for (const name of calls) failCall(name, 0);
  for (const each of [resource, pool, host, leaf, pinned, stream]) each[Symbol.dispose]();
  expect([leaf.reservedBytes, pinned.reservedBytes, watchedBuffers().count]).toEqual([0, 0, 0]);
});

checkOrderInEachTest();

function made(count: number, options: { on?: MemoryResource; each?: number; streams?: readonly Stream[] } = {}): SpillableBuffer[] {
  const { on = resource, each = size, streams = [stream] } = options;
  return Array.from({ length: count }, (_, i) => {
    const buffer = new SpillableBuffer(each, { stream: streams[i % streams.length] as Stream, resource: on });
    using pin = buffer.pinSync();
    pin.fill((i % 255) + 1);
    return buffer;
  });
}

/** How often each driver function is called, of those that a move needs. */
async function callsOf(move: () => unknown): Promise<number[]> {
  const before = driverCallCounts().byFunction;
  await move();
  const after = driverCallCounts().byFunction;
  return calls.map((name) => (after[name] as number) - (before[name] as number));
}

async function expectContents(buffers: readonly SpillableBuffer[]): Promise<void> {
  for (const [i, buffer] of buffers.entries()) {
    using pin = await buffer.pin();
    expect([...new Set(await pin.toHost())]).toEqual([(i % 255) + 1]);
  }
  for (const buffer of buffers) buffer.dispose();
}

const where = (buffers: readonly SpillableBuffer[]) => buffers.map((buffer) => buffer.isOnDevice);
const all = (value: boolean, count: number) => Array.from({ length: count }, () => value);

async function pinAndEnd(buffers: readonly SpillableBuffer[]): Promise<void> {
  for (const pin of await SpillableBuffer.pinAll(buffers)) pin.dispose();
}

describe('neighbours', () => {
  test('leave in one copy, after one event, and come back so', async () => {
    const buffers = made(8);
    expect(await callsOf(() => resource.spill())).toEqual([1, 0, 1]);
    expect(where(buffers)).toEqual(all(false, 8));
    // What a pool gives depends on what has run. One event is for the way out, one for the pins.
    stream.device.synchronizeSync();
    expect(await callsOf(() => pinAndEnd(buffers))).toEqual([1, 0, 2]);
    expect(resource.statistics()).toMatchObject({ spills: 8, spilledBytes: 8 * size, returns: 8, returnedBytes: 8 * size });
    await expectContents(buffers);
  });

  test('that were used in another order than that of their addresses do, too', async () => {
    const buffers = made(8);
    for (const i of [5, 2, 7, 0, 3, 6, 1, 4]) buffers[i]?.prefetch();
    expect(await callsOf(() => resource.spill())).toEqual([1, 0, 1]);
    stream.device.synchronizeSync();
    expect(await callsOf(() => pinAndEnd(buffers.toReversed()))).toEqual([1, 0, 2]);
    await expectContents(buffers);
  });

  test.each([2, 8])('that were used in the reverse order do, too, if they are %i', async (count) => {
    const buffers = made(count);
    for (const buffer of buffers.toReversed()) buffer.prefetch();
    expect(await callsOf(() => resource.spill())).toEqual([1, 0, 1]);
    await expectContents(buffers);
  });

  test('whose sizes leave a gap are several copies, and so are those of several allocations of the driver', async () => {
    const odd = made(3, { each: size - 8 });
    expect(await callsOf(() => resource.spill())).toEqual([0, 1, 1]);
    await expectContents(odd);
    using above = new SpillingResourceAdaptor(leaf, host);
    const apart = made(8, { on: above, each: 2 * MiB });
    expect(await callsOf(() => above.spill())).toEqual([0, 1, 1]);
    await expectContents(apart);
  });

  test('of virtual memory are one copy, whatever they are mapped to', async () => {
    using virtual = new VirtualMemoryResource();
    using own = new PoolMemoryResource(virtual, { initialBytes: 16 * MiB, maximumBytes: 16 * MiB, deallocationEvents: 'deferred' });
    using above = new SpillingResourceAdaptor(own, host);
    const buffers = made(4, { on: above, each: 3 * MiB });
    expect(await callsOf(() => above.spill())).toEqual([1, 0, 1]);
    await expectContents(buffers);
  });
});

describe('buffers that are not neighbours', () => {
  /** Every other one stays. */
  async function apart(count: number): Promise<{ leaving: SpillableBuffer[]; pins: SpillPin[]; staying: SpillableBuffer[] }> {
    const buffers = made(2 * count);
    const staying = buffers.filter((_, i) => i % 2 === 1);
    return { leaving: buffers.filter((_, i) => i % 2 === 0), staying, pins: await SpillableBuffer.pinAll(staying) };
  }

  const expectApart = async (buffers: readonly SpillableBuffer[]) => {
    for (const [i, buffer] of buffers.entries()) {
      using pin = await buffer.pin();
      expect([...new Set(await pin.toHost())]).toEqual([((2 * i) % 255) + 1]);
    }
    for (const buffer of buffers) buffer.dispose();
  };

  const end = ({ pins, staying }: { pins: SpillPin[]; staying: SpillableBuffer[] }) => {
    for (const each of [...pins, ...staying]) each.dispose();
  };

  test('leave in one batch', async () => {
    const these = await apart(8);
    expect(await callsOf(() => resource.spill())).toEqual([0, 1, 1]);
    expect([where(these.leaving), where(these.staying)]).toEqual([all(false, 8), all(true, 8)]);
    end(these);
    await expectApart(these.leaving);
  });

  test('leave in several batches if they are many', async () => {
    const these = await apart(300);
    expect(await callsOf(() => resource.spill())).toEqual([0, 2, 1]);
    end(these);
    await expectApart(these.leaving);
  });

  test('leave one by one if the driver refuses the batch', async () => {
    const these = await apart(4);
    failCall('cuMemcpyBatchAsync', 1, 801);
    expect(await callsOf(() => resource.spill())).toEqual([4, 1, 1]);
    end(these);
    await expectApart(these.leaving);
  });

  test.each([1, 2, 4])('stay from the %sth on that the driver refuses to copy alone, and those before have left', async (nth) => {
    const these = await apart(4);
    failCall('cuMemcpyBatchAsync', 1, 999);
    failCall('cuMemcpyAsync', nth, 700);
    const message = expect.stringMatching(/^cannot copy 65536 bytes: /);
    expect(caught(() => resource.spill())).toMatchObject({ code: 'ERR_CISTERN_DRIVER', driverStatus: 700, message });
    const left = nth - 1;
    expect(where(these.leaving)).toEqual([...all(false, left), ...all(true, 4 - left)]);
    expect(resource.statistics()).toMatchObject({ spills: left, hostBytes: left * size });
    expect(host.statistics().allocatedBytes).toBe(left * size);
    // Those that have stayed can be used, and leave later.
    expect(resource.spill()).toBe((4 - left) * size);
    end(these);
    await expectApart(these.leaving);
  });

  test.each([1, 3])('stay on the host from the %sth on that the driver refuses to copy back, and none is pinned', async (nth) => {
    const these = await apart(4);
    resource.spill();
    end(these);
    using keepApart = new Apart(pool);
    using above = new SpillingResourceAdaptor(keepApart, host);
    const buffers = made(4, { on: above });
    above.spill();
    failCall('cuMemcpyBatchAsync', 1, 999);
    failCall('cuMemcpyAsync', nth, 999);
    await expect(SpillableBuffer.pinAll(buffers)).rejects.toThrow(driverError);
    expect(where(buffers)).toEqual([...all(true, nth - 1), ...all(false, 5 - nth)]);
    expect(above.statistics()).toMatchObject({ pinnedBytes: 0, returns: nth - 1, hostBytes: (5 - nth) * size });
    await expectContents(buffers);
    await expectApart(these.leaving);
  });
});

/** Neighbours have a gap. */
class Apart extends PassThroughAdaptor {
  constructor(upstream: MemoryResource) {
    super(upstream, {}, new Map());
  }
  allocate(bytes: number, on: Stream): number {
    return this.upstream.allocate(bytes + 256, on);
  }
  deallocate(pointer: number, bytes: number, on: Stream): void {
    this.upstream.deallocate(pointer, bytes + 256, on);
  }
}

test('a stream of a last use is followed once, and each that has not run is waited for', async () => {
  using other = new Stream({ nonBlocking: true });
  const buffers = made(6, { streams: [stream, other] });
  const holds = [stream.hold(), other.hold()];
  for (const [i, buffer] of buffers.entries()) {
    using pin = buffer.pinSync();
    pin.fill(i + 1);
  }
  const counted = await callsOf(() => resource.spill());
  for (const hold of holds) hold.release();
  expect(counted).toEqual([1, 0, 2]);
  await expectContents(buffers);
});

test('an event that is refused keeps those on the device whose last use is on that stream, and those behind them', async () => {
  using other = new Stream({ nonBlocking: true });
  const buffers = made(4, { streams: [stream, other] });
  failCall('cuEventRecord', 2, 999);
  expect(() => resource.spill()).toThrow(driverError);
  expect(where(buffers)).toEqual([false, true, true, true]);
  resource.spill();
  expect(where(buffers)).toEqual(all(false, 4));
  await expectContents(buffers);
});

test('a host without memory for all takes the least recently used, wherever they are', async () => {
  using little = new PoolMemoryResource(pinned, { initialBytes: 2 * size, maximumBytes: 2 * size });
  using above = new SpillingResourceAdaptor(pool, little);
  const buffers = made(4, { on: above });
  for (const i of [3, 1, 0, 2]) buffers[i]?.prefetch();
  expect(above.spill()).toBe(2 * size);
  expect(where(buffers)).toEqual([true, false, true, false]);
  expect(above.statistics()).toMatchObject({ refusedByHost: 1, hostBytes: 2 * size });
  await expectContents(buffers);
});

test('a pin of several brings none back if there is no memory for all', async () => {
  using small = new PoolMemoryResource(leaf, { initialBytes: 4 * size, maximumBytes: 4 * size });
  using above = new SpillingResourceAdaptor(small, host);
  const buffers = made(4, { on: above });
  above.spill();
  const pointer = above.allocate(2 * size, stream);
  await expect(SpillableBuffer.pinAll(buffers, stream, { timeoutMilliseconds: 0 })).rejects.toThrow(outOfMemory);
  expect([where(buffers), above.statistics().returns, small.statistics().allocatedBytes]).toEqual([all(false, 4), 0, 2 * size]);
  above.deallocate(pointer, 2 * size, stream);
  await pinAndEnd(buffers);
  expect(where(buffers)).toEqual(all(true, 4));
  await expectContents(buffers);
});

test('a buffer that is named twice comes back once, and has two pins', async () => {
  const [buffer] = made(1) as [SpillableBuffer];
  resource.spill();
  const pins = await SpillableBuffer.pinAll([buffer, buffer]);
  expect(resource.statistics()).toMatchObject({ returns: 1, pinnedBytes: size });
  pins[0]?.dispose();
  expect([resource.spill(), pins[1]?.isDisposed]).toEqual([0, false]);
  pins[1]?.dispose();
  await expectContents([buffer]);
});

test('memory that its resource does not take back stays with its contents, and the others leave', async () => {
  class Refusing extends Apart {
    refused: number[] = [];
    override deallocate(pointer: number, bytes: number, on: Stream): void {
      const place = this.refused.indexOf(pointer);
      if (place >= 0) throw new Error(`not number ${place}`);
      super.deallocate(pointer, bytes, on);
    }
  }
  using refusing = new Refusing(pool);
  using above = new SpillingResourceAdaptor(refusing, host);
  const buffers = made(4, { on: above });
  refusing.refused = [1, 2].map((i) => {
    using pin = (buffers[i] as SpillableBuffer).pinSync();
    return pin.ptr;
  });
  // The first error counts.
  expect(() => above.spill()).toThrow('not number 0');
  expect(where(buffers)).toEqual([false, true, true, false]);
  // Those that have stayed have nothing on the host.
  expect(host.statistics().allocatedBytes).toBe(2 * size);
  refusing.refused = [];
  await expectContents(buffers);
});

/** The host, where memory falls asleep as it is asked for more. */
class FallsAsleep extends PassThroughAdaptor {
  /** What falls asleep: otherwise what it gives. */
  from: number | undefined;
  range: AddressRange | undefined;
  constructor(upstream: MemoryResource) {
    super(upstream, {}, new Map());
  }
  allocate(bytes: number, on: Stream): number {
    const to = this.upstream.allocate(bytes, on);
    const begin = this.from ?? to;
    this.range = { begin, end: begin + bytes };
    beginSleep(this.range);
    return to;
  }
  deallocate(pointer: number, bytes: number, on: Stream): void {
    this.upstream.deallocate(pointer, bytes, on);
  }
}

test.each(['from', 'to'])('memory that falls asleep while a move is prepared is not copied %s', async (which) => {
  using drowsy = new FallsAsleep(host);
  using above = new SpillingResourceAdaptor(pool, drowsy);
  const buffers = made(1, { on: above });
  using pin = (buffers[0] as SpillableBuffer).pinSync();
  if (which === 'from') drowsy.from = pin.ptr;
  pin.dispose();
  const copies = await callsOf(() => expect(caught(() => above.spill())).toMatchObject({ code: 'ERR_CISTERN_ASLEEP' }));
  endSleep(drowsy.range as AddressRange);
  expect([copies.slice(0, 2), where(buffers)]).toEqual([[0, 0], [true]]);
  await expectContents(buffers);
});
