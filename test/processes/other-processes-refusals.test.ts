import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { DeviceBuffer } from '../../src/buffers/device-buffer.js';
import { Stream } from '../../src/driver/streams/stream.js';
import { exportBuffer } from '../../src/processes/index.js';
import { isStrictDriver, needExportablePools, runProcesses } from '../support/processes.js';
import { printed } from '../support/run-module.js';
import { skipTest } from '../support/skip-test.js';

const seal = `
  /** A copy of a handle that an action has changed, with the checksum that fits. */
  const forged = (handle, change) => {
    const copy = Buffer.from(handle);
    change(copy);
    let sum = 0xcbf29ce484222325n;
    for (let i = 0; i < 48; i++) sum = BigInt.asUintN(64, (sum ^ BigInt(copy[i])) * 0x100000001b3n);
    copy.writeBigUInt64LE(sum, 48);
    return copy;
  };
`;

test('a forged handle with a valid checksum opens nothing, and least of all a record that is closed', () => {
  const end = runProcesses(`
    const child = start(\`
      ${seal}
      const stream = new Stream();
      const handle = await received();
      const tryAll = (changes) => [...new Set(changes.map((change) => codeOf(() => openBuffer(forged(handle, change), { stream }))))];
      const processes = [0, -1, 2 ** 31 - 1].map((value) => (copy) => copy.writeInt32LE(value, 12));
      const files = [-1, 0, 1, 2, 2 ** 31 - 1].map((value) => (copy) => copy.writeInt32LE(value, 16));
      const records = [2, 65_535, 65_536, 2 ** 32 - 1].map((value) => (copy) => copy.writeUInt32LE(value, 20));
      const nonces = [24, 31, 32, 47].map((at) => (copy) => { copy[at] ^= 1; });
      await post(tryAll(processes).join());
      await post(tryAll(files).join());
      await post(tryAll(records).join());
      await post(tryAll(nonces).join());
      await post(tryAll([0, 1].map((number) => (copy) => { copy.writeUInt32LE(number, 20); copy.writeBigUInt64LE(0n, 24); })).join());
      await post(valuesOf(openBuffer(forged(handle, () => {}), { stream })));
      process.disconnect();
    \`);
    const stream = new Stream();
    const resource = new CudaMemoryResource();
    const [disposed, buffer] = [new DeviceBuffer(4096, { resource, stream }), new DeviceBuffer(4096, { resource, stream })];
    buffer.fill(8);
    exportBuffer(disposed);
    const handle = exportBuffer(buffer);
    disposed.dispose();
    child.post(handle);
    for (let i = 0; i < 6; i++) show(await child.received());
    await child.ended;
  `);
  const [foreign, stale] = ['ERR_CISTERN_FOREIGN_HANDLE', 'ERR_CISTERN_STALE_HANDLE'];
  expect(end).toEqual(printed(stale, stale, foreign, stale, foreign, '8'));
});

test('the wait for the exporter is not cut short by memory of an exportable pool', () => {
  needExportablePools();
  const end = runProcesses(`
    const child = start(\`
      const stream = new Stream({ nonBlocking: true });
      const buffer = openBuffer(await received(), { stream });
      const contents = buffer.toHost();
      await post(await Promise.race([contents.then(() => 'read too early'), sleep(100).then(() => 'waits')]));
      await post([...new Set(await contents)].join());
      buffer.dispose();
      process.disconnect();
    \`);
    const stream = new Stream({ nonBlocking: true });
    const buffer = new DeviceBuffer(4096, { resource: new CudaAsyncMemoryResource({ exportable: true }), stream });
    buffer.fill(1);
    stream.synchronizeSync();
    const hold = stream.hold();
    buffer.fill(2);
    child.post(exportBuffer(buffer));
    show(await child.received());
    hold.release();
    show(await child.received());
    await child.ended;
  `);
  expect(end).toEqual(printed('waits', '2'));
});

test('a stream that waits for another process blocks nothing else in the process', () => {
  const end = runProcesses(`
    const child = start(\`
      const [a, b] = [new Stream({ nonBlocking: true }), new Stream({ nonBlocking: true })];
      const [first, second] = await received();
      const idle = openBuffer(first, { stream: a });
      const late = openBuffer(second, { stream: b });
      idle.dispose();
      new DeviceBuffer(4096, { resource: new CudaMemoryResource(), stream: a }).dispose();
      await post('disposed');
      await post(valuesOf(late));
      late.dispose();
      await until(() => filesOf() === 0);
      await post([filesOf(), mappingsOf()].join());
      process.disconnect();
    \`);
    const [a, b] = [new Stream({ nonBlocking: true }), new Stream({ nonBlocking: true })];
    const resource = new CudaMemoryResource();
    const [idle, late] = [new DeviceBuffer(4096, { resource, stream: a }), new DeviceBuffer(4096, { resource, stream: b })];
    const hold = b.hold();
    late.fill(7);
    child.post([exportBuffer(idle), exportBuffer(late)]);
    const answer = child.received();
    show(await Promise.race([answer, sleep(2000, 'blocked', { ref: false })]));
    hold.release();
    await answer;
    show(await child.received());
    show(await child.received());
    await child.ended;
  `);
  expect(end).toEqual(printed('disposed', '7', '0,0'));
});

