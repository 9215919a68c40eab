/**
 * Host functions and holds on a driver that uses every freedom that its documentation leaves it:
 * callbacks of all streams run one at a time, and any call may wait for the device. A test that
 * would hang on a fault runs in its own process.
 */

import { describe, expect, test } from 'vitest';
import { needMemoryPools, needSecondDevice } from '../support/device-memory.js';
import { deviceUnderTest } from '../support/device-under-test.mjs';
import { allocationsMayWait, hasStreamMemoryOperations } from '../support/direct-faults.mjs';
import { runModule, wholePackage } from '../support/run-module.js';
import { skipTest } from '../support/skip-test.js';

const strict = {
  ...deviceUnderTest,
  CISTERN_SOFTWARE_STRICT: '1',
  CISTERN_SOFTWARE_FREES_WAIT: '1',
  STRICT_DRIVER_ALLOC_SYNCS: '1',
  STRICT_DRIVER_FREE_SYNCS: '1',
};

/** A program that prints `lines`, with streams `a`, `b` and `c`. */
function expectLines(program: string, lines: readonly string[], environment: Record<string, string> = strict): void {
  const prelude = `
    import * as cistern from '${wholePackage}';
    const { copyFromHost, copyToHost, copyToHostSync, Device, failCall, set, Stream } = cistern;
    const [a, b, c] = [0, 1, 2].map(() => new Stream({ nonBlocking: true }));
    const plain = new cistern.CudaMemoryResource();
  `;
  const { status, stdout, stderr } = runModule(prelude + program, environment);
  expect({ status, lines: stdout.split('\n').slice(0, -1), stderr }).toEqual({ status: 0, lines: [...lines], stderr: '' });
}

describe('with callbacks that run one at a time', () => {
  test('several streams can be held, and released in any order', () => {
    expectLines(
      `
      const [first, second] = [a.hold(), b.hold()];
      second.release();
      b.synchronizeSync();
      console.log(a.query());
      first.release();
      a.synchronizeSync();
      console.log('released');
    `,
      ['false', 'released'],
    );
  });

  test('a host function runs while other streams are held, or wait for host functions', () => {
    expectLines(
      `
      const hold = a.hold();
      const ran = [];
      b.launchHostFunction(() => ran.push('b'));
      c.launchHostFunction(() => ran.push('c'));
      c.synchronizeSync();
      b.synchronizeSync();
      console.log(ran.sort().join());
      hold.release();
      a.synchronizeSync();
    `,
      ['b,c'],
    );
  });

  test.each([
    ['without memory operations in streams', 801],
    ['whose pinned memory is managed, for which no stream can wait,', 1],
  ])('a device %s can still be held, on one stream at a time', (_what, status) => {
    expectLines(
      `
      failCall('cuStreamWaitValue32', 1, ${status});
      for (const stream of [a, b]) {
        const hold = stream.hold();
        console.log(stream.query());
        hold.release();
        stream.synchronizeSync();
      }
      a.launchHostFunction(() => console.log('a'));
      a.synchronizeSync();
      console.log(cistern.driverCallCounts().byFunction.cuStreamWaitValue32);
    `,
      ['false', 'false', 'a', '0'],
    );
  });
});

