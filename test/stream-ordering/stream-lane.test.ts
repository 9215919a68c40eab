import { afterEach, describe, expect, test } from 'vitest';
import { Device, DriverError, Event, Stream } from '../../src/index.js';
import { StreamLane } from '../../src/stream-ordering/stream-lane.js';
import { failCall } from '../../src/tools/testing/index.js';
import { eventCalls, madeElsewhere } from '../support/stream-order.js';

const laneOf = (stream: Stream, isHeld = false) => new StreamLane(0, stream.identity, Device.get(), isHeld, false);

/** The driver calls of an `order`. */
function orderCalls(lane: StreamLane, waiter: Stream) {
  let hasWaited = false;
  const calls = eventCalls(() => {
    hasWaited = lane.order(waiter);
  });
  return { ...calls, hasWaited };
}

const nothing = { records: 0, waits: 0, hasWaited: false };

afterEach(() => {
  for (const name of ['cuEventRecord', 'cuStreamWaitEvent']) failCall(name, 0);
});

test('a lane whose memory left waits for nothing, and records a new event for later memory', () => {
  using stream = new Stream();
  using other = new Stream();
  using _hold = stream.hold();
  const lane = laneOf(stream);
  lane.freeUnrecorded();
  const [event] = lane.release();
  const { version, recordedOn } = event as Event;
  expect(recordedOn).toBe(stream.identity.id);
  expect(lane.isIdle).toBe(true);
  expect(lane.release()).toEqual([]);
  expect(lane.order(other)).toBe(false);
  using fence = new Event();
  fence.record(stream);
  lane.freeWithEvent(fence);
  expect(orderCalls(lane, other)).toEqual({ records: 0, waits: 1, hasWaited: true });
  lane.freeRecorded();
  expect(event?.version).toBe(version);
  expect(lane.release()).not.toContain(event);
});

test('a lane without a free waits for nothing', () => {
  using stream = new Stream();
  using other = new Stream();
  const lane = laneOf(stream);
  expect([lane.isIdle, lane.isHeldBack, lane.needsLastEvent]).toEqual([true, false, false]);
  expect(orderCalls(lane, other)).toEqual(nothing);
  using fence = new Event();
  fence.record(stream);
  expect([lane.cover(), lane.release(), lane.afterEnd(undefined)]).toEqual([[], [], undefined]);
  expect(stream.identity.receivedAt).toBeLessThan(fence.version);
  expect([lane.number, lane.identity, lane.owner]).toEqual([0, stream.identity, stream.identity.serial]);
});

