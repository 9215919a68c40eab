import { describe, expect, test, vi } from 'vitest';
import { LaunchOrder } from '../../src/graphs/launch-order.js';
import { Device, Stream } from '../../src/index.js';
import { failCall } from '../../src/tools/testing/index.js';
import { callsOf } from '../support/driver-calls.js';
import { eventCalls, expectWaiting, madeElsewhere, policies } from '../support/stream-order.js';

const none = { records: 0, waits: 0 };
const synchronizations = callsOf('cuStreamSynchronize');

describe('uses of memory, one after the other', () => {
  test.each(policies)('of a busy stream wait for nothing on it: %s', (policy) => {
    using order = new LaunchOrder(policy);
    using stream = new Stream({ nonBlocking: true });
    using hold = stream.hold();
    order.used(stream);
    const before = synchronizations();
    expect(eventCalls(() => order.order(stream))).toEqual(none);
    expect(synchronizations()).toBe(before);
    hold.release();
  });

  test.each([
    ['eager', 1, { records: 0, waits: 1 }],
    ['deferred', 0, { records: 1, waits: 1 }],
  ] as const)('record an event when the policy says so, and another stream waits for it: %s', (policy, records, later) => {
    using order = new LaunchOrder(policy);
    using stream = new Stream({ nonBlocking: true });
    using other = new Stream({ nonBlocking: true });
    using hold = stream.hold();
    expect(eventCalls(() => order.used(stream))).toEqual({ records, waits: 0 });
    expect(eventCalls(() => order.order(other))).toEqual(later);
    expectWaiting(other);
    order.used(other);
    // The last use comes after the one before it.
    expect(eventCalls(() => order.order(other))).toEqual(none);
    hold.release();
  });

  test('are recorded in one event, however often the stream uses the memory again', () => {
    using order = new LaunchOrder('eager');
    using stream = new Stream({ nonBlocking: true });
    const created = callsOf('cuEventCreate');
    const before = created();
    for (let i = 0; i < 3; i++) order.used(stream);
    expect(created() - before).toBe(1);
  });

  test('on another device than the current one are waited for by a stream of any', () => {
    using order = new LaunchOrder('eager');
    using stream = new Stream({ device: Device.get(1), nonBlocking: true });
    using other = new Stream({ nonBlocking: true });
    using hold = stream.hold();
    expect(eventCalls(() => order.used(stream))).toEqual({ records: 1, waits: 0 });
    order.order(other);
    expectWaiting(other);
    hold.release();
  });

  test('on a stream whose end nobody tells record an event at once, whatever the policy says', () => {
    using order = new LaunchOrder('deferred');
    const foreign = madeElsewhere();
    using stream = Stream.fromHandle(foreign.address);
    expect(eventCalls(() => order.used(stream))).toEqual({ records: 1, waits: 0 });
    foreign.destroy();
  });

  test('are waited for by the host under off, which needs no event', () => {
    using order = new LaunchOrder('off');
    using stream = new Stream({ nonBlocking: true });
    using other = new Stream({ nonBlocking: true });
    const ran = vi.fn();
    stream.launchHostFunction(ran);
    order.used(stream);
    expect(eventCalls(() => order.order(other))).toEqual(none);
    expect(ran).toHaveBeenCalledOnce();
  });

  test('are waited for by the host under off, unless their stream is idle', () => {
    using order = new LaunchOrder('off');
    using stream = new Stream({ nonBlocking: true });
    using other = new Stream({ nonBlocking: true });
    order.used(stream);
    stream.synchronizeSync();
    const before = synchronizations();
    expect(eventCalls(() => order.order(other))).toEqual(none);
    expect(synchronizations()).toBe(before);
    order.used(other);
    stream.query();
    expect(eventCalls(() => order.order(stream))).toEqual(none);
  });

  test('go on if an event is refused, which is recorded once another stream comes', () => {
    using order = new LaunchOrder('eager');
    using stream = new Stream({ nonBlocking: true });
    using other = new Stream({ nonBlocking: true });
    using hold = stream.hold();
    failCall('cuEventRecord', 1, 999);
    order.used(stream);
    order.order(other);
    expectWaiting(other);
    hold.release();
  });

  test.each([
    ['eager', 0],
    ['deferred', 1],
  ] as const)('leave an event when their stream ends, if they have none yet: %s', (policy, records) => {
    using order = new LaunchOrder(policy);
    const stream = new Stream({ nonBlocking: true });
    using other = new Stream({ nonBlocking: true });
    const hold = stream.hold();
    order.used(stream);
    expect(eventCalls(() => stream[Symbol.dispose]())).toEqual({ records, waits: 0 });
    order.order(other);
    expectWaiting(other);
    order.used(other);
    expect(eventCalls(() => order.order(other))).toEqual(none);
    hold.release();
  });

  test.each(['used by another stream', 'disposed'])('ask nothing of a stream once they are %s', (how) => {
    const order = new LaunchOrder('deferred');
    const stream = new Stream({ nonBlocking: true });
    using other = new Stream({ nonBlocking: true });
    using hold = stream.hold();
    // A stream would keep what it has to tell of its end.
    const unobserve = vi.spyOn(stream.identity, 'unobserve');
    order.used(stream);
    expect(unobserve).not.toHaveBeenCalled();
    if (how === 'disposed') order[Symbol.dispose]();
    else {
      order.order(other);
      order.used(other);
    }
    expect(unobserve).toHaveBeenCalledExactlyOnceWith(order);
    expect(eventCalls(() => stream[Symbol.dispose]())).toEqual(none);
    expect(eventCalls(() => order.order(other))).toEqual(none);
    order[Symbol.dispose]();
    hold.release();
  });
});
