import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { checkOrder } from '../../src/checking/index.js';
import {
  CudaMemoryResource,
  copySync,
  Device,
  GiB,
  KiB,
  MiB,
  OutOfMemoryError,
  PoolMemoryResource,
  Stream,
  set,
  VirtualMemoryResource,
} from '../../src/index.js';
import { driverCallCounts, failCall } from '../../src/tools/testing/index.js';
import { needSmallDevice, settledFreeBytes } from '../support/device-memory.js';
import { caught, code } from '../support/errors.js';
import { randomNumbers } from '../support/logged-calls.js';
import { runModule, wholePackage } from '../support/run-module.js';
import { skipTest } from '../support/skip-test.js';
import { valuesOf } from '../support/stream-order.js';

const freeBytes = () => Device.get().memoryInfo().freeBytes;
const calls = (name: string) => driverCallCounts().byFunction[name] as number;

describe('VirtualMemoryResource', () => {
  let stream: Stream;
  let resource: VirtualMemoryResource;
  let page: number;
  let freeBefore: number;

  beforeEach(() => {
    if (Device.get().attribute('virtualMemoryManagementSupported') !== 1) skipTest('the device has no virtual memory management');
    stream = new Stream({ nonBlocking: true });
    freeBefore = settledFreeBytes();
    resource = new VirtualMemoryResource({ reservationBytes: 4 * GiB });
    page = resource.granularityBytes;
  });

  afterEach(() => {
    // Of a test that was skipped meanwhile.
    for (const name of ['cuMemCreate', 'cuMemMap']) failCall(name, 0);
    expect(resource.reservedBytes).toBe(0);
    resource.dispose();
    stream.dispose();
    expect(settledFreeBytes()).toBe(freeBefore);
  });

  test('reserves whole pages of addresses, and no memory', () => {
    expect(page).toBe(2 * MiB);
    expect(resource.reservationBytes).toBe(4 * GiB);
    expect(freeBytes()).toBe(freeBefore);
    using odd = new VirtualMemoryResource({ reservationBytes: 5 * MiB });
    expect(odd.reservationBytes).toBe(6 * MiB);
    using standard = new VirtualMemoryResource();
    expect(standard.reservationBytes).toBeGreaterThanOrEqual(4 * Device.get().totalBytes);
  });

  test('grows at its end, each allocation where the last page of the one before ends', () => {
    const sizes = [page, 3 * page, 1, page + 1, page];
    const pointers = sizes.map((bytes) => resource.allocate(bytes, stream));
    const [first = 0] = pointers;
    expect(pointers.map((pointer) => (pointer - first) / page)).toEqual([0, 1, 4, 5, 7]);
    expect(first % page).toBe(0);
    expect(resource.reservedBytes).toBe(8 * page);
    expect(freeBefore - freeBytes()).toBe(8 * page);
    for (const [i, pointer] of pointers.entries()) resource.deallocate(pointer, sizes[i] as number, stream);
  });

  test('uses the lowest hole that fits, and joins neighbouring holes', () => {
    const [a = 0, b = 0, c = 0, d = 0, e = 0] = [1, 2, 1, 1, 1].map((pages) => resource.allocate(pages * page, stream));
    resource.deallocate(b, 2 * page, stream);
    resource.deallocate(d, page, stream);
    expect(resource.allocate(page, stream)).toBe(b);
    expect(resource.allocate(2 * page, stream)).toBe(e + page);
    resource.deallocate(c, page, stream);
    // The rest of b, c and d are one hole now.
    expect(resource.allocate(3 * page, stream)).toBe(b + page);
    resource.deallocate(a, 8 * page, stream);
    expect(resource.allocate(page, stream)).toBe(a);
    resource.deallocate(a, page, stream);
  });

  test('keeps contents when it grows, and copies across its allocations', () => {
    const first = resource.allocate(page, stream);
    set(first, 7, 1, page, stream);
    const second = resource.allocate(2 * page, stream);
    set(second, 7, 1, 2 * page, stream);
    expect(valuesOf(first, 3 * page, stream)).toEqual([7]);
    set(first + page - 5, 9, 1, 10, stream);
    expect(valuesOf(first + page - 5, 10, stream)).toEqual([9]);
    const other = resource.allocate(3 * page, stream);
    copySync(other, first, 3 * page, stream);
    expect(valuesOf(other + page - 5, 10, stream)).toEqual([9]);
    expect(() => set(first, 1, 1, 6 * page + 1, stream)).toThrow();
    resource.deallocate(first, 6 * page, stream);
    expect(() => set(first, 1, 1, 1, stream)).toThrow();
  });

  test('maps a large allocation in few pieces', () => {
    const names = ['cuMemCreate', 'cuMemMap', 'cuMemSetAccess', 'cuMemRelease', 'cuMemUnmap'];
    const before = names.map(calls);
    const pointer = resource.allocate(256 * MiB, stream);
    expect([resource.reservedBytes, freeBefore - freeBytes()]).toEqual([256 * MiB, 256 * MiB]);
    set(pointer, 3, 1, 256 * MiB, stream);
    expect(valuesOf(pointer + 100 * MiB, MiB, stream)).toEqual([3]);
    resource.deallocate(pointer, 256 * MiB, stream);
    expect(names.map((name, i) => calls(name) - (before[i] as number))).toEqual([8, 8, 1, 8, 8]);
  });

  test('keeps a part of a piece that is freed, until the rest of the piece is free', () => {
    // Pieces of two pages.
    const pointer = resource.allocate(16 * page, stream);
    set(pointer, 7, 1, 16 * page, stream);
    resource.deallocate(pointer + 3 * page, 4 * page, stream);
    // The piece of pages 4 and 5 is returned; 3 and 6 are kept, for 2 and 7.
    expect([resource.reservedBytes, freeBefore - freeBytes()]).toEqual([14 * page, 14 * page]);
    expect(valuesOf(pointer, 3 * page, stream)).toEqual([7]);
    expect(valuesOf(pointer + 7 * page, 9 * page, stream)).toEqual([7]);
    const codeOf = (offset: number) => caught<{ code: string }>(() => resource.deallocate(pointer + offset, page, stream)).code;
    expect([codeOf(3 * page), codeOf(4 * page)]).toEqual(['ERR_CISTERN_DOUBLE_FREE', 'ERR_CISTERN_DOUBLE_FREE']);
    expect(resource.allocate(2 * page, stream)).toBe(pointer + 4 * page);
    resource.deallocate(pointer + 4 * page, 2 * page, stream);
    resource.deallocate(pointer + 2 * page, page, stream);
    expect([resource.reservedBytes, freeBefore - freeBytes()]).toEqual([12 * page, 12 * page]);
    expect(resource.allocate(4 * page, stream)).toBe(pointer + 2 * page);
    resource.deallocate(pointer + 2 * page, 4 * page, stream);
    resource.deallocate(pointer, 2 * page, stream);
    resource.deallocate(pointer + 7 * page, 9 * page, stream);
    expect(freeBytes()).toBe(freeBefore);
  });

  test.each([1, 2, 3, 4])('has the memory of what is live, and of what is kept with it, whatever is freed (%i)', (seed) => {
    const next = randomNumbers(seed);
    const random = (below: number) => next() % below;
    const live = new Set<number>();
    const values = new Map<number, number>();
    for (let step = 0; step < 120; step++) {
      if (live.size < 200 && (random(2) === 0 || live.size === 0)) {
        const pages = 1 + random(40);
        const pointer = resource.allocate(pages * page, stream);
        for (let i = 0; i < pages; i++) {
          const address = pointer + i * page;
          expect(live.has(address)).toBe(false);
          live.add(address);
          values.set(address, random(250));
          set(address, values.get(address) as number, 1, 64, stream);
        }
      } else {
        const all = [...live].sort((a, b) => a - b);
        const first = all[random(all.length)] as number;
        let pages = 1;
        while (pages < 24 && live.has(first + pages * page) && random(8) > 0) pages++;
        resource.deallocate(first, pages * page, stream);
        for (let i = 0; i < pages; i++) live.delete(first + i * page);
      }
      expect(freeBefore - freeBytes()).toBe(resource.reservedBytes);
      expect(resource.reservedBytes).toBeGreaterThanOrEqual(live.size * page);
    }
    for (const address of live) expect(valuesOf(address, 64, stream)).toEqual([values.get(address)]);
    for (const address of live) resource.deallocate(address, page, stream);
  });

  test('frees any whole pages of adjacent allocations', () => {
    const first = resource.allocate(4 * page, stream);
    const second = resource.allocate(2 * page + 100, stream);
    set(first, 1, 1, 6 * page + 100, stream);
    resource.deallocate(first + page, page, stream);
    expect(resource.reservedBytes).toBe(6 * page);
    expect(freeBefore - freeBytes()).toBe(6 * page);
    resource.deallocate(first + 3 * page, 2 * page, stream);
    expect(valuesOf(first, page, stream)).toEqual([1]);
    expect(valuesOf(first + 2 * page, page, stream)).toEqual([1]);
    expect(valuesOf(second + page, page + 100, stream)).toEqual([1]);
    expect(() => set(first + page, 1, 1, 1, stream)).toThrow();
    // The holes take what fits.
    expect(resource.allocate(2 * page, stream)).toBe(first + 3 * page);
    expect(resource.allocate(page, stream)).toBe(first + page);
    // The end of an allocation that ends within a page is where it can end.
    resource.deallocate(first, 6 * page + 100, stream);
  });

  test('refuses a range that is not live in whole, or cannot be cut there', () => {
    const first = resource.allocate(2 * page, stream);
    const second = resource.allocate(100, stream);
    const third = resource.allocate(page, stream);
    const fourth = resource.allocate(page, stream);
    resource.deallocate(fourth, page, stream);
    const refusals: [number, number, string][] = [
      [first, page + 1, 'ERR_CISTERN_WRONG_SIZE'],
      [first, 0, 'ERR_CISTERN_WRONG_SIZE'],
      // The rest of a page belongs to no allocation.
      [second, page, 'ERR_CISTERN_WRONG_SIZE'],
      [first, 4 * page, 'ERR_CISTERN_WRONG_SIZE'],
      [third, 2 * page, 'ERR_CISTERN_WRONG_SIZE'],
      [third, 2 ** 50, 'ERR_CISTERN_WRONG_SIZE'],
      [first + 256, page, 'ERR_CISTERN_FOREIGN_POINTER'],
      [second + 256, page, 'ERR_CISTERN_FOREIGN_POINTER'],
      [first - page, page, 'ERR_CISTERN_FOREIGN_POINTER'],
      [fourth + page, page, 'ERR_CISTERN_FOREIGN_POINTER'],
      [fourth, page, 'ERR_CISTERN_DOUBLE_FREE'],
    ];
    for (const [pointer, bytes, expected] of refusals) expect(() => resource.deallocate(pointer, bytes, stream)).toThrow(code(expected));
    expect(resource.reservedBytes).toBe(4 * page);
    expect(caught<Error>(() => resource.deallocate(first + page, 1, stream)).message).toContain(String(page));
    resource.deallocate(first, 2 * page + 100, stream);
    resource.deallocate(third, page, stream);
  });

  test('reports whole pages, and their peak', () => {
    resource.resetPeakReservedBytes();
    const pointer = resource.allocate(page + 1, stream);
    expect(resource.reservedBytes).toBe(2 * page);
    resource.deallocate(pointer, page, stream);
    expect(resource.reservedBytes).toBe(page);
    expect(resource.peakReservedBytes).toBe(2 * page);
    resource.deallocate(pointer + page, 1, stream);
    resource.resetPeakReservedBytes();
    expect(resource.peakReservedBytes).toBe(0);
  });

  test('aligns to a page, and no further', () => {
    const pointer = resource.allocate(100, stream, page);
    expect(pointer % page).toBe(0);
    expect(() => resource.allocate(100, stream, 2 * page)).toThrow(code('ERR_OUT_OF_RANGE'));
    resource.deallocate(pointer, 100, stream);
  });

  test('frees only after the work of its stream, of any device, running host functions meanwhile', () => {
    for (const device of [0, 1]) {
      using other = new Stream({ device: Device.get(device), nonBlocking: true });
      const pointer = resource.allocate(page, stream);
      let hasRun = false;
      other.launchHostFunction(() => {
        hasRun = true;
      });
      for (let i = 0; i < 8 && device === 0; i++) set(pointer, 1, 1, page, other);
      resource.deallocate(pointer, page, other);
      expect([hasRun, other.query()]).toEqual([true, true]);
    }
  });

  test('frees later if a stream is held, and does not use the addresses before', () => {
    const pointer = resource.allocate(2 * page, stream);
    const hold = stream.hold();
    set(pointer, 1, 1, 2 * page, stream);
    resource.deallocate(pointer, page, stream);
    expect(resource.reservedBytes).toBe(page);
    expect(() => resource.deallocate(pointer, page, stream)).toThrow(code('ERR_CISTERN_DOUBLE_FREE'));
    const later = resource.allocate(page, stream);
    expect(later).toBe(pointer + 2 * page);
    resource.deallocate(pointer + page, page, stream);
    hold.release();
    resource.deallocate(later, page, stream);
    expect(resource.allocate(page, stream)).toBe(pointer);
    resource.deallocate(pointer, page, stream);
  });

  test.each(['cuMemCreate', 'cuMemMap'])('returns if %s fails while the same thread holds a stream', (name) => {
    const pointer = resource.allocate(page, stream);
    const hold = stream.hold();
    set(pointer, 1, 1, page, stream);
    failCall(name, 3, 999);
    expect(() => resource.allocate(4 * page, stream)).toThrow(code('ERR_CISTERN_DRIVER'));
    // What was mapped stays so, until nothing holds a stream.
    const later = resource.allocate(page, stream);
    expect(later).toBe(pointer + (name === 'cuMemMap' ? 5 : 1) * page);
    hold.release();
    resource.deallocate(pointer, page, stream);
    resource.deallocate(later, page, stream);
    expect(resource.allocate(8 * page, stream)).toBe(pointer);
    resource.deallocate(pointer, 8 * page, stream);
  });

  test('gives held memory back when it is disposed, once the stream continues', () => {
    const held = new VirtualMemoryResource({ reservationBytes: 64 * MiB });
    const pointer = held.allocate(page, stream);
    const hold = stream.hold();
    held.deallocate(pointer, page, stream);
    held.dispose();
    expect(freeBytes()).toBe(freeBefore - page);
    hold.release();
    resource.deallocate(resource.allocate(1, stream), 1, stream);
  });

  test('keeps its allocations when it is disposed, and the addresses until the last is freed', () => {
    const disposed = new VirtualMemoryResource({ reservationBytes: 64 * MiB });
    const pointer = disposed.allocate(2 * page, stream);
    const before = calls('cuMemAddressFree');
    disposed.dispose();
    disposed.dispose();
    expect(() => disposed.allocate(1, stream)).toThrow(code('ERR_CISTERN_DISPOSED'));
    set(pointer, 1, 1, page, stream);
    disposed.deallocate(pointer, page, stream);
    expect(calls('cuMemAddressFree')).toBe(before);
    disposed.deallocate(pointer + page, page, stream);
    expect(calls('cuMemAddressFree')).toBe(before + 1);
    expect(() => disposed.deallocate(pointer, page, stream)).toThrow(code('ERR_CISTERN_FOREIGN_POINTER'));
  });

  test('is equal only to itself, since each has its own addresses', () => {
    using other = new VirtualMemoryResource({ reservationBytes: 64 * MiB });
    using plain = new CudaMemoryResource();
    expect([resource, other, plain].map((each) => resource.isEqual(each))).toEqual([true, false, false]);
    const pointer = other.allocate(page, stream);
    expect(() => resource.deallocate(pointer, page, stream)).toThrow(code('ERR_CISTERN_FOREIGN_POINTER'));
    other.deallocate(pointer, page, stream);
  });

  test('counts against the device, and leaves nothing of an allocation that does not fit', () => {
    needSmallDevice();
    const kept = resource.allocate(page, stream);
    const error = caught<OutOfMemoryError>(() => resource.allocate(freeBytes() + page, stream));
    expect(error).toBeInstanceOf(OutOfMemoryError);
    expect(error.availableBytes).toBe(freeBefore - page);
    expect(error.requestedBytes).toBe(freeBefore);
    expect(freeBytes()).toBe(freeBefore - page);
    expect(resource.reservedBytes).toBe(page);
    using plain = new CudaMemoryResource();
    const rest = freeBytes();
    const pointer = plain.allocate(rest, stream);
    expect(() => resource.allocate(1, stream)).toThrow(OutOfMemoryError);
    plain.deallocate(pointer, rest, stream);
    expect(resource.allocate(1, stream)).toBe(kept + page);
    resource.deallocate(kept, page + 1, stream);
  });

  test('is out of memory when no addresses are left that fit', () => {
    using small = new VirtualMemoryResource({ reservationBytes: 4 * page });
    const pointer = small.allocate(4 * page, stream);
    small.deallocate(pointer + page, page, stream);
    const error = caught<OutOfMemoryError>(() => small.allocate(page + 1, stream));
    expect(error).toBeInstanceOf(OutOfMemoryError);
    expect(error.message).toContain('addresses');
    expect(small.allocate(page, stream)).toBe(pointer + page);
    expect(() => small.allocate(2 ** 53 - 1, stream)).toThrow(OutOfMemoryError);
    small.deallocate(pointer, 4 * page, stream);
  });

  test('refuses invalid options, and reservations that are too large', () => {
    expect(() => new VirtualMemoryResource({ reservationBytes: 0 })).toThrow(code('ERR_OUT_OF_RANGE'));
    expect(() => new VirtualMemoryResource({ reservationBytes: -1 })).toThrow(code('ERR_OUT_OF_RANGE'));
    expect(() => new VirtualMemoryResource({ reservationBytes: '1' as unknown as number })).toThrow(code('ERR_INVALID_ARG_TYPE'));
    const error = caught(() => new VirtualMemoryResource({ reservationBytes: 2 ** 52 }));
    expect(error).toBeInstanceOf(OutOfMemoryError);
    expect((error as Error).message).toContain('cannot reserve 4096 TiB');
  });

  test('says that the device does not support it', () => {
    failCall('cuDeviceGetAttribute', 1, 801);
    expect(() => new VirtualMemoryResource()).toThrow(
      expect.objectContaining({ code: 'ERR_CISTERN_DRIVER', driverName: 'CUDA_ERROR_NOT_SUPPORTED' }),
    );
  });

  test.each(['cuMemCreate', 'cuMemMap', 'cuMemSetAccess'])('leaves nothing if %s fails in the middle of an allocation', (name) => {
    const kept = resource.allocate(page, stream);
    const nth = name === 'cuMemSetAccess' ? 1 : 3;
    failCall(name, nth, 999);
    expect(() => resource.allocate(4 * page, stream)).toThrow(code('ERR_CISTERN_DRIVER'));
    expect(freeBytes()).toBe(freeBefore - page);
    expect(resource.allocate(4 * page, stream)).toBe(kept + page);
    resource.deallocate(kept, 5 * page, stream);
  });

  test('releases the memory later if cuMemRelease fails', () => {
    failCall('cuMemRelease', 2, 999);
    const pointer = resource.allocate(4 * page, stream);
    resource.deallocate(pointer, 4 * page, stream);
  });

  test('unmaps the rest later if cuMemUnmap fails in the middle of a free', () => {
    const pointer = resource.allocate(4 * page, stream);
    failCall('cuMemUnmap', 3, 999);
    resource.deallocate(pointer, 4 * page, stream);
    expect(resource.reservedBytes).toBe(0);
    const later = resource.allocate(page, stream);
    expect(later).toBe(pointer + 4 * page);
    // A call that is slow anyway.
    expect(freeBytes()).toBe(freeBefore - page);
    resource.deallocate(later, page, stream);
    expect(resource.allocate(5 * page, stream)).toBe(pointer);
    resource.deallocate(pointer, 5 * page, stream);
  });

  test.each(['cuMemUnmap', 'cuStreamQuery'])('frees nothing if %s fails at once', (name) => {
    const pointer = resource.allocate(4 * page, stream);
    failCall(name, 1, 999);
    expect(() => resource.deallocate(pointer, 4 * page, stream)).toThrow(code('ERR_CISTERN_DRIVER'));
    expect(resource.reservedBytes).toBe(4 * page);
    set(pointer, 1, 1, 4 * page, stream);
    resource.deallocate(pointer, 4 * page, stream);
  });

  test('frees no memory that the order checker sees in use, and is seen by it', () => {
    using pool = new PoolMemoryResource(resource, { deallocationEvents: 'deferred' });
    const early = resource.allocate(2 * page, stream);
    set(early, 1, 1, 2 * page, stream);
    // It is freed on another stream below, which does not wait for this one.
    stream.synchronizeSync();
    using checker = checkOrder();
    using other = new Stream({ nonBlocking: true });
    for (let i = 0; i < 20; i++) {
      const [on, bytes] = i % 2 === 0 ? [stream, 3 * page] : [other, 100 * KiB];
      const pointer = pool.allocate(bytes, on);
      set(pointer, i, 1, bytes, on);
      pool.deallocate(pointer, bytes, on);
    }
    resource.deallocate(early + page, page, other);
    resource.deallocate(early, page, other);
    pool.trim(stream);
    const pointer = resource.allocate(2 * page, stream);
    expect(checker.violations).toEqual([]);
    set(pointer, 1, 1, 2 * page, stream);
    set(pointer + page, 1, 1, page, other);
    expect(checker.violations.map(({ kind }) => kind)).toEqual(['unordered']);
    // The free waits for the other stream only.
    stream.synchronizeSync();
    resource.deallocate(pointer, 2 * page, other);
    pool.dispose();
  });

  test('gives pages back to the system', () => {
    if (Device.get().backend !== 'software') skipTest('the memory of a device is not resident');
    const pointer = resource.allocate(64 * MiB, stream);
    set(pointer, 1, 1, 64 * MiB, stream);
    stream.synchronizeSync();
    const full = process.memoryUsage.rss();
    resource.deallocate(pointer + 16 * MiB, 48 * MiB, stream);
    expect(full - process.memoryUsage.rss()).toBeGreaterThan(40 * MiB);
    expect(valuesOf(pointer, 16 * MiB, stream)).toEqual([1]);
    resource.deallocate(pointer, 16 * MiB, stream);
  });
});

