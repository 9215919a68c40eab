import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readlinkSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { memoryBudget } from '../../../src/budget/memory-budget.js';
import { watchedBuffers } from '../../../src/collector/free-unreachable-buffers.js';
import { PlainMemory } from '../../../src/driver/memory/plain-memory.js';
import { mailbox, native } from '../../../src/driver/native.js';
import {
  CudaMemoryResource,
  currentBackend,
  Device,
  DeviceBuffer,
  KiB,
  MiB,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  Stream,
  set,
  UnsupportedError,
} from '../../../src/index.js';
import {
  AdmittingResourceAdaptor,
  SpillableBuffer,
  type SpillableBufferOptions,
  type SpillCandidate,
  SpillingResourceAdaptor,
} from '../../../src/serving/index.js';
import { SpillFiles } from '../../../src/serving/spilling/spill-files.js';
import type { Spillable } from '../../../src/serving/spilling/spill-members.js';
import { UnnamedFile } from '../../../src/serving/spilling/unnamed-file.js';
import { failCall } from '../../../src/tools/testing/index.js';
import { allocationsMayWait } from '../../support/direct-faults.mjs';
import { callsOf } from '../../support/driver-calls.js';
import { caught, code } from '../../support/errors.js';
import { checkOrderInEachTest } from '../../support/order-checked-tests.js';
import { wholePackage } from '../../support/run-module.js';
import { skipTest } from '../../support/skip-test.js';
import { expectOrdered, valuesOf } from '../../support/stream-order.js';

const fileError = code('ERR_CISTERN_SPILL_FILE');
const disposedError = code('ERR_CISTERN_DISPOSED');
const outOfMemory = code('ERR_CISTERN_OUT_OF_MEMORY');
const most = 4 * MiB;
/** More than one piece of the staging memory. */
const large = 5 * MiB;

let folder: string;
let stream: Stream;
let leaf: CudaMemoryResource;
let pool: PoolMemoryResource;
let pinned: PinnedHostMemoryResource;
let host: PoolMemoryResource;
let resource: SpillingResourceAdaptor;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'cistern-spill-test-'));
  stream = new Stream({ nonBlocking: true });
  leaf = new CudaMemoryResource();
  pool = new PoolMemoryResource(leaf, { initialBytes: most, maximumBytes: most });
  pinned = new PinnedHostMemoryResource();
  host = new PoolMemoryResource(pinned, { initialBytes: 2 * MiB, maximumBytes: 2 * MiB });
  resource = new SpillingResourceAdaptor(pool, host, { folder });
});

afterEach(async () => {
  for (const name of driverCalls) failCall(name, 0);
  resource.dispose();
  // What stages the last transfer is freed once that has ended.
  for (let turn = 0; turn < 1000 && pinned.reservedBytes > 2 * MiB; turn++) await nextTurn();
  for (const each of [pool, host, leaf, pinned, stream]) each.dispose();
  expect([leaf.reservedBytes, pinned.reservedBytes, watchedBuffers().count]).toEqual([0, 0, 0]);
  expect(readdirSync(folder)).toEqual([]);
  // A file without a name has its memory on the disk for as long as it is open.
  for (let turn = 0; turn < 1000 && openFiles().length > 0; turn++) await nextTurn();
  expect(openFiles()).toEqual([]);
  rmSync(folder, { recursive: true });
});

/** The files of the folder that this process has open, where the system tells. */
function openFiles(): string[] {
  const open = '/proc/self/fd';
  if (!existsSync(open)) return [];
  return readdirSync(open)
    .map((descriptor) => {
      try {
        return readlinkSync(join(open, descriptor));
      } catch {
        // It was the one of this list.
        return '';
      }
    })
    .filter((path) => path.startsWith(folder));
}

checkOrderInEachTest();

function liveStreams(): number {
  native().liveStreams();
  return mailbox[1] as number;
}

const driverCalls = ['cuMemcpyAsync', 'cuEventRecord', 'cuStreamWaitEvent', 'cuMemAlloc'];

/** Each byte says where it is, so that no piece can be in the place of another. */
function bytesOf(bytes: number, value: number): Uint8Array {
  const data = new Uint8Array(bytes);
  for (let i = 0; i < bytes; i++) data[i] = i + (i >> 12) * 7 + (i >> 20) * 13 + value;
  return data;
}

