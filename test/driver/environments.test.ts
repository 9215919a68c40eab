import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { deviceMemory, needMemoryPools } from '../support/device-memory.js';
import { runModule, wholePackage } from '../support/run-module.js';
import { skipTest } from '../support/skip-test.js';

const software = { CISTERN_DEVICE: 'software' };
const device = deviceMemory(256);

describe('an environment', () => {
  test('that exits with live memory, a held stream and a pending promise ends with its own code', () => {
    needMemoryPools();
    const end = runModule(
      `
      import { CudaAsyncMemoryResource, CudaMemoryResource, Event, Stream, set } from 'cistern';
      const stream = new Stream();
      const resource = new CudaAsyncMemoryResource();
      const plain = new CudaMemoryResource();
      plain.allocate(1 << 20, stream);
      const pointer = resource.allocate(1 << 20, stream);
      new Event().record(stream);
      stream.hold();
      set(pointer, 1, 1, 1 << 20, stream);
      stream.launchHostFunction(() => console.log('never'));
      stream.synchronize().then(() => console.log('never'));
      setTimeout(() => process.exit(7), 20);
    `,
      device,
    );
    expect(end).toEqual({ status: 7, signal: null, stdout: '', stderr: '' });
  });

  test('that has nothing left to do ends, although it has streams and memory', () => {
    needMemoryPools();
    const end = runModule(
      `
      import { CudaAsyncMemoryResource, Stream, set } from 'cistern';
      const stream = new Stream();
      const resource = new CudaAsyncMemoryResource();
      set(resource.allocate(1 << 20, stream), 1, 1, 1 << 20, stream);
    `,
      device,
    );
    expect(end).toEqual({ status: 0, signal: null, stdout: '', stderr: '' });
  });

  test('never reuses staging memory for a second copy after the first one failed', () => {
    const end = runModule(
      `
      import { copyToHost, CudaMemoryResource, Stream } from 'cistern';
      import { failCall } from 'cistern/testing';
      const stream = new Stream({ nonBlocking: true });
      const pointer = new CudaMemoryResource().allocate(4096, stream);
      const print = (result) => console.log(result instanceof ArrayBuffer ? 'copied' : result.code);
      print(await copyToHost(pointer, 4096, stream));
      failCall('cuEventQuery', 1, 719);
      print(await copyToHost(pointer, 4096, stream).catch((error) => error));
      failCall('cuMemHostAlloc', 1, 2);
      print(await copyToHost(pointer, 4096, stream).catch((error) => error));
      print(await copyToHost(pointer, 4096, stream));
    `,
      device,
    );
    expect(end).toEqual({ status: 0, signal: null, stdout: 'copied\nERR_CISTERN_DRIVER\nERR_CISTERN_DRIVER\ncopied\n', stderr: '' });
  });

  test('rejects promises that wait for a device whose context cannot be used', () => {
    const end = runModule(
      `
      import { Stream } from 'cistern';
      import { failCall } from 'cistern/testing';
      const stream = new Stream();
      const hold = stream.hold();
      failCall('cuCtxSetCurrent', 1, 201);
      console.log(await stream.synchronize().catch((error) => error.driverName));
      hold.release();
      await stream.synchronize();
    `,
      device,
    );
    expect(end).toEqual({ status: 0, signal: null, stdout: 'CUDA_ERROR_INVALID_CONTEXT\n', stderr: '' });
  });

  test('waits for pending promises and host functions', () => {
    const end = runModule(
      `
      import { Stream } from 'cistern';
      const stream = new Stream();
      stream.launchHostFunction(() => console.log('function'));
      stream.synchronize().then(() => console.log('promise'));
    `,
      device,
    );
    expect(end).toMatchObject({ status: 0, stdout: 'function\npromise\n' });
  });

  test('reports an error from a host function as an uncaught exception', () => {
    const end = runModule(
      `
      import { Stream } from 'cistern';
      process.on('uncaughtException', (error) => console.log('caught', error.message));
      const stream = new Stream();
      stream.launchHostFunction(() => { throw new Error('from the stream'); });
      await stream.synchronize();
      console.log('went on');
    `,
      device,
    );
    expect(end).toMatchObject({ status: 0, stdout: 'caught from the stream\nwent on\n' });
  });

  const worker = (body: string) =>
    `new Worker(${JSON.stringify(`
      const { parentPort } = require('node:worker_threads');
      import('${wholePackage}').then((cistern) => { ${body} });
    `)}, { eval: true, execArgv: [] })`;

  test('that ends as a worker returns its memory', () => {
    needMemoryPools();
    const end = runModule(
      `
      import { Worker } from 'node:worker_threads';
      import { once } from 'node:events';
      import { Device, MiB, Stream } from 'cistern';
      const before = Device.get().memoryInfo().freeBytes;
      for (let round = 0; round < 6; round++) {
        const thread = ${worker(`
          const stream = new cistern.Stream();
          const plain = new cistern.CudaMemoryResource();
          const ordered = new cistern.CudaAsyncMemoryResource();
          cistern.set(plain.allocate(100 * cistern.MiB, stream), 1, 1, 1000, stream);
          ordered.allocate(100 * cistern.MiB, stream);
          parentPort.postMessage(cistern.Device.get().memoryInfo().freeBytes);
        `)};
        const exit = once(thread, 'exit');
        const [free] = await once(thread, 'message');
        console.log(free <= before - 200 * MiB);
        if (round % 2 === 1) await thread.terminate();
        await exit;
      }
      Device.get().synchronizeSync();
      console.log(Device.get().memoryInfo().freeBytes === before);
    `,
      device,
    );
    expect(end).toEqual({ status: 0, signal: null, stdout: 'true\n'.repeat(7), stderr: '' });
  });

  test('keeps what was not freed at once if the wait for the device fails, says so once, and frees it later', () => {
    const end = runModule(
      `
      import { CudaAsyncMemoryResource, CudaMemoryResource, MiB, set, Stream } from 'cistern';
      import { driverCallCounts, failCall } from 'cistern/testing';
      process.on('warning', ({ code, message }) => console.log(code, message));
      const stream = new Stream({ nonBlocking: true });
      const [plain, pool] = [new CudaMemoryResource(), new CudaAsyncMemoryResource()];
      const pointer = plain.allocate(3 * MiB, stream);
      set(pool.allocate(MiB, stream), 1, 1, MiB, stream);
      const hold = stream.hold();
      set(pointer, 1, 1, 3 * MiB, stream);
      plain.deallocate(pointer, 3 * MiB, stream);
      pool.dispose();
      hold.release();
      const { cuMemFree, cuMemFreeAsync, cuMemPoolDestroy } = driverCallCounts().byFunction;
      const reap = async (nthWait, status) => {
        if (nthWait > 0) failCall('cuCtxSynchronize', nthWait, status);
        new Stream().dispose();
        for (let turn = 0; turn < 5; turn++) await new Promise(setImmediate);
        const now = driverCallCounts().byFunction;
        console.log(now.cuMemFreeAsync - cuMemFreeAsync, now.cuMemPoolDestroy - cuMemPoolDestroy, now.cuMemFree - cuMemFree);
      };
      await reap(1, 700);
      await reap(1, 700);
      await reap(2, 999);
      await reap(0);
    `,
      device,
    );
    const warning = (size: string, name: string) =>
      `CISTERN_KEPT_MEMORY ${size} that are no longer used cannot be freed yet, because waiting for the device fails with ${name}; cistern will try again\n`;
    expect(end.stdout).toBe(
      [
        `${warning('4 MiB', 'CUDA_ERROR_ILLEGAL_ADDRESS (700)')}0 0 0\n0 0 0\n`,
        `${warning('3 MiB', 'CUDA_ERROR_UNKNOWN (999)')}1 0 0\n1 1 1\n`,
      ].join(''),
    );
    expect([end.status, end.signal]).toEqual([0, null]);
  });

  test('whose device another library resets gets the error from every call, and ends', () => {
    const control = process.env['STRICT_DRIVER_CONTROL'];
    if (control === undefined) skipTest('only the strict driver can be reset');
    const end = runModule(
      `
      import { createRequire } from 'node:module';
      import { CudaMemoryResource, DeviceBuffer, Event, PoolMemoryResource, set, Stream } from 'cistern';
      const stream = new Stream({ nonBlocking: true });
      const plain = new CudaMemoryResource();
      const pointer = plain.allocate(4096, stream);
      const buffer = new DeviceBuffer(1000, { resource: new PoolMemoryResource(plain), stream });
      const destroyed = 709;
      createRequire(process.cwd() + '/')(${JSON.stringify(control)}).setStickyError(0, destroyed);
      for (const use of [
        () => set(pointer, 1, 1, 4096, stream), () => plain.allocate(1, stream), () => plain.deallocate(pointer, 4096, stream),
        () => stream.synchronizeSync(), () => new Event(), () => buffer.toHostSync(), () => new Stream(),
      ]) {
        try {
          use();
          console.log('nothing');
        } catch ({ code, driverName }) {
          console.log(code, driverName);
        }
      }
    `,
      device,
    );
    const line = 'ERR_CISTERN_DRIVER CUDA_ERROR_CONTEXT_IS_DESTROYED\n';
    expect(end).toEqual({ status: 0, signal: null, stdout: line.repeat(7), stderr: '' });
  });

  test('keeps what a worker left behind until its device can be used', () => {
    const end = runModule(
      `
      import { Worker } from 'node:worker_threads';
      import { once } from 'node:events';
      import { Device, MiB } from 'cistern';
      import { failCall } from 'cistern/testing';
      Device.get().synchronizeSync();
      const free = () => Device.get(1).memoryInfo().freeBytes / MiB;
      const before = free();
      await once(${worker(`
        new cistern.CudaMemoryResource({ device: cistern.Device.get(1) }).allocate(100 * cistern.MiB, new cistern.Stream());
      `)}, 'exit');
      failCall('cuCtxSetCurrent', 1, 201);
      Device.get().memoryInfo();
      console.log(before - free());
    `,
      { ...device, CISTERN_SOFTWARE_DEVICES: '2' },
    );
    expect(end).toEqual({ status: 0, signal: null, stdout: '0\n', stderr: '' });
  });

  test.each([
    ['a hold', 'globalThis.kept = stream.hold();', `const stream = new cistern.Stream({ nonBlocking: true });`],
    ['a host function', 'stream.launchHostFunction(() => {});', `const stream = new cistern.Stream({ nonBlocking: true });`],
    [
      'a hold, before a host function of the worker,',
      'globalThis.kept = stream.hold();',
      `const stream = cistern.Stream.fromHandle(handle); stream.launchHostFunction(() => {});`,
    ],
  ])('ends although %s stalls a stream that a worker waits for', (_, stall, use) => {
    const end = runModule(
      `
      import { Worker } from 'node:worker_threads';
      import { once } from 'node:events';
      import { Stream } from 'cistern';
      const stream = new Stream({ nonBlocking: true });
      const thread = ${worker(`
        parentPort.once('message', (handle) => {
          ${use}
          cistern.Device.get().synchronizeSync();
        });
        parentPort.postMessage('ready');
      `)};
      await once(thread, 'message');
      // The event loop is blocked from here on, so that no host function of this thread runs.
      ${stall}
      thread.postMessage(stream.nativeHandle);
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 200);
      process.exit(7);
    `,
      device,
    );
    expect(end).toEqual({ status: 7, signal: null, stdout: '', stderr: '' });
  });

  // Node ends workers in an order that it chooses.
  test.each([0, 1])(
    'ends although worker %i stalls a stream that another one waits for, and the main thread never used a device',
    (stalling) => {
      const end = runModule(
        `
      import { Worker } from 'node:worker_threads';
      import { once } from 'node:events';
      import 'cistern';
      const workers = [1, 2].map(() => ${worker(`
        parentPort.on('message', (stalls) => {
          if (stalls) globalThis.kept = new cistern.Stream().hold();
          parentPort.postMessage('does');
          if (!stalls) cistern.Device.get().synchronizeSync();
        });
      `)});
      for (const index of [${stalling}, ${1 - stalling}]) {
        workers[index].postMessage(index === ${stalling});
        await once(workers[index], 'message');
      }
      setTimeout(() => process.exit(7), 200);
    `,
        device,
      );
      expect(end).toEqual({ status: 7, signal: null, stdout: '', stderr: '' });
    },
  );

  test('has its own streams, counters and thread in each worker', () => {
    const end = runModule(
      `
      import { Worker } from 'node:worker_threads';
      import { once } from 'node:events';
      import { CudaMemoryResource, Stream } from 'cistern';
      import { driverCallCounts } from 'cistern/testing';
      const stream = new Stream();
      const plain = new CudaMemoryResource();
      const pointer = plain.allocate(256, stream);
      const allocations = driverCallCounts().allocations;
      const thread = ${worker(`
        const stream = new cistern.Stream();
        const plain = new cistern.CudaMemoryResource();
        for (let i = 0; i < 10; i++) plain.allocate(256, stream);
        parentPort.postMessage({ id: stream.id, allocations: cistern.driverCallCounts().allocations });
      `)};
      const [message] = await once(thread, 'message');
      console.log(message.id !== stream.id, message.allocations, driverCallCounts().allocations - allocations);
      await thread.terminate();
      plain.deallocate(pointer, 256, stream);
    `,
      device,
    );
    expect(end).toEqual({ status: 0, signal: null, stdout: 'true 10 0\n', stderr: '' });
  });

  const stopped = worker(`
    const stream = new cistern.Stream({ nonBlocking: true });
    const resource = new cistern.CudaAsyncMemoryResource();
    const pointer = resource.allocate(1000, stream);
    stream.hold();
    stream.launchHostFunction(() => {});
    cistern.set(pointer, 1, 1, 1000, stream);
    stream.synchronize();
    cistern.copyToHost(pointer, 1000, stream);
    parentPort.postMessage('ready');
  `);

  test('survives workers that end with stopped streams and pending promises', () => {
    needMemoryPools();
    const end = runModule(
      `
      import { Worker } from 'node:worker_threads';
      import { once } from 'node:events';
      for (let round = 0; round < 5; round++) {
        const thread = ${stopped};
        await once(thread, 'message');
        await thread.terminate();
      }
      console.log('survived');
    `,
      device,
    );
    expect(end).toEqual({ status: 0, signal: null, stdout: 'survived\n', stderr: '' });
  });

  // From then on every call of the addon fails.
  test.each([
    [
      'calls the addon',
      `
      const stream = new cistern.Stream({ nonBlocking: true });
      const buffer = new cistern.DeviceBuffer(1000, { stream });
      const turn = () => {
        for (let i = 0; i < 100; i++) {
          stream.launchHostFunction(() => stream.query());
          stream.synchronize();
          buffer.toHost();
          cistern.Device.get().memoryInfo();
          new cistern.Event().dispose();
          stream.synchronizeSync();
        }
        setImmediate(turn);
      };
      parentPort.postMessage('ready');
      turn();
    `,
    ],
    [
      'is in a host function',
      `
      const stream = new cistern.Stream({ nonBlocking: true });
      parentPort.postMessage('ready');
      stream.launchHostFunction(() => { for (;;) stream.query(); });
      stream.synchronizeSync();
    `,
    ],
    [
      'loads the addon',
      `
      const path = process.env.CISTERN_ADDON || process.cwd() + '/build/Release/cistern.node';
      parentPort.postMessage('ready');
      for (;;) process.dlopen({ exports: {} }, path);
    `,
    ],
  ])('survives workers that are terminated while one %s', (_, inWorker) => {
    const end = runModule(
      `
      import { Worker } from 'node:worker_threads';
      import { once } from 'node:events';
      for (let round = 0; round < 5; round++) {
        const thread = ${worker(inWorker)};
        await once(thread, 'message');
        await new Promise((resolve) => setTimeout(resolve, 3 * round));
        await thread.terminate();
      }
      console.log('survived');
    `,
      device,
    );
    expect(end).toEqual({ status: 0, signal: null, stdout: 'survived\n', stderr: '' });
  });

  test('starts and ends while a stream of another one is stopped, whatever ended ones left behind', () => {
    needMemoryPools();
    const end = runModule(
      `
      import { Worker } from 'node:worker_threads';
      import { once } from 'node:events';
      const ended = ${stopped};
      await once(ended, 'message');
      const stays = ${stopped};
      await once(stays, 'message');
      await ended.terminate();
      const begins = ${stopped};
      await once(begins, 'message');
      await begins.terminate();
      await stays.terminate();
      console.log('survived');
    `,
      device,
    );
    expect(end).toEqual({ status: 0, signal: null, stdout: 'survived\n', stderr: '' });
  });
});

