import { once } from 'node:events';
import { existsSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';
import { describe, expect, test } from 'vitest';
import { CudaMemoryResource, Device, DeviceBuffer, MiB, PoolMemoryResource, Stream } from '../../src/index.js';
import { LastingMemoryResource, type LastingMemoryResourceOptions, listRegions, removeRegion } from '../../src/lasting/index.js';
import { failCall } from '../../src/tools/testing/index.js';
import { detachBuffer } from '../../src/workers/index.js';
import { needSecondDevice, settledFreeBytes } from '../support/device-memory.js';
import { caught } from '../support/errors.js';
import { type Keep, newSocketPath, runKeep, startKeep } from '../support/keep.js';
import { isSoftwareDevice, isStrictDriver } from '../support/processes.js';
import { printed, runModule, wholePackage } from '../support/run-module.js';
import { skipTest } from '../support/skip-test.js';

const open = ({ socket }: Keep, options: Partial<LastingMemoryResourceOptions> = {}) =>
  new LastingMemoryResource({ region: 'weights', bytes: 4 * MiB, layout: 'a', socket, ...options });

/** A region that was written and committed, and is not used. */
function commitRegion(keep: Keep, value = 7, options: Partial<LastingMemoryResourceOptions> = {}): number {
  using resource = open(keep, options);
  using stream = new Stream();
  using buffer = new DeviceBuffer(1 * MiB, { resource, stream });
  using second = new DeviceBuffer(100, { resource, stream });
  buffer.fill(value);
  second.fill(value + 1);
  resource.commit();
  return buffer.ptr;
}

describe('a committed region', () => {
  test('has its contents in another process, at the same addresses, also after the process that wrote it has ended', async () => {
    const keep = await startKeep();
    const program = (body: string) =>
      runModule(
        `
        import * as cistern from '${wholePackage}';
        const { DeviceBuffer, LastingMemoryResource, MiB, Stream } = cistern;
        const weights = await LastingMemoryResource.open({ region: 'weights', bytes: 8 * MiB, layout: 'a', socket: '${keep.socket}' });
        const stream = new Stream();
        const first = new DeviceBuffer(3 * MiB, { resource: weights, stream });
        const second = new DeviceBuffer(1000, { resource: weights, stream });
        console.log(weights.isWriting);
        ${body}
        console.log(first.ptr, second.ptr);
        process.kill(process.pid, 'SIGKILL');
      `,
        {},
        60_000,
      );
    const writer = program(`first.fill(5); second.fill(6); weights.commit(); console.log(weights.isWriting);`);
    const reader = program(`console.log(new Set(first.toHostSync()), new Set(second.toHostSync()));`);
    expect(writer).toMatchObject({ signal: 'SIGKILL', stderr: '', stdout: expect.stringMatching(/^true\nfalse\n\d+ \d+\n$/) });
    const addresses = writer.stdout.split('\n')[2] as string;
    expect(reader).toMatchObject({ signal: 'SIGKILL', stderr: '', stdout: `false\nSet(1) { 5 } Set(1) { 6 }\n${addresses}\n` });
  });

  test('can be read by several at a time, and by a process that uses its addresses at others', async () => {
    const keep = await startKeep();
    commitRegion(keep);
    using stream = new Stream();
    using first = open(keep);
    using second = open(keep, { anyAddress: true });
    using a = new DeviceBuffer(1 * MiB, { resource: first, stream });
    using b = new DeviceBuffer(1 * MiB, { resource: second, stream });
    expect(new Set(b.toHostSync())).toEqual(new Set([7]));
    expect([first.address === second.address, a.ptr === first.address, b.ptr === second.address]).toEqual([false, true, true]);
    expect(caught(() => open(keep))).toMatchObject({ code: 'ERR_CISTERN_REGION_MISMATCH', message: expect.stringContaining('anyAddress') });
    expect(listRegions({ socket: keep.socket }).regions).toMatchObject([{ region: 'weights', processes: [process.pid, process.pid] }]);
  });

  test('cannot be written, by this process either', async () => {
    const keep = await startKeep();
    using stream = new Stream();
    using resource = open(keep);
    using buffer = new DeviceBuffer(1000, { resource, stream });
    buffer.fill(1);
    resource.commit();
    using other = new DeviceBuffer(1000, { resource: new CudaMemoryResource(), stream });
    for (const write of [() => buffer.fill(2), () => buffer.copyFrom(new Uint8Array(1000)), () => buffer.copyFrom(other)]) {
      expect(caught(write)).toMatchObject({ code: 'ERR_CISTERN_READ_ONLY' });
    }
    other.copyFrom(buffer);
    expect(new Set(other.toHostSync())).toEqual(new Set([1]));
    expect(caught(() => resource.commit())).toMatchObject({ code: 'ERR_CISTERN_INVALID_STATE' });
  });

  test('is not written by a graph that was captured before, nor by another worker', async () => {
    // On a GPU, such a launch ends the context.
    if (!isSoftwareDevice) skipTest('only the software device goes on after such a launch');
    const keep = await startKeep();
    using stream = new Stream({ nonBlocking: true });
    using resource = open(keep);
    using buffer = new DeviceBuffer(1000, { resource, stream });
    const given = new DeviceBuffer(1000, { resource, stream });
    for (const each of [buffer, given]) each.fill(1);
    using graph = stream.capture(() => buffer.fill(2));
    using exec = graph.instantiate();
    resource.commit();
    expect(caught(() => exec.launch(stream))).toMatchObject({ driverName: 'CUDA_ERROR_ILLEGAL_ADDRESS' });
    expect(new Set(buffer.toHostSync())).toEqual(new Set([1]));
    const worker = new Worker(
      `const { parentPort, workerData } = require('node:worker_threads');
      import('${wholePackage}').then(({ attachBuffer, Stream }) => {
        const buffer = attachBuffer(workerData, { stream: new Stream() });
        let refusal = 'none';
        try { buffer.fill(3); } catch (error) { refusal = error.code; }
        parentPort.postMessage([refusal, ...new Set(buffer.toHostSync())]);
        buffer.dispose();
      });`,
      { eval: true, execArgv: [], workerData: detachBuffer(given) },
    );
    const [said] = await once(worker, 'message');
    expect(said).toEqual(['ERR_CISTERN_DRIVER', 1]);
    await worker.terminate();
  });

  test('can be read by the streams of another device that has access, and stays read-only', async () => {
    needSecondDevice();
    const keep = await startKeep();
    commitRegion(keep);
    using resource = open(keep);
    using stream = new Stream({ device: Device.get(1) });
    const access = () =>
      readFileSync('/proc/self/maps', 'utf8')
        .split('\n')
        .find((line) => line.startsWith(resource.address.toString(16)))
        ?.split(' ')[1];
    const before = access();
    Device.get(1).enablePeerAccess(Device.get(0));
    try {
      using own = new Stream();
      using buffer = new DeviceBuffer(1 * MiB, { resource, stream: own });
      using copied = new DeviceBuffer(1 * MiB, { resource: new CudaMemoryResource({ device: Device.get(1) }), stream });
      copied.copyFrom(buffer);
      expect(new Set(copied.toHostSync())).toEqual(new Set([7]));
      expect(access()).toBe(before);
      if (isSoftwareDevice) expect(before).toBe('r--s');
    } finally {
      Device.get(1).disablePeerAccess(Device.get(0));
    }
  });

  test('refuses allocations that the process which wrote it did not make', async () => {
    const keep = await startKeep();
    commitRegion(keep);
    using stream = new Stream();
    using resource = open(keep);
    const codes = [2 * MiB, 1 * MiB, 101, 100, 1].map((bytes) => {
      try {
        resource.allocate(bytes, stream);
        return 'allocated';
      } catch (error) {
        return (error as { code: string }).code;
      }
    });
    const mismatch = 'ERR_CISTERN_REGION_MISMATCH';
    expect(codes).toEqual([mismatch, 'allocated', mismatch, 'allocated', mismatch]);
    resource.deallocate(resource.address, 1 * MiB, stream);
    resource.deallocate(resource.address + 1 * MiB, 100, stream);
  });

  test('with another layout or size is refused', async () => {
    const keep = await startKeep();
    commitRegion(keep);
    for (const options of [{ layout: 'b' }, { bytes: 6 * MiB }]) {
      expect(caught(() => open(keep, options))).toMatchObject({ code: 'ERR_CISTERN_REGION_MISMATCH' });
    }
    expect(removeRegion('weights', { socket: keep.socket })).toBe(4 * MiB);
    using changed = open(keep, { layout: 'b' });
    expect(changed.isWriting).toBe(true);
  });
});

describe('a region that is written', () => {
  test('belongs to its process alone; others wait for its commit', async () => {
    const keep = await startKeep();
    const writer = open(keep);
    expect(caught(() => open(keep))).toMatchObject({
      code: 'ERR_CISTERN_REGION_IN_USE',
      message: `cannot open the region 'weights': process ${process.pid} writes it`,
    });
    const options = { region: 'weights', bytes: 4 * MiB, layout: 'a', socket: keep.socket, anyAddress: true };
    await expect(LastingMemoryResource.open({ ...options, timeoutMilliseconds: 20 })).rejects.toMatchObject({
      code: 'ERR_CISTERN_REGION_IN_USE',
    });
    await expect(LastingMemoryResource.open({ ...options, signal: AbortSignal.timeout(20) })).rejects.toMatchObject({
      name: /Timeout|Abort/,
    });
    const waiting = LastingMemoryResource.open(options);
    await sleep(20);
    writer.commit();
    const reader = await waiting;
    expect(reader.isWriting).toBe(false);
    reader.dispose();
    writer.dispose();
  });

  test('is empty again once its process gives up, and its memory is free', async () => {
    const keep = await startKeep();
    const before = settledFreeBytes();
    const first = open(keep);
    using stream = new Stream();
    const pointer = first.allocate(1000, stream);
    first.dispose();
    expect(caught(() => open(keep))).toMatchObject({ code: 'ERR_CISTERN_REGION_IN_USE' });
    first.deallocate(pointer, 1000, stream);
    expect([first.reservedBytes, settledFreeBytes()]).toEqual([0, before]);
    using second = open(keep);
    expect(second.isWriting).toBe(true);
  });

  test('places allocations one after the other, and says when it is full or when something is freed that is not live', async () => {
    const keep = await startKeep();
    using stream = new Stream();
    using resource = open(keep);
    const [first, second] = [resource.allocate(100, stream), resource.allocate(3 * MiB, stream, 64)];
    expect([first - resource.address, second - first, resource.allocate(0, stream)]).toEqual([0, 256, 0]);
    expect(caught(() => resource.allocate(1 * MiB, stream))).toMatchObject({
      code: 'ERR_CISTERN_OUT_OF_MEMORY',
      limitBytes: 4 * MiB,
      availableBytes: 1 * MiB - 256,
    });
    for (const [address, bytes, code] of [
      [first, 101, 'ERR_CISTERN_WRONG_SIZE'],
      [first + 1, 100, 'ERR_CISTERN_FOREIGN_POINTER'],
      [resource.address + 4 * MiB, 100, 'ERR_CISTERN_FOREIGN_POINTER'],
    ] as const) {
      expect(caught(() => resource.deallocate(address, bytes, stream))).toMatchObject({ code });
    }
    resource.deallocate(first, 100, stream);
    expect(caught(() => resource.deallocate(first, 100, stream))).toMatchObject({ code: 'ERR_CISTERN_DOUBLE_FREE' });
    resource.deallocate(second, 3 * MiB, stream);
  });

  test('takes what pools on the device keep free, if the device has no more', async () => {
    if (!isSoftwareDevice && !isStrictDriver) skipTest('it fills the device');
    const keep = await startKeep();
    const room = Math.floor(Device.get().memoryInfo().freeBytes / MiB / 4) * 4 * MiB;
    using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: room - 8 * MiB });
    using resource = open(keep, { bytes: room - 16 * MiB });
    expect([resource.isWriting, pool.reservedBytes]).toEqual([true, 0]);
  });

  test('is not committed before the queued work has run', async () => {
    const keep = await startKeep();
    using stream = new Stream();
    using resource = open(keep);
    using buffer = new DeviceBuffer(1000, { resource, stream });
    const hold = stream.hold();
    buffer.fill(3);
    expect(caught(() => resource.commit())).toMatchObject({
      code: 'ERR_CISTERN_INVALID_STATE',
      message: expect.stringContaining('stalls'),
    });
    expect([resource.isWriting, listRegions({ socket: keep.socket }).regions[0]?.state]).toEqual([true, 'writing']);
    hold.release();
    resource.commit();
    expect(new Set(buffer.toHostSync())).toEqual(new Set([3]));
  });
});