const made = (bytes: number, value: number, options: Partial<SpillableBufferOptions> = {}) =>
  new SpillableBuffer(bytesOf(bytes, value), { stream, resource, ...options });

const holds = async (buffer: SpillableBuffer, value: number) => {
  using pin = await buffer.pin();
  return Buffer.compare(await pin.toHost(), bytesOf(buffer.byteLength, value)) === 0;
};

/** A resource whose device and host have room for `large`. */
function roomy(): SpillingResourceAdaptor & Disposable {
  return new SpillingResourceAdaptor(leaf, pinned, { folder });
}

test('statistics begin at nothing, and add up what is in each place', async () => {
  using withoutFolder = new SpillingResourceAdaptor(pool, host);
  for (const each of [resource, withoutFolder]) expect(new Set(Object.values(each.statistics()))).toEqual(new Set([0]));
  using first = made(KiB, 1);
  using second = made(2 * KiB, 2);
  resource.spill();
  await resource.spillToFiles();
  using third = made(4 * KiB, 3);
  using fourth = made(8 * KiB, 4);
  resource.spill();
  using fifth = made(16 * KiB, 5);
  using sixth = made(32 * KiB, 6);
  const places = { fileBytes: 3 * KiB, hostBytes: 12 * KiB, deviceBytes: 48 * KiB };
  expect(resource.statistics()).toMatchObject({ ...places, pinnedBytes: 0, buffers: 6 });
  const pins = [await fifth.pin(), await sixth.pin()];
  expect(resource.statistics()).toMatchObject({ ...places, pinnedBytes: 48 * KiB });
  for (const pin of pins) pin.dispose();
  expect([first, second, third, fourth].map(({ isOnDevice }) => isOnDevice)).toEqual([false, false, false, false]);
});

