import { setImmediate as nextTurn } from 'node:timers/promises';
import { inspect } from 'node:util';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { watchedBuffers } from '../../../src/collector/free-unreachable-buffers.js';
import {
  CudaMemoryResource,
  copy,
  type DeallocationFence,
  Device,
  KiB,
  LifetimeError,
  LimitingResourceAdaptor,
  type MemoryResource,
  MiB,
  OutOfMemoryError,
  PassThroughAdaptor,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  Stream,
  set,
  VirtualMemoryResource,
} from '../../../src/index.js';
import { toDLPack } from '../../../src/interchange/index.js';
import { exportBuffer } from '../../../src/processes/index.js';
import {
  Account,
  AccountingResourceAdaptor,
  AdmittingResourceAdaptor,
  type Grant,
  SpillableBuffer,
  type SpillableBufferOptions,
  type SpillCandidate,
  SpillingResourceAdaptor,
  sleepResource,
  wakeResource,
  withQuota,
} from '../../../src/serving/index.js';
import { SpillableMemory } from '../../../src/serving/spilling/spillable-memory.js';
import { failCall } from '../../../src/tools/testing/index.js';
import { caught, code } from '../../support/errors.js';
import { checkOrderInEachTest } from '../../support/order-checked-tests.js';
import { valuesOf } from '../../support/stream-order.js';

const disposedError = code('ERR_CISTERN_DISPOSED');
const outOfMemory = code('ERR_CISTERN_OUT_OF_MEMORY');
const most = 4 * MiB;

let stream: Stream;
let leaf: CudaMemoryResource;
let pool: PoolMemoryResource;
let pinned: PinnedHostMemoryResource;
let host: PoolMemoryResource;
let resource: SpillingResourceAdaptor;

beforeEach(() => {
  stream = new Stream({ nonBlocking: true });
  leaf = new CudaMemoryResource();
  pool = new PoolMemoryResource(leaf, { initialBytes: most, maximumBytes: most });
  pinned = new PinnedHostMemoryResource();
  host = new PoolMemoryResource(pinned);
  resource = new SpillingResourceAdaptor(pool, host);
});

afterEach(() => {
  for (const name of driverCalls) failCall(name, 0);
  for (const each of [resource, pool, host, leaf, pinned, stream]) each[Symbol.dispose]();
  expect([leaf.reservedBytes, pinned.reservedBytes, watchedBuffers().count]).toEqual([0, 0, 0]);
});

checkOrderInEachTest();

const driverCalls = ['cuMemcpyAsync', 'cuMemHostAlloc', 'cuEventCreate', 'cuEventRecord', 'cuStreamWaitEvent', 'cuMemFreeHost'];

const made = (bytes: number, value: number, options: Partial<SpillableBufferOptions> = {}) => {
  const buffer = new SpillableBuffer(bytes, { stream, resource, ...options });
  using pin = buffer.pinSync(options.stream ?? stream);
  pin.fill(value);
  return buffer;
};

const contents = async (buffer: SpillableBuffer) => {
  using pin = await buffer.pin();
  return [...new Set(await pin.toHost())];
};

