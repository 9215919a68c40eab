/**
 * Calls that a program should not make in a capture with memory, or that come from where they are not expected: the
 * planner, the upstream, host functions. Each is refused with a code, and changes nothing; no memory is lost, and none is
 * served twice.
 */

import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { checkOrder, type OrderChecker } from '../../src/checking/index.js';
import { GraphMemoryResource } from '../../src/graphs/index.js';
import {
  CudaMemoryResource,
  copyToHostSync,
  Device,
  DeviceBuffer,
  Event,
  type Graph,
  KiB,
  type MemoryResource,
  MiB,
  PassThroughAdaptor,
  PoolMemoryResource,
  StatisticsResourceAdaptor,
  Stream,
  set,
} from '../../src/index.js';
import { Account, AccountingResourceAdaptor, AdmittingResourceAdaptor } from '../../src/serving/index.js';
import { planAllocations } from '../../src/tools/planning/index.js';
import { failCall } from '../../src/tools/testing/index.js';
import { orderChecks } from '../support/order-checked-tests.js';
import { printed } from '../support/run-module.js';
import { runWithWorkers } from '../support/workers.js';

let checker: OrderChecker;
let stream: Stream;
let other: Stream;
let upstream: StatisticsResourceAdaptor;
let freeBefore: number;

const code = (name: string) => expect.objectContaining({ code: name });

beforeEach(() => {
  checker = checkOrder(orderChecks);
  stream = new Stream({ nonBlocking: true });
  other = new Stream({ nonBlocking: true });
  upstream = new StatisticsResourceAdaptor(new CudaMemoryResource());
  freeBefore = Device.get().memoryInfo().freeBytes;
});

afterEach(() => {
  Device.get().synchronizeSync();
  expect(Device.get().memoryInfo().freeBytes).toBe(freeBefore);
  expect(checker.violations).toEqual([]);
  checker[Symbol.dispose]();
  if (!stream.isDisposed) stream.dispose();
  other.dispose();
});

function captured(graphs: GraphMemoryResource, bytes: number, value: number, name = 'graph', on = stream): Graph {
  const record = () => {
    const pointer = graphs.allocate(bytes, on);
    set(pointer, value, 1, bytes, on);
    graphs.deallocate(pointer, bytes, on);
  };
  return graphs.capture(on, record, { name });
}

function launchOnce(graph: Graph, on = stream): void {
  using exec = graph.instantiate();
  exec.launch(on);
}

/** Calls a function the next time that the upstream is asked for memory, or gets some back. */
class CallingAdaptor extends PassThroughAdaptor {
  next: (() => void) | undefined;

  constructor(below: MemoryResource) {
    super(below, {});
  }

  allocate(bytes: number, on: Stream, alignment?: number): number {
    this.#call();
    return this.upstream.allocate(bytes, on, alignment);
  }

  deallocate(pointer: number, bytes: number, on: Stream): void {
    this.#call();
    this.upstream.deallocate(pointer, bytes, on);
  }

  #call(): void {
    const { next } = this;
    this.next = undefined;
    next?.();
  }
}