describe('a buffer on the host', () => {
  test('goes on to a file by call, and comes back with its contents', async () => {
    using buffer = made(MiB, 1);
    resource.spill();
    expect(await resource.spillToFiles()).toBe(MiB);
    expect(resource.statistics()).toMatchObject({ deviceBytes: 0, hostBytes: 0, fileBytes: MiB, filed: 1, filedBytes: MiB, liveBytes: 0 });
    // All of the host's memory is free again.
    host.deallocate(host.allocate(2 * MiB, stream), 2 * MiB, stream);
    expect(buffer.isOnDevice).toBe(false);
    expect(await holds(buffer, 1)).toBe(true);
    expect(resource.statistics()).toMatchObject({ deviceBytes: MiB, fileBytes: 0, returns: 1, returnedBytes: MiB });
    expect(await resource.spillToFiles()).toBe(0);
  });

  test('keeps its memory on the host from others until the copy to the file has run', async () => {
    if (allocationsMayWait) skipTest('an allocation of this driver waits for the stream that the test holds');
    const members: SpillCandidate[] = [];
    const policy = { rank: (member: SpillCandidate) => members.push(member) };
    using above = new SpillingResourceAdaptor(pool, host, { policy });
    const buffer = made(2 * MiB, 6, { resource: above });
    above.spill();
    Device.get().synchronizeSync();
    const files = new SpillFiles(folder, Device.get());
    using hold = files.outward.stream.hold();
    const going = (members[0] as Spillable).goToFile(files.outward);
    buffer.dispose();
    using other = new Stream({ nonBlocking: true });
    const pointer = host.allocate(2 * MiB, other);
    expectOrdered(pointer, 2 * MiB, other, hold);
    expect(await going).toBe(false);
    host.deallocate(pointer, 2 * MiB, other);
    files.end();
  });

  test('goes in pieces, in both directions', async () => {
    using above = roomy();
    using buffer = made(large, 2, { resource: above });
    using written = vi.spyOn(UnnamedFile.prototype, 'write');
    for (let round = 0; round < 2; round++) {
      above.spill();
      expect(await above.spillToFiles()).toBe(large);
      expect(await holds(buffer, 2)).toBe(true);
    }
    // The file is as long as its contents.
    expect(written.mock.calls.map(([data, position]) => [data.length, position])).toEqual([
      [4 * MiB, 0],
      [MiB, 4 * MiB],
      [4 * MiB, 0],
      [MiB, 4 * MiB],
    ]);
  });

  test('waits for nothing that the default stream has, in both directions', async () => {
    using above = roomy();
    using buffer = made(large, 2, { resource: above });
    above.spill();
    const hold = Stream.legacyDefault().hold();
    expect(await above.spillToFiles()).toBe(large);
    const isBack = buffer.pin(stream).then((pin) => pin.dispose());
    await isBack;
    hold.release();
    expect(await holds(buffer, 2)).toBe(true);
  });

  test('goes when the host is full, the least recently used first, and a pin waits for that', async () => {
    using one = made(MiB, 1);
    using two = made(MiB, 2);
    using three = made(2 * MiB, 3);
    using four = made(2 * MiB, 4);
    expect([one, two, three, four].map((each) => each.isOnDevice)).toEqual([false, false, true, true]);
    // The device and the host are full.
    expect(caught(() => made(2 * MiB, 5))).toEqual(outOfMemory);
    using five = await SpillableBuffer.create(bytesOf(2 * MiB, 5), { stream, resource });
    // Who comes back needs a place for another, and that one a place on the host.
    expect(await holds(one, 1)).toBe(true);
    expect(await holds(two, 2)).toBe(true);
    expect(await holds(three, 3)).toBe(true);
    expect(await holds(four, 4)).toBe(true);
    expect(await holds(five, 5)).toBe(true);
    expect(await holds(one, 1)).toBe(true);
    const { filed, fileBytes, refusedByFile } = resource.statistics();
    expect(filed).toBeGreaterThan(0);
    expect(fileBytes).toBeGreaterThan(0);
    expect(refusedByFile).toBe(0);
  });

  test('goes on above a share of what the process may use of the host', async () => {
    const share = (1.5 * MiB) / memoryBudget('pinned-host').bytes;
    using above = new SpillingResourceAdaptor(pool, host, { folder, hostBytes: `${(100 * share).toFixed(9)}%` });
    using one = made(MiB, 1, { resource: above });
    using two = made(MiB, 2, { resource: above });
    above.spill();
    while (above.statistics().hostBytes > MiB) await nextTurn();
    expect(above.statistics()).toMatchObject({ hostBytes: MiB, fileBytes: MiB, filed: 1 });
    expect([await holds(one, 1), await holds(two, 2)]).toEqual([true, true]);
  });

  test('goes on before the host is full, above `hostBytes`, so that an allocation finds room', async () => {
    using above = new SpillingResourceAdaptor(pool, host, { folder, hostBytes: MiB });
    using one = made(MiB, 1, { resource: above });
    using two = made(MiB, 2, { resource: above });
    const pin = await two.pin();
    above.spill();
    // What is on the device does not count.
    await sleep(100);
    expect(above.statistics()).toMatchObject({ hostBytes: MiB, deviceBytes: MiB, filed: 0 });
    pin.dispose();
    above.spill();
    while (above.statistics().hostBytes > MiB) await nextTurn();
    expect(above.statistics()).toMatchObject({ hostBytes: MiB, fileBytes: MiB, filed: 1, refusedByHost: 0 });
    expect([await holds(one, 1), await holds(two, 2)]).toEqual([true, true]);
    expect(() => new SpillingResourceAdaptor(pool, host, { hostBytes: 1 })).toThrow('hostBytes must not be given without a folder, got 1');
    expect(() => new SpillingResourceAdaptor(pool, host, { folder, hostBytes: 'much' })).toThrow(/^hostBytes must be a number of bytes/);
    expect(() => new SpillingResourceAdaptor(pool, host, { folder, hostBytes: -1 })).toThrow(RangeError);
  });

  test('goes as far as it was asked for', async () => {
    using one = made(MiB, 1);
    using two = made(MiB, 2);
    resource.spill();
    expect([await resource.spillToFiles(0), await resource.spillToFiles(MiB)]).toEqual([0, MiB]);
    expect(resource.statistics()).toMatchObject({ hostBytes: MiB, fileBytes: MiB, filed: 1 });
    expect([await holds(one, 1), await holds(two, 2)]).toEqual([true, true]);
  });

  test('that is on its way counts no more as one that is to go', async () => {
    using above = new SpillingResourceAdaptor(leaf, pinned, { folder, hostBytes: MiB });
    using _one = made(MiB, 1, { resource: above });
    using _two = made(MiB, 2, { resource: above });
    above.spill();
    using _three = made(MiB, 3, { resource: above });
    above.spill();
    while (above.statistics().hostBytes > MiB) await nextTurn();
    // Time to move a third, if it was to go.
    await sleep(50);
    expect(above.statistics()).toMatchObject({ hostBytes: MiB, filed: 2 });
  });

  test('of another device than the current one goes and comes back on streams of its device', async () => {
    if (Device.count() < 2) skipTest('needs two devices');
    const device = Device.get(1);
    using there = new Stream({ device, nonBlocking: true });
    using below = new CudaMemoryResource({ device });
    using hostBelow = new PinnedHostMemoryResource({ device });
    using above = new SpillingResourceAdaptor(below, hostBelow, { folder });
    using buffer = made(large, 1, { resource: above, stream: there });
    above.spill();
    expect(await above.spillToFiles()).toBe(large);
    using pin = await buffer.pin(there);
    expect(Buffer.compare(await pin.toHost(), bytesOf(large, 1))).toBe(0);
    const files = new SpillFiles(folder, device);
    const streams = [above.outward, above.homeward, above.fromFiles.stream, files.outward.stream, files.homeward.stream];
    expect(new Set(streams.map((each) => each.device))).toEqual(new Set([device]));
    files.end();
  });

  test('has no name in the folder while it is in a file', async () => {
    if (process.platform === 'win32') skipTest('an open file may keep its name there');
    using _buffer = made(MiB, 1);
    resource.spill();
    await resource.spillToFiles();
    expect(readdirSync(folder)).toEqual([]);
  });

  test('lets a request in that waits for promised memory', async () => {
    const admitting = new AdmittingResourceAdaptor(pool, { limitBytes: most });
    using above = new SpillingResourceAdaptor(admitting, host, { folder });
    using one = made(2 * MiB, 1, { resource: above });
    above.spill();
    using two = made(2 * MiB, 2, { resource: above });
    using grant = await admitting.reserve(4 * MiB, { timeoutMilliseconds: 20_000 });
    expect(grant.bytes).toBe(4 * MiB);
    grant.dispose();
    expect(await holds(one, 1)).toBe(true);
    expect(await holds(two, 2)).toBe(true);
  });
});

