import { afterEach, describe, expect, test, vi } from 'vitest';
import {
  CudaMemoryResource,
  type DeallocationEvents,
  Device,
  DriverError,
  Event,
  type MemoryKind,
  Stream,
  type StreamHold,
} from '../../src/index.js';
import type { Lane } from '../../src/stream-ordering/lane.js';
import { StreamLane } from '../../src/stream-ordering/stream-lane.js';
import { type LaneMemory, StreamOrdering } from '../../src/stream-ordering/stream-ordering.js';
import { driverCallCounts, failCall } from '../../src/tools/testing/index.js';
import { needHardwareQueues } from '../support/real-gpu.js';
import { eventCalls, madeElsewhere } from '../support/stream-order.js';

/** Lanes that hold a number of bytes each, and the calls that they got. */
class Lanes implements LaneMemory {
  readonly bytes: number[] = [];
  readonly calls: string[] = [];
  awaited: number | undefined;

  addLane(): number {
    return this.bytes.push(0) - 1;
  }

  isEmpty(lane: number): boolean {
    return this.bytes[lane] === 0;
  }

  transfer(from: number, to: number): void {
    this.calls.push(`transfer ${from} ${to}`);
    this.bytes[to] = (this.bytes[to] as number) + (this.bytes[from] as number);
    this.bytes[from] = 0;
  }

  isAwaited(lane: number): boolean {
    return lane === this.awaited;
  }

  redirect(from: number, to: number): void {
    this.calls.push(`redirect ${from} ${to}`);
  }
}

/** The same with lanes that are found by what they hold, the lowest number first. */
class FoundLanes extends Lanes {
  readonly shared = new Set<number>();

  share(lane: number, isShared: boolean): void {
    if (isShared) this.shared.add(lane);
    else this.shared.delete(lane);
  }

  laneWith(units: number, own: number, second: number): number {
    return this.bytes.findIndex((bytes, lane) => this.shared.has(lane) && bytes >= units * 256 && lane !== own && lane !== second);
  }

  fullLane(own: number, second: number): number {
    return this.laneWith(1 / 256, own, second);
  }
}

/** The same with lanes that change places if the first has more. */
class JoiningLanes extends FoundLanes {
  join(from: number, to: number): boolean {
    const isExchanged = (this.bytes[from] as number) > (this.bytes[to] as number);
    if (!isExchanged) this.transfer(from, to);
    else {
      this.transfer(to, from);
      const wasShared = this.shared.has(to);
      this.share(to, this.shared.has(from));
      this.share(from, wasShared);
    }
    return isExchanged;
  }
}

function make<Memory extends Lanes = Lanes>(
  policy: DeallocationEvents = 'deferred',
  kind: MemoryKind = 'device',
  memory: Memory = new Lanes() as Memory,
) {
  const ordering = new StreamOrdering(policy, memory, Device.get(), kind);
  /** Frees memory on a stream. */
  const free = (stream: Stream, bytes = 256): StreamLane => {
    const lane = ordering.laneOf(stream, 'deallocate');
    memory.bytes[lane.number] = (memory.bytes[lane.number] as number) + bytes;
    ordering.freed(lane);
    return lane;
  };
  return { memory, ordering, free };
}

/** The number of times that a stream is made to wait for a lane. */
function waitsFor(ordering: StreamOrdering, waiter: Stream, lane: number): number {
  return eventCalls(() => ordering.order(waiter, lane)).waits;
}

const held: StreamHold[] = [];

/**
 * Holds a stream until the end of the test at the latest, so that a failing test does not leave it
 * stalled.
 */
function hold(stream: Stream): StreamHold {
  const one = stream.hold();
  held.push(one);
  return one;
}

afterEach(() => {
  for (const one of held.splice(0)) one.release();
  for (const name of [
    'cuEventRecord',
    'cuStreamWaitEvent',
    'cuEventQuery',
    'cuStreamQuery',
    'cuStreamSynchronize',
    'cuEventCreate',
    'cuEventSynchronize',
    'cuCtxSynchronize',
  ])
    failCall(name, 0);
  Device.get().synchronizeSync();
});

describe('lanes', () => {
  test('exist once per stream and kind, and are known by number', () => {
    const { ordering } = make();
    using a = new Stream();
    using b = new Stream();
    const lane = ordering.laneOf(a, 'allocate');
    expect(ordering.laneOf(a, 'allocate')).toBe(lane);
    expect(ordering.secondLaneOf(a)).toBeUndefined();
    const held = ordering.heldLaneOf(a);
    expect(held).not.toBe(lane);
    expect([lane.isHeld, held.isHeld]).toEqual([false, true]);
    expect(ordering.secondLaneOf(a)).toBe(held);
    expect(ordering.heldLaneOf(a)).toBe(held);
    const other = ordering.laneOf(b, 'allocate');
    expect([lane, held, other].map(({ number }) => ordering.lane(number))).toEqual([lane, held, other]);
    expect(ordering.lanes).toEqual([lane, held, other]);
    expect(ordering.lane(ordering.endedLane).identity).toBeUndefined();
    expect(ordering.laneNumbers()).toEqual([ordering.endedLane, lane.number, held.number, other.number]);
  });

  test('are held ones if there are no events', () => {
    const { ordering } = make('off');
    using a = new Stream();
    const lane = ordering.laneOf(a, 'allocate');
    expect(lane.isHeld).toBe(true);
    expect(ordering.heldLaneOf(a)).toBe(lane);
    expect(ordering.secondLaneOf(a)).toBeUndefined();
    using event = new Event();
    event.record(a);
    const shared = ordering.freedWith('deferred', a, lane.owner);
    expect(shared.isHeld).toBe(false);
    expect(ordering.secondLaneOf(a)).toBe(shared);
  });

  test('pass on their numbers when their streams have ended', () => {
    const { memory, ordering, free } = make();
    for (let i = 0; i < 20; i++) {
      using stream = new Stream();
      free(stream);
      ordering.heldLaneOf(stream);
    }
    expect(memory.bytes).toHaveLength(3);
    expect(ordering.lanes).toEqual([]);
    expect(memory.bytes[ordering.endedLane]).toBe(20 * 256);
  });

  test('exist only for live streams of the device', () => {
    const { ordering } = make();
    const ended = new Stream();
    ended.dispose();
    expect(() => ordering.laneOf(ended, 'allocate')).toThrow('disposed');
    using other = new Stream({ device: Device.get(1) });
    expect(() => ordering.laneOf(other, 'allocate')).toThrow('device');
    expect(make('deferred', 'managed').ordering.laneOf(other, 'allocate').identity).toBe(other.identity);
    expect(() => make('never' as DeallocationEvents)).toThrow('deallocationEvents');
  });
});