describe('in the function that is captured', () => {
  test('the capture cannot be ended, and its graph has its memory', () => {
    using graphs = new GraphMemoryResource(upstream);
    let output = 0;
    using graph = graphs.capture(stream, () => {
      output = graphs.allocate(4 * KiB, stream);
      expect(() => stream.endCapture()).toThrow(code('ERR_CISTERN_INVALID_STATE'));
      set(output, 7, 1, 4 * KiB, stream);
    });
    expect(graphs.statistics().graphs.map(({ regionBytes }) => regionBytes)).toEqual([4 * KiB]);
    using exec = graph.instantiate();
    exec.launch(stream);
    const bytes = new Uint8Array(1);
    copyToHostSync(bytes, output, stream);
    expect([...bytes]).toEqual([7]);
  });

  test('no memory of graphs is served after the stream was disposed, on streams that had joined either', () => {
    using graphs = new GraphMemoryResource(upstream);
    using event = new Event();
    const brief = new Stream({ nonBlocking: true });
    let scratch: DeviceBuffer | undefined;
    const record = () => {
      event.record(brief);
      other.wait(event);
      scratch = new DeviceBuffer(4 * KiB, { resource: graphs, stream: other });
      const { regionBytes } = graphs.statistics();
      brief.dispose();
      expect(other.captureStatus).toBe('none');
      const outside = graphs.allocate(4 * KiB, other);
      expect(graphs.statistics().regionBytes).toBe(regionBytes);
      expect(upstream.statistics().bytes.current).toBe(8 * KiB);
      graphs.deallocate(outside, 4 * KiB, other);
      expect(upstream.statistics().bytes.current).toBe(4 * KiB);
    };
    expect(() => graphs.capture(brief, record)).toThrow(code('ERR_CISTERN_DISPOSED'));
    expect(scratch?.isDisposed).toBe(true);
    expect(graphs.statistics().graphs).toEqual([]);
    captured(graphs, 4 * KiB, 1, 'next', other).dispose();
  });

  test('a stream of a device that cannot reach the memory is refused, though it has joined', ({ skip }) => {
    if (Device.count() < 2 || Device.get(1).hasAccessTo(Device.get(0))) skip('needs two devices, without access');
    using graphs = new GraphMemoryResource(upstream);
    using far = new Stream({ device: Device.get(1), nonBlocking: true });
    using joins = new Event();
    using back = new Event({ device: Device.get(1) });
    using _graph = graphs.capture(stream, () => {
      joins.record(stream);
      far.wait(joins);
      for (const resource of [graphs, graphs.kept]) expect(() => resource.allocate(256, far)).toThrow(code('ERR_INVALID_ARG_VALUE'));
      back.record(far);
      stream.wait(back);
    });
    expect(graphs.reservedBytes).toBe(0);
  });
});

describe('graphs of a family that are launched on streams of several devices', () => {
  for (const deallocationEvents of ['eager', 'deferred', 'off'] as const) {
    test(`come one after the other, under ${deallocationEvents}`, ({ skip }) => {
      if (Device.count() < 2) skip('needs two devices');
      using graphs = new GraphMemoryResource(upstream, { deallocationEvents });
      using far = new Stream({ device: Device.get(1), nonBlocking: true });
      using graph = captured(graphs, 64 * KiB, 1);
      using exec = graph.instantiate();
      for (const on of [stream, far, far, other, far, stream]) exec.launch(on);
      const brief = new Stream({ device: Device.get(1), nonBlocking: true });
      exec.launch(brief);
      brief.dispose();
      exec.launch(stream);
    });
  }
});

describe('a planner', () => {
  test('that returns a promise gives no plan, and its error ends no process', async () => {
    const planner = (() => Promise.reject(new Error('late'))) as never;
    using graphs = new GraphMemoryResource(upstream, { planner });
    captured(graphs, 256, 1).dispose();
    captured(graphs, 256, 1).dispose();
    expect(graphs.statistics()).toMatchObject({ captures: 2, planningError: { code: 'ERR_INVALID_ARG_TYPE' } });
    // Vitest fails if an error that nobody handles comes now.
    await new Promise((resolve) => setImmediate(resolve));
  });

  test('can neither capture, warm up, trim nor dispose', () => {
    const refusals: unknown[] = [];
    using graphs: GraphMemoryResource = new GraphMemoryResource(upstream, {
      planner: (passes, limits) => {
        const calls = [
          () => captured(graphs, 256, 1, 'inner', other),
          () => graphs.warmUp('inner', () => {}),
          () => graphs.trim(other),
          () => graphs.dispose(),
        ];
        for (const call of calls) {
          try {
            call();
            refusals.push('none');
          } catch (error) {
            refusals.push((error as { code: string }).code);
          }
        }
        return planAllocations(passes, limits);
      },
    });
    captured(graphs, 256, 1).dispose();
    captured(graphs, 256, 1).dispose();
    expect(refusals).toEqual(Array(4).fill('ERR_CISTERN_INVALID_STATE'));
    expect(graphs.statistics()).toMatchObject({ captures: 2, plannedCaptures: 1, planningError: undefined });
  });
});