describe('the way to a file', () => {
  test('does not block, also behind work that has not run', async () => {
    const hold = stream.hold();
    using buffer = made(MiB, 1);
    resource.spill();
    const going = resource.spillToFiles();
    await sleep(5);
    expect(stream.query()).toBe(false);
    hold.release();
    expect(await going).toBe(MiB);
    expect(await holds(buffer, 1)).toBe(true);
  });

  test('is given up if the buffer is pinned meanwhile', async () => {
    const hold = stream.hold();
    using buffer = made(2 * MiB, 1);
    resource.spill();
    const going = resource.spillToFiles();
    await sleep(20);
    using pin = buffer.pinSync();
    // Its memory on the host serves another one, in order.
    using other = made(2 * MiB, 2, { stream: new Stream({ nonBlocking: true }) });
    expect(resource.spill()).toBe(2 * MiB);
    hold.release();
    expect(await going).toBe(0);
    expect(Buffer.compare(await pin.toHost(), bytesOf(2 * MiB, 1))).toBe(0);
    expect(resource.statistics()).toMatchObject({ filed: 0, fileBytes: 0, deviceBytes: 2 * MiB });
    expect(await holds(other, 2)).toBe(true);
  });

  test('is given up if the buffer is disposed meanwhile, or the resource, and its memory for staging goes back', async () => {
    const before = pinned.reservedBytes;
    for (const ended of ['buffer', 'resource']) {
      const above = roomy();
      const hold = stream.hold();
      const buffer = made(large, 1, { resource: above });
      above.spill();
      const going = above.spillToFiles();
      await nextTurn();
      if (ended === 'buffer') buffer.dispose();
      else above.dispose();
      hold.release();
      expect(await going).toBe(0);
      buffer.dispose();
      if (ended === 'buffer') above.dispose();
      for (let turn = 0; turn < 20_000 && pinned.reservedBytes > before; turn++) await sleep(1);
      expect(pinned.reservedBytes).toBe(before);
    }
  });

  test('leaves the buffer on the host if no file can be made, and says why', async () => {
    using buffer = made(MiB, 1);
    resource.spill();
    rmSync(folder, { recursive: true });
    const error = await resource.spillToFiles().catch((reason: Error) => reason);
    expect(error).toEqual(fileError);
    expect(error).toMatchObject({ message: expect.stringContaining(folder), cause: expect.objectContaining({ code: 'ENOENT' }) });
    expect(resource.statistics()).toMatchObject({ hostBytes: MiB, fileBytes: 0, refusedByFile: 1 });
    expect(await holds(buffer, 1)).toBe(true);
    mkdirSync(folder);
  });

  test('leaves the buffer on the host if the disk is full, and whoever waits for memory is told', () => {
    if (process.platform === 'win32') skipTest('there is no limit for files');
    if (currentBackend() !== 'software') skipTest('other devices may have files that are larger');
    const program = `
      import * as c from ${JSON.stringify(wholePackage)};
      const stream = new c.Stream();
      const device = new c.PoolMemoryResource(new c.CudaMemoryResource(), { initialBytes: 4 * c.MiB, maximumBytes: 4 * c.MiB });
      const host = new c.PoolMemoryResource(new c.PinnedHostMemoryResource(), { initialBytes: 4 * c.MiB, maximumBytes: 4 * c.MiB });
      const resource = new c.SpillingResourceAdaptor(device, host, { folder: ${JSON.stringify(folder)} });
      const [one, two] = [1, 2].map((value) => new c.SpillableBuffer(new Uint8Array(4 * c.MiB).fill(value), { stream, resource }));
      const full = await resource.spillToFiles().catch((error) => error);
      console.log(full.code, full.cause.code, resource.statistics().hostBytes);
      const pinned = await one.pin().catch((error) => error);
      console.log(pinned.code, pinned.cause.code, pinned.message.includes('could not go on to files'));
      two.dispose();
      console.log((await (await one.pin()).toHost()).every((byte) => byte === 1));
      process.exit();
    `;
    const output = execFileSync('sh', ['-c', 'ulimit -f 4096; exec "$0" --input-type=module -e "$1"', process.execPath, program], {
      encoding: 'utf8',
    });
    expect(output).toBe('ERR_CISTERN_SPILL_FILE EFBIG 4194304\nERR_CISTERN_OUT_OF_MEMORY ERR_CISTERN_SPILL_FILE true\ntrue\n');
  });

  test('leaves no file behind in a worker that is ended at any moment', async () => {
    if (process.platform !== 'linux') skipTest('a file has a name for a moment there');
    const program = `
      const { parentPort } = require('node:worker_threads');
      import(${JSON.stringify(wholePackage)}).then(async (c) => {
        const stream = new c.Stream();
        const options = { folder: ${JSON.stringify(folder)} };
        const resource = new c.SpillingResourceAdaptor(new c.CudaMemoryResource(), new c.PinnedHostMemoryResource(), options);
        const buffers = [1, 2].map((value) => new c.SpillableBuffer(new Uint8Array(5 * c.MiB).fill(value), { stream, resource }));
        resource.spill();
        parentPort.postMessage('begins');
        for (;;) {
          await resource.spillToFiles();
          for (const buffer of buffers) (await buffer.pin()).dispose();
          resource.spill();
        }
      });
    `;
    for (let round = 0; round < 8; round++) {
      const worker = new Worker(program, { eval: true });
      await once(worker, 'message');
      await sleep(round);
      await worker.terminate();
    }
    expect(readdirSync(folder)).toEqual([]);
  });

  test('leaves the buffer on the host if the driver refuses', async () => {
    if (currentBackend() !== 'software') skipTest('only the software device fails on demand');
    using above = roomy();
    using buffer = made(large, 1, { resource: above });
    above.spill();
    const errors: unknown[] = [];
    for (const call of ['cuMemcpyAsync', 'cuEventRecord', 'cuStreamWaitEvent']) {
      for (const nth of [1, 2, 3]) {
        failCall(call, nth);
        const going = await above.spillToFiles().catch((error: unknown) => {
          errors.push(error);
          return 0;
        });
        failCall(call, 0);
        if (going === large) await buffer.pin().then((pin) => pin.dispose());
        above.spill();
        expect(above.statistics()).toMatchObject({ hostBytes: large, fileBytes: 0 });
      }
    }
    expect(errors.length).toBeGreaterThan(0);
    for (const error of errors) expect(error).toEqual(code('ERR_CISTERN_DRIVER'));
    expect(await holds(buffer, 1)).toBe(true);
  });
});

