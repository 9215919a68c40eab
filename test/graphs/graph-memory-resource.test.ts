/**
 * Memory of captured graphs: what is used again within a capture, what survives it, how graphs share one
 * region, and how launches come one after the other.
 */

import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { checkOrder, type OrderChecker } from '../../src/checking/index.js';
import { mailbox, native } from '../../src/driver/native.js';
import { GraphMemoryResource } from '../../src/graphs/index.js';
import {
  CudaMemoryResource,
  copy,
  copyToHostSync,
  DeviceBuffer,
  DriverError,
  Event,
  type Graph,
  KiB,
  LimitingResourceAdaptor,
  MiB,
  OutOfMemoryError,
  PoolMemoryResource,
  StatisticsResourceAdaptor,
  Stream,
  set,
  VirtualMemoryResource,
} from '../../src/index.js';
import { indexModule } from '../../src/suballocation/index-module.js';
import { planAllocations } from '../../src/tools/planning/index.js';
import { driverCallCounts, failCall } from '../../src/tools/testing/index.js';
import { orderChecks } from '../support/order-checked-tests.js';

const policies = ['eager', 'deferred', 'off'] as const;

let checker: OrderChecker;
let stream: Stream;
let other: Stream;
let upstream: CudaMemoryResource;
let counted: StatisticsResourceAdaptor;
let graphs: GraphMemoryResource;
/** Kept until the test ends: an event of a capture is destroyed after it. */
let events: Event[] = [];

beforeEach(() => {
  checker = checkOrder(orderChecks);
  stream = new Stream({ nonBlocking: true });
  other = new Stream({ nonBlocking: true });
  upstream = new CudaMemoryResource();
  counted = new StatisticsResourceAdaptor(upstream);
  graphs = new GraphMemoryResource(counted, { planner: planAllocations });
});

afterEach(() => {
  stream.synchronizeSync();
  other.synchronizeSync();
  graphs.validate();
  graphs.dispose();
  expect(counted.statistics().bytes.current).toBe(0);
  expect(checker.violations).toEqual([]);
  checker[Symbol.dispose]();
  stream.dispose();
  other.dispose();
  for (const event of events) event.dispose();
  events = [];
});

/** Makes `to` come after what is queued on `from`. */
function order(from: Stream, to: Stream): void {
  const event = new Event();
  events.push(event);
  event.record(from);
  to.wait(event);
}

/** The same, as another library does it. */
function orderUnnoticed(event: Event, from: Stream, to: Stream): void {
  for (const [call, on] of [
    ['recordEvent', from],
    ['waitEvent', to],
  ] as const) {
    [mailbox[0], mailbox[1], mailbox[2]] = call === 'recordEvent' ? [event.handle, on.handle, 0] : [on.handle, event.handle, 0];
    native()[call]();
    expect(mailbox[0]).toBe(0);
  }
}

function bytesAt(pointer: number, bytes: number, on = stream): number[] {
  const array = new Uint8Array(bytes);
  copyToHostSync(array, pointer, on);
  return [...array];
}

function launched(graph: Graph, on = stream): void {
  using exec = graph.instantiate();
  exec.launch(on);
}