test('if the driver refuses any call, nothing stays: no memory, no addresses, no lock; and the next process can go on', async () => {
  const keep = await startKeep();
  const before = settledFreeBytes();
  const mappings = () =>
    readFileSync('/proc/self/maps', 'utf8')
      .split('\n')
      .filter((line) => /memfd:(cistern|strict-driver)-memory/.test(line)).length;
  const mappedBefore = mappings();
  const opening = ['cuMemAddressReserve', 'cuMemCreate', 'cuMemExportToShareableHandle', 'cuMemMap', 'cuMemSetAccess', 'cuMemRelease'];
  const refused = (name: string, action: () => unknown) => {
    failCall(name, 1, 999);
    try {
      action();
      return `${name} worked`;
    } catch (error) {
      return `${name} ${(error as { code: string }).code}`;
    } finally {
      failCall(name, 0);
    }
  };
  for (const name of opening) {
    // A reservation elsewhere is tried, and a handle that is not released is released later.
    const isTriedAgain = name === 'cuMemAddressReserve' || name === 'cuMemRelease';
    expect(refused(name, () => open(keep).dispose())).toBe(`${name} ${isTriedAgain ? 'worked' : 'ERR_CISTERN_DRIVER'}`);
    await expect.poll(() => listRegions({ socket: keep.socket }).regions).toEqual([]);
  }
  using stream = new Stream();
  {
    using resource = open(keep);
    expect(refused('cuMemSetAccess', () => resource.commit())).toBe('cuMemSetAccess ERR_CISTERN_DRIVER');
    expect([resource.isWriting, listRegions({ socket: keep.socket }).regions[0]?.state]).toEqual([true, 'writing']);
    resource.commit();
  }
  for (const name of ['cuMemAddressReserve', 'cuMemImportFromShareableHandle', 'cuMemMap', 'cuMemSetAccess']) {
    const code = name === 'cuMemAddressReserve' ? 'ERR_CISTERN_REGION_MISMATCH' : 'ERR_CISTERN_DRIVER';
    expect(refused(name, () => open(keep))).toBe(`${name} ${code}`);
    await expect.poll(() => listRegions({ socket: keep.socket }).regions).toMatchObject([{ state: 'committed', processes: [] }]);
  }
  {
    using resource = open(keep);
    resource.deallocate(0, 0, stream);
    failCall('cuMemUnmap', 1, 999);
  }
  using again = open(keep, { region: 'another' });
  again.dispose();
  expect([settledFreeBytes(), mappings()]).toEqual([before, mappedBefore]);
});