describe('a buffer that nobody pins', () => {
  test('leaves when memory is short, the least recently used first, and comes back when it is pinned', async () => {
    using first = made(MiB, 1);
    using second = made(MiB, 2);
    using third = made(MiB, 3);
    using fourth = made(MiB, 4);
    const onDevice = () => [first, second, third, fourth].map((each) => each.isOnDevice);
    expect(await contents(first)).toEqual([1]);
    const pointer = resource.allocate(MiB, stream);
    expect(onDevice()).toEqual([true, false, true, true]);
    expect(resource.statistics()).toMatchObject({
      buffers: 4,
      deviceBytes: 3 * MiB,
      hostBytes: MiB,
      liveBytes: 4 * MiB,
      spills: 1,
      spilledBytes: MiB,
    });
    set(pointer, 9, 1, MiB, stream);
    expect(await contents(second)).toEqual([2]);
    expect(onDevice()).toEqual([true, true, false, true]);
    expect(resource.statistics()).toMatchObject({ spills: 2, returns: 1, returnedBytes: MiB });
    expect(valuesOf(pointer, MiB, stream)).toEqual([9]);
    resource.deallocate(pointer, MiB, stream);
    expect([await contents(third), await contents(fourth), await contents(first)]).toEqual([[3], [4], [1]]);
    expect(resource.statistics()).toMatchObject({ returns: 2, returnedBytes: 2 * MiB });
  });

  test('has been used last if it was prefetched last, although it was there', () => {
    using first = made(MiB, 1);
    using second = made(MiB, 2);
    first.prefetch();
    expect(resource.spill(MiB)).toBe(MiB);
    expect([first.isOnDevice, second.isOnDevice]).toEqual([true, false]);
  });

  test('leaves although the stream of its last use has ended', async () => {
    const ended = new Stream({ nonBlocking: true });
    using buffer = made(MiB, 1, { stream: ended });
    ended.dispose();
    expect(resource.spill()).toBe(MiB);
    using pin = await buffer.pin(stream);
    expect([...new Set(await pin.toHost())]).toEqual([1]);
  });

  test('leaves as far as the soft limit demands, and by call', () => {
    using above = new SpillingResourceAdaptor(pool, host, { softBytes: 2 * MiB });
    using first = made(MiB, 1, { resource: above });
    using second = made(MiB, 2, { resource: above });
    expect([first.isOnDevice, second.isOnDevice]).toEqual([true, true]);
    using third = made(MiB, 3, { resource: above });
    expect([first.isOnDevice, second.isOnDevice, third.isOnDevice]).toEqual([false, true, true]);
    expect(above.spill(1)).toBe(MiB);
    expect(above.spill()).toBe(MiB);
    expect(above.spill()).toBe(0);
    expect(above.statistics()).toMatchObject({ deviceBytes: 0, hostBytes: 3 * MiB, liveBytes: 0 });
  });

  test('leaves and comes back without a wait of the host, behind work that has not run', async () => {
    using other = new Stream({ nonBlocking: true });
    const hold = stream.hold();
    using buffer = made(MiB, 5);
    expect(resource.spill()).toBe(MiB);
    const pointer = resource.allocate(most, other);
    set(pointer, 6, 1, most, other);
    resource.deallocate(pointer, most, other);
    using pin = await buffer.pin(other);
    const result = pin.toHost();
    await nextTurn();
    expect(stream.query()).toBe(false);
    hold.release();
    expect([...new Set(await result)]).toEqual([5]);
  });

  test('leaves by what it costs to bring it back, or by a policy of the program', () => {
    using byCost = new SpillingResourceAdaptor(pool, host, { policy: 'cost-of-return' });
    using small = made(4 * KiB, 1, { resource: byCost });
    using large = made(MiB, 2, { resource: byCost });
    byCost.spill(1);
    expect([small.isOnDevice, large.isOnDevice]).toEqual([true, false]);
    const ranks: unknown[] = [];
    const policy = {
      rank(candidate: { readonly label: string | undefined; readonly lastUse: number }) {
        ranks.push(candidate.label);
        return -candidate.lastUse;
      },
    };
    using latestFirst = new SpillingResourceAdaptor(pool, host, { policy });
    using a = made(MiB, 1, { resource: latestFirst, label: 'a' });
    using b = made(MiB, 1, { resource: latestFirst, label: 'b' });
    latestFirst.spill(1);
    expect([a.isOnDevice, b.isOnDevice, ranks]).toEqual([true, false, ['a', 'a', 'b', 'b']]);
  });

  test('leaves by ranks that are told of the highest one that has left', () => {
    const left: number[] = [];
    let next = 0;
    const policy = {
      rank: (_: unknown, leftRank: number) => {
        left.push(leftRank);
        return ++next;
      },
    };
    using above = new SpillingResourceAdaptor(pool, host, { policy });
    // Each is used twice, as it is made and as it is pinned.
    using _first = made(MiB, 1, { resource: above });
    using second = made(MiB, 2, { resource: above });
    expect(above.spill()).toBe(2 * MiB);
    second.prefetch();
    expect(above.spill()).toBe(MiB);
    using _third = made(MiB, 3, { resource: above });
    expect(left).toEqual([0, 0, 0, 0, 4, 5, 5]);
  });

  test('leaves by a rank that is made of its size, its uses and its label, even if it has a single byte', () => {
    const ranked: SpillCandidate[] = [];
    const policy = {
      rank: ({ bytes, uses, lastUse, label }: SpillCandidate) => {
        ranked.push({ bytes, uses, lastUse, label });
        return lastUse;
      },
    };
    using above = new SpillingResourceAdaptor(pool, host, { policy });
    using buffer = new SpillableBuffer(1, { stream, resource: above, label: 'small' });
    using _empty = new SpillableBuffer(0, { stream, resource: above });
    buffer.prefetch();
    const same = { bytes: 1, label: 'small' };
    expect(ranked).toEqual([
      { ...same, uses: 1, lastUse: 1 },
      { ...same, uses: 2, lastUse: 2 },
    ]);
    expect([above.statistics().buffers, above.spill(), buffer.isOnDevice]).toEqual([1, 1, false]);
  });

  test('is pinned and made although the policy throws', async () => {
    const warned = vi.spyOn(process, 'emitWarning').mockReturnValue();
    const failing = {
      rank: (): number => {
        throw new Error('no rank');
      },
    };
    using above = new SpillingResourceAdaptor(pool, host, { policy: failing });
    using buffer = made(MiB, 7, { resource: above });
    expect(await contents(buffer)).toEqual([7]);
    expect([buffer.isPinned, above.spill()]).toEqual([false, MiB]);
    expect(warned.mock.calls).toEqual([['the policy of a SpillingResourceAdaptor threw: no rank', { code: 'CISTERN_SPILL_POLICY' }]]);
    warned.mockRestore();
  });

  test('stays if the host has no memory for it', () => {
    using small = new PoolMemoryResource(pinned, { maximumBytes: MiB });
    using above = new SpillingResourceAdaptor(pool, small);
    using large = made(3 * MiB, 1, { resource: above });
    using fits = made(MiB, 2, { resource: above });
    const pointer = above.allocate(MiB, stream);
    expect([large.isOnDevice, fits.isOnDevice]).toEqual([true, false]);
    expect(() => above.allocate(MiB, stream)).toThrow(OutOfMemoryError);
    expect(above.statistics().refusedByHost).toBeGreaterThan(0);
    above.deallocate(pointer, MiB, stream);
    using pin = fits.pinSync();
    expect(valuesOf(pin.ptr, MiB, stream)).toEqual([2]);
  });

  test.each([
    { by: 'its limit', maximumBytes: MiB, status: undefined, reason: 'its maximum is 1 MiB' },
    { by: 'the driver', maximumBytes: 4 * MiB, status: 2, reason: 'the upstream has no more' },
    { by: 'the driver for another reason', maximumBytes: 4 * MiB, status: 801, reason: 'CUDA_ERROR_NOT_SUPPORTED' },
  ])('that cannot leave, since $by refuses memory of the host, is named with both reasons', async ({ maximumBytes, status, reason }) => {
    using small = new PoolMemoryResource(pinned, { maximumBytes });
    using above = new SpillingResourceAdaptor(pool, small);
    using _large = made(3 * MiB, 1, { resource: above });
    if (status !== undefined) failCall('cuMemHostAlloc', 1, status);
    const error = caught(() => above.allocate(2 * MiB, stream)) as OutOfMemoryError;
    expect(error).toBeInstanceOf(OutOfMemoryError);
    expect(error.message).toMatch(/^the PoolMemoryResource is out of memory: 2 MiB .*; and buffers could not leave: /);
    expect(error.message).toContain(reason);
    expect(error).toMatchObject({ requestedBytes: 2 * MiB, path: ['SpillingResourceAdaptor', 'PoolMemoryResource'] });
    const { errors } = error.cause as AggregateError;
    expect(errors.map(({ message }) => message)).toEqual(error.message.split('; and buffers could not leave: '));
    if (status === undefined) {
      const waiting = SpillableBuffer.create(2 * MiB, { stream, resource: above, timeoutMilliseconds: 1 });
      await expect(waiting).rejects.toThrow(error.message);
    }
    // With nothing that could leave, there is no such reason.
    expect(caught(() => resource.allocate(2 * MiB, stream))).toMatchObject({ cause: undefined });
  });

  test('is found by the collector of a stack above, and pays for its account wherever it comes back', async () => {
    using accounting = new AccountingResourceAdaptor(resource);
    const tenant = new Account({ name: 'tenant' });
    using buffer = tenant.run(() => new SpillableBuffer(MiB, { stream, resource: accounting }));
    expect(tenant.liveBytes).toBe(MiB);
    resource.spill();
    expect([tenant.liveBytes, tenant.spilledBytes]).toEqual([0, MiB]);
    await withQuota({ name: 'other' }, async (other) => {
      using _pin = await buffer.pin();
      expect([tenant.liveBytes, other.liveBytes]).toEqual([MiB, 0]);
    });
  });
});