describe('what a free does', () => {
  test.each([
    { policy: 'eager', records: 1 },
    { policy: 'deferred', records: 0 },
    { policy: 'off', records: 0 },
  ] as const)('is what the policy says: $policy', ({ policy, records }) => {
    const { free } = make(policy);
    using a = new Stream();
    expect(eventCalls(() => free(a))).toEqual({ records, waits: 0 });
  });

  test.each([
    { fence: 'eager', records: 1, isHeld: false },
    { fence: 'deferred', records: 0, isHeld: false },
    { fence: 'off', records: 0, isHeld: true },
  ] as const)('is what its fence says: $fence', ({ fence, records, isHeld }) => {
    const { ordering } = make();
    using a = new Stream();
    hold(a);
    let lane: StreamLane | undefined;
    const { owner } = ordering.laneOf(a, 'allocate');
    expect(eventCalls(() => (lane = ordering.freedWith(fence, a, owner))).records).toBe(records);
    expect(lane?.isHeld).toBe(isHeld);
    expect(lane?.isIdle).toBe(false);
  });

  test('is to record nothing, given a caller’s event, if the memory was allocated on the stream', () => {
    const { memory, ordering } = make();
    using a = new Stream();
    using b = new Stream();
    hold(a);
    using event = new Event();
    const { owner, number } = ordering.laneOf(a, 'allocate');
    event.record(a);
    memory.bytes[number] = 1;
    expect(ordering.freedWith(event, a, owner).number).toBe(number);
    expect(eventCalls(() => ordering.order(b, number))).toEqual({ records: 0, waits: 1 });
    ordering.freedWith(event, a, owner + 1);
    expect(eventCalls(() => ordering.order(b, number))).toEqual({ records: 1, waits: 1 });
  });

  test('is to record if the end of the stream is not announced, whatever the caller has recorded', () => {
    const { ordering } = make();
    const foreign = madeElsewhere();
    using stream = Stream.fromHandle(foreign.address);
    using waiter = new Stream();
    using event = new Event();
    event.record(stream);
    const lane = ordering.laneOf(stream, 'allocate');
    expect(eventCalls(() => ordering.freedWith(event, stream, lane.owner)).records).toBe(1);
    expect(eventCalls(() => ordering.freed(lane)).records).toBe(1);
    expect(eventCalls(() => ordering.freedWith('deferred', stream, lane.owner)).records).toBe(1);
    expect(lane.isIdle).toBe(false);
    expect(eventCalls(() => ordering.order(waiter, lane.number))).toEqual({ records: 0, waits: 1 });
    failCall('cuEventRecord', 1, 999);
    expect(() => ordering.freedWith(event, stream, lane.owner)).toThrow(DriverError);
    stream.dispose();
    foreign.destroy();
  });

  test('is to record later if the driver refuses, unless that may be too late', () => {
    const { ordering } = make('eager');
    using a = new Stream();
    using b = new Stream();
    hold(a);
    const lane = ordering.laneOf(a, 'allocate');
    failCall('cuEventRecord', 1, 999);
    ordering.freedLater(lane);
    expect(lane.isIdle).toBe(false);
    expect(eventCalls(() => ordering.order(b, lane.number))).toEqual({ records: 1, waits: 1 });
    const foreign = madeElsewhere();
    using unannounced = Stream.fromHandle(foreign.address);
    const own = ordering.laneOf(unannounced, 'allocate');
    expect(own.mustRecord).toBe(true);
    failCall('cuEventRecord', 1, 999);
    expect(() => ordering.freedLater(own)).toThrow(DriverError);
    unannounced.dispose();
    foreign.destroy();
  });

  test('is to refuse an invalid fence', () => {
    const { ordering } = make();
    using a = new Stream();
    using b = new Stream();
    using event = new Event();
    const { owner } = ordering.laneOf(a, 'allocate');
    expect(() => ordering.freedWith(event, a, owner)).toThrow('got one that was never recorded');
    event.record(b);
    expect(() => ordering.freedWith(event, a, owner)).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_VALUE' }));
    expect(() => ordering.freedWith(event, a, owner)).toThrow(`recorded on stream ${a.id}, got one recorded on another stream`);
    event.dispose();
    expect(() => ordering.freedWith(event, a, owner)).toThrow('already disposed');
    expect(() => ordering.freedWith('none' as DeallocationEvents, a, owner)).toThrow('fence');
  });
});