describe('a free', () => {
  test('is covered by an event that is recorded when another stream waits, once', () => {
    using stream = new Stream();
    using other = new Stream();
    const lane = laneOf(stream);
    expect(eventCalls(() => lane.freeUnrecorded()).records).toBe(0);
    expect([lane.isIdle, lane.isHeldBack, lane.needsLastEvent]).toEqual([false, false, true]);
    expect(orderCalls(lane, stream)).toEqual(nothing);
    expect(orderCalls(lane, other)).toEqual({ records: 1, waits: 1, hasWaited: true });
    expect(lane.needsLastEvent).toBe(false);
    expect(orderCalls(lane, other)).toEqual({ records: 0, waits: 1, hasWaited: true });
    stream.synchronizeSync();
    expect(lane.isIdle).toBe(true);
    expect(orderCalls(lane, other)).toEqual(nothing);
  });

  test('that is recorded immediately needs no other event', () => {
    using stream = new Stream();
    using other = new Stream();
    const lane = laneOf(stream);
    expect(eventCalls(() => lane.freeRecorded()).records).toBe(1);
    expect([lane.isIdle, lane.needsLastEvent]).toEqual([false, false]);
    expect(orderCalls(lane, other)).toEqual({ records: 0, waits: 1, hasWaited: true });
    const [event] = lane.cover();
    expect(event?.recordedOn).toBe(stream.identity.id);
    // The event is requested without a record, and serves for the next wait.
    expect(eventCalls(() => lane.cover()).records).toBe(0);
    lane.freeRecorded();
    expect(lane.cover()).toEqual([event]);
  });

  test('during a synchronization of its stream is not covered by it', () => {
    using stream = new Stream();
    for (const free of ['freeUnrecorded', 'freeRecorded'] as const) {
      const lane = laneOf(stream);
      const complete = stream.identity.beginSynchronization();
      lane[free]();
      complete();
      expect(lane.isIdle).toBe(false);
      stream.synchronizeSync();
      expect(lane.isIdle).toBe(true);
    }
  });

  test('is held back from other streams in a held lane until its stream is idle', () => {
    using stream = new Stream();
    const lane = laneOf(stream, true);
    using older = new Event();
    older.record(stream);
    lane.freeUnrecorded();
    expect([lane.isHeld, lane.mustRecord, lane.isHeldBack]).toEqual([true, false, true]);
    expect(stream.identity.receivedAt).toBe(older.version);
    stream.synchronizeSync();
    expect(lane.isHeldBack).toBe(false);
  });

  test('outdates no caller’s event in a lane that is not held', () => {
    using stream = new Stream();
    const lane = laneOf(stream);
    using older = new Event();
    older.record(stream);
    lane.freeUnrecorded();
    expect(stream.identity.receivedAt).toBeLessThan(older.version);
  });

  test('on a stream whose end is not announced is held back if it could not be recorded', () => {
    const foreign = madeElsewhere();
    using stream = Stream.fromHandle(foreign.address);
    const lane = laneOf(stream);
    expect([lane.mustRecord, lane.isHeldBack]).toEqual([true, false]);
    failCall('cuEventRecord', 1, 999);
    expect(() => lane.received()).toThrow(DriverError);
    expect(lane.isHeldBack).toBe(true);
    expect(eventCalls(() => lane.received()).records).toBe(1);
    expect([lane.isIdle, lane.isHeldBack]).toEqual([false, false]);
    stream.dispose();
    foreign.destroy();
  });

  test('that could not be recorded does not change the lane', () => {
    using stream = new Stream();
    const lane = laneOf(stream);
    failCall('cuEventRecord', 1, 999);
    expect(() => lane.freeRecorded()).toThrow(DriverError);
    expect(lane.isIdle).toBe(true);
    using other = new Stream();
    using fence = new Event();
    fence.record(stream);
    lane.freeWithEvent(fence);
    expect(orderCalls(lane, other)).toEqual({ records: 0, waits: 1, hasWaited: true });
  });

  test('is no longer covered once memory has come from elsewhere', () => {
    using stream = new Stream();
    using other = new Stream();
    const lane = laneOf(stream);
    lane.freeRecorded();
    expect(eventCalls(() => lane.received()).records).toBe(0);
    expect(orderCalls(lane, other)).toEqual({ records: 1, waits: 1, hasWaited: true });
  });

  test('after a failed recording is recorded again', () => {
    using stream = new Stream();
    using other = new Stream();
    const lane = laneOf(stream);
    lane.freeRecorded();
    failCall('cuEventRecord', 1, 999);
    expect(() => lane.freeRecorded()).toThrow(DriverError);
    expect(lane.needsLastEvent).toBe(true);
    expect(orderCalls(lane, other)).toEqual({ records: 1, waits: 1, hasWaited: true });
    expect(lane.needsLastEvent).toBe(false);
  });

  test('passes errors of a wait and of a record on to whoever waits', () => {
    using stream = new Stream();
    using other = new Stream();
    const lane = laneOf(stream);
    lane.freeUnrecorded();
    failCall('cuEventRecord', 1, 999);
    expect(() => lane.order(other)).toThrow(DriverError);
    failCall('cuEventRecord', 1, 999);
    expect(() => lane.cover()).toThrow(DriverError);
    expect(lane.isIdle).toBe(false);
    failCall('cuStreamWaitEvent', 1, 999);
    expect(() => lane.order(other)).toThrow(DriverError);
    using fence = new Event();
    fence.record(stream);
    const second = laneOf(stream);
    second.freeWithEvent(fence);
    failCall('cuStreamWaitEvent', 1, 999);
    expect(() => second.order(other)).toThrow(DriverError);
    expect(orderCalls(second, other).waits).toBe(1);
  });
});