describe('a buffer in a file', () => {
  const inFile = async (value: number, bytes = MiB, above = resource) => {
    const buffer = made(bytes, value, { resource: above });
    above.spill();
    await above.spillToFiles();
    return buffer;
  };

  test('cannot be pinned at once, but prefetched', async () => {
    using buffer = await inFile(1);
    expect(caught(() => buffer.pinSync())).toMatchObject({
      code: 'ERR_CISTERN_INVALID_STATE',
      message: 'cannot pin a buffer at once: its contents are in a file; await pin, or prefetch before',
    });
    expect(() => buffer.pinSync({} as never)).toThrow(TypeError);
    expect(buffer.prefetch()).toBe(true);
    expect(buffer.prefetch()).toBe(true);
    expect(await holds(buffer, 1)).toBe(true);
    expect(resource.statistics().returns).toBe(1);
    buffer.pinSync().dispose();
  });

  test('comes back whole, piece after piece, however long the device takes for each', async () => {
    using above = roomy();
    using buffer = await inFile(1, large, above);
    const hold = above.fromFiles.stream.hold();
    const pinning = buffer.pin();
    // Time to read the second piece, if nothing waited for the first.
    await sleep(100);
    hold.release();
    using pin = await pinning;
    expect(Buffer.compare(await pin.toHost(), bytesOf(large, 1))).toBe(0);
  });

  test('comes back once for several pins, each of which is ordered after the copy', async () => {
    using other = new Stream({ nonBlocking: true });
    using buffer = await inFile(1);
    const pins = await Promise.all([buffer.pin(), buffer.pin(other), SpillableBuffer.pinAll([buffer], other).then(([pin]) => pin)]);
    for (const pin of pins) expect(Buffer.compare((await pin?.toHost()) as Uint8Array, bytesOf(MiB, 1))).toBe(0);
    expect(resource.statistics().returns).toBe(1);
    for (const pin of pins) pin?.dispose();
  });

  test('comes back after those before it, whatever has come meanwhile', async () => {
    using above = roomy();
    const buffers = await Promise.all([1, 2, 3].map((value) => inFile(value, MiB, above)));
    const [first, second, third] = buffers as [SpillableBuffer, SpillableBuffer, SpillableBuffer];
    const coming = first.pin();
    second.prefetch();
    (await coming).dispose();
    // The second is on its way, and has the staging memory, until its copy has run.
    const hold = above.fromFiles.stream.hold();
    third.prefetch();
    await sleep(20);
    hold.release();
    for (const [i, buffer] of buffers.entries()) {
      expect(await holds(buffer, i + 1)).toBe(true);
      buffer.dispose();
    }
  });

  test('comes back with others, all or none', async () => {
    using one = await inFile(1);
    using two = await inFile(2);
    const pins = await SpillableBuffer.pinAll([one, two]);
    expect(pins.map((pin) => pin.byteLength)).toEqual([MiB, MiB]);
    for (const pin of pins) pin.dispose();
    resource.spill();
    await resource.spillToFiles();
    const controller = new AbortController();
    const waiting = SpillableBuffer.pinAll([one, two], stream, { signal: controller.signal });
    await Promise.resolve();
    controller.abort(new Error('over'));
    await expect(waiting).rejects.toThrow('over');
    expect([one.isPinned, two.isPinned]).toEqual([false, false]);
    expect(await holds(one, 1)).toBe(true);
    expect(await holds(two, 2)).toBe(true);
  });

  test('is gone when it is disposed, also on its way back', async () => {
    const resting = await inFile(1);
    resting.dispose();
    expect(resource.statistics()).toMatchObject({ buffers: 0, fileBytes: 0 });
    const coming = await inFile(2);
    const pin = coming.pin();
    const refused = expect(pin).rejects.toEqual(disposedError);
    await nextTurn();
    coming.dispose();
    await refused;
    expect(resource.statistics()).toMatchObject({ buffers: 0, liveBytes: 0 });
  });

  test('is gone when it is disposed while it waits for another on its way back', async () => {
    using above = roomy();
    using first = await inFile(1, MiB, above);
    const second = await inFile(2, MiB, above);
    const hold = above.fromFiles.stream.hold();
    first.prefetch();
    const refused = expect(second.pin()).rejects.toEqual(disposedError);
    await nextTurn();
    second.dispose();
    for (let turn = 0; turn < 1000 && openFiles().length > 1; turn++) await nextTurn();
    hold.release();
    await refused;
    expect(await holds(first, 1)).toBe(true);
  });

  test('is gone when it is disposed while its last piece is copied', async () => {
    using above = roomy();
    const buffer = await inFile(1, MiB, above);
    const hold = above.fromFiles.stream.hold();
    const copies = callsOf('cuMemcpyAsync');
    const before = copies();
    const refused = expect(buffer.pin()).rejects.toEqual(disposedError);
    while (copies() === before) await nextTurn();
    buffer.dispose();
    hold.release();
    await refused;
    expect(above.statistics()).toMatchObject({ buffers: 0, liveBytes: 0 });
  });

  test('is not written to memory that its resource has taken back meanwhile', async () => {
    const below = new PoolMemoryResource(leaf);
    using above = new SpillingResourceAdaptor(below, pinned, { folder });
    using buffer = await inFile(1, MiB, above);
    const { reservedBytes } = leaf;
    buffer.prefetch();
    const refused = expect(buffer.pin()).rejects.toEqual(disposedError);
    below.dispose();
    const pointer = leaf.allocate(reservedBytes, stream);
    set(pointer, 7, 1, reservedBytes, stream);
    await refused;
    expect(valuesOf(pointer, reservedBytes, stream)).toEqual([7]);
    leaf.deallocate(pointer, reservedBytes, stream);
    expect(buffer.isOnDevice).toBe(false);
  });

  test('stays there if the driver refuses, or there is no memory', async () => {
    if (currentBackend() !== 'software') skipTest('only the software device fails on demand');
    using above = roomy();
    using buffer = await inFile(1, large, above);
    for (const call of ['cuMemAlloc', 'cuMemcpyAsync', 'cuStreamWaitEvent']) {
      for (const nth of [1, 2, 3]) {
        failCall(call, nth);
        const pin = await buffer.pin().catch((error: Error) => error);
        failCall(call, 0);
        if (!(pin instanceof Error)) pin.dispose();
        // They may have come back before the pin was refused.
        above.spill();
        await above.spillToFiles();
        expect(above.statistics()).toMatchObject({ fileBytes: large, liveBytes: 0 });
      }
    }
    expect(await holds(buffer, 1)).toBe(true);
  });

  test('stays there if it cannot be read, and the error says so', async () => {
    using buffer = await inFile(1);
    const wrong = new Error('EIO');
    using _read = vi.spyOn(UnnamedFile.prototype, 'read').mockRejectedValueOnce(wrong);
    const error = await buffer.pin().catch((reason: Error) => reason);
    expect(error).toEqual(fileError);
    expect(error).toMatchObject({ message: 'cannot read 1 MiB back from a file: EIO', cause: wrong });
    expect(resource.statistics()).toMatchObject({ fileBytes: MiB, pinnedBytes: 0, liveBytes: 0 });
    expect(await holds(buffer, 1)).toBe(true);
  });

  test('waits for memory on the device like others', async () => {
    using buffer = await inFile(1);
    const pointer = resource.allocate(most, stream);
    const waiting = buffer.pin(stream, { timeoutMilliseconds: 20_000 });
    await nextTurn();
    expect(resource.statistics().waiting).toBe(1);
    resource.deallocate(pointer, most, stream);
    using pin = await waiting;
    expect(Buffer.compare(await pin.toHost(), bytesOf(MiB, 1))).toBe(0);
    await expect(buffer.pin(stream, { signal: AbortSignal.abort(new Error('no')) })).rejects.toThrow('no');
  });

  test.each(['before', 'meanwhile'])('does not come back to a resource that is disposed %s', async (when) => {
    const above = roomy();
    using buffer = await inFile(1, MiB, above);
    if (when === 'before') above.dispose();
    const refused = expect(buffer.pin()).rejects.toEqual(disposedError);
    above.dispose();
    await refused;
    expect(above.statistics()).toMatchObject({ fileBytes: MiB, pinnedBytes: 0, liveBytes: 0 });
  });
});

