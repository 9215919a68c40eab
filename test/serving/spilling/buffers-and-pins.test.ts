/** What calls of buffers and pins refuse, and what they ask their adaptor for: none of these waits. */
import { setImmediate as nextTurn } from 'node:timers/promises';
import { inspect } from 'node:util';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { watchedBuffers } from '../../../src/collector/free-unreachable-buffers.js';
import { beginSleep, endSleep } from '../../../src/driver/memory/guarded-addresses.js';
import {
  CudaMemoryResource,
  Device,
  type MemoryResource,
  OutOfMemoryError,
  PassThroughAdaptor,
  PinnedHostMemoryResource,
  Stream,
  withResource,
} from '../../../src/index.js';
import { endOwnersOf } from '../../../src/ownership/bulk-frees.js';
import { SpillableBuffer, type SpillableBufferOptions, SpillingResourceAdaptor, type SpillPin } from '../../../src/serving/index.js';
import { SpillableMemory } from '../../../src/serving/spilling/spillable-memory.js';
import { failCall } from '../../../src/tools/testing/index.js';
import { callsOf } from '../../support/driver-calls.js';
import { caught, code } from '../../support/errors.js';
import { needCaptures } from '../../support/need-captures.js';
import { skipTest } from '../../support/skip-test.js';
import { valuesOf } from '../../support/stream-order.js';

const disposedError = code('ERR_CISTERN_DISPOSED');
const typeError = code('ERR_INVALID_ARG_TYPE');
const valueError = code('ERR_INVALID_ARG_VALUE');
const driverError = code('ERR_CISTERN_DRIVER');
const size = 1024;
const noStream = {} as Stream;

let stream: Stream;
let other: Stream;
let leaf: CudaMemoryResource;
let pinned: PinnedHostMemoryResource;
let resource: SpillingResourceAdaptor;
const buffers: SpillableBuffer[] = [];

const made = (bytes = size, options: Partial<SpillableBufferOptions> = {}) => {
  const buffer = new SpillableBuffer(bytes, { stream, resource, ...options });
  buffers.push(buffer);
  return buffer;
};

beforeEach(() => {
  [stream, other] = [new Stream({ nonBlocking: true }), new Stream({ nonBlocking: true })];
  leaf = new CudaMemoryResource();
  pinned = new PinnedHostMemoryResource();
  resource = new SpillingResourceAdaptor(leaf, pinned);
});

afterEach(() => {
  vi.restoreAllMocks();
  for (const name of ['cuStreamIsCapturing', 'cuStreamWaitEvent']) failCall(name, 0);
  for (const each of [...buffers.splice(0), resource, leaf, pinned, stream, other]) each[Symbol.dispose]();
  expect([leaf.reservedBytes, pinned.reservedBytes]).toEqual([0, 0]);
});

const messageOf = (call: () => unknown) => caught<Error>(call).message;
const rejection = (promise: Promise<unknown>) =>
  promise.then(
    () => undefined,
    (error: Error) => error,
  );

