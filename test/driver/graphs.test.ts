/**
 * Captures and graphs. What becomes part of a graph runs at each launch; what cannot is refused with one
 * error, and the capture goes on; what cistern does besides leaves every capture alone.
 */

import { readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { runInNewContext } from 'node:vm';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  copy,
  copyFromHost,
  copyToHost,
  copyToHostSync,
  Device,
  DeviceBuffer,
  Event,
  type Graph,
  ManagedMemoryResource,
  OutOfMemoryError,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  Stream,
  set,
  VirtualMemoryResource,
} from '../../src/index.js';
import { driverCallCounts, failCall } from '../../src/tools/testing/index.js';
import { attachStream, detachEvent, detachStream, shareStream } from '../../src/workers/index.js';
import { deviceUnderTest } from '../support/device-under-test.mjs';
import { isGpu } from '../support/real-gpu.js';
import { runModule, wholePackage } from '../support/run-module.js';

const plain = new CudaMemoryResource();
const pinned = new PinnedHostMemoryResource();
const modes = ['global', 'thread-local', 'relaxed'] as const;
const capturing = expect.objectContaining({ code: 'ERR_CISTERN_CAPTURING' });

let stream: Stream;
let other: Stream;
let pointer: number;
let host: number;

beforeAll(() => {
  stream = new Stream({ nonBlocking: true });
  other = new Stream({ nonBlocking: true });
  pointer = plain.allocate(4096, stream);
  host = pinned.allocate(4096, stream);
});

afterAll(() => {
  plain.deallocate(pointer, 4096, stream);
  pinned.deallocate(host, 4096, stream);
});

/** The first bytes of device memory. */
function read(address: number, bytes = 4): number[] {
  const array = new Uint8Array(bytes);
  copyToHostSync(array, address, stream);
  return [...array];
}

/** Runs something while a stream is captured, and checks that the capture is still valid after it. */
function whileCapturing(body: () => void, mode: (typeof modes)[number] = 'global', captured = stream): void {
  captured.beginCapture(mode);
  try {
    body();
    expect(captured.captureStatus).toBe('active');
  } finally {
    captured.endCapture().dispose();
  }
  expect(captured.captureStatus).toBe('none');
}

function expectRefused(call: () => unknown): void {
  expect(call).toThrow(capturing);
}