describe('a pin', () => {
  test('leaves for its own account, which is at its limit, and for no other', () => {
    using accounting = new AccountingResourceAdaptor(resource);
    const around = new Account({ name: 'around', limitBytes: 3 * MiB });
    const tenant = new Account({ name: 'tenant', limitBytes: 2 * MiB, parent: around });
    const sibling = new Account({ name: 'sibling', parent: around });
    const inScope = (account: Account, bytes: number) => account.run(() => new SpillableBuffer(bytes, { stream, resource: accounting }));
    using other = new SpillableBuffer(MiB, { stream, resource: accounting });
    using ofSibling = inScope(sibling, MiB);
    using first = inScope(tenant, 2 * MiB);
    using second = inScope(tenant, 2 * MiB);
    expect([other, ofSibling, first, second].map(({ isOnDevice }) => isOnDevice)).toEqual([true, true, false, true]);
    expect(tenant).toMatchObject({ liveBytes: 2 * MiB, spilledBytes: 2 * MiB, refusals: 0 });
    {
      using _back = first.pinSync();
      expect([first, second].map(({ isOnDevice }) => isOnDevice)).toEqual([true, false]);
      // All that it has is pinned.
      expect(() => inScope(tenant, 256)).toThrow('the limit of the account "around/tenant" of 2 MiB is reached');
      expect(tenant.refusals).toBeGreaterThan(0);
      // Of the account around, whichever account within has it.
      using third = inScope(sibling, MiB);
      expect([ofSibling.isOnDevice, third.isOnDevice, around.liveBytes]).toEqual([false, true, 3 * MiB]);
    }
  });

  test('leaves for a limit above that counts it, and for no other', () => {
    using around = new LimitingResourceAdaptor(resource, { limitBytes: 3 * MiB });
    using tenant = new LimitingResourceAdaptor(around, { limitBytes: 2 * MiB });
    using other = made(MiB, 1);
    using ofSibling = new SpillableBuffer(MiB, { stream, resource: around });
    const inTenant = (bytes: number) => new SpillableBuffer(bytes, { stream, resource: tenant });
    using first = inTenant(2 * MiB);
    using second = inTenant(2 * MiB);
    expect([other, ofSibling, first, second].map(({ isOnDevice }) => isOnDevice)).toEqual([true, true, false, true]);
    expect(tenant.allocatedBytes).toBe(2 * MiB);
    using pin = second.pinSync();
    expect(() => inTenant(256)).toThrow('the limit of 2 MiB is reached');
    // Larger than the limit: nobody leaves for it.
    expect(() => new SpillableBuffer(4 * MiB, { stream, resource: around })).toThrow('the limit of 3 MiB is reached');
    expect(ofSibling.isOnDevice).toBe(true);
    using third = new SpillableBuffer(MiB, { stream, resource: around });
    expect([other, ofSibling, third].map(({ isOnDevice }) => isOnDevice)).toEqual([true, false, true]);
    pin.dispose();
    using captured = new Stream({ nonBlocking: true });
    captured.beginCapture();
    // A captured stream cannot wait for the copies.
    expect(() => around.allocate(2 * MiB, captured)).toThrow('the limit of 3 MiB is reached');
    captured.endCapture().dispose();
    expect(second.isOnDevice).toBe(true);
    expect(around.allocatedBytes).toBe(3 * MiB);
  });

  test('that a limit cannot let go, since the host has no memory, is named with both reasons', () => {
    using small = new PoolMemoryResource(pinned, { maximumBytes: MiB });
    using above = new SpillingResourceAdaptor(pool, small);
    using limited = new LimitingResourceAdaptor(above, { limitBytes: 2 * MiB });
    using _first = new SpillableBuffer(2 * MiB, { stream, resource: limited });
    const error = caught(() => new SpillableBuffer(MiB, { stream, resource: limited })) as OutOfMemoryError;
    expect((error.cause as AggregateError).errors.map(({ message }) => message.slice(0, 31))).toEqual([
      'the limit of 2 MiB is reached: ',
      'the PoolMemoryResource is out o',
    ]);
  });

  test('that its account cannot let go, since the host has no memory, is named with both reasons', () => {
    using small = new PoolMemoryResource(pinned, { maximumBytes: MiB });
    using above = new SpillingResourceAdaptor(pool, small);
    using accounting = new AccountingResourceAdaptor(above);
    const tenant = new Account({ name: 'tenant', limitBytes: 2 * MiB });
    const inScope = () => tenant.run(() => new SpillableBuffer(2 * MiB, { stream, resource: accounting }));
    using _first = inScope();
    const error = caught(inScope) as OutOfMemoryError;
    expect(error).toMatchObject({ account: 'tenant', limitBytes: 2 * MiB });
    expect((error.cause as AggregateError).errors.map(({ message }) => message.slice(0, 31))).toEqual([
      'the limit of the account "tenan',
      'the PoolMemoryResource is out o',
    ]);
  });

  test('has the address until it is disposed', async () => {
    using buffer = made(MiB, 1);
    const pin = await buffer.pin();
    expect([pin.ptr > 0, pin.byteLength, pin.stream, pin.isDisposed, buffer.isPinned]).toEqual([true, MiB, stream, false, true]);
    expect(resource.spill()).toBe(0);
    expect(resource.statistics().pinnedBytes).toBe(MiB);
    pin.dispose();
    pin.dispose();
    expect([pin.isDisposed, pin.byteLength, buffer.isPinned]).toEqual([true, 0, false]);
    for (const use of [() => pin.ptr, () => pin.fill(1), () => pin.copyFrom(new Uint8Array(1)), () => exportBuffer(pin)])
      expect(use).toThrow(disposedError);
    await expect(pin.toHost()).rejects.toThrow(disposedError);
    expect(resource.spill()).toBe(MiB);
  });

  test('orders streams one after the other', async () => {
    using other = new Stream({ nonBlocking: true });
    using buffer = made(MiB, 1);
    {
      using pin = await buffer.pin(other);
      const hold = other.hold();
      pin.fill(2);
      setImmediate(() => hold.release());
    }
    using pin = await buffer.pin(stream);
    expect([...new Set(await pin.toHost())]).toEqual([2]);
  });

  test('that overlaps with another keeps the buffer, and both uses come before the way out', async () => {
    using other = new Stream({ nonBlocking: true });
    using buffer = made(MiB, 1);
    const one = await buffer.pin(stream);
    const two = await buffer.pin(other);
    const hold = stream.hold();
    set(one.ptr, 7, 1, MiB, stream);
    one.dispose();
    expect(resource.spill()).toBe(0);
    two.dispose();
    expect(resource.spill()).toBe(MiB);
    hold.release();
    expect(await contents(buffer)).toEqual([7]);
  });

  test('comes after what others have queued within theirs', async () => {
    using other = new Stream({ nonBlocking: true });
    using third = new Stream({ nonBlocking: true });
    using buffer = made(MiB, 1);
    using one = await buffer.pin(stream);
    (await buffer.pin(other)).dispose();
    set(one.ptr, 7, 1, MiB, stream);
    using two = await buffer.pin(third);
    expect([...new Set(await two.toHost())]).toEqual([7]);
  });

  test.each(['device', 'host'])('ends with its buffer, whose memory others get after what each stream has queued (%s)', async (place) => {
    const streams = [1, 2, 3].map(() => new Stream({ nonBlocking: true }));
    const buffer = made(MiB, 1);
    if (place === 'host') resource.spill();
    const pins = await Promise.all(streams.map((each) => buffer.pin(each)));
    const holds = streams.map((each) => each.hold());
    const copies = pins.map(({ ptr, stream: each }) => {
      const pointer = leaf.allocate(MiB, each);
      copy(pointer, ptr, MiB, each);
      return pointer;
    });
    buffer.dispose();
    using next = made(most, 9);
    for (const hold of holds) hold.release();
    expect(await contents(next)).toEqual([9]);
    for (const [i, pin] of pins.entries()) {
      const [pointer, each] = [copies[i] as number, streams[i] as Stream];
      expect([pin.isDisposed, valuesOf(pointer, MiB, each)]).toEqual([true, [1]]);
      leaf.deallocate(pointer, MiB, each);
      each.dispose();
    }
  });

  test('outside all grants is known as one, whatever others the buffer has', async () => {
    using admitting = new AdmittingResourceAdaptor(pool, { limitBytes: most });
    using above = new SpillingResourceAdaptor(admitting, host);
    using grant = await admitting.reserve(MiB);
    using buffer = new SpillableBuffer(MiB, { stream, resource: above });
    const [member] = [...above.members];
    const isPinned = () => [member?.isPinned, member?.isPinnedOutsideGrants, member?.canLeave];
    expect(isPinned()).toEqual([false, false, true]);
    using within = grant.run(() => buffer.pinSync());
    expect(isPinned()).toEqual([true, false, false]);
    const outside = buffer.pinSync();
    expect(isPinned()).toEqual([true, true, false]);
    outside.dispose();
    expect(isPinned()).toEqual([true, false, false]);
    within.dispose();
    expect(isPinned()).toEqual([false, false, true]);
  });

  test('that is refused does not wait for those that came before', async () => {
    using first = made(2 * MiB, 1);
    using away = made(MiB, 2);
    const disposed = made(MiB, 3);
    resource.spill();
    disposed.dispose();
    using pin = await first.pin();
    using filler = made(2 * MiB, 4);
    using fillerPin = await filler.pin();
    const waiting = away.pin();
    await nextTurn();
    expect(resource.statistics().waiting).toBe(1);
    const refusals: unknown[] = [];
    for (const pins of [
      disposed.pin(),
      SpillableBuffer.pinAll([away, disposed]),
      away.pin({} as never),
      SpillableBuffer.pinAll([away], {} as never),
    ])
      pins.catch((error: unknown) => refusals.push((error as { code?: string }).code));
    await nextTurn();
    expect(refusals.sort()).toEqual(['ERR_CISTERN_DISPOSED', 'ERR_CISTERN_DISPOSED', 'ERR_INVALID_ARG_TYPE', 'ERR_INVALID_ARG_TYPE']);
    expect([resource.statistics().waiting, pin.isDisposed]).toEqual([1, false]);
    fillerPin.dispose();
    (await waiting).dispose();
  });

  test('waits for memory that others give back, in the order of the calls', async () => {
    using first = made(2 * MiB, 1);
    using second = made(2 * MiB, 2);
    using large = made(3 * MiB, 3);
    using small = made(MiB, 4);
    const pins = [await first.pin(), await second.pin()];
    const order: string[] = [];
    const pinLarge = large.pin().then((pin) => {
      order.push('large');
      return pin;
    });
    const pinSmall = small.pin().then((pin) => {
      order.push('small');
      return pin;
    });
    await nextTurn();
    expect([order, resource.statistics().waiting]).toEqual([[], 2]);
    expect(() => large.pinSync()).toThrow(outOfMemory);
    pins[0]?.dispose();
    await nextTurn();
    // There is room for the small one, but it came later.
    expect(order).toEqual([]);
    pins[1]?.dispose();
    for (const pin of await Promise.all([pinLarge, pinSmall])) pin.dispose();
    expect(order).toEqual(['large', 'small']);
    expect(resource.statistics()).toMatchObject({ waiting: 0, waits: 2 });
    expect([await contents(large), await contents(first)]).toEqual([[3], [1]]);
  });

  test('goes on when other memory is freed, and ends when the resource is disposed, at once', async () => {
    // Garbage is looked for each second, and all who wait then try again.
    vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] });
    try {
      const above = new SpillingResourceAdaptor(pool, host);
      using buffer = made(3 * MiB, 1, { resource: above });
      const waiting = async () => {
        above.spill();
        const plain = above.allocate(2 * MiB, stream);
        const pin = buffer.pin();
        const state = async () => {
          const settled = pin.then(
            () => 'is pinned',
            () => 'has failed',
          );
          return await Promise.race([settled, nextTurn('waits')]);
        };
        expect(await state()).toBe('waits');
        return { pin, state, free: () => above.deallocate(plain, 2 * MiB, stream) };
      };
      const first = await waiting();
      first.free();
      expect(await first.state()).toBe('is pinned');
      (await first.pin).dispose();
      const second = await waiting();
      above.dispose();
      expect(await second.state()).toBe('has failed');
      await expect(second.pin).rejects.toThrow(disposedError);
      second.free();
    } finally {
      vi.useRealTimers();
    }
  });

  test('gives up if nobody could give memory back, when the time is over, or by a signal', async () => {
    using buffer = made(3 * MiB, 1);
    resource.spill();
    const outside = pool.allocate(2 * MiB, stream);
    await expect(buffer.pin()).rejects.toThrow(outOfMemory);
    pool.deallocate(outside, 2 * MiB, stream);
    using other = made(3 * MiB, 2);
    using held = await other.pin();
    await expect(buffer.pin(stream, { timeoutMilliseconds: 1 })).rejects.toThrow(outOfMemory);
    const controller = new AbortController();
    const aborted = buffer.pin(stream, { signal: controller.signal });
    controller.abort(new Error('no more'));
    await expect(aborted).rejects.toThrow('no more');
    await expect(buffer.pin(stream, { signal: controller.signal })).rejects.toThrow('no more');
    const waiting = buffer.pin();
    held.dispose();
    (await waiting).dispose();
    expect(await contents(buffer)).toEqual([1]);
  });

  test('of several buffers holds nothing while it waits', async () => {
    const buffers = [1, 2, 3].map((value) => made(MiB * 1.5, value));
    const [a, b, c] = buffers as [SpillableBuffer, SpillableBuffer, SpillableBuffer];
    const take = async (two: SpillableBuffer[]) => {
      const pins = await SpillableBuffer.pinAll(two);
      await nextTurn();
      for (const pin of pins) pin.dispose();
    };
    await Promise.all([take([a, b]), take([b, c]), take([c, a]), take([a, b]), take([])]);
    for (const [i, buffer] of buffers.entries()) expect(await contents(buffer)).toEqual([i + 1]);
    await expect(SpillableBuffer.pinAll([a, a, b, c])).rejects.toThrow(outOfMemory);
    expect(buffers.some(({ isPinned }) => isPinned)).toBe(false);
    for (const buffer of buffers) buffer.dispose();
  });

  test('of one buffer twice holds it until both have ended', async () => {
    using buffer = made(MiB, 1);
    const [first, second] = await SpillableBuffer.pinAll([buffer, buffer]);
    first?.dispose();
    expect(buffer.isPinned).toBe(true);
    second?.dispose();
    expect(buffer.isPinned).toBe(false);
  });

  test('of several buffers is on the given stream', async () => {
    const buffers = [made(MiB, 1), made(MiB, 2)];
    using other = new Stream({ nonBlocking: true });
    const pins = await SpillableBuffer.pinAll(buffers, other);
    expect(pins.map((pin) => pin.stream)).toEqual([other, other]);
    for (const each of [...pins, ...buffers]) each.dispose();
  });

  test('of several buffers refuses what is wrong, and then holds none', async () => {
    using buffer = made(MiB, 1);
    using another = new SpillingResourceAdaptor(pool, host);
    using foreign = new SpillableBuffer(256, { stream, resource: another });
    await expect(SpillableBuffer.pinAll([buffer, foreign])).rejects.toThrow(
      expect.objectContaining({ code: 'ERR_INVALID_ARG_VALUE', message: 'buffers must be of one SpillingResourceAdaptor' }),
    );
    await expect(SpillableBuffer.pinAll({ length: 0 } as never)).rejects.toThrow('buffers must be an array, got');
    await expect(SpillableBuffer.pinAll([buffer], {} as never)).rejects.toThrow(TypeError);
    await expect(SpillableBuffer.pinAll([buffer], stream, { timeout: 1 } as never)).rejects.toThrow('timeout');
    await expect(SpillableBuffer.pinAll([buffer], stream, { timeoutMilliseconds: -1 })).rejects.toThrow(RangeError);
    const ended = new Stream({ nonBlocking: true });
    ended.dispose();
    await expect(SpillableBuffer.pinAll([buffer], ended)).rejects.toThrow(disposedError);
    await expect(buffer.pin(ended)).rejects.toThrow(disposedError);
    expect(() => buffer.pinSync(ended)).toThrow(disposedError);
    const gone = made(256, 2);
    gone.dispose();
    await expect(SpillableBuffer.pinAll([buffer, gone])).rejects.toThrow(disposedError);
    expect(buffer.isPinned).toBe(false);
  });

  test('is not needed to bring contents back, unless there is no memory', () => {
    const buffers = [made(2 * MiB, 1), made(2 * MiB, 2), made(2 * MiB, 3)] as const;
    const pins = [buffers[1].pinSync(), buffers[2].pinSync()];
    expect([buffers[0].prefetch(), buffers[0].isOnDevice]).toEqual([false, false]);
    pins[0]?.dispose();
    expect([buffers[0].prefetch(), buffers[0].isOnDevice]).toEqual([true, true]);
    for (const each of [...pins, ...buffers]) each.dispose();
  });

  test('and its buffer show what they are', async () => {
    const buffer = made(300, 1, { label: 'weights' });
    const pin = buffer.pinSync();
    const shown = (value: object) => inspect(value, { depth: 0, breakLength: Number.POSITIVE_INFINITY });
    expect(shown(buffer)).toMatch(/^SpillableBuffer \{ byteLength: 300, isOnDevice: true, isPinned: true, label: 'weights', resource: /);
    expect(shown(pin)).toMatch(/^SpillPin \{ ptr: 0x[\da-f]+, byteLength: 300, stream: /);
    expect(await caught(() => structuredClone(pin))).toMatchObject({ name: 'DataCloneError' });
    buffer.dispose();
    expect([pin.isDisposed, shown(buffer), shown(pin)]).toEqual([
      true,
      "SpillableBuffer { isDisposed: true, label: 'weights' }",
      'SpillPin { isDisposed: true }',
    ]);
    pin.dispose();
  });

  test('in a capture keeps the buffer on the device, and must not bring it back', async () => {
    using buffer = made(MiB, 1);
    using target = made(MiB, 2);
    resource.spill();
    using captured = new Stream({ nonBlocking: true });
    captured.beginCapture();
    expect(() => buffer.pinSync(captured)).toThrow(code('ERR_CISTERN_CAPTURING'));
    captured.endCapture().dispose();
    for (const each of [buffer, target]) expect(each.prefetch()).toBe(true);
    await Device.get().synchronize();
    using graph = captured.capture(() => {
      using from = buffer.pinSync(captured);
      using to = target.pinSync(captured);
      copy(to.ptr, from.ptr, MiB, captured);
      expect(() => to.fill(1)).toThrow(code('ERR_CISTERN_CAPTURING'));
    });
    expect(resource.spill()).toBe(0);
    using exec = graph.instantiate();
    exec.launch(captured);
    await captured.synchronize();
    expect(await contents(target)).toEqual([1]);
  });

  test('of memory that other processes or libraries have keeps it on the device', async () => {
    using exported = made(MiB, 1);
    {
      using pin = await exported.pin();
      expect(exportBuffer(pin).byteLength).toBeGreaterThan(0);
    }
    expect(resource.spill()).toBe(0);
    using viewed = made(MiB, 1);
    {
      using pin = await viewed.pin();
      toDLPack(pin, { shape: [MiB], dtype: 'uint8' });
    }
    expect(resource.spill()).toBe(0);
  });
});

