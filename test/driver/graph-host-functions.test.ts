/** Host functions that are captured run at each launch, as long as something can launch them. */

import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { checkOrder } from '../../src/checking/index.js';
import { CudaMemoryResource, copyToHostSync, Device, Event, type Graph, Stream, set } from '../../src/index.js';
import { driverCallCounts } from '../../src/tools/testing/index.js';
import { deviceUnderTest } from '../support/device-under-test.mjs';
import { needCaptures } from '../support/need-captures.js';
import { runModule, wholePackage } from '../support/run-module.js';

const plain = new CudaMemoryResource();
let stream: Stream;
let other: Stream;
let pointer: number;
let runs: string[];

beforeAll(() => {
  stream = new Stream({ nonBlocking: true });
  other = new Stream({ nonBlocking: true });
  pointer = plain.allocate(4096, stream);
});

beforeEach(() => {
  runs = [];
  needCaptures(stream);
});

afterAll(() => plain.deallocate(pointer, 4096, stream));

const read = (): number => {
  const array = new Uint8Array(1);
  copyToHostSync(array, pointer, stream);
  return array[0] as number;
};
const run = (text: string) => runModule(text, { ...deviceUnderTest });
const captured = (name = 'function'): Graph => stream.capture(() => stream.launchHostFunction(() => runs.push(name)));