describe('a call of the upstream', () => {
  test('for the memory of a plan can neither capture nor dispose', () => {
    const calling = new CallingAdaptor(upstream);
    using graphs = new GraphMemoryResource(calling, { planner: planAllocations });
    graphs.warmUp('graph', () => graphs.deallocate(graphs.allocate(4 * KiB, stream), 4 * KiB, stream));
    calling.next = () => {
      expect(() => captured(graphs, 256, 1, 'inner', other)).toThrow(code('ERR_CISTERN_INVALID_STATE'));
      expect(() => graphs.dispose()).toThrow(code('ERR_CISTERN_INVALID_STATE'));
    };
    using graph = captured(graphs, 4 * KiB, 1);
    expect(calling.next).toBeUndefined();
    using exec = graph.instantiate();
    exec.launch(stream);
    expect(graphs.statistics().plannedCaptures).toBe(1);
  });

  test('in a capture can allocate from the graphs, and gets other memory', () => {
    const calling = new CallingAdaptor(upstream);
    using graphs = new GraphMemoryResource(calling);
    using _graph = graphs.capture(stream, () => {
      const pointers: number[] = [];
      calling.next = () => pointers.push(graphs.allocate(1 * KiB, stream));
      for (let i = 0; i < 3; i++) pointers.push(graphs.allocate(1 * KiB, stream));
      expect(new Set(pointers).size).toBe(4);
      graphs.validate();
    });
  });

  test('that takes memory back can dispose the resource, which loses nothing', () => {
    const calling = new CallingAdaptor(upstream);
    const graphs = new GraphMemoryResource(calling);
    captured(graphs, 4 * KiB, 1, 'small').dispose();
    captured(graphs, 64 * KiB, 1, 'large').dispose();
    expect(graphs.reservedBytes).toBeGreaterThan(64 * KiB);
    calling.next = () => graphs.dispose();
    graphs.trim(stream);
    expect(graphs.reservedBytes).toBe(0);
    expect(upstream.statistics().bytes.current).toBe(0);
    graphs.dispose();
  });
});