describe('streams that have ended', () => {
  test('leave their memory to one lane, which waits for each stream that was busy', () => {
    const { memory, ordering, free } = make();
    using waiter = new Stream();
    const a = new Stream();
    const b = new Stream();
    const idle = new Stream();
    const holds = [hold(a), hold(b)];
    const number = free(a).number;
    free(b);
    free(idle);
    idle.synchronizeSync();
    expect(eventCalls(() => idle.dispose()).records).toBe(0);
    expect(eventCalls(() => a.dispose()).records).toBe(1);
    expect([ordering.lane(ordering.endedLane).isIdle, ordering.order(waiter, ordering.endedLane)]).toEqual([false, true]);
    expect(memory.calls.slice(-2)).toEqual([`transfer ${number} ${ordering.endedLane}`, `redirect ${number} ${ordering.endedLane}`]);
    b.dispose();
    expect(ordering.lane(ordering.endedLane).isIdle).toBe(false);
    expect(waitsFor(ordering, waiter, ordering.endedLane)).toBe(2);
    for (const one of holds) one.release();
    Device.get().synchronizeSync();
    expect(ordering.lane(ordering.endedLane).isIdle).toBe(true);
    expect(waitsFor(ordering, waiter, ordering.endedLane)).toBe(0);
    expect(ordering.order(waiter, ordering.endedLane)).toBe(false);
  });

  test('get no record for lanes without memory', () => {
    const { memory, free } = make();
    const a = new Stream();
    hold(a);
    const lane = free(a);
    memory.bytes[lane.number] = 0;
    expect(eventCalls(() => a.dispose()).records).toBe(0);
  });

  test('get one event for all their lanes, and leave none to the next stream', () => {
    const { memory, ordering, free } = make();
    const a = new Stream();
    hold(a);
    const held = ordering.heldLaneOf(a);
    const lane = free(a);
    expect(eventCalls(() => a.dispose()).records).toBe(1);
    expect(memory.calls).toEqual([
      `redirect ${held.number} ${ordering.endedLane}`,
      `transfer ${lane.number} ${ordering.endedLane}`,
      `redirect ${lane.number} ${ordering.endedLane}`,
    ]);
    using next = new Stream();
    expect(next.identity.slot).toBe(a.identity.slot);
    expect(ordering.heldLaneOf(next).identity).toBe(next.identity);
    expect(ordering.laneOf(next, 'allocate').identity).toBe(next.identity);
  });

  test('get a record for awaited memory in use', () => {
    const { memory, ordering } = make();
    using waiter = new Stream();
    const a = new Stream();
    hold(a);
    const { number } = ordering.laneOf(a, 'allocate');
    memory.awaited = number;
    expect(eventCalls(() => a.dispose()).records).toBe(1);
    expect(memory.calls).toEqual([`transfer ${number} ${ordering.endedLane}`, `redirect ${number} ${ordering.endedLane}`]);
    expect(waitsFor(ordering, waiter, ordering.endedLane)).toBe(1);
  });

  test('leave no completed events behind, even if nobody takes the memory', () => {
    const { ordering, free } = make();
    const waits: number[] = [];
    for (let i = 0; i < 40; i++) {
      const stream = new Stream();
      const own = hold(stream);
      free(stream);
      stream.dispose();
      own.release();
      Device.get().synchronizeSync();
    }
    using waiter = new Stream();
    // If the events of all were kept, each would be looked at here.
    failCall('cuEventQuery', 17, 999);
    waits.push(waitsFor(ordering, waiter, ordering.endedLane));
    expect(failCall('cuEventQuery', 0)).toBe(true);
    expect(waits).toEqual([0]);
  });

  test('leave no completed events behind after many that were pending', () => {
    const { ordering, free } = make();
    const end = () => {
      const stream = new Stream();
      const own = hold(stream);
      free(stream);
      stream.dispose();
      return own;
    };
    for (const own of Array.from({ length: 9 }, end)) own.release();
    Device.get().synchronizeSync();
    for (let i = 0; i < 30; i++) {
      end().release();
      Device.get().synchronizeSync();
    }
    failCall('cuEventQuery', 18, 999);
    expect(ordering.lane(ordering.endedLane).isIdle).toBe(true);
    expect(failCall('cuEventQuery', 0)).toBe(true);
  });

  test('are not all queried at each end', () => {
    const { free } = make();
    failCall('cuEventQuery', 100, 999);
    for (let i = 0; i < 40; i++) {
      const stream = new Stream();
      hold(stream);
      free(stream);
      stream.dispose();
    }
    expect(failCall('cuEventQuery', 0)).toBe(true);
  });

  test('on another device are waited for by one event of that device', () => {
    const device = Device.get(1);
    const memory = new Lanes();
    const ordering = new StreamOrdering('deferred', memory, device, 'device');
    for (let i = 0; i < 9; i++) {
      const stream = new Stream({ device });
      hold(stream);
      const lane = ordering.laneOf(stream, 'deallocate');
      memory.bytes[lane.number] = 256;
      ordering.freed(lane);
      stream.dispose();
    }
    using first = new Stream({ device });
    using second = new Stream({ device });
    expect(eventCalls(() => ordering.order(first, ordering.endedLane))).toEqual({ records: 1, waits: 9 });
    expect(waitsFor(ordering, second, ordering.endedLane)).toBe(1);
  });

  test('are waited for by one event, once a stream has waited for many', () => {
    const { ordering, free } = make();
    const holds = Array.from({ length: 9 }, () => {
      const stream = new Stream();
      const own = hold(stream);
      free(stream);
      stream.dispose();
      return own;
    });
    using first = new Stream();
    using second = new Stream();
    expect(eventCalls(() => ordering.order(first, ordering.endedLane))).toEqual({ records: 1, waits: 9 });
    expect(eventCalls(() => ordering.order(second, ordering.endedLane))).toEqual({ records: 0, waits: 1 });
    // The event is the first stream's own.
    expect(waitsFor(ordering, first, ordering.endedLane)).toBe(0);
    for (const one of holds) one.release();
  });

  test('are waited for one by one if no event can stand for all, and up to eight', () => {
    const { ordering, free } = make();
    const holds = Array.from({ length: 9 }, (_, i) => {
      const stream = new Stream();
      const own = hold(stream);
      free(stream);
      stream.dispose();
      using first = new Stream();
      if (i === 7) expect(eventCalls(() => ordering.order(first, ordering.endedLane))).toEqual({ records: 0, waits: 8 });
      return own;
    });
    using first = new Stream();
    failCall('cuEventRecord', 1, 999);
    expect(waitsFor(ordering, first, ordering.endedLane)).toBe(9);
    expect(waitsFor(ordering, first, ordering.endedLane)).toBe(9);
    for (const one of holds) one.release();
  });

  test('do not notify a disposed ordering', () => {
    const { memory, ordering, free } = make();
    const a = new Stream();
    hold(a);
    free(a);
    ordering.heldLaneOf(a);
    const b = new Stream();
    free(b);
    ordering[Symbol.dispose]();
    expect(eventCalls(() => a.dispose()).records).toBe(0);
    b.dispose();
    expect(memory.calls).toEqual([]);
  });
});

