import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { mailbox, NativeStatus, native } from '../../src/driver/native.js';
import {
  type ArgumentRangeError,
  advise,
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  copy,
  copyFromHost,
  copySync,
  copyToHost,
  copyToHostSync,
  currentBackend,
  Device,
  DriverError,
  Event,
  HostMemoryResource,
  LifetimeError,
  ManagedMemoryResource,
  type MemoryResource,
  MiB,
  managedRangeAttributes,
  PinnedHostMemoryResource,
  pointerInfo,
  prefetch,
  Stream,
  set,
  setSync,
} from '../../src/index.js';
import { driverCallCounts, driverFunctionNames } from '../../src/tools/testing/index.js';
import { settledFreeBytes } from '../support/device-memory.js';

const disposed = expect.objectContaining({ name: 'LifetimeError', code: 'ERR_CISTERN_DISPOSED' });
const badType = expect.objectContaining({ name: 'TypeError', code: 'ERR_INVALID_ARG_TYPE' });
const badRange = expect.objectContaining({ name: 'RangeError', code: 'ERR_OUT_OF_RANGE' } satisfies Partial<ArgumentRangeError>);
const badValue = expect.objectContaining({ code: 'ERR_INVALID_ARG_VALUE' });

/** What the driver layer must do on every backend. */
export function driverSuite(): void {
  const backend = process.env['CISTERN_DEVICE'];
  let resource: CudaAsyncMemoryResource;
  let stream: Stream;
  let other: Stream;
  beforeEach(() => {
    resource = new CudaAsyncMemoryResource();
    stream = new Stream({ nonBlocking: true });
    other = new Stream({ nonBlocking: true });
  });
  afterEach(() => {
    Device.get().synchronizeSync();
    stream.dispose();
    other.dispose();
    resource.dispose();
  });

  const filled = (bytes: number, value: number, on: Stream = stream): number => {
    const pointer = resource.allocate(bytes, on);
    setSync(pointer, value, 1, bytes, on);
    return pointer;
  };
  const read = (pointer: number, bytes: number, on: Stream = stream): number[] => {
    const result = new Uint8Array(bytes);
    copyToHostSync(result, pointer, on);
    return [...result];
  };

  describe('a device', () => {
    test('has the requested backend', () => {
      expect(currentBackend()).toBe(backend);
      expect(Device.get().backend).toBe(backend);
    });

    test('has a name, a UUID, memory and attributes', () => {
      const device = Device.get();
      expect(device.index).toBe(0);
      expect(device.name).not.toBe('');
      expect(device.uuid).toMatch(/^[0-9a-f]{32}$/);
      const { freeBytes, totalBytes } = device.memoryInfo();
      expect(totalBytes).toBe(device.totalBytes);
      expect(freeBytes).toBeGreaterThan(0);
      expect(freeBytes).toBeLessThanOrEqual(totalBytes);
      expect(device.attribute('unifiedAddressing')).toBe(1);
      expect(device.attribute('memoryPoolsSupported')).toBe(1);
      expect(device.attribute('computeCapabilityMajor')).toBeGreaterThan(backend === 'cuda' ? 0 : -1);
      expect(Device.driverVersion()).toBeGreaterThanOrEqual(12_000);
    });

    test('is one object per ordinal', () => {
      expect(Device.get(0)).toBe(Device.get());
      expect(() => Device.get(Device.count())).toThrow(badRange);
      expect(() => Device.get(-1)).toThrow(badRange);
      expect(() => Device.get(0.5)).toThrow(badRange);
      expect(() => Device.get('0' as unknown as number)).toThrow(badType);
      expect(() => Device.get().attribute('colour' as 'managedMemory')).toThrow(badValue);
      expect(() => Device.get().attribute('constructor' as 'managedMemory')).toThrow(badValue);
    });

    test('reports less free memory while some is allocated', () => {
      using plain = new CudaMemoryResource();
      const before = settledFreeBytes();
      const pointer = plain.allocate(64 * MiB, stream);
      expect(Device.get().memoryInfo().freeBytes).toBeLessThanOrEqual(before - 64 * MiB);
      plain.deallocate(pointer, 64 * MiB, stream);
      expect(Device.get().memoryInfo().freeBytes).toBeGreaterThan(before - 64 * MiB);
    });

    test('waits for all its streams', () => {
      const pointer = filled(MiB, 0);
      set(pointer, 7, 1, MiB, stream);
      set(filled(MiB, 0, other), 8, 1, 1, other);
      Device.get().synchronizeSync();
      expect(stream.query() && other.query()).toBe(true);
    });
  });

  describe('a stream', () => {
    test('has an id that is never reused', () => {
      const ids = new Set([stream.id, other.id]);
      for (let i = 0; i < 50; i++) {
        using each = new Stream();
        expect(ids.has(each.id)).toBe(false);
        ids.add(each.id);
      }
    });

    test('reports whether it is non-blocking, and its priority as clamped by the driver', () => {
      const { least, greatest } = Device.get().streamPriorityRange();
      expect(greatest).toBeLessThanOrEqual(least);
      using blocking = new Stream({ priority: -1000 });
      using lazy = new Stream({ priority: 1000, nonBlocking: true });
      expect([blocking.isNonBlocking, lazy.isNonBlocking]).toEqual([false, true]);
      expect([blocking.priority, lazy.priority]).toEqual([greatest, least]);
      expect(() => new Stream({ priority: 0.5 })).toThrow(badRange);
    });

    test('pauses while it is held, and goes on when it is released', async () => {
      using hold = stream.hold();
      expect(stream.query()).toBe(false);
      const pointer = resource.allocate(4, stream);
      set(pointer, 9, 1, 4, stream);
      expect(stream.query()).toBe(false);
      hold.release();
      hold.release();
      await stream.synchronize();
      expect(stream.query()).toBe(true);
      expect(read(pointer, 4)).toEqual([9, 9, 9, 9]);
    });

    test('synchronizes without stopping the event loop', async () => {
      using hold = stream.hold();
      let turns = 0;
      let isDone = false;
      const done = stream.synchronize().then(() => {
        isDone = true;
      });
      while (turns < 20) {
        await new Promise(setImmediate);
        turns++;
      }
      expect(isDone).toBe(false);
      hold.release();
      await done;
      expect(stream.query()).toBe(true);
    });

    test('resolves many synchronizations at once', async () => {
      using hold = stream.hold();
      const all = Promise.all(Array.from({ length: 100 }, () => stream.synchronize()));
      hold.release();
      await all;
      await Promise.all([stream.synchronize(), other.synchronize()]);
    });

    test('runs host functions in order, from the event loop', async () => {
      const order: number[] = [];
      for (let i = 0; i < 5; i++) stream.launchHostFunction(() => order.push(i));
      expect(order).toEqual([]);
      await stream.synchronize();
      expect(order).toEqual([0, 1, 2, 3, 4]);
    });

    test('runs host functions inside a blocking call', () => {
      const order: number[] = [];
      for (let i = 0; i < 3; i++) stream.launchHostFunction(() => order.push(i));
      stream.synchronizeSync();
      expect(order).toEqual([0, 1, 2]);
    });

    test('is waited for as of the call, whatever host functions queue on it meanwhile', () => {
      // Filled before the hold, because host functions run during every wait, as many as there is
      // time for.
      const pointer = filled(4, 7, other);
      let beats = 0;
      const beat = () => {
        beats++;
        if (beats < 1000) stream.launchHostFunction(beat);
      };
      stream.launchHostFunction(beat);
      stream.synchronizeSync();
      expect(beats).toBeLessThan(5);
      const result = new Uint8Array(4);
      copyToHostSync(result, pointer, stream);
      expect([...result]).toEqual([7, 7, 7, 7]);
      expect(beats).toBeLessThan(10);
      beats = 1000;
    });

    test('is waited for again after a call that stopped for a host function and was not repeated', () => {
      const pointer = filled(4, 1);
      const order: number[] = [];
      for (const stop of [
        () => native().synchronizeStream(stream.handle),
        () => native().copyToHostSync(new Uint8Array(4), pointer, 4, stream.handle),
      ]) {
        stream.launchHostFunction(() => order.push(1));
        stop();
        expect(mailbox[0]).toBe(NativeStatus.hostFunctionReady);
        stream.launchHostFunction(() => order.push(2));
        set(pointer, 2, 1, 4, stream);
        stream.synchronizeSync();
        expect(order.splice(0)).toEqual([1, 2]);
        stream.launchHostFunction(() => {});
        expect(read(pointer, 4)).toEqual([2, 2, 2, 2]);
        setSync(pointer, 1, 1, 4, stream);
      }
    });

    test('cannot be waited for inside a host function, which does not disturb the call that runs it', () => {
      const pointer = filled(4, 1);
      const attempts: unknown[] = [];
      const attempt = (call: () => void) => {
        try {
          call();
        } catch (error) {
          attempts.push((error as DriverError).driverStatus);
        }
      };
      stream.launchHostFunction(() => {
        attempt(() => stream.synchronizeSync());
        attempt(() => Device.get().synchronizeSync());
        attempt(() => other.synchronizeSync());
      });
      expect(read(pointer, 4)).toEqual([1, 1, 1, 1]);
      expect(attempts).toEqual([800, 800]);
    });

    test('pauses until a host function has run', async () => {
      const pointer = filled(4, 1);
      let seen: boolean | undefined;
      stream.launchHostFunction(() => {
        seen = stream.query();
      });
      set(pointer, 2, 1, 4, stream);
      await stream.synchronize();
      expect(seen).toBe(false);
      expect(read(pointer, 4)).toEqual([2, 2, 2, 2]);
    });

    test('is the same by its native handle, as long as an object for it exists', () => {
      using same = Stream.fromHandle(stream.nativeHandle);
      using again = Stream.fromHandle(BigInt(stream.nativeHandle));
      expect([same.id, again.id]).toEqual([stream.id, stream.id]);
      expect(same.nativeHandle).toBe(stream.nativeHandle);
      using hold = same.hold();
      expect(stream.query()).toBe(false);
      hold.release();
      stream.synchronizeSync();
      same.dispose();
      expect(stream.query()).toBe(true);
    });

    test('has defaults that cannot be disposed', () => {
      const legacy = Stream.legacyDefault();
      const perThread = Stream.perThreadDefault();
      expect(Stream.fromHandle(0)).toBe(legacy);
      expect(Stream.fromHandle(1)).toBe(legacy);
      expect(Stream.fromHandle(2)).toBe(perThread);
      expect([legacy.nativeHandle, perThread.nativeHandle]).toEqual([1, 2]);
      expect(legacy.id).not.toBe(perThread.id);
      legacy.dispose();
      legacy.synchronizeSync();
      expect(legacy.isDisposed).toBe(false);
    });

    test('that blocks waits for the legacy default stream, and vice versa', () => {
      using blocking = new Stream();
      const legacy = Stream.legacyDefault();
      const pointer = filled(4, 0);
      using hold = blocking.hold();
      set(pointer, 1, 1, 4, legacy);
      expect(legacy.query()).toBe(false);
      expect(other.query()).toBe(true);
      hold.release();
      legacy.synchronizeSync();
      expect(blocking.query()).toBe(true);
    });

    test('finishes its work after it is disposed', () => {
      const pointer = filled(MiB, 1);
      using hold = stream.hold();
      set(pointer, 2, 1, MiB, stream);
      using event = new Event();
      event.record(stream);
      stream.dispose();
      other.wait(event);
      hold.release();
      expect(read(pointer, 2, other)).toEqual([2, 2]);
    });

    test('refuses every call after it is disposed, and says why', async () => {
      const { id } = stream;
      stream.dispose();
      stream.dispose();
      expect(stream.isDisposed).toBe(true);
      expect(stream.id).toBe(id);
      using event = new Event();
      const uses = [
        () => stream.query(),
        () => stream.synchronizeSync(),
        () => stream.wait(event),
        () => event.record(stream),
        () => stream.hold(),
        () => stream.launchHostFunction(() => {}),
        () => stream.nativeHandle,
        () => stream.priority,
        () => set(0, 0, 1, 0, stream),
        () => resource.allocate(1, stream),
      ];
      for (const use of uses) expect(use).toThrow(disposed);
      await expect(stream.synchronize()).rejects.toThrow(disposed);
    });

    test('refuses invalid handles and arguments', () => {
      for (const handle of [-1, 0.5, Number.NaN, 2n ** 60n]) expect(() => Stream.fromHandle(handle)).toThrow(badRange);
      expect(() => Stream.fromHandle('1' as unknown as number)).toThrow(badType);
      expect(() => stream.launchHostFunction(5 as unknown as () => void)).toThrow(badType);
      expect(() => stream.wait({} as Event)).toThrow(badType);
      expect(() => stream.wait({ handle: 5 } as Event)).toThrow(badType);
      expect(() => stream.wait(undefined as unknown as Event)).toThrow(badType);
      expect(() => stream.wait(null as unknown as Event)).toThrow(badType);
      expect(() => new Stream(null as unknown as object)).toThrow(badType);
      expect(() => Stream.fromHandle(4096, null as unknown as object)).toThrow(badType);
      expect(() => new Stream({ priority: '1' as unknown as number })).toThrow(badType);
      for (const priority of [2 ** 31, 2 ** 40, -(2 ** 40), Number.NaN]) expect(() => new Stream({ priority })).toThrow(badRange);
      expect(() => new Stream({ device: 0 as unknown as Device })).toThrow(badType);
    });
  });

  describe('an event', () => {
    test('orders one stream after another', () => {
      const pointer = filled(MiB, 0);
      using hold = stream.hold();
      set(pointer, 1, 1, MiB, stream);
      using event = new Event();
      event.record(stream);
      other.wait(event);
      set(pointer, 2, 1, MiB, other);
      expect(other.query()).toBe(false);
      expect(event.query()).toBe(false);
      hold.release();
      other.synchronizeSync();
      expect(event.query()).toBe(true);
      expect(read(pointer, 2)).toEqual([2, 2]);
    });

    test('stands for its latest recording', () => {
      using event = new Event();
      using hold = stream.hold();
      event.record(stream);
      expect(event.query()).toBe(false);
      event.record(other);
      // Does not wait for the held stream.
      event.synchronizeSync();
      expect(event.query()).toBe(true);
      event.record(stream);
      expect(event.query()).toBe(false);
      hold.release();
      event.synchronizeSync();
    });

    test('that was never recorded is complete, and nobody waits for it', async () => {
      using event = new Event();
      expect(event.query()).toBe(true);
      event.synchronizeSync();
      await event.synchronize();
      stream.wait(event);
      stream.synchronizeSync();
    });

    test('resolves without stopping the event loop', async () => {
      using event = new Event();
      using hold = stream.hold();
      event.record(stream);
      const resolved = vi.fn();
      const done = event.synchronize().then(resolved);
      await new Promise((resolve) => setTimeout(resolve, 20));
      expect(resolved).not.toHaveBeenCalled();
      hold.release();
      await done;
    });

    test('measures time on the device', () => {
      using start = new Event({ timing: true });
      using end = new Event({ timing: true });
      start.record(stream);
      stream.launchHostFunction(() => {
        const until = performance.now() + 10;
        while (performance.now() < until);
      });
      end.record(stream);
      end.synchronizeSync();
      expect(end.elapsedMilliseconds(start)).toBeGreaterThanOrEqual(9);
      expect(end.elapsedMilliseconds(start)).toBeLessThan(2000);
    });

    test('measures nothing without timing', () => {
      using start = new Event();
      using end = new Event();
      start.record(stream);
      end.record(stream);
      stream.synchronizeSync();
      expect(() => end.elapsedMilliseconds(start)).toThrow(DriverError);
    });

    test('keeps its waiters waiting when it is disposed', () => {
      const pointer = filled(4, 0);
      using hold = stream.hold();
      set(pointer, 1, 1, 4, stream);
      const event = new Event();
      event.record(stream);
      other.wait(event);
      event.dispose();
      event.dispose();
      set(pointer, 2, 1, 4, other);
      expect(other.query()).toBe(false);
      hold.release();
      expect(read(pointer, 1, other)).toEqual([2]);
    });

    test('refuses every call after it is disposed', async () => {
      const event = new Event();
      event.dispose();
      for (const use of [() => event.record(stream), () => event.query(), () => event.synchronizeSync(), () => stream.wait(event)]) {
        expect(use).toThrow(disposed);
      }
      await expect(event.synchronize()).rejects.toThrow(disposed);
      for (const wrong of [{}, { isDisposed: false }, undefined, null, 5]) {
        expect(() => new Event().record(wrong as Stream)).toThrow(badType);
        expect(() => new Event().elapsedMilliseconds(wrong as unknown as Event)).toThrow(badType);
      }
      expect(() => new Event(null as unknown as object)).toThrow(badType);
    });
  });

  describe('a copy', () => {
    const leaves: readonly (readonly [string, () => MemoryResource])[] = [
      ['device', () => new CudaMemoryResource()],
      ['managed', () => new ManagedMemoryResource()],
      ['pinned-host', () => new PinnedHostMemoryResource()],
      ['pinned-host', () => new PinnedHostMemoryResource({ populateThreads: 2 })],
      ['host', () => new HostMemoryResource()],
    ];

    test.each(leaves)('goes to and from %s memory', async (kind, create) => {
      using leaf = create();
      const bytes = 100_003;
      const pattern = Uint8Array.from({ length: bytes }, (_, i) => (i * 7) & 255);
      const pointer = leaf.allocate(bytes, stream);
      const onDevice = resource.allocate(bytes, stream);
      if (kind !== 'host') expect(pointerInfo(pointer).memoryKind).toBe(kind);
      copyFromHost(pointer, pattern, stream);
      copy(onDevice, pointer, bytes, stream);
      expect(Buffer.from(read(onDevice, bytes)).equals(pattern)).toBe(true);
      set(onDevice, 0x11, 1, bytes, stream);
      copySync(pointer, onDevice, bytes, stream);
      const back = new Uint8Array(await copyToHost(pointer, bytes, stream));
      expect(back.every((byte) => byte === 0x11)).toBe(true);
      leaf.deallocate(pointer, bytes, stream);
    });

    test('reads the host array before it returns', () => {
      const pointer = resource.allocate(MiB, stream);
      using hold = stream.hold();
      const source = new Uint8Array(MiB).fill(3);
      copyFromHost(pointer, source, stream);
      source.fill(4);
      hold.release();
      expect(read(pointer, 2)).toEqual([3, 3]);
    });

    test('to the host is queued once, however many host functions run first', () => {
      const pointer = filled(1000, 5);
      let ran = 0;
      for (let i = 0; i < 5; i++) stream.launchHostFunction(() => ran++);
      const before = driverCallCounts().byFunction['cuMemcpyAsync'] as number;
      expect(read(pointer, 1000).every((byte) => byte === 5)).toBe(true);
      expect(ran).toBe(5);
      expect(driverCallCounts().byFunction['cuMemcpyAsync']).toBe(before + 1);
    });

    test('within pinned memory does not wait for a stream that this thread stalls', async () => {
      using pinned = new PinnedHostMemoryResource();
      const from = pinned.allocate(1000, stream);
      const to = pinned.allocate(1000, stream);
      copyFromHost(from, new Uint8Array(1000).fill(4), stream);
      stream.synchronizeSync();
      const before = driverCallCounts().byFunction['cuMemcpyAsync'];
      using hold = stream.hold();
      copy(to, from, 1000, stream);
      const result = copyToHost(to, 1000, stream);
      expect(driverCallCounts().byFunction['cuMemcpyAsync']).toBe(before);
      hold.release();
      expect(new Uint8Array(await result).every((byte) => byte === 4)).toBe(true);
      pinned.deallocate(from, 1000, stream);
      pinned.deallocate(to, 1000, stream);
    });

    test('to the host is queued immediately and does not stop the event loop', async () => {
      const pointer = filled(1000, 5);
      using hold = stream.hold();
      const result = copyToHost(pointer, 1000, stream);
      set(pointer, 6, 1, 1000, stream);
      await new Promise(setImmediate);
      hold.release();
      expect(new Uint8Array(await result).every((byte) => byte === 5)).toBe(true);
    });

    test('of a view copies only the part that it covers', () => {
      const pointer = filled(8, 0);
      copyFromHost(pointer, Uint32Array.of(1, 0x01020304, 3).subarray(1, 2), stream);
      expect(read(pointer, 8)).toEqual([4, 3, 2, 1, 0, 0, 0, 0]);
      copyFromHost(pointer, new DataView(Uint8Array.of(9, 8, 7).buffer, 1, 2), stream);
      expect(read(pointer, 3)).toEqual([8, 7, 2]);
    });

    test('of nothing does nothing', async () => {
      const pointer = filled(4, 1);
      copy(pointer, pointer, 0, stream);
      copyFromHost(pointer, new Uint8Array(0), stream);
      expect((await copyToHost(pointer, 0, stream)).byteLength).toBe(0);
      expect(read(pointer, 4)).toEqual([1, 1, 1, 1]);
    });

    test('outside live memory is refused and copies nothing', async () => {
      const pointer = filled(1024, 1);
      const freed = filled(1024, 2);
      resource.deallocate(freed, 1024, stream);
      stream.synchronizeSync();
      const refusals = [
        () => copy(pointer, pointer + 512, 1024, stream),
        () => copy(pointer + 512, pointer, 1024, stream),
        () => copyFromHost(pointer, new Uint8Array(1025), stream),
        () => copyToHostSync(new Uint8Array(1025), pointer, stream),
        () => set(pointer, 0, 1, 1025, stream),
        () => set(pointer, 0, 4, 257, stream),
        () => copyFromHost(4096, new Uint8Array(1), stream),
        () => copyFromHost(freed, new Uint8Array(1), stream),
        () => copy(pointer, 0, 1, stream),
      ];
      for (const refusal of refusals) expect(refusal).toThrow(DriverError);
      await expect(copyToHost(pointer, 1025, stream)).rejects.toThrow(DriverError);
      expect(read(pointer, 1024).every((byte) => byte === 1)).toBe(true);
    });

    test('refuses invalid arguments', () => {
      const pointer = filled(16, 1);
      for (const value of [-1, 256, 0.5, '1'] as number[]) expect(() => set(pointer, value, 1, 1, stream)).toThrow(badRange);
      expect(() => set(pointer, 0, 2 as 1, 1, stream)).toThrow(badValue);
      expect(() => copyFromHost(pointer, [1, 2] as unknown as Uint8Array, stream)).toThrow(badType);
      expect(() => copyToHostSync('' as unknown as Uint8Array, pointer, stream)).toThrow(badType);
      expect(() => set(pointer + 1, 0, 4, 1, stream)).toThrow(badRange);
      expect(() => copy(pointer, pointer, 1, {} as Stream)).toThrow(badType);
      expect(read(pointer, 1)).toEqual([1]);
    });

    test.each([
      [badRange, [-1, 0.5, Number.NaN, 2 ** 53]],
      [badType, ['4', 4n, undefined, null, {}]],
    ])('and every other function of pointers and sizes throws %o for %o', async (error, wrongs) => {
      for (const wrong of wrongs as number[]) {
        const calls = [
          () => copy(wrong, 256, 1, stream),
          () => copy(256, wrong, 1, stream),
          () => copy(256, 256, wrong, stream),
          () => copyFromHost(wrong, new Uint8Array(1), stream),
          () => copyToHostSync(new Uint8Array(1), wrong, stream),
          () => set(wrong, 0, 1, 1, stream),
          () => set(256, 0, 1, wrong, stream),
          () => pointerInfo(wrong),
          () => advise(wrong, 1, 'set-read-mostly'),
          () => advise(256, wrong, 'set-read-mostly'),
          () => prefetch(wrong, 1, 'host', stream),
          () => prefetch(256, wrong, 'host', stream),
          () => managedRangeAttributes(wrong, 1),
          () => managedRangeAttributes(256, wrong),
        ];
        for (const call of calls) expect(call, String(call)).toThrow(error);
        await expect(copyToHost(wrong, 1, stream)).rejects.toThrow(error);
        await expect(copyToHost(256, wrong, stream)).rejects.toThrow(error);
      }
      expect(() => managedRangeAttributes(256, 0)).toThrow(badRange);
    });

    test('sets words of four bytes', () => {
      const pointer = filled(12, 0);
      setSync(pointer + 4, 0xdeadbeef, 4, 1, stream);
      expect(read(pointer, 12)).toEqual([0, 0, 0, 0, 0xef, 0xbe, 0xad, 0xde, 0, 0, 0, 0]);
    });

    test('runs between devices', ({ skip }) => {
      if (Device.count() < 2) skip('there is one device');
      const second = Device.get(1);
      using far = new CudaAsyncMemoryResource({ device: second });
      using farStream = new Stream({ device: second, nonBlocking: true });
      const pointer = filled(5000, 0x42);
      const farPointer = far.allocate(5000, farStream);
      farStream.synchronizeSync();
      expect(pointerInfo(farPointer).device).toBe(1);
      copySync(farPointer, pointer, 5000, stream);
      expect(read(farPointer, 5000, farStream).every((byte) => byte === 0x42)).toBe(true);
    });
  });

  describe('a second device', () => {
    test('has its own streams, which wait for events of the first', ({ skip }) => {
      if (Device.count() < 2) skip('there is one device');
      using far = new Stream({ device: Device.get(1), nonBlocking: true });
      using event = new Event();
      using hold = stream.hold();
      event.record(stream);
      far.wait(event);
      expect(far.query()).toBe(false);
      hold.release();
      far.synchronizeSync();
    });

    test('refuses to record events of the first on its streams', ({ skip }) => {
      if (Device.count() < 2) skip('there is one device');
      using far = new Stream({ device: Device.get(1) });
      using event = new Event();
      expect(() => event.record(far)).toThrow(DriverError);
    });
  });

  describe('managed memory', () => {
    test('remembers its advice, and where it was prefetched to', () => {
      using managed = new ManagedMemoryResource();
      const pointer = managed.allocate(4 * MiB, stream);
      expect(managedRangeAttributes(pointer, 4 * MiB)).toEqual({
        isReadMostly: false,
        preferredLocation: undefined,
        lastPrefetchLocation: undefined,
      });
      advise(pointer, 4 * MiB, 'set-read-mostly');
      advise(pointer, 4 * MiB, 'set-preferred-location', 'host');
      prefetch(pointer, 4 * MiB, Device.get(), stream);
      stream.synchronizeSync();
      expect(managedRangeAttributes(pointer, 4 * MiB)).toEqual({ isReadMostly: true, preferredLocation: 'host', lastPrefetchLocation: 0 });
      advise(pointer, 4 * MiB, 'unset-read-mostly');
      advise(pointer, 4 * MiB, 'unset-preferred-location');
      prefetch(pointer, 4 * MiB, 'host', stream);
      stream.synchronizeSync();
      expect(managedRangeAttributes(pointer, 4 * MiB)).toEqual({
        isReadMostly: false,
        preferredLocation: undefined,
        lastPrefetchLocation: 'host',
      });
      managed.deallocate(pointer, 4 * MiB, stream);
    });

    test('is required for advice', () => {
      const pointer = filled(MiB, 0);
      expect(() => advise(pointer, MiB, 'set-read-mostly')).toThrow(DriverError);
      expect(() => advise(pointer, MiB, 'set-on-fire' as 'set-read-mostly')).toThrow(badValue);
      expect(() => advise(pointer, MiB, 'constructor' as 'set-read-mostly')).toThrow(badValue);
      expect(() => prefetch(pointer, MiB, 'moon' as 'host', stream)).toThrow(badValue);
    });

    test('is all that a prefetch moves: it ignores other memory of the driver, and zero bytes', () => {
      using pinned = new PinnedHostMemoryResource();
      const pointers = [filled(MiB, 7), pinned.allocate(MiB, stream)] as const;
      for (const pointer of pointers) {
        prefetch(pointer, MiB, 'host', stream);
        prefetch(pointer, MiB, Device.get(), stream);
      }
      prefetch(0, 0, 'host', stream);
      expect(read(pointers[0], 4)).toEqual([7, 7, 7, 7]);
      pinned.deallocate(pointers[1], MiB, stream);
      expect(() => prefetch(256, 1, 'host', stream)).toThrow(DriverError);
    });
  });

  describe('a stream-ordered pool', () => {
    test('reserves, keeps and trims', () => {
      using pool = new CudaAsyncMemoryResource({ initialBytes: 64 * MiB });
      Device.get().synchronizeSync();
      expect(pool.reservedBytes).toBeGreaterThanOrEqual(64 * MiB);
      expect(pool.releaseThresholdBytes).toBe(Infinity);
      const pointer = pool.allocate(32 * MiB, stream);
      pool.deallocate(pointer, 32 * MiB, stream);
      Device.get().synchronizeSync();
      expect(pool.reservedBytes).toBeGreaterThanOrEqual(64 * MiB);
      expect(pool.trim(stream)).toBeGreaterThanOrEqual(64 * MiB);
      expect(pool.reservedBytes).toBe(0);
      expect(pool.peakReservedBytes).toBeGreaterThanOrEqual(64 * MiB);
      pool.resetPeakReservedBytes();
      expect(pool.peakReservedBytes).toBe(0);
    });

    test('returns memory above its release threshold at a synchronization', () => {
      using pool = new CudaAsyncMemoryResource({ releaseThresholdBytes: 0 });
      expect(pool.releaseThresholdBytes).toBe(0);
      pool.deallocate(pool.allocate(64 * MiB, stream), 64 * MiB, stream);
      stream.synchronizeSync();
      expect(pool.reservedBytes).toBe(0);
    });

    test('refuses invalid options', () => {
      expect(() => new CudaAsyncMemoryResource({ initialBytes: -1 })).toThrow(badRange);
      expect(() => new CudaAsyncMemoryResource({ releaseThresholdBytes: 0.5 })).toThrow(badRange);
      expect(() => resource.trim(stream, { bytesToKeep: -1 })).toThrow(badRange);
    });

    test('frees its live allocations when it is disposed', () => {
      const pool = new CudaAsyncMemoryResource();
      const before = settledFreeBytes();
      pool.allocate(256 * MiB, stream);
      pool.dispose();
      expect(settledFreeBytes()).toBeGreaterThan(before - 64 * MiB);
    });
  });

  describe('the counters of driver calls', () => {
    test('count every call by name and by group', () => {
      using event = new Event();
      const before = driverCallCounts();
      const pointer = resource.allocate(4096, stream);
      event.record(stream);
      other.wait(event);
      resource.deallocate(pointer, 4096, stream);
      stream.synchronizeSync();
      const after = driverCallCounts();
      const difference = (key: 'allocations' | 'frees' | 'eventRecords' | 'eventWaits' | 'synchronizations') => after[key] - before[key];
      expect([difference('allocations'), difference('frees'), difference('eventRecords'), difference('eventWaits')]).toEqual([1, 1, 1, 1]);
      expect(difference('synchronizations')).toBeGreaterThanOrEqual(1);
      expect(after.byFunction['cuMemAllocFromPoolAsync']).toBe((before.byFunction['cuMemAllocFromPoolAsync'] ?? 0) + 1);
      expect(driverFunctionNames()).toContain('cuMemAllocFromPoolAsync');
    });

    test('count host memory too', () => {
      using host = new HostMemoryResource();
      const before = driverCallCounts();
      host.deallocate(host.allocate(5, stream), 5, stream);
      const after = driverCallCounts();
      expect([after.allocations - before.allocations, after.frees - before.frees]).toEqual([1, 1]);
    });
  });

  test('driver errors name the operation, and CUDA’s name and number', () => {
    using event = new Event();
    let error: unknown;
    try {
      event.elapsedMilliseconds(event);
    } catch (thrown) {
      error = thrown;
    }
    expect(error).toBeInstanceOf(DriverError);
    expect(error).not.toBeInstanceOf(LifetimeError);
    expect(error).toMatchObject({
      code: 'ERR_CISTERN_DRIVER',
      name: 'DriverError',
      driverName: expect.stringMatching(/^CUDA_ERROR_/),
      operation: 'measure between events',
    });
    expect((error as DriverError).message).toMatch(/^cannot measure between events: CUDA_ERROR_\w+ \(\d+\), /);
  });
}