describe('whatever happens', () => {
  test('nothing moves any more once the resource is disposed, and what is on the device can be used', async () => {
    using away = made(MiB, 1);
    resource.spill();
    using kept = made(MiB, 2);
    resource.dispose();
    await expect(away.pin()).rejects.toThrow(disposedError);
    expect(() => resource.spill()).toThrow(disposedError);
    await expect(resource.spillToFiles(-1)).rejects.toThrow(code('ERR_OUT_OF_RANGE'));
    expect([away.isOnDevice, kept.isOnDevice, await contents(kept)]).toEqual([false, true, [2]]);
    expect([() => resource.outward, () => resource.homeward].map((stream) => caught(stream))).toEqual([
      expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }),
      expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }),
    ]);
  });

  test('a null pointer that is freed is not subtracted from what is live', () => {
    const pointer = resource.allocate(MiB, stream);
    expect(resource.allocate(0, stream)).toBe(0);
    resource.deallocate(0, 0, stream);
    resource.deallocate(0, 4096, stream);
    expect(resource.statistics().liveBytes).toBe(MiB);
    resource.deallocate(pointer, MiB, stream);
    expect(resource.statistics().liveBytes).toBe(0);
  });

  test('a disposed buffer frees its memory wherever it is, and its pins end', async () => {
    const buffer = made(MiB, 1);
    const pin = await buffer.pin();
    buffer.dispose();
    buffer.dispose();
    expect([buffer.isDisposed, buffer.byteLength, pin.isDisposed]).toEqual([true, 0, true]);
    expect(() => pin.ptr).toThrow(disposedError);
    pin.dispose();
    await expect(buffer.pin()).rejects.toThrow(disposedError);
    expect(() => buffer.prefetch()).toThrow(disposedError);
    const spilled = made(MiB, 1);
    resource.spill();
    spilled.dispose();
    expect(resource.statistics()).toMatchObject({ buffers: 0, liveBytes: 0, hostBytes: 0, deviceBytes: 0 });
  });

  test('the end of a pool ends its buffers, and the end of the adaptor their moves', async () => {
    const upstream = new PoolMemoryResource(leaf);
    const above = new SpillingResourceAdaptor(upstream, host);
    using resident = made(MiB, 1, { resource: above });
    using away = made(MiB, 2, { resource: above });
    using _pin = await resident.pin();
    expect(above.spill()).toBe(MiB);
    above.dispose();
    expect(() => above.spill()).toThrow(disposedError);
    await expect(above.spillToFiles()).rejects.toThrow(disposedError);
    await expect(away.pin()).rejects.toThrow(disposedError);
    upstream.dispose();
    expect([resident.isDisposed, away.isDisposed]).toEqual([true, false]);
  });

  test('memory that its resource loses while it leaves has its contents on the host', async () => {
    class Losing extends PassThroughAdaptor {
      constructor(upstream: MemoryResource) {
        super(upstream, {}, new Map());
      }
      isLosing = false;
      override allocate(bytes: number, onStream: Stream): number {
        return this.upstream.allocate(bytes, onStream);
      }
      override deallocate(pointer: number, bytes: number, onStream: Stream): void {
        this.upstream.deallocate(pointer, bytes, onStream);
        if (this.isLosing) throw new LifetimeError('ERR_CISTERN_DISPOSED', 'lost');
      }
    }
    using losing = new Losing(pool);
    using above = new SpillingResourceAdaptor(losing, host);
    using buffer = made(MiB, 1, { resource: above });
    losing.isLosing = true;
    expect(() => above.spill()).toThrow('lost');
    losing.isLosing = false;
    expect([await contents(buffer), above.statistics().returns]).toEqual([[1], 1]);
  });

  test('memory that ends while it leaves takes none of the host', () => {
    const below = new PoolMemoryResource(leaf);
    class Ending extends PassThroughAdaptor {
      constructor(upstream: MemoryResource) {
        super(upstream, {}, new Map());
      }
      override allocate(bytes: number, onStream: Stream): number {
        below.dispose();
        return this.upstream.allocate(bytes, onStream);
      }
      override deallocate(pointer: number, bytes: number, onStream: Stream): void {
        this.upstream.deallocate(pointer, bytes, onStream);
      }
    }
    using ending = new Ending(host);
    using above = new SpillingResourceAdaptor(below, ending);
    using buffer = made(MiB, 1, { resource: above });
    expect(() => above.spill()).toThrow();
    expect([buffer.isDisposed, host.statistics().allocatedBytes]).toEqual([true, 0]);
  });

  test.each(driverCalls)('a failing %s loses nothing', async (name) => {
    for (let skip = 1; skip <= 6; skip++) {
      using buffer = made(MiB, skip);
      using other = new Stream({ nonBlocking: true });
      failCall(name, skip, 999);
      for (const step of [() => resource.spill(), () => buffer.prefetch(), () => buffer.pinSync(other).dispose(), () => resource.spill()]) {
        try {
          step();
        } catch (error) {
          expect((error as { code?: string }).code).toBe('ERR_CISTERN_DRIVER');
        }
      }
      failCall(name, 0);
      expect(await contents(buffer)).toEqual([skip]);
    }
  });

  test('memory that is asleep stays, and comes back with its contents', async () => {
    using upstream = new VirtualMemoryResource();
    using over = new PoolMemoryResource(upstream);
    using above = new SpillingResourceAdaptor(over, host);
    using buffer = made(MiB, 1, { resource: above });
    using away = made(MiB, 2, { resource: above });
    using pin = await away.pin();
    await sleepResource(above, { keep: 'host' });
    expect(above.spill()).toBe(0);
    expect(() => pin.ptr).toThrow(code('ERR_CISTERN_ASLEEP'));
    await wakeResource(above);
    expect(above.spill()).toBe(MiB);
    expect(await contents(buffer)).toEqual([1]);
    expect([...new Set(await pin.toHost())]).toEqual([2]);
  });

  test('bad arguments are refused, and change nothing', async () => {
    expect(() => new SpillableBuffer(10, { stream, resource: pool })).toThrow('SpillingResourceAdaptor');
    expect(() => new SpillableBuffer(-1, { stream, resource })).toThrow(RangeError);
    expect(() => new SpillingResourceAdaptor(pool, pool)).toThrow('pinned');
    expect(() => new SpillingResourceAdaptor(pool, host, { policy: 'largest' as never })).toThrow('policy');
    expect(() => resource.spill(-1)).toThrow(RangeError);
    using buffer = made(MiB, 1);
    await expect(buffer.pin({} as never)).rejects.toThrow(TypeError);
    await expect(buffer.pin(stream, { timeout: 1 } as never)).rejects.toThrow('timeout');
    await expect(SpillableBuffer.pinAll([{} as never])).rejects.toThrow(TypeError);
    await expect(SpillableBuffer.create(10, { stream, resource: pool })).rejects.toThrow('SpillingResourceAdaptor');
    expect(await caught(() => structuredClone(buffer))).toMatchObject({ name: 'DataCloneError' });
    using empty = new SpillableBuffer(0, { stream, resource });
    using pin = await empty.pin();
    expect(resource.statistics().buffers).toBe(1);
    expect([pin.ptr, pin.byteLength, empty.isOnDevice, resource.spill()]).toEqual([0, 0, true, MiB]);
  });
});