describe('memory that moves into the lane of another stream', () => {
  test.each([
    ['eager', Lanes],
    ['deferred', Lanes],
    ['off', Lanes],
    ['eager', JoiningLanes],
    ['deferred', JoiningLanes],
    ['off', JoiningLanes],
  ] as const)("depends on that stream from then on, although it was idle, under '%s' with %o", (policy, memory) => {
    const { ordering, free } = make(policy, 'device', new memory());
    using a = new Stream();
    using b = new Stream();
    const held = hold(a);
    const from = free(a);
    const into = ordering.laneOf(b, 'deallocate');
    ordering.order(b, from.number);
    expect(into.isIdle).toBe(true);
    ordering.moveInto(into, from.number);
    expect(into.isIdle).toBe(false);
    held.release();
    b.synchronizeSync();
    expect(into.isIdle).toBe(true);
  });

  test('leaves the lanes in their places if the other has more', () => {
    const memory = new JoiningLanes();
    const { ordering, free } = make('deferred', 'device', memory);
    using a = new Stream();
    using b = new Stream();
    const from = free(a, 256);
    const into = free(b, 1024);
    const numbers = [from.number, into.number];
    ordering.moveInto(into, from.number);
    expect([from.number, into.number]).toEqual(numbers);
    expect([memory.bytes[from.number], memory.bytes[into.number]]).toEqual([0, 1280]);
  });

  for (const [which, memory] of [
    ['with all lanes as they were', new FoundLanes()],
    ['by changing the places of two lanes', new JoiningLanes()],
  ] as const) {
    test(`is that stream's own, ${which}`, () => {
      const { ordering, free } = make('deferred', 'device', memory);
      using a = new Stream();
      using b = new Stream();
      using c = new Stream();
      const holds = [hold(a), hold(b)];
      const from = free(a, 1024);
      const into = free(b, 256);
      ordering.order(b, from.number);
      const numbers = [into.number, from.number];
      ordering.moveInto(into, from.number);
      expect([into.number, from.number]).toEqual(memory instanceof JoiningLanes ? numbers.reverse() : numbers);
      expect([memory.bytes[into.number], memory.bytes[from.number]]).toEqual([1280, 0]);
      expect([ordering.lane(into.number), ordering.lane(from.number)]).toEqual([into, from]);
      expect(ordering.laneWith(c, 5)).toBe(into.number);
      expect(ordering.laneWith(b, 5)).toBe(-1);
      // One wait, for an event of the stream that waited for the other.
      expect(eventCalls(() => ordering.order(c, into.number))).toEqual({ records: 1, waits: 1 });
      free(a, 512);
      expect(memory.bytes[from.number]).toBe(512);
      a.dispose();
      expect([memory.bytes[into.number], memory.bytes[ordering.endedLane]]).toEqual([1280, 512]);
      for (const one of holds) one.release();
    });

    test(`is held for that stream under 'off', ${which}`, () => {
      memory.bytes.length = 0;
      memory.shared.clear();
      const { ordering, free } = make('off', 'device', memory);
      using a = new Stream();
      using b = new Stream();
      using c = new Stream();
      const from = free(a, 1024);
      a.synchronizeSync();
      const held = hold(b);
      const into = free(b, 256);
      expect(ordering.fullLane(b)).toBe(from.number);
      ordering.moveInto(into, from.number);
      expect(memory.bytes[into.number]).toBe(1280);
      expect(ordering.laneWith(c, 1)).toBe(-1);
      free(a, 512);
      a.synchronizeSync();
      expect(ordering.laneWith(c, 1)).toBe(from.number);
      held.release();
      b.synchronizeSync();
      expect(ordering.laneWith(c, 5)).toBe(into.number);
    });
  }
});

describe('events that cover memory in a lane of no stream', () => {
  const destroyed = () => driverCallCounts().byFunction['cuEventDestroy'] as number;

  test('are returned to the driver once they are past, if a lane gave them away', () => {
    const { ordering, free } = make();
    using a = new Stream();
    const common = ordering.addCommonLane();
    const held = hold(a);
    free(a);
    ordering.collect(common);
    held.release();
    a.synchronizeSync();
    const before = destroyed();
    expect(common.isIdle).toBe(true);
    expect(destroyed() - before).toBe(1);
  });

  test('are returned once a later one of their stream, or one for all streams, replaces them', () => {
    const { ordering, free } = make();
    const streams = Array.from({ length: 9 }, () => new Stream());
    const common = ordering.addCommonLane();
    const holds = streams.map((stream) => hold(stream));
    const [first] = streams as [Stream];
    const before = destroyed();
    for (const stream of [first, ...streams]) {
      free(stream);
      ordering.collect(common);
    }
    expect(destroyed() - before).toBe(1);
    using waiter = new Stream();
    ordering.order(waiter, common.number);
    expect(destroyed() - before).toBe(1 + 9);
    for (const each of holds) each.release();
    Device.get().synchronizeSync();
    expect(common.isIdle).toBe(true);
    expect(destroyed() - before).toBe(1 + 9 + 1);
    for (const stream of streams) stream.dispose();
  });

  test('are returned if they are those of memory that came from a stream', () => {
    const { ordering } = make();
    using a = new Stream();
    const common = ordering.addCommonLane();
    const held = hold(a);
    ordering.receivedInCommon(common, a);
    held.release();
    a.synchronizeSync();
    const before = destroyed();
    expect(common.isIdle).toBe(true);
    expect(destroyed() - before).toBe(1);
  });

  test('stay if they come to the lane again', () => {
    const { ordering, free } = make();
    using a = new Stream();
    using waiter = new Stream();
    const common = ordering.addCommonLane();
    const held = hold(a);
    free(a);
    ordering.collect(common);
    const before = destroyed();
    common.dependOn(common.cover());
    expect(destroyed() - before).toBe(0);
    expect(waitsFor(ordering, waiter, common.number)).toBe(1);
    held.release();
  });

  test('stay if others have them, too: the last event of a stream that has ended', () => {
    const first = make();
    const second = make();
    const ended = new Stream();
    const held = hold(ended);
    first.free(ended);
    second.free(ended);
    ended.dispose();
    const before = destroyed();
    const [lane, other] = [first, second].map(({ ordering }) => ordering.lane(ordering.endedLane)) as [Lane, Lane];
    const [event] = other.cover() as [Event];
    expect(lane.cover()).toEqual([event]);
    held.release();
    event.synchronizeSync();
    expect(lane.isIdle).toBe(true);
    expect([event.handle >= 0, destroyed() - before]).toEqual([true, 0]);
    expect(other.isIdle).toBe(true);
  });
});

describe('an error of the driver', () => {
  test('while a stream is made to wait is passed on', () => {
    const { ordering, free } = make();
    using a = new Stream();
    using waiter = new Stream();
    const ended = new Stream();
    const holds = [hold(a), hold(ended)];
    const lane = free(a);
    free(ended);
    ended.dispose();
    for (const number of [lane.number, ordering.endedLane]) {
      failCall('cuStreamWaitEvent', 1, 999);
      expect(() => ordering.order(waiter, number)).toThrow(DriverError);
    }
    for (const one of holds) one.release();
  });

  test('while an event is queried means that it is waited for', () => {
    const { ordering, free } = make();
    using waiter = new Stream();
    const a = new Stream();
    const own = hold(a);
    free(a);
    a.dispose();
    own.release();
    Device.get().synchronizeSync();
    failCall('cuEventQuery', 1, 999);
    expect(ordering.lane(ordering.endedLane).isIdle).toBe(false);
    failCall('cuEventQuery', 1, 999);
    expect(waitsFor(ordering, waiter, ordering.endedLane)).toBe(1);
  });

  test('while an ended stream is queried means that it may be busy', () => {
    const { free } = make();
    using a = new Stream();
    const lane = free(a);
    failCall('cuStreamQuery', 1, 999);
    lane.query();
    expect(lane.isIdle).toBe(false);
    lane.query();
    expect(lane.isIdle).toBe(true);
  });

  test('while a held stream is waited for is passed on', () => {
    const { ordering, free } = make('off');
    using a = new Stream();
    free(a);
    failCall('cuStreamSynchronize', 1, 999);
    expect(() => ordering.synchronizeHeld()).toThrow(DriverError);
    expect(ordering.synchronizeHeld()).toBe(1);
    expect(ordering.synchronizeHeld()).toBe(0);
  });
});

