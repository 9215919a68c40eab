/**
 * A stream that another library captures: native/test/foreign, which calls the driver itself, so that
 * cistern learns of nothing. Each call of cistern's becomes part of the library's graph or is refused, and
 * the capture stays valid.
 */
import { createRequire } from 'node:module';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { freeUnreachableBuffers } from '../../src/collector/free-unreachable-buffers.js';
import { mailbox, native } from '../../src/driver/native.js';
import {
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  copy,
  copyFromHost,
  copyToHostSync,
  Device,
  DeviceBuffer,
  Event,
  type Graph,
  PoolMemoryResource,
  Stream,
  set,
} from '../../src/index.js';
import { builtForTests } from '../support/built-for-tests.js';
import { runWithWorkers } from '../support/workers.js';

/** The addon of native/test/foreign: a library of its own. */
interface Library {
  /** @param table of the driver's functions */
  use(table: number): void;
  /** @returns the driver's status */
  call(name: string, ...values: (number | bigint | NodeJS.TypedArray)[]): number;
  /** A host function that adds one to an `Int32Array`. */
  readonly increment: bigint;
}

const plain = new CudaMemoryResource();
const capturing = expect.objectContaining({ code: 'ERR_CISTERN_CAPTURING' });
const modes = ['global', 'thread-local', 'relaxed'] as const;
let library: Library;
let missing: string | undefined;
let stream: Stream;
let other: Stream;
let pointer: number;

beforeAll(async () => {
  const built = await builtForTests('buildForeignLibrary', 'the other library');
  ({ missing } = built);
  if (built.path === undefined) return;
  library = createRequire(import.meta.url)(built.path) as Library;
  stream = new Stream({ nonBlocking: true });
  other = new Stream({ nonBlocking: true });
  pointer = plain.allocate(4096, stream);
  native().driverTable();
  library.use(mailbox[1] as number);
}, 120_000);

beforeEach(({ skip }) => {
  if (missing !== undefined) skip(missing);
  let canCapture = true;
  try {
    stream.capture(() => {}).dispose();
  } catch {
    canCapture = false;
  }
  if (!canCapture) skip('needs a driver that captures');
  set(pointer, 0, 1, 4096, stream);
  stream.synchronizeSync();
});

afterAll(() => {
  if (missing === undefined) plain.deallocate(pointer, 4096, stream);
});

function call(name: string, ...values: (number | bigint | NodeJS.TypedArray)[]): void {
  expect(library.call(name, ...values), name).toBe(0);
}

/** Captures the stream in the library, and launches what was captured as often as it is asked to. */
function captureThere(body: () => void, launches: number, mode: (typeof modes)[number] = 'global'): void {
  const graph = new BigUint64Array(1);
  const exec = new BigUint64Array(1);
  call('cuStreamBeginCapture', stream.nativeHandle, modes.indexOf(mode));
  let status: string;
  try {
    body();
    status = stream.captureStatus;
  } finally {
    library.call('cuStreamEndCapture', stream.nativeHandle, graph);
  }
  expect(status).toBe('active');
  call('cuGraphInstantiateWithFlags', exec, graph[0] as bigint, 0);
  for (let launch = 0; launch < launches; launch++) {
    call('cuGraphLaunch', exec[0] as bigint, stream.nativeHandle);
    stream.synchronizeSync();
  }
  call('cuGraphExecDestroy', exec[0] as bigint);
  call('cuGraphDestroy', graph[0] as bigint);
}

function read(offset: number): number {
  const array = new Uint8Array(1);
  copyToHostSync(array, pointer + offset, stream);
  return array[0] as number;
}