describe('a SpillingResourceAdaptor', () => {
  test('leaves no stream behind', async () => {
    const before = liveStreams();
    const above = roomy();
    const buffer = made(MiB, 1, { resource: above });
    above.spill();
    await above.spillToFiles();
    expect(await holds(buffer, 1)).toBe(true);
    above.spill();
    expect(await holds(buffer, 1)).toBe(true);
    buffer.dispose();
    above.dispose();
    expect(liveStreams()).toBeLessThanOrEqual(before);
  });

  test('makes its folder, and refuses what can be none', () => {
    const inner = join(folder, 'a', 'b');
    new SpillingResourceAdaptor(pool, host, { folder: inner }).dispose();
    expect(existsSync(inner)).toBe(true);
    rmSync(join(folder, 'a'), { recursive: true });
    const file = join(folder, 'file');
    writeFileSync(file, '');
    expect(() => new SpillingResourceAdaptor(pool, host, { folder: join(file, 'x') })).toThrow(fileError);
    rmSync(file);
    expect(() => new SpillingResourceAdaptor(pool, host, { folder: '' })).toThrow();
    expect(() => new SpillingResourceAdaptor(pool, host, { folder: 7 as never })).toThrow(TypeError);
  });

  test.each([1, 2])('is not made without memory to stage files: lane %i', async (nth) => {
    if (currentBackend() !== 'software') skipTest('only the software device fails on demand');
    const warnings: Error[] = [];
    const note = (warning: Error) => warnings.push(warning);
    process.on('warning', note);
    const before = [pinned.reservedBytes, liveStreams()];
    failCall('cuMemHostAlloc', nth, 2);
    expect(caught(() => new SpillingResourceAdaptor(pool, host, { folder }))).toEqual(outOfMemory);
    failCall('cuMemHostAlloc', 0);
    for (let turn = 0; turn < 10; turn++) await nextTurn();
    process.off('warning', note);
    expect([warnings, pinned.reservedBytes, liveStreams()]).toEqual([[], ...before]);
  });

  test.each<[string, number, boolean]>([
    ['memory twice', 2, false],
    ['memory as often as it tries', 3, true],
    // That of both lanes, once each.
    ['the end of its streams', 2, false],
  ])('that is not made is freed later if the driver refuses %s, or says that it is not', async (what, refusals, stays) => {
    if (currentBackend() !== 'software') skipTest('only the software device fails on demand');
    const warnings: Error[] = [];
    const note = (warning: Error) => warnings.push(warning);
    process.on('warning', note);
    const before = [pinned.reservedBytes, liveStreams()] as const;
    using freed = vi.spyOn(PlainMemory.prototype, 'deallocate');
    using ended = vi.spyOn(Stream.prototype, 'dispose');
    const refused = what.startsWith('memory') ? freed : ended;
    for (let i = 0; i < refusals; i++) {
      refused.mockImplementationOnce(() => {
        throw new Error('not now');
      });
    }
    failCall('cuMemHostAlloc', 2, 2);
    expect(caught(() => new SpillingResourceAdaptor(pool, host, { folder }))).toEqual(outOfMemory);
    expect(refused).toHaveBeenCalledTimes(what.startsWith('memory') ? 1 : 2);
    for (let turn = 0; turn < 10; turn++) await nextTurn();
    process.off('warning', note);
    const warning = { code: 'CISTERN_SPILL_FILE', message: 'memory to stage files could not be freed: not now' };
    expect(warnings).toMatchObject(stays ? [expect.objectContaining(warning)] : []);
    expect([pinned.reservedBytes, liveStreams()]).toEqual(stays ? [before[0] + 4 * MiB, before[1] + 1] : before);
    if (!stays) return;
    const call = freed.mock.calls[0] as Parameters<PlainMemory['deallocate']>;
    (freed.mock.contexts[0] as PlainMemory).deallocate(...call);
    (call[2] as Stream).dispose();
  });

  test('without a folder moves nothing to files', async () => {
    using above = new SpillingResourceAdaptor(pool, host);
    await expect(above.spillToFiles()).rejects.toThrow(UnsupportedError);
    using one = made(2 * MiB, 1, { resource: above });
    above.spill();
    using two = made(2 * MiB, 2, { resource: above });
    expect(above.spill()).toBe(0);
    using _other = new DeviceBuffer(2 * MiB, { stream, resource: above });
    await expect(one.pin(stream, { timeoutMilliseconds: 50 })).rejects.toEqual(outOfMemory);
    expect(two.isOnDevice).toBe(true);
  });
});