describe('a common lane', () => {
  test('waits for the stream that memory came from, unless it was idle', () => {
    const { ordering } = make();
    using a = new Stream();
    using b = new Stream();
    const common = ordering.addCommonLane();
    expect(ordering.laneNumbers()).toEqual([ordering.endedLane, common.number]);
    expect(eventCalls(() => ordering.receivedInCommon(common, a)).records).toBe(0);
    expect(ordering.lane(common.number).isIdle).toBe(true);
    hold(a);
    using older = new Event();
    older.record(a);
    expect(eventCalls(() => ordering.receivedInCommon(common, a)).records).toBe(1);
    expect(ordering.lane(common.number).isIdle).toBe(false);
    expect([waitsFor(ordering, a, common.number), waitsFor(ordering, b, common.number)]).toEqual([0, 1]);
    expect(a.identity.receivedAt).toBeGreaterThan(older.version);
  });

  test('waits for the later of two recordings that it collects', () => {
    const { memory, ordering } = make();
    using a = new Stream();
    const [into, other] = [ordering.addCommonLane(), ordering.addCommonLane()];
    memory.bytes[other.number] = 256;
    const first = hold(a);
    ordering.receivedInCommon(other, a);
    using between = new Event();
    between.record(a);
    hold(a);
    ordering.receivedInCommon(into, a);
    ordering.collect(into);
    first.release();
    between.synchronizeSync();
    expect(ordering.lane(into.number).isIdle).toBe(false);
  });

  test('waits for the later of two recordings on a stream', () => {
    const { ordering } = make();
    using a = new Stream();
    using b = new Stream();
    const common = ordering.addCommonLane();
    const first = hold(a);
    ordering.receivedInCommon(common, a);
    using between = new Event();
    between.record(a);
    const second = hold(a);
    // A stream that the driver cannot query may be busy.
    failCall('cuStreamQuery', 1, 999);
    ordering.receivedInCommon(common, a);
    expect(waitsFor(ordering, b, common.number)).toBe(1);
    first.release();
    between.synchronizeSync();
    expect(ordering.lane(common.number).isIdle).toBe(false);
    second.release();
    a.synchronizeSync();
    expect(ordering.lane(common.number).isIdle).toBe(true);
  });

  test('collects free memory with the events that cover it, and leaves nothing behind', () => {
    const { memory, ordering, free } = make();
    using a = new Stream();
    using b = new Stream();
    using waiter = new Stream();
    const ended = new Stream();
    const idle = new Stream();
    const common = ordering.addCommonLane();
    const holds = [hold(a), hold(b), hold(ended)];
    free(ended);
    ended.dispose();
    const lane = free(a);
    const held = ordering.heldLaneOf(b);
    memory.bytes[held.number] = 512;
    held.freeUnrecorded();
    free(idle);
    idle.synchronizeSync();
    expect(eventCalls(() => ordering.collect(common))).toEqual({ records: 1, waits: 0 });
    expect(memory.bytes[common.number]).toBe(3 * 256);
    expect(memory.bytes[held.number]).toBe(512);
    expect([ordering.lane(ordering.endedLane).isIdle, ordering.lane(lane.number).isIdle, ordering.lane(common.number).isIdle]).toEqual([
      true,
      true,
      false,
    ]);
    expect(waitsFor(ordering, waiter, ordering.endedLane)).toBe(0);
    expect(waitsFor(ordering, waiter, lane.number)).toBe(0);
    expect(waitsFor(ordering, waiter, common.number)).toBe(2);
    // The stream itself may take what is held for it.
    ordering.collect(common, b);
    expect(memory.bytes[common.number]).toBe(3 * 256 + 512);
    expect(waitsFor(ordering, waiter, common.number)).toBe(3);
    memory.calls.length = 0;
    ordering.collect(common);
    expect(memory.calls).toEqual([]);
    for (const one of holds) one.release();
    Device.get().synchronizeSync();
    ordering.collect(common);
    failCall('cuEventQuery', 1, 999);
    expect(ordering.lane(common.number).isIdle).toBe(true);
    expect(failCall('cuEventQuery', 0)).toBe(true);
    idle.dispose();
  });

  test('takes no memory of a stream that has ended, or on which no event can be recorded', () => {
    const { ordering } = make();
    const common = ordering.addCommonLane();
    const ended = new Stream();
    ended.dispose();
    expect(() => ordering.receivedInCommon(common, ended)).toThrow('cannot keep memory');
    using a = new Stream();
    hold(a);
    failCall('cuEventRecord', 1, 999);
    expect(() => ordering.receivedInCommon(common, a)).toThrow(DriverError);
    expect(ordering.lane(common.number).isIdle).toBe(true);
  });

  test('collects the memory of several others', () => {
    const { memory, ordering } = make();
    using a = new Stream();
    using b = new Stream();
    using waiter = new Stream();
    hold(a);
    hold(b);
    const [into, first, second] = [ordering.addCommonLane(), ordering.addCommonLane(), ordering.addCommonLane()];
    for (const number of [first.number, second.number]) memory.bytes[number] = 256;
    ordering.receivedInCommon(first, a);
    ordering.receivedInCommon(second, b);
    ordering.collect(into);
    expect([into.number, first.number, second.number].map((number) => memory.bytes[number])).toEqual([512, 0, 0]);
    expect(waitsFor(ordering, waiter, into.number)).toBe(2);
  });

  test('keeps its own events when it is collected into', () => {
    const { memory, ordering } = make();
    using a = new Stream();
    using b = new Stream();
    hold(a);
    const common = ordering.addCommonLane();
    memory.bytes[common.number] = 256;
    ordering.receivedInCommon(common, a);
    ordering.collect(common);
    expect(memory.calls).toEqual([]);
    expect(waitsFor(ordering, b, common.number)).toBe(1);
  });

  test('is waited for by whoever takes memory of ended streams, on request', () => {
    const { ordering, free } = make();
    using a = new Stream();
    using b = new Stream();
    using waiter = new Stream();
    const common = ordering.addCommonLane();
    hold(a);
    hold(b);
    ordering.orderEnded(common.number);
    expect(waitsFor(ordering, waiter, ordering.endedLane)).toBe(0);
    ordering.receivedInCommon(common, a);
    ordering.orderEnded(common.number);
    expect(waitsFor(ordering, waiter, ordering.endedLane)).toBe(1);
    const lane = free(b);
    expect(eventCalls(() => ordering.orderEnded(lane.number)).records).toBe(1);
    expect(waitsFor(ordering, waiter, ordering.endedLane)).toBe(2);
  });
});