describe('a graph', () => {
  test('runs at each launch what was captured, and not before', () => {
    set(pointer, 0, 1, 4096, stream);
    set(host, 7, 1, 4, stream);
    using graph = stream.capture(() => {
      expect(stream.captureStatus).toBe('active');
      copy(pointer, host, 4, stream);
      set(pointer + 4, 9, 1, 4, stream);
    });
    expect(read(pointer, 8)).toEqual([0, 0, 0, 0, 0, 0, 0, 0]);
    expect(graph.nodeCounts).toEqual({
      ...{ kernels: 0, copies: 1, fills: 1, hostFunctions: 0, childGraphs: 0, allocations: 0, frees: 0, others: 0, total: 2 },
    });
    using exec = graph.instantiate();
    exec.upload(stream);
    exec.launch(stream);
    expect(read(pointer, 8)).toEqual([7, 7, 7, 7, 9, 9, 9, 9]);
    set(host, 8, 1, 4, stream);
    exec.launch(stream);
    expect(read(pointer)).toEqual([8, 8, 8, 8]);
  });

  test('has the order that events give it, on streams that join and leave', () => {
    using joined = new Event();
    using left = new Event();
    set(pointer, 0, 1, 8, stream);
    stream.synchronizeSync();
    using graph = stream.capture(() => {
      set(pointer, 1, 1, 4, stream);
      joined.record(stream);
      other.wait(joined);
      expect(other.captureStatus).toBe('active');
      copy(pointer + 4, pointer, 4, other);
      left.record(other);
      stream.wait(left);
      set(pointer, 2, 1, 4, stream);
    });
    expect(other.captureStatus).toBe('none');
    using exec = graph.instantiate();
    exec.launch(other);
    other.synchronizeSync();
    expect(read(pointer, 8)).toEqual([2, 2, 2, 2, 1, 1, 1, 1]);
  });

  test('has the order of events that are disposed in it, which the driver gets back after it', () => {
    const destroyed = () => driverCallCounts().byFunction['cuEventDestroy'] as number;
    const disposedIn = (body: (event: Event) => void) => {
      const event = new Event();
      body(event);
      event.dispose();
    };
    set(pointer, 0, 1, 8, stream);
    stream.synchronizeSync();
    const before = destroyed();
    using graph = stream.capture(() => {
      set(pointer, 1, 1, 4, stream);
      disposedIn((event) => {
        event.record(stream);
        other.wait(event);
      });
      copy(pointer + 4, pointer, 4, other);
      disposedIn((event) => {
        event.record(other);
        stream.wait(event);
      });
      set(pointer, 2, 1, 4, stream);
      expect(destroyed()).toBe(before);
      // No event of the capture.
      disposedIn(() => {});
      expect(destroyed()).toBe(before + 1);
    });
    expect(destroyed()).toBe(before + 3);
    using exec = graph.instantiate();
    exec.launch(stream);
    expect(read(pointer, 8)).toEqual([2, 2, 2, 2, 1, 1, 1, 1]);
  });

  test('gives back the events that were disposed in it if it is given up, and those that the driver kept', () => {
    const destroyed = () => driverCallCounts().byFunction['cuEventDestroy'] as number;
    const before = destroyed();
    const captured = new Stream();
    captured.beginCapture();
    const event = new Event();
    event.record(captured);
    event.dispose();
    expect(destroyed()).toBe(before);
    failCall('cuEventDestroy');
    captured.dispose();
    expect(destroyed()).toBe(before + 1);
    // It is tried again when a stream is made, which is when orphans are freed.
    new Stream().dispose();
    expect(destroyed()).toBe(before + 2);
  });

  test('can be disposed before its last launch has run', () => {
    set(pointer, 0, 1, 4, stream);
    const graph = stream.capture(() => set(pointer, 3, 1, 4, stream));
    const exec = graph.instantiate();
    graph.dispose();
    graph.dispose();
    using hold = stream.hold();
    exec.launch(stream);
    exec.dispose();
    exec.dispose();
    hold.release();
    expect(read(pointer)).toEqual([3, 3, 3, 3]);
    expect(() => graph.instantiate()).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    expect(() => exec.launch(stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
  });

  test('takes over the addresses of another one with the same nodes, and refuses others', () => {
    set(pointer, 0, 1, 8, stream);
    using first = stream.capture(() => set(pointer, 1, 1, 4, stream));
    using second = stream.capture(() => set(pointer + 4, 2, 1, 4, stream));
    using longer = stream.capture(() => {
      set(pointer, 1, 1, 4, stream);
      set(pointer, 1, 1, 4, stream);
    });
    using exec = first.instantiate();
    expect(exec.update(longer)).toBe(false);
    expect(exec.update(second)).toBe(true);
    exec.launch(stream);
    expect(read(pointer, 8)).toEqual([0, 0, 0, 0, 2, 2, 2, 2]);
  });

  test('writes itself as a DOT file', () => {
    using graph = stream.capture(() => set(pointer, 1, 1, 4, stream));
    const path = join(tmpdir(), `cistern-${process.pid}.dot`);
    graph.writeDot(path);
    expect(readFileSync(path, 'utf8')).toContain('digraph');
    expect(() => graph.writeDot('/nowhere/at/all')).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DRIVER' }));
  });

  test('checks its arguments', () => {
    using graph = stream.capture(() => {});
    using exec = graph.instantiate();
    expect(() => stream.beginCapture('strict' as 'global')).toThrow(RangeError);
    expect(() => stream.beginCapture(1 as unknown as 'global')).toThrow(TypeError);
    expect(() => stream.capture(1 as unknown as () => void)).toThrow(TypeError);
    expect(() => graph.instantiate({ frees: true } as object)).toThrow(RangeError);
    expect(() => graph.writeDot(1 as unknown as string)).toThrow(TypeError);
    expect(() => exec.launch({} as Stream)).toThrow(TypeError);
    expect(() => exec.update({} as Graph)).toThrow(TypeError);
    expect(() => structuredClone(graph)).toThrow();
    expect(stream.captureStatus).toBe('none');
  });
});

describe('a capture', () => {
  test('is given up if its function throws', () => {
    const error = new Error('mine');
    expect(() =>
      stream.capture(() => {
        throw error;
      }),
    ).toThrow(error);
    expect(stream.captureStatus).toBe('none');
    stream.synchronizeSync();
  });

  test('is given up if its function returns a promise of whatever kind, whose error ends no process', async () => {
    const thenable = (object: object) => Object.defineProperty(object, 'then', { value: () => {} });
    const promises: Record<string, () => unknown> = {
      ours: async () => {},
      'of another realm': () => runInNewContext('Promise.resolve()'),
      'a thenable': () => thenable({}),
      'a thenable without a prototype': () => thenable(Object.create(null)),
      'a callable thenable': () => thenable(() => {}),
      rejected: () => Promise.reject(new Error('late')),
      'rejected in another realm': () => runInNewContext("Promise.reject(new Error('late'))"),
    };
    for (const [name, record] of Object.entries(promises)) {
      expect(() => stream.capture(record), name).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE' }));
      expect(stream.captureStatus, name).toBe('none');
    }
    // Vitest fails if an error that nobody handles comes now.
    await new Promise((resolve) => setImmediate(resolve));
    stream.capture(() => Object.defineProperty({}, 'then', { value: 'no function' })).dispose();
    stream.synchronizeSync();
  });

  test('that the driver refuses to end is given up, at the latest before the next one', () => {
    failCall('cuStreamEndCapture', 1, 999);
    expect(() => stream.capture(() => {})).toThrow(/end a capture.* \(999\)/);
    expect(stream.captureStatus).toBe('none');
    const failure = new Error('on purpose');
    const fail = () => {
      failCall('cuStreamEndCapture', 1, 999);
      throw failure;
    };
    expect(() => stream.capture(fail)).toThrow(failure);
    expect(stream.captureStatus).toBe('active');
    stream.capture(() => {}).dispose();
    expect(stream.captureStatus).toBe('none');
    // It begins, but the driver tells no id of it.
    failCall('cuStreamGetCaptureInfo', 1, 999);
    expect(() => stream.beginCapture()).toThrow(/begin a capture.* \(999\)/);
    expect(stream.captureStatus).toBe('none');
    failCall('cuStreamGetCaptureInfo', 1, 999);
    failCall('cuStreamEndCapture', 1, 999);
    expect(() => stream.beginCapture()).toThrow(/begin a capture.* \(999\)/);
    expect(stream.captureStatus).toBe('none');
    stream.synchronizeSync();
  });

  test('ends when its function returns, and not in it', () => {
    const record = () => {
      set(pointer, 1, 1, 4, stream);
      expect(() => stream.endCapture()).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_INVALID_STATE' }));
      const again = Stream.fromHandle(stream.nativeHandle);
      expect(() => again.endCapture()).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_INVALID_STATE' }));
      again.dispose();
    };
    using graph = stream.capture(record);
    expect(graph.nodeCounts.fills).toBe(1);
    stream.beginCapture();
    stream.endCapture().dispose();
  });

  test('is not harmed by questions about its stream', () => {
    const { id, nativeHandle } = stream;
    for (const mode of modes) {
      whileCapturing(() => {
        using again = Stream.fromHandle(nativeHandle);
        expect([again.id, again.isNonBlocking, stream.isNonBlocking, stream.priority]).toEqual([id, true, true, 0]);
        expect(stream.captureStatus).toBe('active');
      }, mode);
    }
  });

  test('is not harmed by questions about a stream that was handed over', () => {
    using shared = new Stream({ nonBlocking: true });
    using attached = attachStream(shareStream(shared));
    using moved = attachStream(detachStream(new Stream({ nonBlocking: true })));
    for (const each of [shared, attached, moved]) {
      const { id, nativeHandle } = each;
      for (const mode of modes) {
        const ask = () => {
          using again = Stream.fromHandle(nativeHandle);
          expect([again.id, again.isNonBlocking, each.isNonBlocking, each.priority]).toEqual([id, true, true, 0]);
        };
        whileCapturing(ask, mode, each);
      }
    }
  });

  test('whose stream its function disposes is over', () => {
    const brief = new Stream({ nonBlocking: true });
    expect(() => brief.capture(() => brief.dispose())).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    Device.get().synchronizeSync();
  });

  test('begins once, and not on the legacy stream', () => {
    whileCapturing(() => expectRefused(() => stream.beginCapture()));
    expect(() => Stream.legacyDefault().beginCapture()).toThrow('CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED');
    expect(Stream.legacyDefault().captureStatus).toBe('none');
    Device.get().synchronizeSync();
  });

  test('ends on its stream only', () => {
    using event = new Event();
    using end = new Event();
    whileCapturing(() => {
      event.record(stream);
      other.wait(event);
      expect(() => other.endCapture()).toThrow('CUDA_ERROR_STREAM_CAPTURE_UNMATCHED');
      end.record(other);
      stream.wait(end);
    });
    expect(() => stream.endCapture()).toThrow('CUDA_ERROR_ILLEGAL_STATE');
  });

  test('with a stream that did not come back ends without a graph', () => {
    using event = new Event();
    stream.beginCapture();
    event.record(stream);
    other.wait(event);
    set(pointer, 1, 1, 4, other);
    expect(() => stream.endCapture()).toThrow('CUDA_ERROR_STREAM_CAPTURE_UNJOINED');
    expect([stream.captureStatus, other.captureStatus]).toEqual(['none', 'none']);
    Device.get().synchronizeSync();
  });

  test('ends with a stream that is disposed', () => {
    using event = new Event();
    const brief = new Stream({ nonBlocking: true });
    brief.beginCapture();
    event.record(brief);
    other.wait(event);
    expectRefused(() => new Stream({ nonBlocking: true }).wait(event) ?? other.synchronizeSync());
    brief.dispose();
    expect(other.captureStatus).toBe('none');
    Device.get().synchronizeSync();
  });

  test('keeps a stream that has joined from being disposed', () => {
    using event = new Event();
    using end = new Event();
    const fork = new Stream({ nonBlocking: true });
    whileCapturing(() => {
      event.record(stream);
      fork.wait(event);
      expectRefused(() => fork.dispose());
      expect(fork.isDisposed).toBe(false);
      end.record(fork);
      stream.wait(end);
    });
    fork.dispose();
  });

  test('of a stream whose worker ends is ended with it', () => {
    const { status, stdout, stderr } = runModule(
      `
      import { Worker } from 'node:worker_threads';
      import * as cistern from '${wholePackage}';
      const program = \`
        import * as cistern from '${wholePackage}';
        const stream = new cistern.Stream({ nonBlocking: true });
        globalThis.kept = [stream.capture(() => {}), stream.capture(() => {}).instantiate()];
        stream.beginCapture('global');
        process.exit();
      \`;
      const stream = new cistern.Stream({ nonBlocking: true });
      const worker = new Worker(new URL('data:text/javascript,' + encodeURIComponent(program.replaceAll("'cistern'", JSON.stringify(import.meta.resolve('cistern'))))));
      await new Promise((resolve) => worker.on('exit', resolve));
      cistern.Device.get().memoryInfo();
      new cistern.Stream({ nonBlocking: true }).dispose();
      cistern.Device.get().synchronizeSync();
      console.log('synchronized');
    `,
      { ...deviceUnderTest },
    );
    expect({ status, stdout, stderr }).toEqual({ status: 0, stdout: 'synchronized\n', stderr: '' });
  });
});

describe('while a stream is captured', () => {
  test('what waits for it, or asks it, is refused', async () => {
    using event = new Event();
    const promises: Promise<void>[] = [];
    for (const mode of modes) {
      whileCapturing(() => {
        event.record(stream);
        expectRefused(() => stream.query());
        expectRefused(() => stream.synchronizeSync());
        expectRefused(() => event.query());
        expectRefused(() => event.synchronizeSync());
        expectRefused(() => detachEvent(event));
        expectRefused(() => Device.get().synchronizeSync());
        promises.push(stream.synchronize(), event.synchronize());
      }, mode);
    }
    for (const promise of promises) await expect(promise).rejects.toEqual(capturing);
    expectRefused(() => event.query());
    event.record(stream);
    stream.synchronizeSync();
    expect(event.query()).toBe(true);
  });

  test('holds are refused, and nothing waits for them', () => {
    let runs = 0;
    whileCapturing(() => {
      expectRefused(() => stream.hold());
    });
    stream.synchronizeSync();
    expect(runs).toBe(0);
    stream.launchHostFunction(() => runs++);
    stream.synchronizeSync();
    expect(runs).toBe(1);
  });

  test('copies to arrays are refused, also while a host function is outstanding', async () => {
    let promise: Promise<unknown> | undefined;
    const refuseAll = () => {
      const array = new Uint8Array(16);
      expectRefused(() => copyToHostSync(array, pointer, stream));
      promise = copyToHost(pointer, 16, stream);
      copy(host, pointer, 16, stream);
      copy(host, host + 64, 16, stream);
    };
    whileCapturing(refuseAll);
    await expect(promise).rejects.toEqual(capturing);
    other.launchHostFunction(() => {});
    whileCapturing(refuseAll);
    await expect(promise).rejects.toEqual(capturing);
    other.synchronizeSync();
  });

  test('copies from arrays become part of the graph, with the bytes of that time', async () => {
    const array = Uint8Array.of(1, 2, 3, 4);
    const buffers: DeviceBuffer[] = [];
    const capture = (): Graph =>
      stream.capture(() => {
        copyFromHost(pointer, array, stream);
        array.fill(9);
        copyFromHost(pointer + 4, array, stream);
        copyFromHost(host, array, stream);
        buffers.push(new DeviceBuffer(array, { stream, resource: plain }));
        structuredClone(array.buffer, { transfer: [array.buffer] });
      });
    const graph = capture();
    expect(graph.nodeCounts).toMatchObject({ copies: 4, total: 4 });
    const exec = graph.instantiate();
    graph.dispose();
    for (let launch = 0; launch < 3; launch++) {
      set(pointer, 0, 1, 8, stream);
      // What other copies from arrays use meanwhile is not the graph's.
      other.launchHostFunction(() => {});
      copyFromHost(pointer + 64, new Uint8Array(64).fill(5), other);
      exec.launch(stream);
      expect(read(pointer, 8)).toEqual([1, 2, 3, 4, 9, 9, 9, 9]);
      expect(read(buffers[0]?.ptr ?? 0)).toEqual([9, 9, 9, 9]);
    }
    // In flight. A GPU launches a graph with a copy between host memory only once what is queued before it has run.
    using hold = isGpu ? undefined : stream.hold();
    set(pointer, 0, 1, 8, stream);
    exec.launch(stream);
    exec.dispose();
    for (let i = 0; i < 20; i++) {
      copyFromHost(pointer + 64, new Uint8Array(4).fill(5), other);
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    hold?.release();
    expect(read(pointer, 8)).toEqual([1, 2, 3, 4, 9, 9, 9, 9]);
    buffers[0]?.dispose();
  });

  test('copies from arrays use their memory again after the end of the graph', async () => {
    const bytes = 1 << 20;
    using target = new DeviceBuffer(bytes, { stream, resource: plain });
    const array = new Uint8Array(bytes);
    const before = process.memoryUsage().rss;
    for (let round = 0; round < 200; round++) {
      stream.capture(() => copyFromHost(target.ptr, array, stream)).dispose();
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    expect(process.memoryUsage().rss - before).toBeLessThan(150 * bytes);
  });

  test('waits across the bounds of the capture are refused', () => {
    using outside = new Event();
    using inside = new Event();
    using second = new Stream({ nonBlocking: true });
    outside.record(other);
    whileCapturing(() => {
      expectRefused(() => stream.wait(outside));
      expectRefused(() => stream.wait(new Event()));
      inside.record(stream);
      stream.wait(inside);
      whileCapturing(() => expectRefused(() => second.wait(inside)), 'thread-local', second);
    });
    expectRefused(() => other.wait(inside));
    stream.wait(outside);
  });

  test('cistern itself neither records an event in it, nor lets another stream join it', () => {
    using event = new Event();
    using eager = new Event();
    eager.record(stream);
    whileCapturing(() => {
      expectRefused(() => event.recordOn(stream.identity, 1));
      expect(event.query()).toBe(true);
      event.record(stream);
      expectRefused(() => other.identity.wait(event));
      expectRefused(() => stream.identity.wait(event));
      expectRefused(() => stream.identity.wait(eager));
      other.identity.wait(eager);
      expect(other.captureStatus).toBe('none');
    });
    expectRefused(() => other.identity.wait(event));
    event.recordOn(stream.identity, 1);
    other.identity.wait(event);
  });

  test.each(['eager', 'deferred', 'off'] as const)('pools of other streams leave it alone, with %s events', (deallocationEvents) => {
    using upstream = new CudaMemoryResource();
    using pool = new PoolMemoryResource(upstream, { deallocationEvents, maximumBytes: 1 << 20, initialBytes: 1 << 20 });
    const held = pool.allocate(1 << 20, stream);
    set(held, 1, 1, 4, stream);
    pool.deallocate(held, 1 << 20, stream);
    whileCapturing(() => {
      let taken = 0;
      try {
        taken = pool.allocate(1 << 20, other);
      } catch (error) {
        expect(error).toBeInstanceOf(OutOfMemoryError);
      }
      expect(other.captureStatus).toBe('none');
      if (taken !== 0) pool.deallocate(taken, 1 << 20, other);
    });
    pool.deallocate(pool.allocate(1 << 20, other), 1 << 20, other);
  });

  test('memory is neither allocated nor freed in its order, and none is lost', () => {
    using pool = new CudaAsyncMemoryResource();
    const pooled = pool.allocate(4096, stream);
    const block = plain.allocate(4096, stream);
    const before = Device.get().memoryInfo().freeBytes;
    let fresh = 0;
    whileCapturing(() => {
      expectRefused(() => pool.allocate(4096, stream));
      expectRefused(() => pool.deallocate(pooled, 4096, stream));
      expectRefused(() => plain.deallocate(block, 4096, stream));
      fresh = plain.allocate(4096, stream);
    });
    plain.deallocate(fresh, 4096, stream);
    expect(Device.get().memoryInfo().freeBytes).toBe(before);
    pool.deallocate(pooled, 4096, stream);
    plain.deallocate(block, 4096, stream);
  });

  test('graphs are not launched on it', () => {
    using graph = stream.capture(() => {});
    using exec = graph.instantiate();
    whileCapturing(() => {
      expectRefused(() => exec.launch(stream));
      expectRefused(() => exec.upload(stream));
      exec.launch(other);
    });
  });

  test('a blocking one makes the legacy stream unusable, and the capture goes on', () => {
    using blocking = new Stream();
    using event = new Event();
    const legacy = Stream.legacyDefault();
    whileCapturing(
      () => {
        expectRefused(() => legacy.query());
        expectRefused(() => legacy.synchronizeSync());
        expectRefused(() => legacy.launchHostFunction(() => {}));
        expectRefused(() => plain.deallocate(pointer, 4096, legacy));
        expect(event.query()).toBe(true);
      },
      'global',
      blocking,
    );
    expect(legacy.query()).toBe(true);
  });
});

describe('a capture, whatever its mode, is left alone by', () => {
  const uses: readonly (readonly [string, () => void])[] = [
    [
      'plain, pinned, managed and virtual memory',
      () => {
        for (const resource of [plain, pinned, new ManagedMemoryResource(), new VirtualMemoryResource()]) {
          resource.deallocate(resource.allocate(4096, other), 4096, other);
        }
      },
    ],
    [
      'pools of the driver',
      () => {
        using pool = new CudaAsyncMemoryResource();
        pool.deallocate(pool.allocate(4096, other), 4096, other);
        pool.trim(other);
        expect(pool.reservedBytes).toBeGreaterThanOrEqual(0);
      },
    ],
    [
      'pools of cistern',
      () => {
        using pool = new PoolMemoryResource(plain);
        pool.deallocate(pool.allocate(4096, other), 4096, other);
      },
    ],
    [
      'buffers and their copies',
      () => {
        using buffer = new DeviceBuffer(new Uint8Array(64).fill(3), { stream: other });
        expect(buffer.toHostSync()[0]).toBe(3);
      },
    ],
    [
      'streams and events',
      () => {
        using own = new Stream({ nonBlocking: true });
        using event = new Event({ timing: true });
        event.record(own);
        event.synchronizeSync();
        expect(event.query()).toBe(true);
        own.synchronizeSync();
        Stream.fromHandle(own.nativeHandle).dispose();
        expect([own.priority, own.isNonBlocking]).toEqual([0, true]);
        expect(event.elapsedMilliseconds(event)).toBe(0);
      },
    ],
    ['a second look at the captured stream', () => expect(Stream.fromHandle(stream.nativeHandle).id).toBe(stream.id)],
    [
      'host functions of other streams',
      () => {
        let runs = 0;
        other.launchHostFunction(() => runs++);
        other.synchronizeSync();
        expect(runs).toBe(1);
      },
    ],
    [
      'holds of other streams',
      () => {
        using hold = other.hold();
        expect(other.query()).toBe(false);
        hold.release();
        other.synchronizeSync();
      },
    ],
    [
      'other graphs',
      () => {
        using second = new Stream({ nonBlocking: true });
        using graph = second.capture(() => {});
        using exec = graph.instantiate();
        exec.launch(second);
        second.synchronizeSync();
      },
    ],
  ];

  test.each(uses)('%s', (_, use) => {
    for (const mode of modes) whileCapturing(use, mode);
  });

  test('promises and host functions that the event loop settles', async () => {
    using blocking = new Stream();
    blocking.beginCapture('global');
    stream.beginCapture('relaxed');
    let runs = 0;
    const hold = other.hold();
    other.launchHostFunction(() => runs++);
    const promise = other.synchronize();
    // Longer than the completion thread takes between two looks at a device.
    await new Promise((resolve) => setTimeout(resolve, 250));
    hold.release();
    await promise;
    expect(runs).toBe(1);
    expect([stream.captureStatus, blocking.captureStatus]).toEqual(['active', 'active']);
    stream.endCapture().dispose();
    blocking.endCapture().dispose();
  });

  test('the collector', () => {
    const { status, stdout, stderr } = runModule(
      `
      import * as c from '${wholePackage}';
      const stream = new c.Stream({ nonBlocking: true });
      const side = new c.Stream({ nonBlocking: true });
      const pool = new c.PoolMemoryResource(new c.CudaMemoryResource());
      const drop = () => {
        new c.Event();
        new c.DeviceBuffer(64, { stream: side, resource: pool });
        new c.DeviceBuffer(64, { stream: side });
        const brief = new c.Stream({ nonBlocking: true });
        brief.capture(() => {}).instantiate();
        brief.beginCapture();
      };
      stream.beginCapture('global');
      for (let i = 0; i < 50; i++) drop();
      for (let i = 0; i < 5; i++) {
        gc();
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
      console.log(stream.captureStatus);
      stream.endCapture().dispose();
      c.Device.get().synchronizeSync();
      console.log('synchronized');
    `,
      { ...deviceUnderTest, NODE_OPTIONS: '--expose-gc' },
    );
    expect({ status, stdout, stderr }).toEqual({ status: 0, stdout: 'active\nsynchronized\n', stderr: '' });
  });
});