describe('a stream that another library captures', () => {
  test.each(modes)('is refused if cistern has not seen it before, and goes on: %s', (mode) => {
    const handle = new BigUint64Array(1);
    const graph = new BigUint64Array(1);
    call('cuStreamCreateWithPriority', handle, 1, 0);
    const theirs = handle[0] as bigint;
    call('cuStreamBeginCapture', theirs, modes.indexOf(mode));
    expect(() => Stream.fromHandle(theirs)).toThrow(capturing);
    call('cuStreamEndCapture', theirs, graph);
    call('cuGraphDestroy', graph[0] as bigint);
    Stream.fromHandle(theirs).dispose();
    call('cuStreamDestroy', theirs);
  });

  test.each(modes)('gets what cistern queues into the graph of the library: %s', (mode) => {
    const counter = new Int32Array(1);
    captureThere(
      () => {
        set(pointer, 7, 1, 4, stream);
        call('cuLaunchHostFunc', stream.nativeHandle, library.increment, counter);
        copy(pointer + 8, pointer, 4, stream);
        copyFromHost(pointer + 16, Uint8Array.of(3), stream);
        call('cuMemsetD32Async', pointer, 0x09090909, 1, stream.nativeHandle);
        expect(counter[0]).toBe(0);
      },
      3,
      mode,
    );
    expect(counter[0]).toBe(3);
    expect([read(0), read(8), read(16)]).toEqual([9, 7, 3]);
  });

  test('takes in the streams that wait for its events', () => {
    using forked = new Event();
    using joined = new Event();
    captureThere(() => {
      set(pointer, 7, 1, 4, stream);
      forked.record(stream);
      other.wait(forked);
      expect(other.captureStatus).toBe('active');
      copy(pointer + 8, pointer, 4, other);
      joined.record(other);
      stream.wait(joined);
    }, 1);
    expect(read(8)).toBe(7);
    expect(other.captureStatus).toBe('none');
  });

  test.each(modes)('refuses what the library would have to know of, and what cannot be captured: %s', (mode) => {
    using early = new Event();
    early.record(other);
    using driverPool = Device.get().attribute('memoryPoolsSupported') === 1 ? new CudaAsyncMemoryResource() : undefined;
    using called = stream.capture(() => stream.launchHostFunction(() => {}));
    captureThere(
      () => {
        const refused: (() => unknown)[] = [
          () => stream.launchHostFunction(() => {}),
          () => stream.addChildGraph(called),
          () => stream.hold(),
          () => stream.query(),
          () => stream.synchronizeSync(),
          () => stream.wait(early),
          () => stream.beginCapture(),
        ];
        if (driverPool !== undefined) refused.push(() => driverPool.allocate(4096, stream));
        for (const each of refused) expect(each).toThrow(capturing);
        expect(() => stream.endCapture()).toThrow('CUDA_ERROR_STREAM_CAPTURE_UNMATCHED');
      },
      1,
      mode,
    );
  });

  test('is left alone by pools, buffers and the collector', () => {
    using pool = new PoolMemoryResource(plain, { initialBytes: 1 << 20 });
    const kept = [pool.allocate(4096, stream)];
    const elsewhere = pool.allocate(4096, other);
    captureThere(() => {
      pool.deallocate(elsewhere, 4096, other);
      const again = pool.allocate(4096, other);
      set(again, 1, 1, 4096, other);
      pool.deallocate(again, 4096, other);
      const own = attempt(() => pool.allocate(4096, stream));
      if (own !== 'refused' && attempt(() => pool.deallocate(own, 4096, stream)) === 'refused') kept.push(own);
      using _buffer = new DeviceBuffer(4096, { stream: other, resource: pool });
      freeUnreachableBuffers();
      attempt(() => pool.trim(other));
      other.synchronizeSync();
    }, 1);
    for (const each of kept) pool.deallocate(each, 4096, stream);
    pool.trim(stream);
    expect(pool.reservedBytes).toBe(0);
  });

  test('is found though cistern has created it, and never captured it before', () => {
    const fresh = new Stream({ nonBlocking: true });
    const graph = new BigUint64Array(1);
    using event = new Event();
    call('cuStreamBeginCapture', fresh.nativeHandle, modes.indexOf('relaxed'));
    try {
      expect(() => fresh.query()).toThrow(capturing);
      event.record(fresh);
      expect(() => event.query()).toThrow(capturing);
    } finally {
      library.call('cuStreamEndCapture', fresh.nativeHandle, graph);
    }
    call('cuGraphDestroy', graph[0] as bigint);
    expect(fresh.query()).toBe(true);
    fresh.dispose();
  });

  test('takes graphs as its nodes', () => {
    using child = stream.capture(() => copy(pointer + 8, pointer, 4, stream));
    captureThere(() => {
      set(pointer, 5, 1, 4, stream);
      stream.addChildGraph(child);
      set(pointer, 6, 1, 4, stream);
    }, 2);
    expect([read(0), read(8)]).toEqual([6, 5]);
  });
});