describe('an event is recorded at a free', () => {
  test.each([
    ['eager', true, true],
    ['deferred', false, true],
    // The memory is held until the stream is idle.
    ['off', false, false],
  ] as const)("under '%s': %s; if the end of the stream is not announced: %s", (policy, expected, elsewhere) => {
    const { ordering } = make(policy);
    using own = new Stream();
    const foreign = madeElsewhere();
    using stream = Stream.fromHandle(foreign.address);
    expect(ordering.laneOf(own, 'deallocate').recordsFrees).toBe(expected);
    expect(ordering.laneOf(stream, 'deallocate').recordsFrees).toBe(elsewhere);
    stream.dispose();
    foreign.destroy();
  });
});

describe('the lane of a stream', () => {
  test('tells a waiter whether it must wait, and whether the lane is idle', () => {
    const { ordering, free } = make();
    using a = new Stream();
    using b = new Stream();
    const { number } = free(a);
    expect([ordering.lane(number).isIdle, ordering.order(b, number)]).toEqual([false, true]);
    a.synchronizeSync();
    expect([ordering.lane(number).isIdle, ordering.order(b, number)]).toEqual([true, false]);
  });
});

describe('other lanes', () => {
  test('are visited if they have memory that may be taken, common ones first', () => {
    const { memory, ordering, free } = make();
    using a = new Stream();
    using b = new Stream();
    using c = new Stream();
    const common = ordering.addCommonLane();
    memory.bytes[common.number] = 256;
    const own = free(a);
    const other = free(b);
    const empty = ordering.laneOf(c, 'allocate');
    hold(c);
    const held = ordering.heldLaneOf(c);
    memory.bytes[held.number] = 256;
    held.freeUnrecorded();
    const visited = (until?: number) => {
      const numbers: number[] = [];
      for (const number of ordering.others(a)) {
        numbers.push(number);
        if (number === until) break;
      }
      return numbers;
    };
    expect(empty.number).toBeGreaterThan(other.number);
    expect(visited()).toEqual([common.number, other.number]);
    expect(visited(common.number)).toEqual([common.number]);
    const last = free(c);
    expect(visited(other.number)).toEqual([common.number, other.number]);
    expect(visited()).toEqual([common.number, other.number, last.number]);
    expect(own.isIdle).toBe(false);
  });

  test('are gathered on one stream, which waits for all of them', () => {
    const { memory, ordering, free } = make();
    using a = new Stream();
    using b = new Stream();
    using c = new Stream();
    using later = new Stream();
    const holds = [hold(b), hold(c)];
    const into = ordering.laneOf(a, 'trim');
    free(b);
    ordering.laneOf(c, 'allocate');
    const held = ordering.heldLaneOf(c);
    memory.bytes[held.number] = 256;
    held.freeUnrecorded();
    failCall('cuStreamWaitEvent', 1, 999);
    expect(() => ordering.gather(a, into)).toThrow(DriverError);
    expect(memory.calls).toEqual([]);
    expect(eventCalls(() => ordering.gather(a, into)).waits).toBe(2);
    expect(memory.bytes[into.number]).toBe(512);
    expect(memory.calls).toHaveLength(2);
    expect(into.isIdle).toBe(false);
    expect(eventCalls(() => ordering.order(later, into.number))).toEqual({ records: 1, waits: 1 });
    memory.calls.length = 0;
    ordering.gather(a, into);
    expect(memory.calls).toEqual([]);
    for (const one of holds) one.release();
  });
});