describe('a host function in a graph', () => {
  test('runs at each launch, in the order of the stream', async () => {
    const seen: number[] = [];
    using graph = stream.capture(() => {
      set(pointer, 1, 1, 4, stream);
      stream.launchHostFunction(() => void seen.push(1));
      set(pointer, 2, 1, 4, stream);
    });
    expect(graph.nodeCounts).toMatchObject({ fills: 2, hostFunctions: 1, total: 3 });
    expect(seen).toEqual([]);
    using exec = graph.instantiate();
    for (let launch = 1; launch <= 3; launch++) {
      set(pointer, 0, 1, 4, stream);
      exec.launch(stream);
      stream.synchronizeSync();
      expect(seen.length).toBe(launch);
      expect(read()).toBe(2);
    }
    exec.launch(stream);
    exec.launch(stream);
    await stream.synchronize();
    expect(seen.length).toBe(5);
  });

  test('holds the stream until it has returned', () => {
    using graph = stream.capture(() => {
      stream.launchHostFunction(() => {
        for (const end = performance.now() + 20; performance.now() < end; );
        expect(stream.query()).toBe(false);
        runs.push('returned');
      });
      set(pointer, 7, 1, 4, stream);
    });
    using exec = graph.instantiate();
    set(pointer, 0, 1, 4, stream);
    exec.launch(stream);
    expect(read()).toBe(7);
    expect(runs).toEqual(['returned']);
  });

  test.each([
    ['its stream', () => stream.synchronizeSync()],
    ['another one that waits for it', () => other.synchronizeSync()],
    ['the device', () => Device.get().synchronizeSync()],
    ['a copy', () => void read()],
    ['memory', () => plain.deallocate(plain.allocate(64, stream), 64, stream)],
  ])('runs while JavaScript blocks in a wait for %s', (_, wait) => {
    using graph = captured();
    using exec = graph.instantiate();
    for (let launch = 1; launch <= 20; launch++) {
      exec.launch(stream);
      const last = stream.query() ? undefined : stream;
      if (last !== undefined) set(pointer, 0, 1, 4, stream);
      wait();
      stream.synchronizeSync();
      expect(runs.length).toBe(launch);
    }
  });

  test('of two executable graphs runs in both, also at the same time', () => {
    using graph = captured();
    using first = graph.instantiate();
    using second = graph.instantiate();
    for (let i = 0; i < 10; i++) {
      first.launch(stream);
      second.launch(other);
    }
    Device.get().synchronizeSync();
    expect(runs.length).toBe(20);
  });

  test('runs on a stream that joined', () => {
    using fork = new Event();
    using join = new Event();
    using graph = stream.capture(() => {
      fork.record(stream);
      other.wait(fork);
      other.launchHostFunction(() => runs.push('fork'));
      stream.launchHostFunction(() => runs.push('origin'));
      join.record(other);
      stream.wait(join);
      stream.launchHostFunction(() => runs.push('join'));
    });
    using exec = graph.instantiate();
    exec.launch(stream);
    stream.synchronizeSync();
    expect(runs.slice(0, 2).toSorted()).toEqual(['fork', 'origin']);
    expect(runs.slice(2)).toEqual(['join']);
  });

  test('may queue work and launch graphs itself, and must not wait', () => {
    using inner = captured('inner');
    using innerExec = inner.instantiate();
    using graph = stream.capture(() =>
      stream.launchHostFunction(() => {
        expect(() => stream.synchronizeSync()).toThrow('CUDA_ERROR_NOT_PERMITTED');
        other.launchHostFunction(() => runs.push('eager'));
        innerExec.launch(other);
        runs.push('outer');
      }),
    );
    using exec = graph.instantiate();
    exec.launch(stream);
    stream.synchronizeSync();
    other.synchronizeSync();
    expect(runs).toEqual(['outer', 'eager', 'inner']);
  });

  test('that is never launched keeps nothing waiting', async () => {
    using graph = captured();
    using _exec = graph.instantiate();
    stream.synchronizeSync();
    Device.get().synchronizeSync();
    await stream.synchronize();
    expect(runs).toEqual([]);
  });

  test('changes with an update', () => {
    using first = captured('first');
    using second = captured('second');
    using without = stream.capture(() => {});
    using exec = first.instantiate();
    exec.launch(stream);
    expect(exec.update(without)).toBe(false);
    expect(exec.update(second)).toBe(true);
    first.dispose();
    second.dispose();
    exec.launch(stream);
    stream.synchronizeSync();
    expect(runs).toEqual(['first', 'second']);
  });

  test('runs after its graph and its executable graph were disposed in flight', () => {
    using hold = stream.hold();
    const graph = captured();
    const exec = graph.instantiate();
    graph.dispose();
    exec.launch(stream);
    exec.dispose();
    hold.release();
    stream.synchronizeSync();
    expect(runs).toEqual(['function']);
  });

  test('of an abandoned capture never runs', () => {
    expect(() =>
      stream.capture(() => {
        stream.launchHostFunction(() => runs.push('lost'));
        throw new Error('mine');
      }),
    ).toThrow('mine');
    stream.synchronizeSync();
    expect(runs).toEqual([]);
  });

  test('tells the order checker what has run before it, and nothing else', () => {
    using checker = checkOrder();
    let written = 0;
    using graph = stream.capture(() => {
      set(pointer, 1, 1, 4, stream);
      stream.launchHostFunction(() => set(pointer + written, 2, 1, 4, other));
      set(pointer + 8, 1, 1, 4, stream);
    });
    using exec = graph.instantiate();
    const launch = () => {
      exec.launch(stream);
      stream.synchronizeSync();
      other.synchronizeSync();
      return checker.violations.length;
    };
    expect(launch()).toBe(0);
    written = 8;
    expect(launch()).toBe(1);
  });

  test('is refused in a capture that another worker has begun', () => {
    const { status, stdout, stderr } = run(`
      import { Worker } from 'node:worker_threads';
      import { once } from 'node:events';
      import * as cistern from '${wholePackage}';
      const program = \`
        import { parentPort } from 'node:worker_threads';
        import * as cistern from '${wholePackage}';
        parentPort.once('message', (message) => {
          const stream = cistern.attachStream(message);
          try { stream.launchHostFunction(() => {}); } catch (error) { parentPort.postMessage(error.code + ' ' + stream.captureStatus); }
        });
      \`;
      const stream = new cistern.Stream({ nonBlocking: true });
      const worker = new Worker(new URL('data:text/javascript,' + encodeURIComponent(program.replaceAll("'cistern'", JSON.stringify(import.meta.resolve('cistern'))))));
      const message = cistern.shareStream(stream);
      stream.beginCapture('relaxed');
      worker.postMessage(message);
      console.log((await once(worker, 'message'))[0]);
      stream.endCapture().dispose();
    `);
    expect({ status, stdout, stderr }).toEqual({ status: 0, stdout: 'ERR_CISTERN_CAPTURING active\n', stderr: '' });
  });
});