describe('memory that cannot go back yet, since nothing can be ordered after its last use', () => {
  let pool: PoolMemoryResource;

  beforeEach(() => {
    pool = new PoolMemoryResource(upstream);
  });

  afterEach(() => {
    Device.get().synchronizeSync();
    expect(pool.statistics().allocatedBytes).toBe(0);
    pool.dispose();
  });

  /** Uses all of the pool's free memory on the other stream. */
  function reuse(): void {
    const pointers = [1, 2, 3].map(() => pool.allocate(4 * KiB, other));
    for (const pointer of pointers) set(pointer, 9, 1, 4 * KiB, other);
    for (const pointer of pointers) pool.deallocate(pointer, 4 * KiB, other);
  }

  for (const deallocationEvents of ['deferred', 'off'] as const) {
    test(`goes back after the capture of the stream of the last launch, under ${deallocationEvents}`, () => {
      const graphs = new GraphMemoryResource(pool, { deallocationEvents });
      const graph = graphs.capture(stream, () => set(graphs.kept.allocate(4 * KiB, stream), 1, 1, 4 * KiB, stream));
      const rest = captured(graphs, 4 * KiB, 2, 'rest');
      const exec = graph.instantiate();
      exec.launch(stream);
      stream.beginCapture();
      exec.dispose();
      graph.dispose();
      expect(() => graphs.dispose()).toThrow(code('ERR_CISTERN_CAPTURING'));
      expect(graphs.reservedBytes).toBe(8 * KiB);
      reuse();
      stream.endCapture().dispose();
      graphs.dispose();
      rest.dispose();
      expect(graphs.reservedBytes).toBe(0);
      reuse();
    });
  }

  test('goes back at the next trim', () => {
    using graphs = new GraphMemoryResource(pool, { deallocationEvents: 'deferred' });
    const graph = graphs.capture(stream, () => set(graphs.kept.allocate(4 * KiB, stream), 1, 1, 4 * KiB, stream));
    launchOnce(graph);
    stream.beginCapture();
    graph.dispose();
    expect(graphs.reservedBytes).toBe(4 * KiB);
    stream.endCapture().dispose();
    expect(graphs.trim(other)).toBe(4 * KiB);
    reuse();
  });

  test('goes back in order if the driver refused an event', () => {
    const graphs = new GraphMemoryResource(pool, { deallocationEvents: 'deferred' });
    const graph = captured(graphs, 4 * KiB, 1);
    launchOnce(graph);
    failCall('cuEventRecord', 1, 999);
    graphs.dispose();
    graph.dispose();
    reuse();
  });

  for (const resource of ['kept', 'shared'] as const) {
    test(`stays while a buffer in it cannot be freed, which then can (${resource})`, () => {
      const graphs = new GraphMemoryResource(pool);
      let output: DeviceBuffer | undefined;
      const record = () => {
        output = new DeviceBuffer(4 * KiB, { resource: resource === 'kept' ? graphs.kept : graphs, stream });
      };
      const graph = graphs.capture(stream, record);
      const buffer = output as unknown as DeviceBuffer;
      buffer.setStream(other);
      set(buffer.ptr, 2, 1, 4 * KiB, other);
      other.beginCapture();
      expect(() => buffer.dispose()).toThrow(code('ERR_CISTERN_CAPTURING'));
      graph.dispose();
      expect(buffer.isDisposed).toBe(false);
      expect(graphs.statistics().graphs).toHaveLength(1);
      expect(graphs.trim(stream)).toBe(0);
      expect(graphs.reservedBytes).toBe(4 * KiB);
      other.endCapture().dispose();
      if (resource === 'kept') expect(graphs.trim(stream)).toBe(4 * KiB);
      else captured(graphs, 4 * KiB, 1).dispose();
      expect(buffer.isDisposed).toBe(true);
      expect(graphs.statistics().graphs).toEqual([]);
      graphs.dispose();
      expect(graphs.reservedBytes).toBe(0);
    });
  }
});

describe('other workers', () => {
  test('keep the memory of a graph with a buffer that they have, although it is disposed', () => {
    const end = runWithWorkers(`
      const graphs = new cistern.GraphMemoryResource(new CudaMemoryResource());
      const stream = new Stream({ nonBlocking: true });
      let output;
      const graph = graphs.capture(stream, () => {
        output = new DeviceBuffer(4 * KiB, { resource: graphs.kept, stream });
      });
      const [worker] = start(\`
        const buffer = attachBuffer(await received(), { stream: new Stream({ nonBlocking: true }) });
        post('attached');
        await received();
        buffer.dispose();
        post('disposed');
      \`);
      worker.postMessage(detachBuffer(output));
      show(await received(worker));
      graph.dispose();
      graphs.trim(stream);
      show(graphs.reservedBytes, graphs.statistics().graphs.length);
      try { graphs.dispose(); } catch (error) { show(error.code); }
      worker.postMessage('dispose');
      show(await received(worker));
      for (let i = 0; i < 2000 && graphs.reservedBytes > 0; i++) {
        await setTimeout(1);
        try { graphs.dispose(); } catch {}
      }
      show(graphs.reservedBytes, graphs.statistics().graphs.length);
    `);
    expect(end).toEqual(printed('attached', '4096 1', 'ERR_CISTERN_INVALID_STATE', 'disposed', '0 0'));
  });

  test.each(['process.exit()', 'throw new Error("meant")'])('may end in a capture with memory: %s', (ending) => {
    const end = runWithWorkers(`
      const before = free();
      const [worker] = start(\`
        const stream = new Stream({ nonBlocking: true });
        const graphs = new cistern.GraphMemoryResource(new CudaMemoryResource());
        const kept = graphs.capture(stream, () => graphs.kept.allocate(4 * KiB, stream));
        const exec = kept.instantiate();
        exec.launch(stream);
        graphs.capture(stream, () => {
          new DeviceBuffer(64 * KiB, { resource: graphs, stream });
          ${ending};
        });
      \`);
      worker.on('error', () => {});
      await once(worker, 'exit').catch(() => {});
      for (let i = 0; i < 400 && before > free(); i++) await setTimeout(5);
      show(before - free());
    `);
    expect(end).toEqual(printed('0'));
  });
});

