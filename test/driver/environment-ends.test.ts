import { describe, expect, test } from 'vitest';
import { deviceMemory } from '../support/device-memory.js';
import { runModule, wholePackage } from '../support/run-module.js';

const device = deviceMemory(1024);

/**
 * Resources that keep memory, over each kind of leaf and with each policy, with live memory and
 * memory held back, on stalled streams. `cistern` must be the module.
 */
const holdMemory = `
  const { KiB, MiB } = cistern;
  const upstreams = [new cistern.CudaMemoryResource()];
  if (cistern.Device.get().attribute('memoryPoolsSupported') === 1) upstreams.push(new cistern.CudaAsyncMemoryResource());
  const streams = [0, 1].map(() => new cistern.Stream({ nonBlocking: true }));
  const resources = upstreams.flatMap((upstream) => ['eager', 'deferred', 'off'].flatMap((deallocationEvents) => [
    new cistern.PoolMemoryResource(upstream, { deallocationEvents }),
    new cistern.ArenaMemoryResource(upstream, { arenaBytes: 4 * MiB, deallocationEvents }),
    new cistern.FixedSizeMemoryResource(upstream, { blockBytes: 64 * KiB, blocksToPreallocate: 2, deallocationEvents }),
    new cistern.BinningMemoryResource(upstream, { bins: [64 * KiB], deallocationEvents }),
    new cistern.MonotonicMemoryResource(upstream, { initialBytes: 128 * KiB, deallocationEvents }),
    new cistern.CachingMemoryResource(upstream, { deallocationEvents }),
  ]));
  const holds = streams.map((stream) => stream.hold());
  const use = (resource) => {
    for (const stream of streams) {
      const [live, freed] = [0, 1].map(() => resource.allocate(50_000, stream));
      cistern.set(live, 1, 1, 50_000, stream);
      cistern.set(freed, 1, 1, 50_000, stream);
      resource.deallocate(freed, 50_000, stream);
    }
    new cistern.DeviceBuffer(10_000, { resource, stream: streams[0] });
  };
  for (const resource of resources) {
    // A run of a cache that never ends.
    if (resource.run) resource.run(() => (use(resource), new Promise(() => {})));
    else use(resource);
  }
  streams[0].launchHostFunction(() => {});
  streams[1].synchronize().catch(() => {});
  globalThis.kept = [resources, streams, holds];
`;

/**
 * The source of a module that runs workers and prints whether the device's memory is the same as
 * before.
 */
const withWorkers = (body: string) => `
  import { Worker } from 'node:worker_threads';
  import { once } from 'node:events';
  import { Device } from 'cistern';
  const before = Device.get().memoryInfo().freeBytes;
  const start = (text) => new Worker(
    \`const { parentPort } = require('node:worker_threads'); import('${wholePackage}').then((cistern) => { \${text} });\`, { eval: true, execArgv: [] });
  ${body}
  Device.get().synchronizeSync();
  console.log(Device.get().memoryInfo().freeBytes === before);
`;

describe('a worker with live memory and busy streams returns its memory', () => {
  test.each([
    ['it is terminated', `parentPort.on('message', () => {});`, 'await thread.terminate();', [1]],
    ['it has nothing left to do', 'for (const hold of holds) hold.release();', '', [0]],
    ['it calls process.exit', 'setTimeout(() => process.exit(3));', '', [3]],
    [
      'it calls process.exit in a host function',
      'for (const hold of holds) hold.release(); streams[0].launchHostFunction(() => process.exit(4));',
      '',
      [4],
    ],
    ['it throws', `setTimeout(() => { throw new Error('thrown'); });`, '', ['thrown', 1]],
    ['a promise is rejected', `setTimeout(() => Promise.reject(new Error('rejected')));`, '', ['rejected', 1]],
    [
      'a host function throws',
      `for (const hold of holds) hold.release(); streams[0].launchHostFunction(() => { throw new Error('in it'); });`,
      '',
      ['in it', 1],
    ],
    [
      'it is terminated while stream order is checked',
      `globalThis.checker = cistern.checkOrder(); use(resources[0]); parentPort.on('message', () => {});`,
      'await thread.terminate();',
      [1],
    ],
  ])('if %s', (_, inWorker, inMain, expected) => {
    // A worker that ends by itself waits for a message to do so: it might otherwise end before its
    // own message arrives.
    const atTheEnd = inMain === '' ? `parentPort.once('message', () => { ${inWorker} });` : inWorker;
    const tellFree = 'parentPort.postMessage(cistern.Device.get().memoryInfo().freeBytes);';
    const end = runModule(
      withWorkers(`
        const thread = start(${JSON.stringify(`${holdMemory} ${tellFree} ${atTheEnd}`)});
        const exit = new Promise((resolve) => thread.once('exit', resolve));
        thread.once('error', (error) => console.log(error.message));
        const [free] = await once(thread, 'message');
        console.log(before - free > 10_000_000);
        ${inMain === '' ? 'thread.postMessage(0);' : inMain}
        console.log(await exit);
      `),
      device,
    );
    expect(end).toEqual({ status: 0, signal: null, stdout: ['true', ...expected, 'true', ''].join('\n'), stderr: '' });
  });
});