describe('within a capture', () => {
  test('memory that was freed on a stream serves it again', () => {
    const addresses: number[] = [];
    using graph = graphs.capture(stream, () => {
      for (let i = 0; i < 100; i++) {
        const pointer = graphs.allocate(1 * MiB, stream);
        set(pointer, i, 1, 1 * MiB, stream);
        graphs.deallocate(pointer, 1 * MiB, stream);
        addresses.push(pointer);
      }
    });
    expect(new Set(addresses).size).toBe(1);
    expect(graph.nodeCounts.fills).toBe(100);
    expect(graph.nodeCounts.total).toBe(100);
    expect(graphs.reservedBytes).toBe(1 * MiB);
  });

  test('it serves another stream once that comes after the free, and not before', () => {
    using graph = graphs.capture(stream, () => {
      const a = graphs.allocate(1 * MiB, stream);
      set(a, 1, 1, 1 * MiB, stream);
      order(stream, other);
      graphs.deallocate(a, 1 * MiB, stream);
      const early = graphs.allocate(1 * MiB, other);
      expect(early).not.toBe(a);
      set(early, 2, 1, 1 * MiB, other);
      order(stream, other);
      const late = graphs.allocate(1 * MiB, other);
      expect(late).toBe(a);
      set(late, 3, 1, 1 * MiB, other);
      graphs.deallocate(late, 1 * MiB, other);
      graphs.deallocate(early, 1 * MiB, other);
      order(other, stream);
    });
    expect(graph.nodeCounts.total).toBe(3);
    launched(graph);
  });

  test('a stream that another library makes join is served, with memory that nobody has used in the capture', () => {
    using event = new Event();
    using graph = graphs.capture(stream, () => {
      const freed = graphs.allocate(4096, stream);
      graphs.deallocate(freed, 4096, stream);
      orderUnnoticed(event, stream, other);
      // What this event covers has been freed, but who comes after it?
      event.record(stream);
      const joined = graphs.allocate(4096, other);
      expect(other.identity.isCaptured).toBe(true);
      set(joined, 2, 1, 4096, other);
      graphs.deallocate(joined, 4096, other);
      // By cistern's event, the first stream comes after that free.
      order(other, stream);
      const after = [graphs.allocate(4096, stream), graphs.allocate(4096, stream)];
      for (const pointer of after) {
        set(pointer, 3, 1, 4096, stream);
        graphs.deallocate(pointer, 4096, stream);
      }
      expect(joined).not.toBe(freed);
      expect(new Set(after)).toEqual(new Set([freed, joined]));
    });
    expect(graphs.statistics()).toMatchObject({ regionBytes: 8192, unorderedBytes: 0 });
    expect(other.identity.isCaptured).toBe(false);
    using exec = graph.instantiate();
    exec.launch(stream);
    // A stream that is in the capture of somebody else gets what the fallback gives it.
    const record = () => {
      other.beginCapture();
      const pointer = graphs.allocate(64 * KiB, other);
      other.endCapture().dispose();
      graphs.deallocate(pointer, 64 * KiB, other);
    };
    using _beside = graphs.capture(stream, record, { name: 'beside' });
    expect(graphs.statistics().regionBytes).toBe(8192);
  });

  test('a stream that joins comes after what was freed before', () => {
    using _graph = graphs.capture(stream, () => {
      const a = graphs.allocate(1 * MiB, stream);
      graphs.deallocate(a, 1 * MiB, stream);
      order(stream, other);
      expect(graphs.allocate(1 * MiB, other)).toBe(a);
      order(other, stream);
    });
  });

  test('memory freed on a stream that does not come after its allocation serves nobody', () => {
    using _graph = graphs.capture(stream, () => {
      order(stream, other);
      const a = graphs.allocate(1 * MiB, stream);
      graphs.deallocate(a, 1 * MiB, other);
      expect(graphs.allocate(1 * MiB, other)).not.toBe(a);
      expect(graphs.allocate(1 * MiB, stream)).not.toBe(a);
      order(other, stream);
    });
    expect(graphs.statistics().unorderedBytes).toBe(1 * MiB);
  });

  test('an event says nothing of streams that its own has not waited for', () => {
    using third = new Stream({ nonBlocking: true });
    using event = new Event();
    using _graph = graphs.capture(stream, () => {
      const a = graphs.allocate(1 * MiB, stream);
      order(stream, other);
      order(stream, third);
      graphs.deallocate(a, 1 * MiB, other);
      event.record(other);
      order(third, stream);
      expect(graphs.allocate(1 * MiB, stream)).not.toBe(a);
      order(other, stream);
      expect(graphs.allocate(1 * MiB, stream)).toBe(a);
    });
  });

  test('a stream that waits for a second one still comes after the first', () => {
    using third = new Stream({ nonBlocking: true });
    using _graph = graphs.capture(stream, () => {
      const a = graphs.allocate(1 * MiB, stream);
      order(stream, other);
      order(stream, third);
      order(third, stream);
      graphs.deallocate(a, 1 * MiB, other);
      order(other, stream);
      order(third, stream);
      expect(graphs.allocate(1 * MiB, stream)).toBe(a);
    });
  });

  test('neighbours that several streams freed serve whoever comes after all of them', () => {
    using _graph = graphs.capture(stream, () => {
      const a = graphs.allocate(1 * MiB, stream);
      order(stream, other);
      const reserved = graphs.reservedBytes;
      const b = graphs.allocate(1 * MiB, other);
      graphs.deallocate(a, 1 * MiB, stream);
      graphs.deallocate(b, 1 * MiB, other);
      order(other, stream);
      expect(reserved).toBe(1 * MiB);
      graphs.allocate(1 * MiB, stream);
      graphs.allocate(1 * MiB, stream);
      expect(graphs.reservedBytes).toBe(2 * MiB);
    });
  });

  test('an event does not cover what its stream waits for later', () => {
    using third = new Stream({ nonBlocking: true });
    using event = new Event();
    using _graph = graphs.capture(stream, () => {
      order(stream, other);
      const a = graphs.allocate(1 * MiB, other);
      graphs.deallocate(a, 1 * MiB, other);
      event.record(stream);
      order(other, stream);
      third.wait(event);
      expect(graphs.allocate(1 * MiB, third)).not.toBe(a);
      order(stream, third);
      expect(graphs.allocate(1 * MiB, third)).toBe(a);
      order(third, stream);
    });
  });

  test('a wait for an older event takes nothing away', () => {
    using older = new Event();
    using newer = new Event();
    using _graph = graphs.capture(stream, () => {
      older.record(stream);
      const a = graphs.allocate(1 * MiB, stream);
      graphs.deallocate(a, 1 * MiB, stream);
      newer.record(stream);
      other.wait(newer);
      other.wait(older);
      expect(graphs.allocate(1 * MiB, other)).toBe(a);
      order(other, stream);
    });
  });

  test('neighbours of which one was freed on a stream that does not come before are not joined', () => {
    using third = new Stream({ nonBlocking: true });
    using _graph = graphs.capture(stream, () => {
      const whole = graphs.allocate(2 * MiB, stream);
      graphs.deallocate(whole, 2 * MiB, stream);
      const [a, b] = [graphs.allocate(1 * MiB, stream), graphs.allocate(1 * MiB, stream)];
      expect(Math.min(a, b)).toBe(whole);
      order(stream, other);
      order(stream, third);
      graphs.deallocate(a, 1 * MiB, stream);
      graphs.deallocate(b, 1 * MiB, other);
      order(stream, third);
      using event = new Event();
      event.record(other);
      expect(graphs.allocate(2 * MiB, third)).not.toBe(whole);
      order(other, stream);
      order(third, stream);
    });
  });

  test('what a stream frees between many events serves those who come after the event that follows', () => {
    using _graph = graphs.capture(stream, () => {
      const size = 4 * KiB;
      const whole = graphs.allocate(40 * size, stream);
      graphs.deallocate(whole, 40 * size, stream);
      const freed = Array.from({ length: 40 }, () => graphs.allocate(size, stream));
      const events = freed.map((pointer) => {
        graphs.deallocate(pointer, size, stream);
        const event = new Event();
        event.record(stream);
        return event;
      });
      // Only the first is freed before the first event, and the next one lies beside it.
      other.wait(events[0] as Event);
      const early = graphs.allocate(2 * size, other);
      for (const pointer of freed) expect(early + 2 * size <= pointer || pointer + size <= early).toBe(true);
      other.wait(events.at(-1) as Event);
      expect(graphs.allocate(40 * size, other)).toBe(whole);
      order(other, stream);
      for (const event of events) event.dispose();
    });
  });

  test('a fence, an event of before, says nothing about the order in it', () => {
    using before = new Event();
    before.record(other);
    using _graph = graphs.capture(stream, () => {
      const a = graphs.allocate(256, stream);
      graphs.deallocate(a, 256, stream, before);
      expect(graphs.allocate(256, stream)).toBe(a);
    });
  });

  test('faulty frees are refused, and change nothing', () => {
    using _graph = graphs.capture(stream, () => {
      const a = graphs.allocate(1000, stream);
      expect(() => graphs.deallocate(a, 999, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_WRONG_SIZE' }));
      expect(() => graphs.deallocate(a, 1000, other)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_CAPTURING' }));
      expect(() => graphs.allocate(-1, stream)).toThrow(RangeError);
      expect(() => graphs.allocate(1, stream, 3)).toThrow(RangeError);
      expect(() => graphs.trim(stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_INVALID_STATE' }));
      expect(() => graphs.dispose()).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_INVALID_STATE' }));
      expect(() => graphs.capture(other, () => {})).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_INVALID_STATE' }));
      graphs.deallocate(a, 1000, stream);
      expect(stream.captureStatus).toBe('active');
    });
  });

  test('a buffer is a node like any other work', async () => {
    let output: DeviceBuffer | undefined;
    using graph = graphs.capture(stream, () => {
      using scratch = new DeviceBuffer(4 * KiB, { resource: graphs, stream });
      set(scratch.ptr, 7, 1, 4 * KiB, stream);
      output = new DeviceBuffer(4 * KiB, { resource: graphs, stream });
      copy(output.ptr, scratch.ptr, 4 * KiB, stream);
    });
    launched(graph);
    expect((await (output as DeviceBuffer).toHost()).slice(0, 3)).toEqual(Uint8Array.of(7, 7, 7));
  });
});

describe('a capture that fails', () => {
  test('gives all of its memory back', () => {
    const error = new Error('mine');
    let buffer: DeviceBuffer | undefined;
    expect(() =>
      graphs.capture(stream, () => {
        graphs.allocate(3 * MiB, stream);
        graphs.kept.allocate(1 * MiB, stream);
        buffer = new DeviceBuffer(1 * MiB, { resource: graphs, stream });
        throw error;
      }),
    ).toThrow(error);
    expect(stream.captureStatus).toBe('none');
    expect(buffer?.isDisposed).toBe(true);
    expect(graphs.trim(stream)).toBeGreaterThan(0);
    expect(graphs.reservedBytes).toBe(0);
    using graph = graphs.capture(stream, () => set(graphs.allocate(256, stream), 1, 1, 256, stream));
    launched(graph);
  });

  test('for want of memory is still valid, and says which resources refused', () => {
    using limited = new GraphMemoryResource(new LimitingResourceAdaptor(upstream, { limitBytes: 2 * MiB }));
    let failure: unknown;
    using graph = limited.capture(stream, () => {
      const pointer = limited.allocate(1 * MiB, stream);
      try {
        limited.allocate(4 * MiB, stream);
      } catch (error) {
        failure = error;
      }
      expect(stream.captureStatus).toBe('active');
      set(pointer, 1, 1, 1 * MiB, stream);
    });
    expect(failure).toBeInstanceOf(OutOfMemoryError);
    expect((failure as OutOfMemoryError).path).toEqual(['GraphMemoryResource', 'LimitingResourceAdaptor']);
    launched(graph);
    using small = new GraphMemoryResource(upstream, { maximumBytes: 1 * MiB });
    expect(() => small.capture(stream, () => small.allocate(2 * MiB, stream))).toThrow(OutOfMemoryError);
  });
});

test('captures leave nothing to the collector that it does not hear of', () => {
  let captures = 0;
  const capture = () => {
    const record = () => {
      for (let i = 0; i < 50; i++) graphs.allocate(256 * (i + 1), stream);
      if (captures++ % 2 === 1) throw new Error('on purpose');
    };
    try {
      graphs.capture(stream, record).dispose();
    } catch {}
  };
  capture();
  const before = indexModule.memory.buffer.byteLength;
  // The event loop does not turn, so no finalizer runs.
  for (let i = 0; i < 2000; i++) capture();
  expect(indexModule.memory.buffer.byteLength - before).toBeLessThanOrEqual(4 * MiB);
});

describe('what outlives a capture', () => {
  test('an output has what the last launch wrote, and can be given up', () => {
    let output = 0;
    using graph = graphs.capture(stream, () => {
      output = graphs.allocate(256, stream);
      set(output, 5, 1, 256, stream);
    });
    launched(graph);
    expect(bytesAt(output, 2)).toEqual([5, 5]);
    expect(() => graphs.deallocate(output, 255, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_WRONG_SIZE' }));
    graphs.deallocate(output, 256, stream);
    expect(() => graphs.deallocate(output, 256, stream)).toThrow(expect.objectContaining({ name: 'LifetimeError' }));
    launched(graph);
    expect(bytesAt(output, 2)).toEqual([5, 5]);
  });

  test('an output that is given up while another capture has its bytes does not free what that has', () => {
    const outputs: DeviceBuffer[] = [];
    using _first = graphs.capture(stream, () => {
      outputs.push(new DeviceBuffer(4 * KiB, { resource: graphs, stream }));
    });
    using second = graphs.capture(
      stream,
      () => {
        const pointer = graphs.allocate(4 * KiB, stream);
        expect(pointer).toBe(outputs[0]?.ptr);
        outputs[0]?.dispose();
        expect(graphs.allocate(4 * KiB, stream)).not.toBe(pointer);
        graphs.deallocate(pointer, 4 * KiB, stream);
      },
      { name: 'second' },
    );
    launched(second);
  });

  test('of two outputs at one address, each can be given up, whichever graph ends first', () => {
    const capture = () => {
      let pointer = 0;
      const graph = graphs.capture(stream, () => {
        pointer = graphs.allocate(256, stream);
      });
      return { graph, pointer };
    };
    const [first, second] = [capture(), capture()];
    expect(first.pointer).toBe(second.pointer);
    graphs.deallocate(first.pointer, 256, stream);
    first.graph.dispose();
    graphs.deallocate(second.pointer, 256, stream);
    expect(() => graphs.deallocate(second.pointer, 256, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DOUBLE_FREE' }));
    second.graph.dispose();
  });

  test('kept memory is that of one graph alone, until it is disposed', () => {
    const kept: number[] = [];
    const shared: number[] = [];
    const captured = [1, 2].map((value) =>
      graphs.capture(stream, () => {
        const pointer = graphs.kept.allocate(4 * KiB, stream);
        const scratch = graphs.allocate(4 * KiB, stream);
        set(scratch, value, 1, 4 * KiB, stream);
        copy(pointer, scratch, 4 * KiB, stream);
        graphs.deallocate(scratch, 4 * KiB, stream);
        kept.push(pointer);
        shared.push(scratch);
      }),
    );
    for (const graph of captured) launched(graph);
    expect(kept.map((pointer) => bytesAt(pointer, 1)[0])).toEqual([1, 2]);
    expect(shared[0]).toBe(shared[1]);
    expect(graphs.statistics().keptBytes).toBe(8 * KiB);
    expect(graphs.statistics().graphs.map(({ regionBytes, keptBytes }) => [regionBytes, keptBytes])).toEqual([
      [4 * KiB, 4 * KiB],
      [4 * KiB, 4 * KiB],
    ]);
    captured[0]?.dispose();
    expect(graphs.reservedBytes).toBe(8 * KiB);
    captured[1]?.dispose();
    graphs.trim(stream);
    expect(graphs.reservedBytes).toBe(0);
  });

  test('a buffer in the memory of a graph ends with the graph and all that was made of it', () => {
    let output: DeviceBuffer | undefined;
    const graph = graphs.capture(stream, () => {
      output = new DeviceBuffer(256, { resource: graphs, stream });
    });
    const exec = graph.instantiate();
    graph.dispose();
    expect(output?.isDisposed).toBe(false);
    exec.launch(stream);
    exec.dispose();
    expect(output?.isDisposed).toBe(true);
    expect(graphs.statistics().graphs).toEqual([]);
  });

  test('a buffer at the address of one in a graph that ends stays, since it is of another graph', () => {
    const capture = (name: string) => {
      const outputs: DeviceBuffer[] = [];
      const record = () => {
        outputs.push(new DeviceBuffer(256, { resource: graphs, stream }));
      };
      return { graph: graphs.capture(stream, record, { name }), output: () => outputs[0] as DeviceBuffer };
    };
    const [first, second, third] = [capture('first'), capture('second'), capture('third')];
    expect(second.output().ptr).toBe(first.output().ptr);
    first.graph.dispose();
    expect([first, second, third].map(({ output }) => output().isDisposed)).toEqual([true, false, false]);
    third.graph.dispose();
    expect([second, third].map(({ output }) => output().isDisposed)).toEqual([false, true]);
    second.graph.dispose();
    expect(second.output().isDisposed).toBe(true);
  });

  test('a graph is not launched if the driver refuses to order it after the launch before, or after other uses of the memory', () => {
    let output: DeviceBuffer | undefined;
    using graph = graphs.capture(stream, () => {
      output = new DeviceBuffer(256, { resource: graphs, stream });
      set(output.ptr, 1, 1, 256, stream);
    });
    using exec = graph.instantiate();
    const refused = () => {
      failCall('cuStreamWaitEvent', 1);
      expect(() => exec.launch(other)).toThrow(DriverError);
      failCall('cuStreamWaitEvent', 0);
    };
    {
      using hold = stream.hold();
      exec.launch(stream);
      refused();
      expect(other.query()).toBe(true);
      hold.release();
    }
    stream.synchronizeSync();
    // What is queued on a stream where the output is given up comes before the next launch.
    using third = new Stream({ nonBlocking: true });
    order(stream, third);
    output?.setStream(third);
    {
      using hold = third.hold();
      output?.dispose();
      refused();
      expect(other.query()).toBe(true);
      hold.release();
    }
    third.synchronizeSync();
    exec.launch(other);
  });

  test('memory goes back only after the last launch, and after what was queued where a buffer was disposed', () => {
    let output: DeviceBuffer | undefined;
    const graph = graphs.capture(stream, () => {
      output = new DeviceBuffer(256, { resource: graphs.kept, stream });
      set(output.ptr, 1, 1, 256, stream);
    });
    const exec = graph.instantiate();
    using hold = stream.hold();
    exec.launch(stream);
    order(stream, other);
    set((output as DeviceBuffer).ptr, 2, 1, 256, other);
    (output as DeviceBuffer).setStream(other);
    exec.dispose();
    graph.dispose();
    expect(checker.violations).toEqual([]);
    hold.release();
  });
});

describe('graphs share one region', () => {
  test('that is as large as the largest needs, in whatever order they come', () => {
    using virtual = new VirtualMemoryResource();
    using family = new GraphMemoryResource(virtual);
    const captured = [1, 5, 2, 8, 3].map((size) =>
      family.capture(stream, () => {
        const a = family.allocate(size * MiB, stream);
        const b = family.allocate(size * MiB, stream);
        set(a, size, 1, size * MiB, stream);
        copy(b, a, size * MiB, stream);
        family.deallocate(a, size * MiB, stream);
        family.deallocate(b, size * MiB, stream);
      }),
    );
    expect(family.reservedBytes).toBe(16 * MiB);
    for (const graph of [...captured, ...captured.toReversed()]) launched(graph);
    stream.synchronizeSync();
    captured[3]?.dispose();
    expect(family.trim(stream)).toBe(6 * MiB);
    for (const graph of captured.toSpliced(3, 1)) {
      launched(graph);
      graph.dispose();
    }
    expect(family.trim(stream)).toBe(10 * MiB);
    expect(family.reservedBytes).toBe(0);
  });

  test('over memory that does not grow in place, in few parts: four times what the largest needs at most', () => {
    using family = new GraphMemoryResource(counted, { planner: planAllocations });
    const sizes = Array.from({ length: 40 }, (_, i) => (i + 1) * 64 * KiB);
    const captured = sizes.map((bytes) => {
      const step = () => family.deallocate(family.allocate(bytes, stream), bytes, stream);
      family.warmUp(`${bytes}`, step);
      return family.capture(stream, step, { name: `${bytes}` });
    });
    const largest = 40 * 64 * KiB;
    expect(family.statistics().plannedCaptures).toBe(40);
    expect(family.reservedBytes).toBeLessThanOrEqual(4 * largest);
    // As much as a graph needs is enough if there is no more.
    using limited = new GraphMemoryResource(counted, { planner: planAllocations, maximumBytes: 5 * 64 * KiB });
    for (const parts of [2, 3]) {
      const bytes = parts * 64 * KiB;
      const step = () => limited.deallocate(limited.allocate(bytes, stream), bytes, stream);
      limited.warmUp(`${parts}`, step);
      limited.capture(stream, step, { name: `${parts}` }).dispose();
    }
    expect(limited.reservedBytes).toBe(5 * 64 * KiB);
    // Without the older ones, the smaller parts go back, and what is captured again is in the largest part.
    const older = captured.slice(0, -1);
    for (const graph of older) graph.dispose();
    expect(family.trim(stream)).toBeGreaterThan(0);
    for (const i of older.keys()) {
      const bytes = sizes[i] as number;
      const step = () => family.deallocate(family.allocate(bytes, stream), bytes, stream);
      captured[i] = family.capture(stream, step, { name: `${bytes}` });
    }
    expect(family.reservedBytes).toBeLessThanOrEqual(2 * largest);
    for (const graph of captured) graph.dispose();
    family.trim(stream);
    expect(family.reservedBytes).toBe(0);
  });

  for (const deallocationEvents of policies) {
    test(`and never run at the same time, under ${deallocationEvents}`, () => {
      using family = new GraphMemoryResource(counted, { deallocationEvents });
      const outputs: number[] = [];
      const captured = [1, 2].map((value) =>
        family.capture(stream, () => {
          const scratch = family.allocate(64 * KiB, stream);
          const output = family.kept.allocate(64 * KiB, stream);
          set(scratch, value, 1, 64 * KiB, stream);
          copy(output, scratch, 64 * KiB, stream);
          outputs.push(output);
        }),
      );
      const [first, second] = captured.map((graph) => graph.instantiate());
      for (let i = 0; i < 10; i++) {
        first?.launch(stream);
        second?.launch(other);
      }
      const third = new Stream({ nonBlocking: true });
      first?.launch(third);
      third.dispose();
      second?.launch(stream);
      stream.synchronizeSync();
      other.synchronizeSync();
      expect(outputs.map((pointer) => bytesAt(pointer, 1)[0])).toEqual([1, 2]);
      expect(checker.violations).toEqual([]);
    });
  }

  test('under off, no event is recorded for them', () => {
    using family = new GraphMemoryResource(counted, { deallocationEvents: 'off' });
    using graph = family.capture(stream, () => set(family.allocate(256, stream), 1, 1, 256, stream));
    using exec = graph.instantiate();
    exec.launch(stream);
    const recorded = () => driverCallCounts().byFunction['cuEventRecord'];
    const before = recorded();
    exec.launch(other);
    exec.launch(stream);
    expect(recorded()).toBe(before);
  });

  test('a launch comes after whoever had the memory of the upstream before', () => {
    using pool = new PoolMemoryResource(upstream, { growth: 'after-waits' });
    using family = new GraphMemoryResource(pool);
    const before = pool.allocate(1 * MiB, other);
    using hold = other.hold();
    set(before, 1, 1, 1 * MiB, other);
    pool.deallocate(before, 1 * MiB, other);
    using graph = family.capture(stream, () => {
      const pointer = family.allocate(1 * MiB, stream);
      expect(pointer).toBe(before);
      set(pointer, 2, 1, 1 * MiB, stream);
    });
    launched(graph);
    expect(stream.query()).toBe(false);
    hold.release();
    expect(bytesAt(before, 1)).toEqual([2]);
  });

  test('a launch comes after what was queued where an output was given up', () => {
    let output = 0;
    using graph = graphs.capture(stream, () => {
      output = graphs.allocate(256, stream);
      set(output, 1, 1, 256, stream);
    });
    launched(graph);
    order(stream, other);
    using hold = other.hold();
    set(output, 2, 1, 256, other);
    graphs.deallocate(output, 256, other);
    launched(graph);
    expect(stream.query()).toBe(false);
    hold.release();
    expect(bytesAt(output, 1)).toEqual([1]);
  });

  test('a launch on another stream waits for the last one', () => {
    using family = new GraphMemoryResource(upstream, { deallocationEvents: 'deferred' });
    using graph = family.capture(stream, () => set(family.allocate(256, stream), 1, 1, 256, stream));
    using exec = graph.instantiate();
    stream.synchronizeSync();
    using hold = stream.hold();
    exec.launch(stream);
    using second = family.capture(other, () => set(family.allocate(256, other), 2, 1, 256, other));
    using exec2 = second.instantiate();
    exec2.launch(other);
    expect(other.query()).toBe(false);
    hold.release();
    other.synchronizeSync();
  });

  test('an update takes over the memory of the other graph, and lets go of its own', () => {
    const capture = (value: number) =>
      graphs.capture(stream, () => {
        const pointer = graphs.kept.allocate(256, stream);
        set(pointer, value, 1, 256, stream);
      });
    const [first, second] = [capture(1), capture(2)];
    using exec = first.instantiate();
    first.dispose();
    expect(graphs.statistics().keptBytes).toBe(512);
    expect(exec.update(second)).toBe(true);
    expect(graphs.statistics().keptBytes).toBe(256);
    second.dispose();
    expect(graphs.statistics().keptBytes).toBe(256);
    exec.launch(stream);
    exec.dispose();
    expect(graphs.statistics().keptBytes).toBe(0);
  });

  test('two frees at one address, of an output and within a capture, may come in either order', () => {
    let output = 0;
    using _first = graphs.capture(stream, () => {
      output = graphs.allocate(4096, stream);
    });
    const record = () => {
      const pointer = graphs.allocate(4096, stream);
      expect(pointer).toBe(output);
      order(stream, other);
      graphs.deallocate(pointer, 4096, other);
      // This one is of the output. The stream does not come after the other one's free.
      graphs.deallocate(output, 4096, stream);
      expect(graphs.allocate(4096, stream)).not.toBe(pointer);
      order(other, stream);
    };
    using _second = graphs.capture(stream, record, { name: 'second' });
  });

  test('addresses stay through an update', () => {
    const addresses: number[][] = [];
    const step = (value: number) => () => {
      const scratch = graphs.allocate(1024, stream);
      set(scratch, value, 1, 1024, stream);
      const output = graphs.allocate(256, stream);
      copy(output, scratch, 256, stream);
      graphs.deallocate(scratch, 1024, stream);
      addresses.push([scratch, output]);
    };
    graphs.warmUp('step', () => {
      step(0)();
      graphs.deallocate(addresses.pop()?.[1] as number, 256, stream);
    });
    using first = graphs.capture(stream, step(1), { name: 'step' });
    using exec = first.instantiate();
    const output = addresses[0]?.[1] as number;
    using larger = graphs.capture(stream, () => graphs.deallocate(graphs.allocate(1 * MiB, stream), 1 * MiB, stream), { name: 'larger' });
    for (const value of [2, 3]) {
      using next = graphs.capture(stream, step(value), { name: 'step' });
      expect(exec.update(next)).toBe(true);
      exec.launch(stream);
      expect(bytesAt(output, 256)).toEqual(Array(256).fill(value));
    }
    expect(new Set(addresses.map((each) => `${each}`)).size).toBe(1);
    expect(larger.nodeCounts.total).toBe(0);
  });

  test('they cannot be launched once the resource is disposed', () => {
    const own = new GraphMemoryResource(counted);
    using graph = own.capture(stream, () => set(own.allocate(256, stream), 1, 1, 256, stream));
    using exec = graph.instantiate();
    using hold = stream.hold();
    exec.launch(stream);
    own.dispose();
    own.dispose();
    expect(() => exec.launch(stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    hold.release();
    expect(() => own.capture(stream, () => {})).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
  });
});

/** What a capture requests: sizes of which each but the last two is freed as the next but one comes. */
function pass(resource: GraphMemoryResource, sizes: readonly number[], on = stream): number[] {
  const pointers = sizes.map((bytes, i) => {
    const pointer = resource.allocate(bytes, on);
    set(pointer, i, 1, bytes, on);
    return pointer;
  });
  return pointers;
}

describe('a plan', () => {
  const sizes = [3 * MiB, 1 * MiB, 2 * MiB, 1 * MiB];

  /** Frees what is needed no more as soon as possible, so that a search goes wrong and a plan does not. */
  function step(resource: GraphMemoryResource): number[] {
    const [a, b] = pass(resource, [1 * MiB, 2 * MiB]) as [number, number];
    resource.deallocate(a, 1 * MiB, stream);
    const [c] = pass(resource, [3 * MiB]) as [number];
    resource.deallocate(b, 2 * MiB, stream);
    const [d] = pass(resource, [2 * MiB]) as [number];
    resource.deallocate(c, 3 * MiB, stream);
    resource.deallocate(d, 2 * MiB, stream);
    return [a, b, c, d];
  }

  test('comes from a capture, and serves the next one of the name', () => {
    using first = graphs.capture(stream, () => step(graphs), { name: 'step' });
    expect(graphs.plan('step')).toBeUndefined();
    using second = graphs.capture(stream, () => step(graphs), { name: 'step' });
    const plan = graphs.plan('step');
    expect(plan?.totalBytes).toBe(5 * MiB);
    expect(graphs.statistics()).toMatchObject({ captures: 2, plannedCaptures: 1, planningError: undefined });
    expect(graphs.statistics().graphs[1]).toEqual({
      ...{ name: 'step', allocations: 4, regionBytes: 5 * MiB, lowerBoundBytes: 5 * MiB, keptBytes: 0 },
    });
    for (const graph of [first, second, first]) launched(graph);
  });

  test('comes from a warm-up, so that the region has no byte too many', () => {
    graphs.warmUp('step', () => step(graphs));
    expect(counted.statistics().bytes.current).toBe(0);
    using graph = graphs.capture(stream, () => step(graphs), { name: 'step' });
    expect(graphs.reservedBytes).toBe(5 * MiB);
    expect(graphs.statistics().plannedCaptures).toBe(1);
    launched(graph);
  });

  test('of the largest warm-up makes room for all, in whatever order they are captured', () => {
    for (const factor of [1, 4, 2]) {
      const scaled = sizes.map((bytes) => bytes * factor);
      graphs.warmUp(`${factor}`, () => {
        for (const [i, pointer] of pass(graphs, scaled).entries()) graphs.deallocate(pointer, scaled[i] as number, stream);
      });
    }
    const captured = [1, 2, 4].map((factor) =>
      graphs.capture(
        stream,
        () =>
          pass(
            graphs,
            sizes.map((bytes) => bytes * factor),
          ),
        { name: `${factor}` },
      ),
    );
    expect(graphs.reservedBytes).toBe(28 * MiB);
    expect(graphs.statistics().plannedCaptures).toBe(3);
    for (const graph of captured) {
      launched(graph);
      graph.dispose();
    }
  });

  test('does no harm if the program does something else', () => {
    graphs.warmUp('step', () => step(graphs));
    const live: [number, number][] = [];
    using graph = graphs.capture(
      stream,
      () => {
        // The first is not freed, so that its bytes are in use where the plan has the third.
        for (const bytes of [1 * MiB, 2 * MiB, 3 * MiB, 2 * MiB, 5 * MiB]) {
          const pointer = graphs.allocate(bytes, stream);
          for (const [start, length] of live) expect(pointer + bytes <= start || start + length <= pointer).toBe(true);
          live.push([pointer, bytes]);
          set(pointer, live.length, 1, bytes, stream);
        }
      },
      { name: 'step' },
    );
    expect(graphs.statistics().deviations).toEqual({ larger: 0, alignment: 0, extra: 1, 'in-use': 2 });
    launched(graph);
    expect(live.map(([pointer]) => bytesAt(pointer, 1)[0])).toEqual([1, 2, 3, 4, 5]);
  });

  test('an allocation that another place serves leaves its own to those before it', () => {
    // a is followed by b and b by c in the same place.
    const three = (freesFirst: boolean) => {
      const a = graphs.allocate(1 * MiB, stream);
      if (freesFirst) graphs.deallocate(a, 1 * MiB, stream);
      const b = graphs.allocate(1 * MiB, stream);
      graphs.deallocate(b, 1 * MiB, stream);
      const c = graphs.allocate(1 * MiB, stream);
      expect(c === a).toBe(freesFirst);
      graphs.deallocate(c, 1 * MiB, stream);
      if (!freesFirst) graphs.deallocate(a, 1 * MiB, stream);
    };
    graphs.warmUp('three', () => three(true));
    using _graph = graphs.capture(stream, () => three(false), { name: 'three' });
    expect(graphs.statistics().deviations['in-use']).toBe(2);
  });

  test('a capture of a thousand layers that deviates in each of them ends', () => {
    // A tensor, then two halves of it, again and again in the same place: every half comes after the tensor, which
    // comes after both halves before it. So there are 2^1000 ways back through the plan.
    const step = (bytes: number) => {
      for (let layer = 0; layer < 1000; layer++) {
        const whole = graphs.allocate(2 * bytes, stream);
        graphs.deallocate(whole, 2 * bytes, stream);
        const halves = [graphs.allocate(bytes, stream), graphs.allocate(bytes, stream)];
        for (const half of halves) graphs.deallocate(half, bytes, stream);
      }
      const last = graphs.allocate(1024, stream);
      graphs.deallocate(last, 1024, stream);
    };
    graphs.warmUp('step', () => step(4096));
    using _graph = graphs.capture(stream, () => step(8192), { name: 'step' });
    expect(graphs.statistics().deviations).toEqual({ larger: 3000, alignment: 0, extra: 0, 'in-use': 0 });
  });

  test('the place of an allocation that another place serves stays in use if only a part of it was freed', () => {
    // c is planned over a and b; d, in the second half, only over b, which stays where c had to be elsewhere.
    const pass = (keepsFirst: boolean) => {
      const [a, b] = [graphs.allocate(1 * MiB, stream), graphs.allocate(1 * MiB, stream)];
      if (!keepsFirst) graphs.deallocate(a, 1 * MiB, stream);
      graphs.deallocate(b, 1 * MiB, stream);
      const c = graphs.allocate(2 * MiB, stream);
      graphs.deallocate(c, 2 * MiB, stream);
      const d = [graphs.allocate(1 * MiB, stream), graphs.allocate(1 * MiB, stream)];
      if (keepsFirst) {
        expect(d).not.toContain(a);
        expect(d).toContain(b);
      }
      for (const each of d) graphs.deallocate(each, 1 * MiB, stream);
      if (keepsFirst) graphs.deallocate(a, 1 * MiB, stream);
    };
    graphs.warmUp('pass', () => pass(false));
    using _graph = graphs.capture(stream, () => pass(true), { name: 'pass' });
    expect(graphs.statistics().deviations['in-use']).toBe(2);
  });

  test('can be asked to refuse what differs', () => {
    using strict = new GraphMemoryResource(counted, { planner: planAllocations, deviations: 'refuse' });
    strict.warmUp('one', () => strict.deallocate(strict.allocate(1000, stream), 1000, stream));
    const code = 'ERR_CISTERN_PLAN_DEVIATION';
    expect(() => strict.capture(stream, () => strict.allocate(2000, stream), { name: 'one' })).toThrow(expect.objectContaining({ code }));
    using graph = strict.capture(stream, () => strict.allocate(900, stream), { name: 'one' });
    launched(graph);
  });

  test('has the order between streams, and is followed only if the capture has it too', () => {
    const forked = (joins: boolean) => {
      order(stream, other);
      const a = graphs.allocate(1 * MiB, stream);
      set(a, 1, 1, 1 * MiB, stream);
      graphs.deallocate(a, 1 * MiB, stream);
      if (joins) order(stream, other);
      const b = graphs.allocate(1 * MiB, other);
      set(b, 2, 1, 1 * MiB, other);
      graphs.deallocate(b, 1 * MiB, other);
      order(other, stream);
      return a === b;
    };
    using first = graphs.capture(stream, () => forked(true), { name: 'fork' });
    using second = graphs.capture(stream, () => expect(forked(true)).toBe(true), { name: 'fork' });
    expect(graphs.plan('fork')?.totalBytes).toBe(1 * MiB);
    using third = graphs.capture(stream, () => expect(forked(false)).toBe(false), { name: 'fork' });
    expect(graphs.statistics().deviations['in-use']).toBe(1);
    for (const graph of [first, second, third]) launched(graph);
  });

  test('gives nobody the place of an allocation that was freed on a stream which does not come after it', () => {
    const forked = (joins: boolean) => {
      order(stream, other);
      const a = graphs.allocate(1 * MiB, stream);
      if (joins) order(stream, other);
      graphs.deallocate(a, 1 * MiB, other);
      const b = graphs.allocate(1 * MiB, other);
      graphs.deallocate(b, 1 * MiB, other);
      order(other, stream);
      return a === b;
    };
    using _first = graphs.capture(stream, () => forked(true), { name: 'fork' });
    using _second = graphs.capture(stream, () => expect(forked(true)).toBe(true), { name: 'fork' });
    using _third = graphs.capture(stream, () => expect(forked(false)).toBe(false), { name: 'fork' });
    expect(graphs.statistics()).toMatchObject({ plannedCaptures: 1, deviations: { 'in-use': 1 } });
  });

  test('is remembered for the last 1,024 names, in the order of their use', () => {
    const step = () => graphs.deallocate(graphs.allocate(256, stream), 256, stream);
    const capture = (name: string) => graphs.capture(stream, step, { name }).dispose();
    graphs.warmUp('first', step);
    graphs.warmUp('second', step);
    for (let i = 0; i < 1022; i++) graphs.warmUp(`other ${i}`, step);
    capture('first');
    graphs.warmUp('one more', step);
    for (const name of ['first', 'one more', 'other 0']) capture(name);
    expect(graphs.statistics().plannedCaptures).toBe(4);
    capture('second');
    expect(graphs.statistics()).toMatchObject({ captures: 5, plannedCaptures: 4 });
  });

  test('that cannot be made is told, and the capture goes without', () => {
    using failing = new GraphMemoryResource(counted, {
      planner: () => {
        throw new Error('no plan');
      },
    });
    failing.warmUp('x', () => failing.deallocate(failing.allocate(256, stream), 256, stream));
    using graph = failing.capture(stream, () => failing.allocate(256, stream), { name: 'x' });
    expect(failing.statistics().planningError).toEqual(new Error('no plan'));
    launched(graph);
  });
});

describe('outside of captures', () => {
  test('an address within memory that a graph has for itself is not freed by the fallback', () => {
    using pool = new PoolMemoryResource(counted);
    using family = new GraphMemoryResource(counted, { fallback: pool });
    const capture = () => {
      const kept: number[] = [];
      const graph = family.capture(stream, () => {
        for (let i = 0; i < 3; i++) kept.push(family.kept.allocate(1024, stream));
      });
      return { graph, kept };
    };
    const captures = [capture(), capture(), capture()];
    const inside = (pointer: number) => () => family.deallocate(pointer + 512, 512, stream);
    const refused = expect.objectContaining({ code: 'ERR_CISTERN_DOUBLE_FREE' });
    for (const { kept } of captures) for (const pointer of kept) expect(inside(pointer)).toThrow(refused);
    captures[1]?.graph.dispose();
    expect(inside(captures[1]?.kept[1] as number)).toThrow(
      expect.not.objectContaining({ message: expect.stringContaining('GraphMemoryResource') }),
    );
    for (const which of [0, 2]) expect(inside(captures[which]?.kept[1] as number)).toThrow(refused);
    for (const { graph } of captures) graph.dispose();
  });

  test('calls go to the fallback, also on streams beside the captured one', () => {
    using pool = new PoolMemoryResource(counted);
    using resource = new GraphMemoryResource(counted, { fallback: pool });
    const pointer = resource.allocate(1000, stream);
    expect(pool.statistics().allocatedBytes).toBe(1024);
    using _graph = resource.capture(stream, () => {
      const beside = resource.allocate(1000, other);
      expect(pool.statistics().allocatedBytes).toBe(2048);
      resource.deallocate(beside, 1000, other);
    });
    resource.deallocate(pointer, 1000, stream);
    const kept = resource.kept.allocate(256, stream);
    resource.kept.deallocate(kept, 256, stream);
    expect(pool.statistics().allocatedBytes).toBe(0);
  });

  test('options are checked', () => {
    expect(() => new GraphMemoryResource(upstream, { planner: 1 as never })).toThrow(TypeError);
    expect(() => new GraphMemoryResource(upstream, { deviations: 'x' as never })).toThrow(RangeError);
    expect(() => new GraphMemoryResource(upstream, { fallback: {} as never })).toThrow(TypeError);
    expect(() => new GraphMemoryResource(upstream, { planningMilliseconds: -1 })).toThrow(RangeError);
    expect(() => graphs.capture(stream, 1 as never)).toThrow(TypeError);
    expect(() => graphs.capture(stream, () => {}, { name: 1 as never })).toThrow(TypeError);
    expect(() => graphs.warmUp('x', (async () => {}) as () => void)).toThrow(TypeError);
    expect(graphs.capture(stream, () => {}).dispose()).toBeUndefined();
  });
});