describe('a stream that cistern captures', () => {
  test('gets what another library queues into the graph', () => {
    const counter = new Int32Array(1);
    using graph = stream.capture(() => {
      call('cuMemsetD32Async', pointer, 0x04040404, 1, stream.nativeHandle);
      call('cuLaunchHostFunc', stream.nativeHandle, library.increment, counter);
      copy(pointer + 8, pointer, 4, stream);
    });
    expect(graph.nodeCounts).toMatchObject({ fills: 1, hostFunctions: 1, copies: 1, total: 3 });
    using exec = graph.instantiate();
    exec.launch(stream);
    expect(read(8)).toBe(4);
    expect(counter[0]).toBe(1);
  });

  test('runs its host functions from the event loop if the library launches the graph', async () => {
    let runs = 0;
    const handle = new BigUint64Array(1);
    const exec = new BigUint64Array(1);
    using _graph = stream.capture(() => {
      stream.launchHostFunction(() => {
        runs += 1;
      });
      call('cuStreamGetCaptureInfo', stream.nativeHandle, new Int32Array(1), 0, handle);
    });
    call('cuGraphInstantiateWithFlags', exec, handle[0] as bigint, 0);
    for (let launch = 0; launch < 3; launch++) call('cuGraphLaunch', exec[0] as bigint, stream.nativeHandle);
    await expect.poll(() => runs).toBe(3);
    stream.synchronizeSync();
    call('cuGraphExecDestroy', exec[0] as bigint);
  });

  test('takes memory that the library allocates there, and its graph is no child graph', ({ skip }) => {
    if (Device.get().attribute('memoryPoolsSupported') !== 1) skip('the device has no pools');
    const properties = new Uint8Array(88);
    new DataView(properties.buffer).setInt32(0, 1, true);
    new DataView(properties.buffer).setInt32(8, 1, true);
    const pool = new BigUint64Array(1);
    call('cuMemPoolCreate', pool, properties);
    const memory = new BigUint64Array(1);
    using graph: Graph = stream.capture(() => {
      call('cuMemAllocFromPoolAsync', memory, 4096, pool[0] as bigint, stream.nativeHandle);
      call('cuMemsetD32Async', memory[0] as bigint, 0x08080808, 1, stream.nativeHandle);
      copy(pointer, Number(memory[0]), 4, stream);
      call('cuMemFreeAsync', memory[0] as bigint, stream.nativeHandle);
    });
    expect(graph.nodeCounts).toMatchObject({ allocations: 1, frees: 1, total: 4 });
    using exec = graph.instantiate();
    exec.launch(stream);
    expect(read(0)).toBe(8);
    using parent = stream.capture(() => {
      expect(() => stream.addChildGraph(graph)).toThrow('it has 1 allocations and 1 frees of memory');
    });
    expect(parent.nodeCounts.total).toBe(0);
    call('cuMemPoolDestroy', pool[0] as bigint);
  });

  test('is seen to be invalid if the library breaks it', () => {
    stream.beginCapture();
    expect(library.call('cuStreamQuery', stream.nativeHandle)).toBe(900);
    expect(stream.captureStatus).toBe('invalidated');
    expect(() => stream.endCapture()).toThrow('CUDA_ERROR_STREAM_CAPTURE_INVALIDATED');
    expect(stream.captureStatus).toBe('none');
  });
});

test('a stream that another worker captures is found by the worker that has shared it', () => {
  const { stdout, stderr } = runWithWorkers(`
    const stream = new Stream({ nonBlocking: true });
    const [worker] = start(\`
      const stream = cistern.attachStream(await received());
      stream.beginCapture('relaxed');
      post('begun');
      await received();
      stream.endCapture().dispose();
      stream.dispose();
      post('ended');\`);
    worker.postMessage(cistern.shareStream(stream));
    await received(worker);
    try {
      show(stream.query());
    } catch (error) {
      show(error.code);
    }
    worker.postMessage('end');
    await received(worker);
    show(stream.query());
    await worker.terminate();
  `);
  expect({ stdout, stderr }).toEqual({ stdout: 'ERR_CISTERN_CAPTURING\ntrue\n', stderr: '' });
});

/** Something that either works or is refused because of the capture. */
function attempt<T>(body: () => T): T | 'refused' {
  try {
    return body();
  } catch (error) {
    expect(error).toEqual(capturing);
    return 'refused';
  }
}