describe('a buffer', () => {
  test('is not made of what is wrong', () => {
    const make = (options: unknown) => caught(() => new SpillableBuffer(size, options as SpillableBufferOptions));
    expect(make({ stream, resource, capacityBytes: 2 * size })).toEqual(valueError);
    expect(make(undefined)).toEqual(typeError);
    expect(make({ stream: noStream })).toMatchObject({ message: expect.stringMatching(/^stream must be a Stream/) });
    expect(make({ stream, resource: leaf })).toMatchObject({
      message: 'resource must have a SpillingResourceAdaptor, got a CudaMemoryResource without one',
    });
    expect(leaf.reservedBytes).toBe(0);
  });

  test('is made by the current resource of its device', async () => {
    if (Device.count() < 2) skipTest('needs two devices');
    const device = Device.get(1);
    using there = new Stream({ device, nonBlocking: true });
    using below = new CudaMemoryResource({ device });
    using host = new PinnedHostMemoryResource({ device });
    using above = new SpillingResourceAdaptor(below, host);
    const both = withResource(above, () => [
      new SpillableBuffer(size, { stream: there }),
      SpillableBuffer.create(size, { stream: there }),
    ]) as [SpillableBuffer, Promise<SpillableBuffer>];
    for (const each of [both[0], await both[1]]) {
      expect(each.resource).toBe(above);
      each.dispose();
    }
  });

  test('has memory of the resource in which its adaptor was found', () => {
    const answers: MemoryResource[] = [resource, leaf];
    const options = {
      stream,
      get resource() {
        return answers.shift() as MemoryResource;
      },
    };
    using buffer = new SpillableBuffer(size, options);
    expect([buffer.resource, answers]).toEqual([resource, []]);
  });

  test('is not made while the driver does not tell whether a graph has its address, unless it is empty', () => {
    failCall('cuStreamIsCapturing', 1, 999);
    expect(caught(() => made())).toEqual(driverError);
    expect(leaf.reservedBytes).toBe(0);
    failCall('cuStreamIsCapturing', 1, 999);
    using _empty = made(0);
    expect(failCall('cuStreamIsCapturing', 0)).toBe(true);
  });

  test('that is made in a capture stays, even if it has a single byte', () => {
    needCaptures(stream);
    let buffer: SpillableBuffer | undefined;
    using _graph = other.capture(() => {
      buffer = made(1);
    });
    expect([resource.spill(), buffer?.isOnDevice]).toEqual([0, true]);
  });

  test('shows what it is, and is none of another thread or copy', () => {
    const buffer = made(size, { label: 'weights' });
    const shown = inspect(buffer, { depth: 0, breakLength: Number.POSITIVE_INFINITY });
    expect(shown).toMatch(/^SpillableBuffer \{ byteLength: 1024, isOnDevice: true, isPinned: false, label: 'weights', resource: /);
    expect(caught(() => structuredClone(buffer))).toMatchObject({ name: 'DataCloneError' });
    expect(Reflect.get(buffer, Symbol.for('cistern.copy'))).toMatch(/^\d+\.\d+\.\d+/);
    buffer.dispose();
    expect(inspect(buffer)).toBe("SpillableBuffer { isDisposed: true, label: 'weights' }");
  });

  test('has bytes, and is watched, until it is disposed', () => {
    const { count } = watchedBuffers();
    const buffer = made();
    expect([buffer.byteLength, watchedBuffers().count - count]).toEqual([size, 1]);
    buffer.dispose();
    expect([buffer.byteLength, watchedBuffers().count - count]).toEqual([0, 0]);
  });

  test('makes the adaptor try again when no graph has its address any more', async () => {
    needCaptures(stream);
    const told = vi.spyOn(resource, 'isIdle');
    const graph = other.capture(() => {
      made();
    });
    expect(told).not.toHaveBeenCalled();
    graph.dispose();
    // The driver tells some time later.
    await vi.waitFor(() => expect(told).toHaveBeenCalled(), { interval: 1, timeout: 30_000 });
  });
});

describe('the line of the adaptor', () => {
  const asked = () => vi.spyOn(resource, 'inTurn');

  test('is told what ends the wait of a buffer that is made', async () => {
    const inTurn = asked();
    const { signal } = new AbortController();
    using buffer = await SpillableBuffer.create(size, { stream, resource, signal, timeoutMilliseconds: 5 });
    expect([inTurn.mock.calls.map(([, options]) => options), buffer.byteLength]).toEqual([[{ signal, timeoutMilliseconds: 5 }], size]);
  });

  test('is not asked to make a buffer of what is wrong', async () => {
    const inTurn = asked();
    const make = async (options: unknown) => rejection(SpillableBuffer.create(size, options as SpillableBufferOptions));
    expect(await make({ stream, resource, timeout: 5 })).toMatchObject({ message: expect.stringContaining('timeoutMilliseconds') });
    expect(await make(undefined)).toEqual(typeError);
    expect(await make({ stream: noStream, resource })).toEqual(typeError);
    expect(await make({ stream: undefined })).toEqual(typeError);
    expect(inTurn).not.toHaveBeenCalled();
    expect(await make({ stream, resource, timeoutMilliseconds: -1 })).toEqual(code('ERR_OUT_OF_RANGE'));
  });

  test('is not asked for a pin of what is on the device', async () => {
    const inTurn = asked();
    const [buffer, away] = [made(), made()];
    expect(await rejection(buffer.pin(stream, { timeout: 1 } as never))).toEqual(valueError);
    expect(await rejection(buffer.pin(stream, { timeoutMilliseconds: -1 }))).toEqual(code('ERR_OUT_OF_RANGE'));
    (await buffer.pin()).dispose();
    expect(inTurn).not.toHaveBeenCalled();
    resource.spill();
    using pin = await away.pin();
    expect([inTurn.mock.calls.length, pin.stream]).toEqual([1, stream]);
  });

  test('is not asked for a pin of what is disposed, or on what is no stream', async () => {
    const [buffer, gone] = [made(), made()];
    gone.dispose();
    resource.spill();
    const inTurn = asked();
    for (const wrong of [() => gone.pin(), () => SpillableBuffer.pinAll([buffer, gone])])
      expect(await rejection(wrong())).toMatchObject({ message: 'cannot pin a buffer: the buffer is already disposed' });
    for (const wrong of [() => buffer.pin(noStream), () => SpillableBuffer.pinAll([buffer], noStream)])
      expect(await rejection(wrong())).toEqual(typeError);
    expect(inTurn).not.toHaveBeenCalled();
    vi.spyOn(SpillableMemory.prototype, 'isInFile', 'get').mockReturnValue(true);
    expect(messageOf(() => buffer.pinSync(noStream))).toMatch(/^stream must be a Stream/);
    expect(messageOf(() => gone.pinSync())).toBe('cannot pin a buffer: the buffer is already disposed');
    expect(messageOf(() => buffer.pinSync())).toBe(
      'cannot pin a buffer at once: its contents are in a file; await pin, or prefetch before',
    );
  });

  test('is not asked for nothing, however that is asked for', async () => {
    const inTurn = asked();
    expect(await SpillableBuffer.pinAll([])).toEqual([]);
    expect(await rejection(SpillableBuffer.pinAll([], stream, { timeoutMilliseconds: -1 }))).toEqual(code('ERR_OUT_OF_RANGE'));
    expect(await rejection(SpillableBuffer.pinAll([], stream, { timeout: 1 } as never))).toEqual(valueError);
    expect(await rejection(SpillableBuffer.pinAll([{}] as never))).toMatchObject({
      message: 'buffers must be SpillableBuffers, got an instance of Object',
    });
    using above = new SpillingResourceAdaptor(leaf, pinned);
    const apart = [made(), made(size, { resource: above })];
    expect(await rejection(SpillableBuffer.pinAll(apart))).toMatchObject({ message: 'buffers must be of one SpillingResourceAdaptor' });
    apart[1]?.dispose();
    expect(await rejection(SpillableBuffer.pinAll('all' as never))).toMatchObject({ message: 'buffers must be an array, got "all"' });
    expect(inTurn).not.toHaveBeenCalled();
  });
});

describe('pins of several buffers', () => {
  test('follow the stream of the last uses once', async () => {
    const all = [made(), made(), made()];
    for (const pin of await SpillableBuffer.pinAll(all, other)) pin.dispose();
    const waits = callsOf('cuStreamWaitEvent');
    const before = waits();
    const pins = await SpillableBuffer.pinAll(all);
    expect([waits() - before, pins.map((pin) => pin.stream)]).toEqual([1, [stream, stream, stream]]);
    expect([all.map(({ isPinned }) => isPinned), resource.spill()]).toEqual([[true, true, true], 0]);
    for (const pin of pins) pin.dispose();
    expect(resource.spill()).toBe(3 * size);
    const back = await SpillableBuffer.pinAll(all);
    expect(all.map(({ isOnDevice }) => isOnDevice)).toEqual([true, true, true]);
    for (const pin of back) pin.dispose();
  });

  test.each([1, 2, 3])(
    'are undone if the driver refuses the order of number %i: those that were used end, the others are canceled',
    async (nth) => {
      const all = [made(), made(), made()];
      const streams = [stream, other, new Stream({ nonBlocking: true })];
      for (const [i, buffer] of all.entries()) buffer.pinSync(streams[i] as Stream).dispose();
      using mine = new Stream({ nonBlocking: true });
      const [ended, canceled] = [vi.spyOn(SpillableMemory.prototype, 'unpin'), vi.spyOn(SpillableMemory.prototype, 'cancelPin')];
      failCall('cuStreamWaitEvent', nth, 999);
      expect(await rejection(SpillableBuffer.pinAll(all, mine))).toEqual(driverError);
      expect([ended.mock.calls.length, canceled.mock.calls.length]).toEqual([nth - 1, 4 - nth]);
      expect(all.map(({ isPinned }) => isPinned)).toEqual([false, false, false]);
      expect(new Set([...ended.mock.contexts, ...canceled.mock.contexts]).size).toBe(3);
      streams[2]?.dispose();
    },
  );

  test('that cannot be undone end when they are collected', async () => {
    const all = [made(), made()];
    using third = new Stream({ nonBlocking: true });
    for (const [i, each] of [other, third].entries()) all[i]?.pinSync(each).dispose();
    const watched = vi.spyOn(FinalizationRegistry.prototype, 'register');
    const ended = vi.spyOn(SpillableMemory.prototype, 'unpin').mockImplementationOnce(() => {
      throw new RangeError('not now');
    });
    failCall('cuStreamWaitEvent', 2, 999);
    expect(await rejection(SpillableBuffer.pinAll(all, stream))).toEqual(driverError);
    expect(all.map(({ isPinned }) => isPinned)).toEqual([true, false]);
    const [state] = ended.mock.calls[0] as [unknown];
    expect(watched.mock.calls.map(([, held]) => (held as { readonly state?: unknown }).state)).toContain(state);
  });
});

describe('a pin of what comes from a file', () => {
  /** What the pin waits for. */
  function coming() {
    let end: (error?: Error) => void = () => {};
    const ready = new Promise<void>((resolve, reject) => {
      end = (error) => (error === undefined ? resolve() : reject(error));
    });
    vi.spyOn(SpillableMemory.prototype, 'finishPin').mockImplementationOnce((state) => {
      state.ready = ready;
    });
    return { end };
  }

  test('is there when that has come, and the others with it', async () => {
    const both = [made(), made()];
    const { end } = coming();
    let pins: readonly SpillPin[] | undefined;
    const waiting = SpillableBuffer.pinAll(both).then((all) => {
      pins = all;
    });
    await nextTurn();
    expect(pins).toBeUndefined();
    end();
    await waiting;
    expect(pins?.map((pin) => pin.isDisposed)).toEqual([false, false]);
  });

  test.each(['fails', 'is aborted'])('ends, and the others with it, if that %s', async (how) => {
    const both = [made(), made()];
    const { end } = coming();
    const controller = new AbortController();
    const refused = rejection(SpillableBuffer.pinAll(both, stream, { signal: controller.signal }));
    await nextTurn();
    expect(both.map(({ isPinned }) => isPinned)).toEqual([true, true]);
    const reason = new Error('over');
    if (how === 'fails') end(reason);
    else controller.abort(reason);
    end();
    expect([await refused, both.map(({ isPinned }) => isPinned)]).toEqual([reason, [false, false]]);
  });
});

describe('a pin', () => {
  test('counts as a use, has the address and the contents, and asks for it', async () => {
    needCaptures(stream);
    const buffer = made();
    const used = vi.spyOn(SpillableMemory.prototype, 'noteUse');
    using pin = buffer.pinSync();
    expect(used).toHaveBeenCalledTimes(1);
    // Memory may have what an earlier test left.
    pin.fill(1);
    pin.copyFrom(new Uint8Array(size).fill(7));
    expect([...new Set(await pin.toHost())]).toEqual([7]);
    expect(valuesOf(pin.ptr, size, stream)).toEqual([7]);
    const captured = vi.spyOn(SpillableMemory.prototype, 'noteCapture');
    const { ptr } = pin;
    expect([captured.mock.calls.length, ptr % 256]).toEqual([1, 0]);
    const range = { begin: ptr, end: ptr + size };
    beginSleep(range);
    expect(caught(() => pin.ptr)).toEqual(code('ERR_CISTERN_ASLEEP'));
    endSleep(range);
    expect([buffer.prefetch(), used.mock.calls.length]).toEqual([true, 2]);
  });

  test('is made by a buffer, and watched', async () => {
    const watched = vi.spyOn(FinalizationRegistry.prototype, 'register');
    using pin = await made().pin();
    expect(watched.mock.calls.map(([object]) => object)).toContain(pin);
    expect(messageOf(() => Reflect.construct(pin.constructor, []))).toBe(
      'a SpillPin cannot be constructed: SpillableBuffer.pin returns one',
    );
    expect(caught(() => structuredClone(pin))).toMatchObject({ name: 'DataCloneError' });
    expect(inspect(pin, { depth: 0 })).toMatch(/^SpillPin \{\s+ptr: 0x[\da-f]+,\s+byteLength: 1024,\s+stream: /);
  });

  test('tells whether it has ended, or its buffer has', () => {
    const buffer = made();
    const pins = [buffer.pinSync(), buffer.pinSync()] as const;
    pins[0].dispose();
    expect(messageOf(() => pins[0].ptr)).toBe('cannot read the address of a buffer: its pin has ended; pin it again');
    endOwnersOf(new Set([resource]), 'the pool has ended');
    expect([pins[1].isDisposed, pins[1].byteLength, inspect(pins[1])]).toEqual([true, 0, 'SpillPin { isDisposed: true }']);
    expect(messageOf(() => pins[1].fill(1))).toBe('cannot fill a buffer: the buffer is already disposed');
  });

  test('is not made by what cannot bring the contents back', () => {
    class Empty extends PassThroughAdaptor {
      isEmpty = false;
      constructor() {
        super(leaf, {}, new Map());
      }
      allocate(bytes: number, on: Stream): number {
        if (this.isEmpty) throw new OutOfMemoryError('none is left', { requestedBytes: bytes, path: [] });
        return this.upstream.allocate(bytes, on);
      }
      deallocate(pointer: number, bytes: number, on: Stream): void {
        this.upstream.deallocate(pointer, bytes, on);
      }
    }
    const empty = new Empty();
    using above = new SpillingResourceAdaptor(empty, pinned);
    using buffer = new SpillableBuffer(size, { stream, resource: above });
    above.spill();
    empty.isEmpty = true;
    expect(messageOf(() => buffer.pinSync())).toBe('none is left');
    expect([buffer.prefetch(), buffer.isPinned, buffer.isOnDevice]).toEqual([false, false, false]);
    above.dispose();
    expect(caught(() => buffer.prefetch())).toEqual(disposedError);
  });
});