describe('over an admission', () => {
  test('a request that would wait makes buffers leave that are outside of every grant', async () => {
    using admitting = new AdmittingResourceAdaptor(pool, { limitBytes: most });
    using above = new SpillingResourceAdaptor(admitting, host);
    using idle = made(2 * MiB, 1, { resource: above });
    using used = made(MiB, 2, { resource: above });
    const pin = await used.pin();
    using first = await admitting.reserve(3 * MiB);
    expect([idle.isOnDevice, first.bytes, admitting.statistics().admittedAfterWait]).toEqual([false, 3 * MiB, 0]);
    // Not enough can leave: nothing does, and the request waits for the end of the pin.
    const second = admitting.reserve(MiB);
    await nextTurn();
    expect([admitting.statistics().waiting, used.isOnDevice]).toEqual([1, true]);
    pin.dispose();
    (await second).dispose();
    expect(used.isOnDevice).toBe(false);
    first.dispose();
    expect([await contents(idle), await contents(used)]).toEqual([[1], [2]]);
  });

  test('what has left already gives a request nothing, and no other leaves in vain', async () => {
    using admitting = new AdmittingResourceAdaptor(leaf, { limitBytes: most });
    using above = new SpillingResourceAdaptor(admitting, host);
    using _away = made(2 * MiB, 1, { resource: above });
    above.spill();
    using there = made(MiB, 2, { resource: above });
    const pointer = admitting.allocate(3 * MiB, stream);
    const request = admitting.reserve(2 * MiB);
    expect([admitting.statistics().waiting, there.isOnDevice]).toEqual([1, true]);
    admitting.deallocate(pointer, 3 * MiB, stream);
    (await request).dispose();
    expect(await contents(there)).toEqual([2]);
  });

  test('that is below another one, a request makes buffers leave, too', async () => {
    using below = new AdmittingResourceAdaptor(pool, { limitBytes: most });
    using admitting = new AdmittingResourceAdaptor(below, { limitBytes: most });
    using above = new SpillingResourceAdaptor(admitting, host);
    using idle = made(2 * MiB, 1, { resource: above });
    using grant = await below.reserve(3 * MiB);
    expect([grant.bytes, idle.isOnDevice]).toEqual([3 * MiB, false]);
    grant.dispose();
    idle.prefetch();
    using other = await admitting.reserve(3 * MiB);
    expect([other.bytes, idle.isOnDevice]).toEqual([3 * MiB, false]);
  });

  test('a request does not try those of a resource that is disposed', async () => {
    using admitting = new AdmittingResourceAdaptor(pool, { limitBytes: most });
    const above = new SpillingResourceAdaptor(admitting, host);
    using idle = made(2 * MiB, 1, { resource: above });
    above.dispose();
    await expect(admitting.reserve(3 * MiB, { timeoutMilliseconds: 0 })).rejects.toMatchObject({ reason: 'timeout' });
    expect([idle.isOnDevice, above.statistics().failedForAdmission]).toEqual([true, 0]);
  });

  test('what a grant has used stays, since it is promised to it', async () => {
    using admitting = new AdmittingResourceAdaptor(pool, { limitBytes: most });
    using above = new SpillingResourceAdaptor(admitting, host);
    const grant = await admitting.reserve(3 * MiB);
    using buffer = grant.run(() => made(3 * MiB, 1, { resource: above }));
    const other = admitting.reserve(2 * MiB);
    await nextTurn();
    expect(buffer.isOnDevice).toBe(true);
    grant.dispose();
    using admitted = await other;
    expect([buffer.isOnDevice, admitted.bytes]).toEqual([false, 2 * MiB]);
  });

  describe('a copy that the driver refuses is no error of what made a buffer leave:', () => {
    let admitting: AdmittingResourceAdaptor;
    let above: SpillingResourceAdaptor;
    let idle: SpillableBuffer;
    beforeEach(() => {
      admitting = new AdmittingResourceAdaptor(pool, { limitBytes: most });
      above = new SpillingResourceAdaptor(admitting, host);
      idle = made(2 * MiB, 1, { resource: above });
    });

    /** Somebody asks for memory that has to leave, as well as what the others gave back. */
    async function waits(ask: () => Promise<Grant>): Promise<void> {
      failCall('cuMemcpyAsync', 1, 999);
      const request = ask();
      await nextTurn();
      expect([admitting.statistics().waiting, idle.isOnDevice, above.statistics().failedForAdmission]).toEqual([1, true, 1]);
      // Whatever is given back next makes the buffer leave.
      above.deallocate(above.allocate(256, stream), 256, stream);
      (await request).dispose();
      expect(await contents(idle)).toEqual([1]);
      for (const each of [idle, above, admitting]) each.dispose();
    }

    test('a request', () => waits(() => admitting.reserve(3 * MiB)));

    test('and is tried again in a while', async () => {
      failCall('cuMemcpyAsync', 1, 999);
      using grant = await admitting.reserve(3 * MiB, { timeoutMilliseconds: 20_000 });
      expect([grant.bytes, idle.isOnDevice, above.statistics().failedForAdmission]).toEqual([3 * MiB, false, 1]);
      for (const each of [idle, above, admitting]) each.dispose();
    });

    test('a free', () => {
      const pointer = above.allocate(2 * MiB, stream);
      return waits(() => {
        const request = admitting.reserve(3 * MiB);
        above.deallocate(pointer, 2 * MiB, stream);
        return request;
      });
    });

    test('the end of a grant', async () => {
      const grant = await admitting.reserve(2 * MiB);
      await waits(() => {
        const request = admitting.reserve(3 * MiB);
        grant.dispose();
        return request;
      });
    });

    test('the end of a pin', async () => {
      const pin = await idle.pin();
      await waits(() => {
        const request = admitting.reserve(3 * MiB);
        pin.dispose();
        return request;
      });
    });
  });
});