test('a worker that ends leaves its region: empty if it was writing, committed otherwise, and no memory', async () => {
  const keep = await startKeep();
  const before = settledFreeBytes();
  for (const [commit, state] of [
    ['', undefined],
    ['resource.commit();', 'committed'],
  ] as const) {
    const worker = new Worker(
      `import('${wholePackage}').then(({ LastingMemoryResource, DeviceBuffer, Stream }) => {
        const resource = new LastingMemoryResource({ region: 'weights', bytes: 4 * 2 ** 20, layout: 'a', socket: ${JSON.stringify(keep.socket)} });
        new DeviceBuffer(1000, { resource, stream: new Stream() }).fill(1);
        ${commit}
        process.exit();
      });`,
      { eval: true, env: process.env },
    );
    await once(worker, 'exit');
    await expect
      .poll(() => listRegions({ socket: keep.socket }).regions.map((each) => [each.state, each.processes.length]))
      .toEqual(state === undefined ? [] : [[state, 0]]);
  }
  await expect.poll(settledFreeBytes).toBe(before);
  expect(keep.descriptors().filter((each) => each.includes('memfd')).length).toBeLessThanOrEqual(1);
});

describe('cistern keep', () => {
  test('has a limit, which it names, and lists and removes regions', async () => {
    const keep = await startKeep({ limit: '10MiB' });
    commitRegion(keep);
    using second = open(keep, { region: 'caches' });
    expect(caught(() => open(keep, { region: 'more' }))).toMatchObject({
      code: 'ERR_CISTERN_OUT_OF_MEMORY',
      message: "cannot open the region 'more': 4 MiB were asked for, and of the limit of 10 MiB, 2 MiB are left",
    });
    const listed = runKeep('--socket', keep.socket, '--list');
    expect(listed.stdout).toMatch(
      /^region +state +size +layout +processes\nweights +committed +4 MiB +a +none\ncaches +writing +4 MiB +a +\d+\n8 MiB of 10 MiB\n$/,
    );
    expect(JSON.parse(runKeep('--socket', keep.socket, '--list', '--json').stdout)).toMatchObject({
      limitBytes: 10 * MiB,
      regions: [{}, {}],
    });
    expect(runKeep('--socket', keep.socket, '--remove', 'caches')).toMatchObject({
      status: 1,
      stderr: expect.stringContaining('written by process'),
    });
    expect(runKeep('--socket', keep.socket, '--remove', 'weights')).toMatchObject({ status: 0, stdout: '4 MiB are free again\n' });
    expect(runKeep('--socket', keep.socket, '--remove', 'weights')).toMatchObject({ status: 0, stdout: 'there is no such region\n' });
    second.dispose();
    expect(keep.descriptors().filter((each) => each.includes('memfd'))).toEqual([]);
  });

  test('lets only its own user connect, one at a time listens, and a killed one leaves nothing that keeps the next from it', async () => {
    const first = await startKeep();
    expect([statSync(first.socket).mode & 0o777, statSync(`${first.socket}.lock`).mode & 0o777]).toEqual([0o600, 0o600]);
    expect(runKeep('--socket', first.socket)).toMatchObject({ status: 1, stderr: expect.stringContaining('another one listens there') });
    commitRegion(first);
    await first.kill();
    expect(caught(() => open(first))).toMatchObject({
      code: 'ERR_CISTERN_KEEP_UNAVAILABLE',
      message: expect.stringContaining('has ended'),
    });
    const second = await startKeep({ socket: first.socket });
    expect(listRegions({ socket: second.socket }).regions).toEqual([]);
  });

  test('does not remove what is no socket', () => {
    if (process.platform !== 'linux') skipTest('Linux only');
    const folder = mkdtempSync(join(tmpdir(), 'cistern-keep-'));
    const path = join(folder, 'important');
    writeFileSync(path, 'text');
    expect(runKeep('--socket', path)).toMatchObject({ status: 1, stderr: expect.stringContaining('EADDRINUSE') });
    expect(existsSync(path)).toBe(true);
    rmSync(folder, { recursive: true });
  });

  test('that ends takes nothing from those who use a region, and refuses a commit that comes too late', async () => {
    const keep = await startKeep();
    commitRegion(keep);
    using stream = new Stream();
    using reader = open(keep);
    using buffer = new DeviceBuffer(1 * MiB, { resource: reader, stream });
    using writer = open(keep, { region: 'late' });
    await keep.kill();
    expect(new Set(buffer.toHostSync())).toEqual(new Set([7]));
    expect(caught(() => writer.commit())).toMatchObject({ code: 'ERR_CISTERN_KEEP_UNAVAILABLE' });
  });

  test('that is killed takes unused regions along; what is read stays with its readers, and the next one begins with none', async () => {
    const keep = await startKeep();
    commitRegion(keep, 7, { region: 'unused' });
    commitRegion(keep);
    using stream = new Stream();
    using reader = open(keep);
    using buffer = new DeviceBuffer(1 * MiB, { resource: reader, stream });
    const freeBytes = await settledFreeBytes();
    await keep.kill();
    expect(caught(() => open(keep))).toMatchObject({ code: 'ERR_CISTERN_KEEP_UNAVAILABLE' });
    const next = await startKeep({ socket: keep.socket });
    expect(listRegions({ socket: next.socket })).toMatchObject({ regions: [] });
    // The device has both for a while, the old one and the one that is written now.
    {
      using writer = open(next);
      expect([writer.isWriting, writer.address === reader.address]).toEqual([true, false]);
      using written = new DeviceBuffer(1 * MiB, { resource: writer, stream });
      written.fill(9);
      expect(await settledFreeBytes()).toBeLessThanOrEqual(freeBytes - 4 * MiB);
      writer.commit();
      expect(new Set(buffer.toHostSync())).toEqual(new Set([7]));
      expect(new Set(written.toHostSync())).toEqual(new Set([9]));
    }
    expect(listRegions({ socket: next.socket }).regions.map(({ region, state, processes }) => [region, state, processes])).toEqual([
      ['weights', 'committed', []],
    ]);
  });

  test('that is stopped makes nobody wait for ever', async () => {
    const keep = await startKeep();
    keep.process.kill('SIGSTOP');
    expect(caught(() => open(keep))).toMatchObject({
      code: 'ERR_CISTERN_KEEP_UNAVAILABLE',
      message: expect.stringContaining('does not answer'),
    });
    await keep.kill();
  });

  test('that is not there is an error with advice', () => {
    if (process.platform !== 'linux') skipTest('Linux only');
    const socket = newSocketPath();
    expect(caught(() => listRegions({ socket }))).toMatchObject({
      code: 'ERR_CISTERN_KEEP_UNAVAILABLE',
      message: `cannot use cistern keep at ${socket}: none runs there; start one with "cistern keep"`,
    });
    expect(runKeep('--socket', socket, '--list')).toMatchObject({ status: 1 });
  });
});