describe('an event of the caller', () => {
  function make() {
    const stream = new Stream();
    const lane = laneOf(stream);
    const event = new Event();
    event.record(stream);
    return { stream, lane, event, other: new Stream() };
  }

  test('is waited for, together with the event of the lane', () => {
    const { stream, lane, event, other } = make();
    lane.freeRecorded();
    event.record(stream);
    lane.freeWithEvent(event);
    expect([lane.isIdle, lane.needsLastEvent]).toEqual([false, true]);
    expect(orderCalls(lane, other)).toEqual({ records: 0, waits: 2, hasWaited: true });
    // The same event again changes nothing.
    lane.freeWithEvent(event);
    expect(orderCalls(lane, other)).toEqual({ records: 0, waits: 2, hasWaited: true });
    expect(eventCalls(() => expect(lane.cover()[0]?.recordedOn).toBe(stream.identity.id)).records).toBe(1);
    expect(lane.needsLastEvent).toBe(false);
    expect(orderCalls(lane, other)).toEqual({ records: 0, waits: 1, hasWaited: true });
  });

  test('is not valid together with another one', () => {
    const { stream, lane, event, other } = make();
    using second = new Event();
    second.record(stream);
    lane.freeWithEvent(event);
    lane.freeWithEvent(second);
    expect(orderCalls(lane, other)).toEqual({ records: 1, waits: 1, hasWaited: true });
  });

  test('is not valid for two recordings of its own', () => {
    const { stream, lane, event, other } = make();
    lane.freeWithEvent(event);
    event.record(stream);
    lane.freeWithEvent(event);
    expect(orderCalls(lane, other)).toEqual({ records: 1, waits: 1, hasWaited: true });
  });

  test.each([
    ['recorded again', (event: Event, stream: Stream) => event.record(stream)],
    ['disposed', (event: Event) => event.dispose()],
  ])('is not valid once it is %s', (_, lose) => {
    const { stream, lane, event, other } = make();
    lane.freeWithEvent(event);
    lose(event, stream);
    expect(orderCalls(lane, other)).toEqual({ records: 1, waits: 1, hasWaited: true });
  });

  test('is not valid if memory has come into the order of its stream since', () => {
    const { stream, lane, event, other } = make();
    stream.identity.outdateFences();
    expect(stream.identity.receivedAt).toBe(event.version);
    lane.freeWithEvent(event);
    expect(orderCalls(lane, other)).toEqual({ records: 1, waits: 1, hasWaited: true });
    event.record(stream);
    const second = laneOf(stream);
    second.freeWithEvent(event);
    expect(orderCalls(second, other)).toEqual({ records: 0, waits: 1, hasWaited: true });
  });

  test('is outdated by memory that left with an event', () => {
    const { stream, lane, event } = make();
    lane.freeUnrecorded();
    using _hold = stream.hold();
    event.record(stream);
    const [left] = lane.release();
    expect(stream.identity.receivedAt).toBe(left?.version);
  });
});

describe('the end of a stream', () => {
  test('is covered by the last event, or by the one that covers everything', () => {
    using stream = new Stream();
    using lastEvent = new Event();
    const lane = laneOf(stream);
    lane.freeRecorded();
    const [own] = lane.cover();
    expect(own).toBeInstanceOf(Event);
    expect(lane.afterEnd(undefined)).toBe(own);
    expect(lane.afterEnd(lastEvent)).toBe(lastEvent);
    stream.synchronizeSync();
    expect(lane.afterEnd(lastEvent)).toBeUndefined();
  });
});

test('the event of a lane belongs to its device', () => {
  const device = Device.get(1);
  using stream = new Stream({ device });
  const lane = new StreamLane(0, stream.identity, device, false, false);
  lane.freeRecorded();
  expect(lane.cover()[0]?.device).toBe(device);
});