test('alignment and fences of other memory reach the upstream, and wrong calls do not', () => {
  class Spy extends PassThroughAdaptor {
    readonly calls: unknown[] = [];
    constructor(upstream: MemoryResource) {
      super(upstream, {}, new Map());
    }
    override allocate(bytes: number, onStream: Stream, alignment?: number): number {
      this.calls.push(alignment);
      return this.upstream.allocate(bytes, onStream, alignment);
    }
    override deallocate(pointer: number, bytes: number, onStream: Stream, fence?: DeallocationFence): void {
      this.calls.push(fence);
      this.upstream.deallocate(pointer, bytes, onStream, fence);
    }
  }
  using spy = new Spy(pool);
  const above = new SpillingResourceAdaptor(spy, host, { deallocationEvents: 'deferred' });
  above.deallocate(above.allocate(256, stream, 512), 256, stream, 'off');
  above.deallocate(above.allocate(256, stream), 256, stream);
  expect(spy.calls.splice(0)).toEqual([512, 'off', undefined, 'deferred']);
  for (const bytes of [0, 0]) above.deallocate(above.allocate(bytes, stream), bytes, stream);
  expect(above.statistics().liveBytes).toBe(0);
  expect(() => above.spill(0.5)).toThrow(RangeError);
  expect(() => new SpillingResourceAdaptor(spy, host, { softBytes: -1 })).toThrow('softBytes must');
  expect(() => new SpillingResourceAdaptor(spy, host, { hostBytes: -1 })).toThrow('hostBytes must');
  expect(() => new SpillingResourceAdaptor(spy, host, { hostBytes: 1 })).toThrow('folder');
  expect(() => new SpillingResourceAdaptor(spy, {} as never)).toThrow(TypeError);
  spy.calls.length = 0;
  above.dispose();
  expect(() => above.allocate(256, stream)).toThrow(disposedError);
  expect(spy.calls).toEqual([]);
});