describe('what graphs share', () => {
  test('is charged to the account in whose scope it was taken, until it goes back', () => {
    const accounting = new AccountingResourceAdaptor(upstream);
    using graphs = new GraphMemoryResource(accounting);
    const [first, second] = ['first', 'second'].map((name) => new Account({ name, limitBytes: 1 * MiB })) as [Account, Account];
    const graph = first.run(() => captured(graphs, 512 * KiB, 1, 'a'));
    const another = second.run(() => captured(graphs, 512 * KiB, 2, 'b'));
    expect([first.liveBytes, second.liveBytes]).toEqual([512 * KiB, 0]);
    // A limit that is reached leaves the capture valid.
    const record = () => {
      expect(() => graphs.allocate(2 * MiB, stream)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
      expect(() => graphs.kept.allocate(2 * MiB, stream)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
      expect(stream.captureStatus).toBe('active');
      graphs.kept.allocate(256 * KiB, stream);
    };
    const keeping = second.run(() => graphs.capture(stream, record, { name: 'c' }));
    expect([first.liveBytes, second.liveBytes]).toEqual([512 * KiB, 256 * KiB]);
    keeping.dispose();
    graph.dispose();
    second.run(() => graphs.trim(stream));
    expect([first.liveBytes, second.liveBytes]).toEqual([512 * KiB, 0]);
    another.dispose();
    second.run(() => graphs.trim(stream));
    expect([first.liveBytes, second.liveBytes]).toEqual([0, 0]);
  });

  test('uses the promise of the grant in whose scope it was taken, and stays committed after it', async () => {
    const admitting = new AdmittingResourceAdaptor(upstream, { limitBytes: 2 * MiB });
    using graphs = new GraphMemoryResource(admitting);
    const grant = await admitting.reserve(1 * MiB);
    const graph = grant.run(() => {
      const record = () => {
        const pointer = graphs.allocate(512 * KiB, stream);
        set(pointer, 1, 1, 512 * KiB, stream);
        expect(() => graphs.allocate(1 * MiB, stream)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
        expect(stream.captureStatus).toBe('active');
      };
      return graphs.capture(stream, record);
    });
    grant.dispose();
    expect(admitting.statistics().committedBytes).toBe(512 * KiB);
    await expect(admitting.reserve(2 * MiB, { timeoutMilliseconds: 0 })).rejects.toThrow(code('ERR_CISTERN_NOT_ADMITTED'));
    graph.dispose();
    graphs.trim(stream);
    expect(admitting.statistics().committedBytes).toBe(0);
    (await admitting.reserve(2 * MiB)).dispose();
  });

  test('is counted by adaptors above as what is allocated through them, until it is freed, or its buffer ends', () => {
    using graphs = new GraphMemoryResource(upstream);
    const accounting = new AccountingResourceAdaptor(graphs);
    const account = new Account({ name: 'above', limitBytes: 1 * MiB });
    let output: DeviceBuffer | undefined;
    const record = () => {
      for (let i = 0; i < 8; i++) {
        const pointer = accounting.allocate(512 * KiB, stream);
        accounting.deallocate(pointer, 512 * KiB, stream);
      }
      output = new DeviceBuffer(256 * KiB, { resource: accounting, stream });
    };
    const graph = account.run(() => graphs.capture(stream, record));
    expect(account.liveBytes).toBe(256 * KiB);
    graph.dispose();
    expect(output?.isDisposed).toBe(true);
    expect(account.liveBytes).toBe(0);
  });
});