describe('with calls that wait for the device', () => {
  test.each([
    ['device memory', 'plain.deallocate(plain.allocate(4 << 20, b), 4 << 20, b);'],
    ['managed memory', 'const m = new cistern.ManagedMemoryResource(); m.deallocate(m.allocate(4096, b), 4096, b);'],
    ['pinned memory', 'const m = new cistern.PinnedHostMemoryResource(); m.deallocate(m.allocate(4096, b), 4096, b);'],
    ['a pool that grows', 'const pool = new cistern.PoolMemoryResource(plain); pool.allocate(4096, b); pool.dispose();'],
    ['a copy from the host', 'copyFromHost(target, new Uint8Array(1 << 20), b);'],
    ['a copy to the host that blocks', 'copyToHostSync(new Uint8Array(1 << 20), target, b);'],
    ['a copy to the host', 'console.log((await copyToHost(target, 1 << 20, b)).byteLength);', '1048576'],
    ['a copy between kinds', 'const h = new cistern.HostMemoryResource().allocate(1 << 20, b); cistern.copy(target, h, 1 << 20, b);'],
  ])('host functions run, and %s succeeds', (_what, call, ...printed) => {
    expectLines(
      `
      const target = plain.allocate(1 << 20, b);
      a.launchHostFunction(() => console.log('function'));
      ${call}
      console.log('had');
      await a.synchronize();
    `,
      ['function', ...printed, 'had'],
    );
  });

  test('an allocation waits for host functions that other host functions queue', () => {
    expectLines(
      `
      a.launchHostFunction(() => a.launchHostFunction(() => b.launchHostFunction(() => console.log('ran'))));
      plain.deallocate(plain.allocate(4096, b), 4096, b);
    `,
      ['ran'],
    );
  });

  test('host functions that always queue another do not keep an allocation from succeeding', () => {
    if (allocationsMayWait) skipTest('an allocation of this driver waits for all of them');
    expectLines(
      `
      let isOver = false;
      let beats = 0;
      const beat = () => { beats++; if (!isOver) a.launchHostFunction(beat); };
      a.launchHostFunction(beat);
      const pointer = plain.allocate(4096, b);
      console.log(beats < 10);
      isOver = true;
      await a.synchronize();
    `,
      ['true'],
      { ...deviceUnderTest },
    );
  });

  test('no call that may wait is permitted in a host function', () => {
    expectLines(
      `
      const pool = new cistern.PoolMemoryResource(new cistern.CudaMemoryResource(), { initialBytes: 1 << 20 });
      const live = plain.allocate(4096, b);
      const attempt = (call) => { try { call(); console.log('permitted'); } catch (error) { console.log(error.driverName); } };
      a.launchHostFunction(() => {
        attempt(() => plain.allocate(4096, b));
        attempt(() => plain.deallocate(live, 4096, b));
        attempt(() => new cistern.PinnedHostMemoryResource().allocate(4096, b));
        attempt(() => new cistern.HostMemoryResource().allocate(4096, b));
        attempt(() => pool.deallocate(pool.allocate(4096, b), 4096, b));
      });
      a.synchronizeSync();
      plain.deallocate(live, 4096, b);
    `,
      ['CUDA_ERROR_NOT_PERMITTED', 'CUDA_ERROR_NOT_PERMITTED', 'CUDA_ERROR_NOT_PERMITTED', 'permitted', 'permitted'],
    );
  });

  test('a free returns while a stream is held, and frees later', () => {
    expectLines(
      `
      const free = () => Device.get().memoryInfo().freeBytes;
      const before = free();
      const pointer = plain.allocate(64 << 20, b);
      const hold = a.hold();
      plain.deallocate(pointer, 64 << 20, b);
      console.log(free() < before);
      hold.release();
      console.log(free() === before);
    `,
      ['true', 'true'],
      { ...deviceUnderTest },
    );
  });

  test('a free does not wait for the host function of another thread, which may need the driver to end', () => {
    needMemoryPools();
    expectLines(
      `
      const { Worker } = await import('node:worker_threads');
      const pointer = plain.allocate(4096, b);
      const worker = new Worker(\`
        Promise.all([import('${wholePackage}'), import('node:worker_threads')]).then(([cistern, { parentPort, receiveMessageOnPort }]) => {
          const { CudaAsyncMemoryResource, Stream } = cistern;
          const [a, b] = [new Stream({ nonBlocking: true }), new Stream({ nonBlocking: true })];
          a.launchHostFunction(() => parentPort.postMessage('function'));
          parentPort.postMessage('queued');
          while (receiveMessageOnPort(parentPort) === undefined);
          new CudaAsyncMemoryResource().allocate(4096, b);
        });
      \`, { eval: true });
      worker.on('message', (message) => {
        console.log(message);
        if (message !== 'queued') return;
        plain.deallocate(pointer, 4096, b);
        console.log('freed');
        worker.postMessage('go on');
      });
    `,
      ['queued', 'freed', 'function'],
      { ...strict, STRICT_DRIVER_LOCKS_WHILE_WAITING: '1' },
    );
  });
});