describe('the choice of a device', () => {
  const printBackend = `
    import { currentBackend } from 'cistern';
    console.log(currentBackend());
    console.log(currentBackend());
  `;
  const hasCuda = runModule(`import { cudaUnavailableReason } from 'cistern'; console.log(cudaUnavailableReason() ?? '');`).stdout === '\n';

  test('is the software device if there is no GPU, and warns once', () => {
    if (hasCuda) skipTest('there is a driver');
    const { status, stdout, stderr } = runModule(printBackend, { CISTERN_DEVICE: undefined });
    expect({ status, stdout }).toEqual({ status: 0, stdout: 'software\nsoftware\n' });
    expect(stderr.match(/CISTERN_SOFTWARE_DEVICE/g)).toHaveLength(1);
    expect(stderr).toContain('libcuda.so.1');
    expect(stderr).toContain('CISTERN_DEVICE=software');
  });

  test('is silent for the software device on request', () => {
    expect(runModule(printBackend, software)).toMatchObject({ status: 0, stdout: 'software\nsoftware\n', stderr: '' });
  });

  test('fails for cuda without a driver, and says what was searched for', () => {
    if (hasCuda) skipTest('there is a driver');
    const { status, stderr } = runModule(printBackend, { CISTERN_DEVICE: 'cuda' });
    expect(status).toBe(1);
    expect(stderr).toMatch(/DeviceUnavailableError: no CUDA device can be used: .*libcuda\.so\.1/);
    expect(stderr).toContain("code: 'ERR_CISTERN_DEVICE_UNAVAILABLE'");
  });

  test.each([
    ['CISTERN_DEVICE', 'gpu', /CISTERN_DEVICE must be one of auto, cuda, software, got "gpu"/],
    ['CISTERN_CHECK_ORDER', 'yes', /CISTERN_CHECK_ORDER must be 0 or 1, got "yes"/],
  ])('refuses %s=%s', (name, value, message) => {
    const { status, stderr } = runModule(printBackend, { ...software, [name]: value });
    expect(status).toBe(1);
    expect(stderr).toMatch(message);
  });

  test('can be made in code, once', () => {
    const { stdout } = runModule(
      `
      import { selectBackend } from 'cistern';
      console.log(selectBackend('software'), selectBackend('auto'), selectBackend('software'));
      for (const choice of ['cuda', 'gpu']) {
        try { selectBackend(choice); } catch (error) { console.log(error.code); }
      }
    `,
      { CISTERN_DEVICE: undefined },
    );
    expect(stdout).toBe('software software software\nERR_CISTERN_INVALID_STATE\nERR_INVALID_ARG_VALUE\n');
  });

  test('touches no driver when the package is imported', () => {
    const { status, stdout, stderr } = runModule(`import 'cistern'; console.log('imported');`, {
      CISTERN_DEVICE: 'cuda',
      CISTERN_ADDON: '/no/such/addon.node',
    });
    expect({ status, stdout, stderr }).toEqual({ status: 0, stdout: 'imported\n', stderr: '' });
  });

  test('names the addon that cannot be loaded', () => {
    const { status, stderr } = runModule(printBackend, { CISTERN_ADDON: '/no/such/addon.node' });
    expect(status).toBe(1);
    expect(stderr).toMatch(/the native addon of cistern cannot be loaded: CISTERN_ADDON names \/no\/such\/addon\.node/);
    expect(stderr).toContain('ERR_CISTERN_ADDON_MISSING');
  });
});

test('a driver that could not be loaded is searched for again', () => {
  const folder = mkdtempSync(join(tmpdir(), 'cistern-driver-'));
  // Node itself may need the others.
  const others = (process.env['LD_LIBRARY_PATH'] ?? '').split(':').filter((each) => each !== '' && !existsSync(join(each, 'libcuda.so.1')));
  try {
    const end = runModule(
      `
      import { cudaUnavailableReason } from 'cistern';
      import { writeFileSync } from 'node:fs';
      const before = cudaUnavailableReason();
      writeFileSync(${JSON.stringify(join(folder, 'libcuda.so.1'))}, 'no library');
      console.log(before?.includes('libcuda.so.1'), before === cudaUnavailableReason());
    `,
      { ...software, LD_LIBRARY_PATH: [folder, ...others].join(':') },
    );
    if (end.stdout.startsWith('undefined')) skipTest('the system has a driver, which is found wherever else one is searched for');
    expect(end).toEqual({ status: 0, signal: null, stdout: 'true false\n', stderr: '' });
  } finally {
    rmSync(folder, { recursive: true });
  }
});