describe('memory that is found by its size', () => {
  const makeFound = (policy: DeallocationEvents) => make(policy, 'device', new FoundLanes());

  test('is that of other streams, or of none', () => {
    const { memory, ordering, free } = makeFound('deferred');
    using a = new Stream();
    using b = new Stream();
    const common = ordering.addCommonLane();
    const own = free(a, 512);
    const second = ordering.heldLaneOf(a);
    memory.bytes[second.number] = 512;
    expect([ordering.laneWith(a, 1), ordering.fullLane(a)]).toEqual([-1, -1]);
    expect([ordering.laneWith(b, 2), ordering.laneWith(b, 3), ordering.fullLane(b)]).toEqual([own.number, -1, own.number]);
    const other = free(b);
    expect([ordering.laneWith(a, 1), ordering.laneWith(a, 2), ordering.fullLane(a)]).toEqual([other.number, -1, other.number]);
    memory.bytes[common.number] = 256;
    expect([ordering.laneWith(a, 1), ordering.fullLane(a)]).toEqual([common.number, common.number]);
  });

  test('is not memory held for a busy stream, until that stream is known to be idle', () => {
    const { memory, ordering, free } = makeFound('off');
    using a = new Stream();
    using b = new Stream();
    using c = new Stream();
    const busy = hold(a);
    const held = free(a);
    const other = free(b);
    expect([ordering.laneWith(c, 1), ordering.fullLane(c)]).toEqual([-1, -1]);
    b.synchronizeSync();
    expect([ordering.laneWith(c, 1), ordering.fullLane(c)]).toEqual([other.number, other.number]);
    memory.bytes[other.number] = 0;
    expect(ordering.fullLane(c)).toBe(-1);
    busy.release();
    a.synchronizeSync();
    expect([ordering.laneWith(c, 1), ordering.fullLane(c)]).toEqual([held.number, held.number]);
    // It is freed into again, while it is shared.
    const again = hold(a);
    free(a);
    free(b);
    b.synchronizeSync();
    expect([ordering.laneWith(c, 1), ordering.laneWith(c, 1)]).toEqual([other.number, other.number]);
    expect(ordering.fullLane(c)).toBe(other.number);
    again.release();
    // The stream ends its work on a thread of its own.
    const end = performance.now() + 5000;
    let isIdle = false;
    while (!isIdle && performance.now() < end) isIdle = ordering.queryHeld(c);
    expect(isIdle).toBe(true);
    expect(ordering.laneWith(c, 2)).toBe(held.number);
  });

  test('is not memory of a stream that may be gone, if no event could be recorded for it', () => {
    const { memory, ordering, free } = makeFound('deferred');
    const foreign = madeElsewhere();
    using unannounced = Stream.fromHandle(foreign.address);
    using a = new Stream();
    hold(unannounced);
    const lane = free(unannounced);
    expect(ordering.laneWith(a, 1)).toBe(lane.number);
    failCall('cuEventRecord', 1, 999);
    expect(() => lane.received()).toThrow(DriverError);
    expect([ordering.laneWith(a, 1), ordering.fullLane(a)]).toEqual([-1, -1]);
    ordering.freed(lane);
    expect([ordering.laneWith(a, 1), ordering.fullLane(a)]).toEqual([lane.number, lane.number]);
    failCall('cuEventRecord', 1, 999);
    expect(() => lane.received()).toThrow(DriverError);
    expect([ordering.fullLane(a), ordering.laneWith(a, 1)]).toEqual([-1, -1]);
    // The stream's own memory is collected, in both its lanes.
    const second = ordering.heldLaneOf(unannounced);
    memory.bytes[second.number] = 512;
    const common = ordering.addCommonLane();
    expect(ordering.collect(common, unannounced)).toBe(true);
    expect(memory.bytes[common.number]).toBe(768);
    unannounced.dispose();
    foreign.destroy();
  });

  test('costs as much with many held lanes as with few, and comes to each of them', () => {
    const { memory, ordering, free } = makeFound('off');
    const streams = Array.from({ length: 160 }, () => new Stream());
    using waiter = new Stream();
    const holds = streams.map(hold);
    const lanes = streams.map((stream) => free(stream));
    expect([ordering.laneWith(waiter, 1), ordering.queryHeld(waiter)]).toEqual([-1, false]);
    for (const one of holds) one.release();
    for (const stream of streams) stream.synchronizeSync();
    const shared = () => lanes.filter(({ number }) => memory.shared.has(number)).length;
    expect(shared()).toBe(0);
    const counts = [1, 2, 3, 4].map(() => {
      ordering.laneWith(waiter, 1);
      return shared();
    });
    expect(counts).toEqual([64, 128, 160, 160]);
    // All of them are looked at before a wait.
    const again = lanes.map((lane, i) => {
      const one = hold(streams[i] as Stream);
      lane.freeUnrecorded();
      return one;
    });
    expect([ordering.fullLane(waiter), ordering.queryAllHeld(waiter), shared()]).toEqual([-1, false, 0]);
    for (const one of again) one.release();
    for (const stream of streams) stream.synchronizeSync();
    expect([ordering.queryAllHeld(waiter), shared(), ordering.queryAllHeld(waiter)]).toEqual([true, 160, false]);
    for (const stream of streams) stream.dispose();
  });

  test('is asked for on every stream before a wait, wherever the last question ended', () => {
    const { memory, ordering, free } = makeFound('off');
    const streams = Array.from({ length: 40 }, () => new Stream());
    using waiter = new Stream();
    const holds = streams.map(hold);
    const lanes = streams.map((stream) => free(stream));
    expect(ordering.queryHeld(waiter)).toBe(false);
    for (const i of [3, 31]) (holds[i] as StreamHold).release();
    for (const i of [3, 31]) (streams[i] as Stream).synchronizeSync();
    expect(ordering.queryAllHeld(waiter)).toBe(true);
    expect([3, 31].map((i) => memory.shared.has((lanes[i] as StreamLane).number))).toEqual([true, true]);
    for (const one of holds) one.release();
    for (const stream of streams) stream.dispose();
  });

  test('is not found if the driver refuses the query', () => {
    const { ordering, free } = makeFound('off');
    using a = new Stream();
    using b = new Stream();
    free(a);
    failCall('cuStreamQuery', 1, 999);
    expect([ordering.queryHeld(b), failCall('cuStreamQuery', 0), ordering.queryHeld(b)]).toEqual([false, false, true]);
  });

  test('is looked for in turns, so that busy streams do not hide an idle one', () => {
    needHardwareQueues(160);
    const { ordering, free } = makeFound('off');
    const streams = Array.from({ length: 160 }, () => new Stream());
    using waiter = new Stream();
    const lanes = streams.map((stream) => {
      hold(stream);
      return free(stream);
    });
    const idle = 100;
    (held[held.length - 160 + idle] as StreamHold).release();
    streams[idle]?.synchronizeSync();
    const found = [1, 2, 3].map(() => ordering.laneWith(waiter, 1));
    expect(found).toContain(lanes[idle]?.number);
    expect(found[0]).toBe(-1);
    for (const one of held.splice(0)) one.release();
    expect(ordering.synchronizeHeld(waiter)).toBe(159);
    expect(ordering.laneWith(waiter, 1)).toBe(lanes[0]?.number);
    for (const stream of streams) stream.dispose();
  });

  test('is not looked for again until something was released', () => {
    needHardwareQueues(100);
    const { ordering, free } = makeFound('off');
    const streams = Array.from({ length: 100 }, () => new Stream());
    using waiter = new Stream();
    const lanes = streams.map((stream) => {
      hold(stream);
      return free(stream);
    });
    const looks = vi.spyOn(StreamLane.prototype, 'isHeldBack', 'get');
    const counts = [1, 2, 3].map(() => {
      looks.mockClear();
      expect(ordering.laneWith(waiter, 1)).toBe(-1);
      return looks.mock.calls.length;
    });
    expect(counts).toEqual([64, 36, 0]);
    looks.mockRestore();
    // One that is new, and idle until something is freed into it.
    using late = new Stream();
    const lateLane = ordering.laneOf(late, 'allocate');
    ordering.laneWith(waiter, 1);
    ordering.laneWith(waiter, 1);
    free(late);
    expect(ordering.laneWith(waiter, 1)).toBe(-1);
    late.synchronizeSync();
    expect([ordering.laneWith(waiter, 1), ordering.laneWith(waiter, 1)]).toContain(lateLane.number);
    for (const one of held.splice(0)) one.release();
    streams[70]?.synchronizeSync();
    lateLane.freeUnrecorded();
    expect([1, 2, 3].map(() => ordering.laneWith(waiter, 1))).toContain(lanes[70]?.number);
    for (const stream of streams) stream.dispose();
  });

  test('is not looked for in lanes of streams that have ended', () => {
    const { memory, ordering, free } = makeFound('off');
    using waiter = new Stream();
    const a = new Stream();
    const busy = hold(a);
    const lane = free(a);
    expect(ordering.laneWith(waiter, 1)).toBe(-1);
    busy.release();
    a.dispose();
    expect(ordering.laneWith(waiter, 1)).toBe(ordering.endedLane);
    expect(memory.shared.has(lane.number)).toBe(false);
    // The number is used again.
    using b = new Stream();
    hold(b);
    expect(free(b).number).toBe(lane.number);
    expect([memory.shared.has(lane.number), ordering.laneWith(waiter, 1)]).toEqual([false, ordering.endedLane]);
  });

  test('is collected, except what is held for busy streams', () => {
    const { memory, ordering, free } = makeFound('off');
    using a = new Stream();
    using b = new Stream();
    using c = new Stream();
    const common = ordering.addCommonLane();
    hold(a);
    const busy = free(a);
    free(b);
    b.synchronizeSync();
    const own = free(c);
    // The stream is asked whether it is idle, and then needs no event.
    expect(eventCalls(() => expect(ordering.collect(common, c)).toBe(true)).records).toBe(0);
    expect([memory.bytes[busy.number], memory.bytes[own.number], memory.bytes[common.number]]).toEqual([256, 0, 512]);
    expect(ordering.collect(common, c)).toBe(false);
    expect(ordering.collect(common)).toBe(false);
  });
});