describe('with host functions in graphs', () => {
  test('a process waits for launches, and not for graphs', () => {
    const { status, stdout, stderr } = run(`
      import * as c from '${wholePackage}';
      const stream = new c.Stream({ nonBlocking: true });
      const graph = stream.capture(() => stream.launchHostFunction(() => console.log('ran')));
      const exec = graph.instantiate();
      exec.launch(stream);
      exec.launch(stream);
      globalThis.kept = [graph, exec];
    `);
    expect({ status, stdout, stderr }).toEqual({ status: 0, stdout: 'ran\nran\n', stderr: '' });
  });

  test('a process can exit with launches in flight', () => {
    const { status, stdout, stderr } = run(`
      import * as c from '${wholePackage}';
      const stream = new c.Stream({ nonBlocking: true });
      const exec = stream.capture(() => stream.launchHostFunction(() => console.log('ran'))).instantiate();
      for (let i = 0; i < 10; i++) exec.launch(stream);
      setTimeout(() => {}, 1e6);
      setImmediate(() => process.exit(0));
    `);
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
    expect(stdout).toMatch(/^(ran\n)*$/);
  });

  test('a device error that loses some of them ends the wait, with a warning', () => {
    const { status, stdout, stderr } = run(`
      import { Stream } from 'cistern';
      import { failCall } from 'cistern/testing';
      const stream = new Stream({ nonBlocking: true });
      const exec = stream.capture(() => stream.launchHostFunction(() => console.log('ran'))).instantiate();
      const hold = stream.hold();
      exec.launch(stream);
      failCall('cuEventQuery', 1, 700);
      process.on('warning', (warning) => console.log(warning.code));
      setInterval(() => {}, 100).unref();
    `);
    expect({ status, stdout }).toEqual({ status: 0, stdout: 'CISTERN_LOST_HOST_FUNCTION\n' });
    expect(stderr).toContain('host functions of a graph will never run: CUDA_ERROR_ILLEGAL_ADDRESS');
  });

  test('a launch that fails runs none of them, and waits for none', () => {
    const { status, stdout, stderr } = run(`
      import { Stream } from 'cistern';
      import { failCall } from 'cistern/testing';
      const stream = new Stream({ nonBlocking: true });
      const exec = stream.capture(() => stream.launchHostFunction(() => console.log('ran'))).instantiate();
      failCall('cuGraphLaunch', 1, 1);
      try { exec.launch(stream); } catch (error) { console.log(error.driverStatus); }
      stream.synchronizeSync();
      exec.launch(stream);
      stream.synchronizeSync();
    `);
    expect({ status, stdout, stderr }).toEqual({ status: 0, stdout: '1\nran\n', stderr: '' });
  });

  test('a launch is one call of the driver, so that nothing can fail after it', () => {
    using graph = captured();
    using exec = graph.instantiate();
    const before = driverCallCounts().byFunction;
    exec.launch(stream);
    const after = driverCallCounts().byFunction;
    const made = Object.keys(after).filter((name) => after[name] !== before[name]);
    expect(made).toEqual(['cuGraphLaunch']);
    stream.synchronizeSync();
    expect(runs).toEqual(['function']);
  });

  test('an error in one is an uncaught exception, and the launch goes on', () => {
    const { status, stdout, stderr } = run(`
      import * as c from '${wholePackage}';
      const stream = new c.Stream({ nonBlocking: true });
      const exec = stream.capture(() => {
        stream.launchHostFunction(() => { throw new Error('mine'); });
        stream.launchHostFunction(() => console.log('second'));
      }).instantiate();
      process.on('uncaughtException', (error) => console.log(error.message));
      exec.launch(stream);
      stream.synchronizeSync();
      exec.launch(stream);
      await stream.synchronize();
    `);
    expect({ status, stdout, stderr }).toEqual({ status: 0, stdout: 'mine\nsecond\nmine\nsecond\n', stderr: '' });
  });

  test.each(['process.exit()', 'globalThis.kept = exec', 'setInterval(() => {}, 1000); parentPort.postMessage("end me")'])(
    'a worker can end with launches in flight: %s',
    (end) => {
      const { status, stdout, stderr } = run(`
      import { Worker } from 'node:worker_threads';
      import * as cistern from '${wholePackage}';
      const program = \`
        import { parentPort } from 'node:worker_threads';
        import * as cistern from '${wholePackage}';
        const stream = new cistern.Stream({ nonBlocking: true });
        const exec = stream.capture(() => {
          stream.launchHostFunction(() => {});
          stream.launchHostFunction(() => {});
        }).instantiate();
        const other = stream.capture(() => stream.launchHostFunction(() => {})).instantiate();
        for (let i = 0; i < 50; i++) exec.launch(stream);
        other.launch(new cistern.Stream({ nonBlocking: true }));
        ${end};
      \`;
      for (let i = 0; i < 3; i++) {
        const worker = new Worker(new URL('data:text/javascript,' + encodeURIComponent(program.replaceAll("'cistern'", JSON.stringify(import.meta.resolve('cistern'))))));
        worker.on('message', () => worker.terminate());
        await new Promise((resolve) => worker.on('exit', resolve));
        new cistern.Stream({ nonBlocking: true }).dispose();
        const stream = new cistern.Stream();
        new cistern.CudaMemoryResource().deallocate(new cistern.CudaMemoryResource().allocate(64, stream), 64, stream);
        cistern.Device.get().synchronizeSync();
      }
      console.log('ended');
    `);
      expect({ status, stdout, stderr }).toEqual({ status: 0, stdout: 'ended\n', stderr: '' });
    },
  );
});