describe('a process with live memory and busy streams ends with its own code', () => {
  test.each([
    ['process.exit', 'process.exit(7);', 7, ''],
    [
      'process.exit in a host function',
      'release(); streams[0].launchHostFunction(() => process.exit(8)); streams[0].synchronizeSync();',
      8,
      '',
    ],
    ['process.exit in a run of a cache', 'resources[5].run(() => { use(resources[5]); process.exit(9); });', 9, ''],
    ['process.exit while a free waits', 'release(); streams[1].launchHostFunction(() => process.exit(6)); resources[0].dispose();', 6, ''],
    ['an uncaught exception', `setTimeout(() => { throw new Error('thrown'); });`, 1, 'Error: thrown'],
    [
      'an exception in a host function',
      `release(); streams[0].launchHostFunction(() => { throw new Error('in it'); });`,
      1,
      'Error: in it',
    ],
    ['an exception in a callback', `cistern.withResource(resources[0], () => { throw new Error('in it'); });`, 1, 'Error: in it'],
    ['a rejection', `Promise.reject(new Error('rejected'));`, 1, 'Error: rejected'],
    ['nothing left to do', 'release();', 0, ''],
  ])('by %s', (_, ending, status, message) => {
    const text = `
      import * as cistern from '${wholePackage}';
      ${holdMemory}
      const release = () => holds.forEach((hold) => hold.release());
      console.log('ready');
      ${ending}
    `;
    const end = runModule(text, device);
    expect(end).toMatchObject({ status, signal: null, stdout: 'ready\n' });
    if (message === '') expect(end.stderr).toBe('');
    else expect(end.stderr).toContain(message);
  });

  test('by a signal, with workers that do the same', () => {
    const end = runModule(
      `
      import { Worker } from 'node:worker_threads';
      import { once } from 'node:events';
      import 'cistern';
      const worker = new Worker(${JSON.stringify(`
        const { parentPort } = require('node:worker_threads');
        import('${wholePackage}').then((cistern) => { ${holdMemory} parentPort.on('message', () => {}); parentPort.postMessage('ready'); });
      `)}, { eval: true, execArgv: [] });
      await once(worker, 'message');
      console.log('ready');
      process.kill(process.pid, 'SIGTERM');
      setTimeout(() => {}, 10_000);
    `,
      device,
    );
    expect(end).toEqual({ status: null, signal: 'SIGTERM', stdout: 'ready\n', stderr: '' });
  });
});

test('forty workers, one after another, leave nothing', () => {
  const end = runModule(
    withWorkers(`
      const { existsSync, readdirSync } = await import('node:fs');
      const count = (folder) => (existsSync(folder) ? readdirSync(folder).length : 0);
      const held = () => [count('/proc/self/fd'), count('/proc/self/task')];
      let heldAtFirst;
      for (let round = 0; round < 40; round++) {
        const thread = start(${JSON.stringify(`${holdMemory} parentPort.on('message', () => {}); parentPort.postMessage('ready');`)});
        const exit = once(thread, 'exit');
        await once(thread, 'message');
        await thread.terminate();
        await exit;
        // The first workers create what stays.
        if (round === 9) heldAtFirst = held();
      }
      const [descriptors, threads] = held();
      // Node's own threads come and go.
      console.log(descriptors <= heldAtFirst[0], threads <= heldAtFirst[1] + 2);
    `),
    device,
    200_000,
  );
  expect(end).toEqual({ status: 0, signal: null, stdout: 'true true\ntrue\n', stderr: '' });
}, 220_000);