test('of 64 that open a region at once in 8 processes, one writes it, and all read the same', async () => {
  const keep = await startKeep();
  const end = runModule(
    `
    import { spawn } from 'node:child_process';
    import { once } from 'node:events';
    const at = process.execArgv.indexOf('--import');
    const preload = at < 0 ? [] : process.execArgv.slice(at, at + 2);
    const program = \`
      import { DeviceBuffer, LastingMemoryResource, MiB, Stream } from '${wholePackage}';
      await Promise.all(Array.from({ length: 8 }, async () => {
        const options = { region: 'weights', bytes: 4 * MiB, layout: 'a', socket: '${keep.socket}', anyAddress: true };
        const weights = await LastingMemoryResource.open(options);
        const buffer = new DeviceBuffer(1 * MiB, { resource: weights, stream: new Stream() });
        const isWriting = weights.isWriting;
        if (isWriting) { buffer.fill(9); weights.commit(); }
        console.log(isWriting ? 'wrote' : 'read', new Set(buffer.toHostSync()).size, buffer.toHostSync()[0]);
      }));
    \`;
    let printed = '';
    await Promise.all(Array.from({ length: 8 }, () => {
      const child = spawn(process.execPath, [...preload, '--input-type=module', '--eval', program], { stdio: ['ignore', 'pipe', 'inherit'] });
      child.stdout.on('data', (text) => { printed += text; });
      return once(child, 'close');
    }));
    console.log(printed.trim().split('\\n').sort().map((line, index, all) => line + ' ' + all.filter((each) => each === line).length)
      .filter((line, index, all) => all.indexOf(line) === index).join('\\n'));
  `,
    { CISTERN_SOFTWARE_MEMORY: '64MiB' },
  );
  expect(end).toEqual(printed('read 1 9 63', 'wrote 1 9 1'));
  await expect.poll(() => listRegions({ socket: keep.socket }).regions[0]?.processes).toEqual([]);
});

test('options that cannot be right are refused, and open nothing', async () => {
  const keep = await startKeep();
  for (const [options, message] of [
    [{ region: '' }, /^region must be 1 to 64 letters/],
    [{ region: '/a' }, /^region must be/],
    [{ layout: 'a b' }, /^layout must be 1 to 128 printable/],
    [{ bytes: 0 }, /^bytes must be at least 1, got 0$/],
    [{ bytes: -1 }, /^bytes must be/],
    [{ anyAddress: 1 }, /^anyAddress must be a boolean/],
    [{ socket: '' }, /^socket must be a non-empty string/],
  ] as const) {
    expect(caught(() => open(keep, options as object))).toMatchObject({ message: expect.stringMatching(message) });
  }
  expect(listRegions({ socket: keep.socket }).regions).toEqual([]);
  expect(caught(() => removeRegion('/', { socket: keep.socket }))).toMatchObject({ code: 'ERR_INVALID_ARG_VALUE' });
});