describe('a host function', () => {
  test('does not run if nothing can pause the stream', () => {
    if (!hasStreamMemoryOperations) skipTest('a stream of this driver waits in the host function itself');
    expectLines(
      `
      a.launchHostFunction(() => console.log('first'));
      failCall('cuStreamWaitValue32', 1, 1);
      try { a.launchHostFunction(() => console.log('second')); } catch (error) { console.log(error.driverName); }
      a.launchHostFunction(() => console.log('third'));
      await a.synchronize();
    `,
      ['CUDA_ERROR_INVALID_VALUE', 'first', 'third'],
    );
  });

  test('ends when a time-out cuts it off, and the next ones run', () => {
    expectLines(
      `
      const { runInThisContext } = await import('node:vm');
      const ran = [];
      Object.assign(globalThis, { a, ran });
      const program = \`
        a.launchHostFunction(() => { ran.push('first'); for (;;); });
        a.launchHostFunction(() => ran.push('second'));
        a.synchronizeSync();
      \`;
      try { runInThisContext(program, { timeout: 500 }); } catch (error) { console.log(error.code); }
      a.synchronizeSync();
      console.log(ran.join());
    `,
      ['ERR_SCRIPT_EXECUTION_TIMEOUT', 'first,second'],
    );
  });

  test('that throws null causes an uncaught exception', () => {
    expectLines(
      `
      process.once('uncaughtException', (error) => console.log('caught', error));
      a.launchHostFunction(() => { throw null; });
      await a.synchronize();
    `,
      ['caught undefined'],
    );
  });

  test('that a device error has lost does not keep the process alive, and causes a warning', () => {
    const { status, stdout, stderr } = runModule(
      `
      import { Stream } from 'cistern';
      import { failCall } from 'cistern/testing';
      const stream = new Stream({ nonBlocking: true });
      const hold = stream.hold();
      stream.launchHostFunction(() => console.log('ran'));
      failCall('cuEventQuery', 1, 700);
      process.on('warning', (warning) => console.log(warning.code));
      setInterval(() => {}, 100).unref();
    `,
      { ...deviceUnderTest },
    );
    expect({ status, stdout }).toEqual({ status: 0, stdout: 'CISTERN_LOST_HOST_FUNCTION\n' });
    expect(stderr).toContain('will never run: CUDA_ERROR_ILLEGAL_ADDRESS');
  });

  test('that a device error has lost does not hang a blocking call', () => {
    const { status, stdout } = runModule(
      `
      import { Device, Stream } from 'cistern';
      import { failCall } from 'cistern/testing';
      const [held, stream] = [0, 1].map(() => new Stream({ nonBlocking: true }));
      const hold = held.hold();
      held.launchHostFunction(() => console.log('ran'));
      failCall('cuEventQuery', 1, 700);
      failCall('cuCtxSynchronize', 1, 700);
      try { Device.get().synchronizeSync(); } catch (error) { console.log(error.driverName); }
    `,
      { ...deviceUnderTest },
    );
    expect({ status, stdout }).toEqual({ status: 0, stdout: 'CUDA_ERROR_ILLEGAL_ADDRESS\n' });
  });
});

test('the default streams of two devices are distinct, although the driver gives them the same id', () => {
  needSecondDevice();
  expectLines(
    `
    const [first, second] = [0, 1].map((index) => Stream.legacyDefault(Device.get(index)));
    console.log(first.id === second.id, first.identity === second.identity);
    const hold = first.hold();
    console.log(first.query(), second.query());
    hold.release();
    first.synchronizeSync();
  `,
    ['true false', 'false true'],
    { ...strict, STRICT_DRIVER_FIXED_DEFAULT_IDS: '1' },
  );
});