test('a worker that ends leaves no memory and no addresses, freed or live', () => {
  const inWorker = `import('${wholePackage}').then((cistern) => {
    const resource = new cistern.VirtualMemoryResource();
    const stream = new cistern.Stream();
    const pointer = resource.allocate(8 * cistern.MiB, stream);
    const hold = stream.hold();
    cistern.set(pointer, 1, 1, 8 * cistern.MiB, stream);
    resource.deallocate(pointer + 2 * cistern.MiB, 2 * cistern.MiB, stream);
    globalThis.kept = [resource, stream, hold];
    require('node:worker_threads').parentPort.postMessage(0);
  });`;
  const end = runModule(`
    import { Worker } from 'node:worker_threads';
    import { once } from 'node:events';
    import { Device } from 'cistern';
    const before = Device.get().memoryInfo().freeBytes;
    const worker = new Worker(${JSON.stringify(`${inWorker} setInterval(() => {}, 1000)`)}, { eval: true, execArgv: [] });
    await once(worker, 'message');
    console.log(before - Device.get().memoryInfo().freeBytes >= 8 * 2 ** 20);
    await worker.terminate();
    Device.get().synchronizeSync();
    console.log(Device.get().memoryInfo().freeBytes === before);
  `);
  expect(end).toEqual({ status: 0, signal: null, stdout: 'true\ntrue\n', stderr: '' });
});