test('a hold of the importer keeps only memory that must be unmapped', () => {
  needExportablePools();
  const end = runProcesses(`
    const child = start(\`
      const [stream, other] = [new Stream({ nonBlocking: true }), new Stream({ nonBlocking: true })];
      const buffers = (await received()).map((handle) => openBuffer(handle, { stream }));
      const hold = other.hold();
      for (const index of [0, 1]) buffers[index].dispose();
      await post('disposed');
      await received();
      buffers[2].dispose();
      hold.release();
      await post('released');
      await received();
      process.disconnect();
    \`);
    const stream = new Stream({ nonBlocking: true });
    const pool = new PoolMemoryResource(new CudaAsyncMemoryResource({ exportable: true }), { initialBytes: 64 * KiB });
    const buffers = [0, 4096, 4096].map((byteLength) => new DeviceBuffer(byteLength, { resource: pool, stream }));
    child.post(buffers.map((buffer) => exportBuffer(buffer)));
    await child.received();
    const all = Promise.all([buffers[0], buffers[1]].map((buffer) => importersDone(buffer)));
    show(await Promise.race([all.then(() => 'done'), sleep(1000, 'kept', { ref: false })]));
    child.post('release');
    await child.received();
    await importersDone(buffers[2]);
    child.post('end');
    await child.ended;
  `);
  expect(end).toEqual(printed('done'));
});

const useAllDescriptors = `
  import { execFileSync } from 'node:child_process';
  import { closeSync, openSync } from 'node:fs';
  const descriptors = [];
  const useAllDescriptors = () => {
    execFileSync('prlimit', ['--nofile=128', '--pid', String(process.pid)]);
    try { for (;;) descriptors.push(openSync('/dev/null')); } catch {}
  };
`;

test('a process without descriptors is told so at an open and at an export, and can go on', () => {
  if (spawnSync('prlimit', ['--version']).error !== undefined) skipTest('prlimit is not installed');
  const end = runProcesses(`
    ${useAllDescriptors}
    const child = start(\`
      ${useAllDescriptors}
      const stream = new Stream();
      const handle = await received();
      const codes = [];
      useAllDescriptors();
      for (let free = 0; free < 4; free++) {
        codes.push(codeOf(() => openBuffer(handle, { stream }).dispose()));
        closeSync(descriptors.pop());
      }
      for (const descriptor of descriptors) closeSync(descriptor);
      await post([...new Set(codes)].join());
      await post(valuesOf(openBuffer(handle, { stream })));
      process.disconnect();
    \`);
    const stream = new Stream();
    const buffer = new DeviceBuffer(4096, { resource: new CudaMemoryResource(), stream });
    buffer.fill(5);
    useAllDescriptors();
    show(codeOf(() => exportBuffer(buffer)));
    for (const descriptor of descriptors) closeSync(descriptor);
    child.post(exportBuffer(buffer));
    show(await child.received());
    show(await child.received());
    await child.ended;
  `);
  expect(end).toEqual(printed('ERR_CISTERN_DRIVER', 'ERR_CISTERN_DRIVER,nothing', '5'));
});

test('the strict driver reports memory that is freed while another process has it open', () => {
  if (!isStrictDriver) skipTest('it is another driver');
  const folder = mkdtempSync(join(tmpdir(), 'cistern-strict-'));
  const log = join(folder, 'log');
  const end = runProcesses(
    `
    const child = start(\`
      const buffer = openBuffer(await received(), { stream: new Stream() });
      await post('open');
      await received();
      process.disconnect();
    \`);
    const resource = new CudaMemoryResource();
    const buffer = new DeviceBuffer(4096, { resource, stream: new Stream() });
    child.post(exportBuffer(buffer));
    await child.received();
    resource.deallocate(buffer.ptr, 4096, buffer.stream);
    child.post('end');
    await child.ended;
  `,
    { STRICT_DRIVER_LOG: log },
  );
  const faults = readFileSync(log, 'utf8').match(/MISUSE .*/g);
  rmSync(folder, { recursive: true });
  expect(end).toEqual(printed());
  expect(faults).toEqual([expect.stringMatching(/^MISUSE the memory 0x[0-9a-f]+ is freed while another process has it open$/)]);
});

test('where processes cannot share memory, an export is refused', () => {
  if (process.platform === 'linux') skipTest('on Linux they can');
  const stream = new Stream();
  const buffer = new DeviceBuffer(256, { stream });
  expect(() => exportBuffer(buffer)).toThrow(
    `cannot export a buffer: processes share memory on Linux only, and this is ${process.platform}`,
  );
  buffer.fill(1);
  expect(buffer.toHostSync()).toEqual(new Uint8Array(256).fill(1));
  buffer.dispose();
  stream.dispose();
});