describe('memory that is held', () => {
  test('is queried and waited for on other streams only', () => {
    const { memory, ordering, free } = make('off');
    using a = new Stream();
    using b = new Stream();
    using c = new Stream();
    const own = hold(b);
    const lane = free(a);
    free(b);
    const empty = free(c);
    memory.bytes[empty.number] = 0;
    expect(ordering.queryHeld(a)).toBe(false);
    expect(lane.isIdle).toBe(false);
    expect(ordering.queryHeld(b)).toBe(true);
    expect([lane.isIdle, empty.isIdle]).toEqual([true, false]);
    expect(ordering.queryHeld(b)).toBe(false);
    own.release();
    expect(ordering.synchronizeHeld(b)).toBe(0);
    expect(ordering.synchronizeHeld(a)).toBe(1);
    expect(ordering.lanes.map(({ isIdle }) => isIdle)).toEqual([true, true, false]);
  });

  test('is not found in the lanes of the stream that looks for others', () => {
    const { memory, ordering, free } = make('deferred');
    using a = new Stream();
    free(a);
    const second = ordering.heldLaneOf(a);
    memory.bytes[second.number] = 256;
    second.freeUnrecorded();
    a.synchronizeSync();
    expect([second.isHeldBack, ordering.fullLane(a), ordering.queryAllHeld(a)]).toEqual([false, -1, false]);
  });

  test('is queried on every stream, not only up to the first idle one', () => {
    const { ordering, free } = make('off');
    using a = new Stream();
    using b = new Stream();
    using c = new Stream();
    free(a);
    free(b);
    expect(ordering.queryHeld(c)).toBe(true);
    expect(ordering.lanes.map(({ isIdle }) => isIdle)).toEqual([true, true]);
  });

  test('for a stream that may be gone is freed by a wait for the device', () => {
    const { ordering, free } = make('off');
    const foreign = madeElsewhere();
    const unannounced = Stream.fromHandle(foreign.address);
    using a = new Stream();
    const lane = free(unannounced);
    foreign.destroy();
    expect(ordering.queryHeld(a)).toBe(false);
    expect(lane.isIdle).toBe(false);
    expect([...ordering.others(a)]).toEqual([]);
    failCall('cuCtxSynchronize', 1, 999);
    expect(() => ordering.synchronizeHeld(a)).toThrow(DriverError);
    expect(ordering.synchronizeHeld(a)).toBe(1);
    expect(lane.isIdle).toBe(true);
    ordering.freed(lane);
    expect(ordering.synchronizeUnannounced(unannounced)).toBe(false);
    expect(lane.isIdle).toBe(false);
    failCall('cuCtxSynchronize', 1, 999);
    expect(() => ordering.synchronizeUnannounced(a)).toThrow(DriverError);
    expect(ordering.synchronizeUnannounced(a)).toBe(true);
    expect(lane.isIdle).toBe(true);
    free(a);
    using b = new Stream();
    ordering.synchronizeUnannounced(b);
    expect(ordering.laneOf(a, 'allocate').isIdle).toBe(false);
    unannounced.dispose();
  });

  test('for streams of two devices that may be gone is freed by a wait for both', () => {
    const { ordering, free } = make('off', 'managed');
    const streams = [0, 1].map((index) => {
      const { address, destroy } = madeElsewhere(index);
      const stream = Stream.fromHandle(address, { device: Device.get(index) });
      const lane = free(stream);
      destroy();
      return { stream, lane };
    });
    expect(ordering.synchronizeUnannounced(Stream.legacyDefault())).toBe(true);
    expect(streams.map(({ lane }) => lane.isIdle)).toEqual([true, true]);
    for (const { stream } of streams) stream.dispose();
  });

  test('for several streams is waited for on each', () => {
    const { ordering, free } = make('off');
    using a = new Stream();
    using b = new Stream();
    free(a);
    free(b);
    expect(ordering.synchronizeHeld()).toBe(2);
    expect(ordering.lanes.map(({ isIdle }) => isIdle)).toEqual([true, true]);
  });

  test('for a stream that ends itself during the wait can be taken', () => {
    const { memory, ordering, free } = make('off');
    const a = new Stream();
    free(a);
    a.launchHostFunction(() => a.dispose());
    failCall('cuEventSynchronize', 1, 999);
    expect(ordering.synchronizeHeld()).toBe(1);
    expect(memory.bytes[ordering.endedLane]).toBe(256);
  });

  test('is not waited for in a host function', () => {
    const { ordering, free } = make('off');
    using a = new Stream();
    using b = new Stream();
    const own = hold(a);
    free(a);
    const counts: number[] = [];
    b.launchHostFunction(() => counts.push(ordering.synchronizeHeld(b)));
    b.synchronizeSync();
    expect(counts).toEqual([0]);
    own.release();
  });

  test('for a stream that ends during the wait can be taken', () => {
    const { memory, ordering, free } = make('off');
    using a = new Stream();
    const b = new Stream();
    free(a);
    free(b);
    const lanes = ordering.lanes.length;
    a.launchHostFunction(() => b.dispose());
    expect(ordering.synchronizeHeld()).toBe(1);
    expect(ordering.lanes).toHaveLength(lanes - 1);
    expect(memory.bytes[ordering.endedLane]).toBe(256);
  });
});

test('stream ordering on a second device uses events of that device', () => {
  using resource = new CudaMemoryResource({ device: Device.get(1) });
  const memory = new Lanes();
  const ordering = new StreamOrdering('deferred', memory, resource.device, 'device');
  using a = new Stream({ device: Device.get(1) });
  using b = new Stream({ device: Device.get(1) });
  hold(a);
  const common = ordering.addCommonLane();
  ordering.receivedInCommon(common, a);
  expect(waitsFor(ordering, b, common.number)).toBe(1);
  ordering.freed(ordering.laneOf(a, 'free'));
  expect(waitsFor(ordering, b, ordering.laneOf(a, 'free').number)).toBe(1);
});