test('room for a buffer is made without a look at all others', async () => {
  const buffers = Array.from({ length: 900 }, () => new SpillableBuffer(256, { stream, resource }));
  // 300 are on the host, and 300 pinned: both were used before the rest.
  expect(resource.spill(300 * 256)).toBe(300 * 256);
  const pins = await Promise.all(buffers.slice(300, 600).map((buffer) => buffer.pin(stream)));
  for (const buffer of buffers.slice(600)) buffer.prefetch();
  resource.spill(256);
  const looks = vi.spyOn(SpillableMemory.prototype, 'canLeave', 'get');
  for (let i = 0; i < 100; i++) expect(resource.spill(256)).toBe(256);
  expect(looks.mock.calls.length).toBe(100);
  looks.mockRestore();
  expect(buffers.map((buffer) => buffer.isOnDevice)).toEqual(buffers.map((_, i) => i >= 300 && (i < 600 || i >= 701)));
  // Those that were pinned can leave again, in the order of their use.
  for (const pin of pins) pin.dispose();
  expect(resource.spill(300 * 256)).toBe(300 * 256);
  expect(buffers.map((buffer) => buffer.isOnDevice)).toEqual(buffers.map((_, i) => i >= 701));
  for (const buffer of buffers) buffer.dispose();
});
