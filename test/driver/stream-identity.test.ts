import { createRequire } from 'node:module';
import { afterEach, describe, expect, test } from 'vitest';
import type { StreamIdentity, StreamObserver } from '../../src/driver/streams/stream-identity.js';
import { Device, Event, Stream } from '../../src/index.js';
import { driverCallCounts, failCall } from '../../src/tools/testing/index.js';
import { skipTest } from '../support/skip-test.js';
import { madeElsewhere } from '../support/stream-order.js';

class Observer implements StreamObserver {
  readonly ends: { identity: StreamIdentity; event: Event | undefined }[] = [];
  readonly #needsEvent: boolean;

  constructor(needsEvent: boolean) {
    this.#needsEvent = needsEvent;
  }

  needsLastEvent(): boolean {
    return this.#needsEvent;
  }

  streamEnded(identity: StreamIdentity, event: Event | undefined): void {
    this.ends.push({ identity, event });
  }
}

describe('a stream that was created elsewhere', () => {
  test('is of the device that it is taken up for', () => {
    using far = new Stream({ device: Device.get(1) });
    const handle = far.nativeHandle;
    expect(() => Stream.fromHandle(handle)).toThrow(
      expect.objectContaining({
        code: 'ERR_INVALID_ARG_VALUE',
        message: expect.stringContaining(`got 0x${handle.toString(16)}, which is a stream of device 1`),
      }),
    );
    Stream.fromHandle(handle, { device: Device.get(1) }).dispose();
  });

  test("is refused if its context is not the device's primary one, which is told by its handle", () => {
    const control = process.env['STRICT_DRIVER_CONTROL'];
    if (control === undefined) skipTest('only the strict driver has other contexts');
    Device.get().synchronizeSync();
    const handle = createRequire(import.meta.url)(control as string).createStreamElsewhere(0) as number;
    expect(() => Stream.fromHandle(handle)).toThrow(
      expect.objectContaining({
        code: 'ERR_CISTERN_NOT_SUPPORTED',
        message: expect.stringContaining(`0x${handle.toString(16)}: it belongs to a context other than the primary one`),
      }),
    );
  });

  test.each([801, 0])('is taken up if the driver cannot say of which context it is (%d)', (status) => {
    using stream = new Stream();
    if (status > 0) failCall('cuStreamGetCtx', 1, status);
    using same = Stream.fromHandle(stream.nativeHandle);
    expect(same.id).toBe(stream.id);
    failCall('cuStreamGetCtx', 1, 709);
    expect(() => Stream.fromHandle(stream.nativeHandle)).toThrow(expect.objectContaining({ driverStatus: 709 }));
  });
});

afterEach(() => {
  for (const name of ['cuEventCreate', 'cuCtxSynchronize']) failCall(name, 0);
});

describe('the end of a stream', () => {
  test('notifies every observer, with one event for all if any needs one', () => {
    const stream = new Stream({ nonBlocking: true });
    const observers = [new Observer(false), new Observer(true), new Observer(true)];
    for (const observer of observers) stream.identity.observe(observer);
    using hold = stream.hold();
    const before = driverCallCounts().eventRecords;
    stream.dispose();
    expect(driverCallCounts().eventRecords).toBe(before + 1);
    const events = observers.map(({ ends }) => ends[0]?.event);
    expect(events[0]).toBeInstanceOf(Event);
    expect(new Set(events).size).toBe(1);
    expect((events[0] as Event).query()).toBe(false);
    hold.release();
    (events[0] as Event).synchronizeSync();
  });

  test('records nothing if nobody needs an event', () => {
    const stream = new Stream();
    const observer = new Observer(false);
    stream.identity.observe(observer);
    const before = driverCallCounts().eventRecords;
    stream.dispose();
    expect(driverCallCounts().eventRecords).toBe(before);
    expect(observer.ends).toHaveLength(1);
    expect(observer.ends[0]?.event).toBeUndefined();
  });

  test('comes with the last object for the stream', () => {
    const stream = new Stream();
    const same = Stream.fromHandle(stream.nativeHandle);
    const observer = new Observer(true);
    stream.identity.observe(observer);
    expect(same.identity).toBe(stream.identity);
    same.dispose();
    expect(observer.ends).toHaveLength(0);
    stream.dispose();
    expect(observer.ends).toHaveLength(1);
  });

  test('comes with the object that created the stream, and disposes the others', () => {
    const stream = new Stream();
    const same = Stream.fromHandle(stream.nativeHandle);
    const promising = Stream.fromHandle(stream.nativeHandle, { announcesEnd: true });
    const observer = new Observer(true);
    stream.identity.observe(observer);
    promising.dispose();
    expect(observer.ends).toHaveLength(0);
    stream.dispose();
    expect(observer.ends).toHaveLength(1);
    expect([same.isDisposed, same.handle]).toEqual([true, -1]);
    expect(() => same.query()).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    same.dispose();
    expect(observer.ends).toHaveLength(1);
  });

  test.each([
    ['before', true],
    ['after', false],
  ])('created elsewhere comes with the object that announces it, made %s another', (_, isFirst) => {
    const foreign = madeElsewhere();
    const [first, second] = [isFirst, !isFirst].map((announcesEnd) => Stream.fromHandle(foreign.address, { announcesEnd })) as [
      Stream,
      Stream,
    ];
    const [announcing, silent] = isFirst ? [first, second] : [second, first];
    expect(second.identity).toBe(first.identity);
    expect(first.identity.announcesEnd).toBe(isFirst);
    const observer = new Observer(true);
    first.identity.observe(observer);
    announcing.dispose();
    expect(observer.ends[0]?.event).toBeInstanceOf(Event);
    foreign.destroy();
    expect([silent.isDisposed, silent.handle]).toEqual([true, -1]);
    silent.dispose();
    expect(observer.ends).toHaveLength(1);
  });

  test('created elsewhere comes with the last object if none announces it', () => {
    const foreign = madeElsewhere();
    const first = Stream.fromHandle(foreign.address);
    const second = Stream.fromHandle(foreign.address);
    const observer = new Observer(true);
    first.identity.observe(observer);
    first.dispose();
    expect([observer.ends.length, second.isDisposed]).toEqual([0, false]);
    second.dispose();
    expect(observer.ends).toHaveLength(1);
    foreign.destroy();
  });

  test('created elsewhere waits for the device if nobody announces it, since the stream may be gone', () => {
    const foreign = madeElsewhere();
    const stream = Stream.fromHandle(foreign.address);
    const observer = new Observer(true);
    stream.identity.observe(observer);
    foreign.destroy();
    const before = driverCallCounts();
    stream.dispose();
    const after = driverCallCounts();
    expect(observer.ends).toMatchObject([{ event: undefined }]);
    expect([after.eventRecords, after.synchronizations - before.synchronizations]).toEqual([before.eventRecords, 1]);
  });

  test('does not come if the driver neither records nor waits, and can be retried', () => {
    const stream = new Stream();
    const same = Stream.fromHandle(stream.nativeHandle);
    const observer = new Observer(true);
    stream.identity.observe(observer);
    failCall('cuEventCreate', 1);
    failCall('cuCtxSynchronize', 1, 700);
    expect(() => stream.dispose()).toThrow(expect.objectContaining({ driverStatus: 700 }));
    expect([stream.isDisposed, same.isDisposed, observer.ends.length]).toEqual([false, false, 0]);
    same.synchronizeSync();
    expect(Stream.fromHandle(stream.nativeHandle).identity).toBe(stream.identity);
    stream.dispose();
    expect([stream.isDisposed, same.isDisposed, observer.ends.length]).toEqual([true, true, 1]);
  });

  test('does not come if the driver refuses to destroy the stream, and can be retried', () => {
    const stream = new Stream();
    const same = Stream.fromHandle(stream.nativeHandle);
    const observer = new Observer(true);
    stream.identity.observe(observer);
    failCall('cuStreamDestroy', 1, 999);
    expect(() => stream.dispose()).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DRIVER', driverStatus: 999 }));
    expect([stream.isDisposed, same.isDisposed, observer.ends.length]).toEqual([false, false, 0]);
    same.synchronizeSync();
    stream.dispose();
    expect([stream.isDisposed, same.isDisposed, observer.ends.length]).toEqual([true, true, 1]);
  });

  test('disposes every object before host functions run that it waits for', () => {
    const stream = new Stream();
    const same = Stream.fromHandle(stream.nativeHandle);
    const observer = new Observer(true);
    stream.identity.observe(observer);
    const seen: boolean[] = [];
    stream.launchHostFunction(() => {
      seen.push(stream.isDisposed, same.isDisposed);
      stream.dispose();
      same.dispose();
    });
    failCall('cuEventCreate', 1);
    stream.dispose();
    expect(seen).toEqual([true, true]);
    expect(observer.ends).toHaveLength(1);
    expect(observer.ends[0]?.event).toBeUndefined();
  });

  test('does not dispose an object that a host function creates for the stream meanwhile', () => {
    const foreign = madeElsewhere();
    const stream = Stream.fromHandle(foreign.address, { announcesEnd: true });
    stream.identity.observe(new Observer(true));
    const made: Stream[] = [];
    stream.launchHostFunction(() => {
      made.push(Stream.fromHandle(foreign.address));
    });
    failCall('cuEventCreate', 1);
    stream.dispose();
    expect(made[0]?.identity).not.toBe(stream.identity);
    made[0]?.synchronizeSync();
    made[0]?.dispose();
    foreign.destroy();
  });

  test('does not notify a former observer', () => {
    const stream = new Stream();
    const observer = new Observer(true);
    stream.identity.observe(observer);
    stream.identity.unobserve(observer);
    stream.dispose();
    expect(observer.ends).toHaveLength(0);
  });

  test('frees its slot for another stream only afterwards', () => {
    const first = new Stream();
    const second = new Stream();
    expect(first.identity.slot).not.toBe(second.identity.slot);
    const { slot, id } = first.identity;
    first.dispose();
    using third = new Stream();
    expect(third.identity.slot).toBe(slot);
    expect(third.id).not.toBe(id);
    second.dispose();
  });
});

describe('how far a stream is known to have run', () => {
  const isKnown = (stream: Stream, queuedAt: number) => stream.identity.synchronized > queuedAt;

  test('is learnt from a synchronization, from a query that succeeds, and from the device', async () => {
    using stream = new Stream({ nonBlocking: true });
    const ways = [
      () => stream.synchronizeSync(),
      () => stream.synchronize(),
      () => stream.query(),
      () => Device.get().synchronizeSync(),
      () => Stream.fromHandle(stream.nativeHandle).synchronizeSync(),
    ];
    for (const way of ways) {
      const queuedAt = stream.identity.synchronizing;
      expect(isKnown(stream, queuedAt)).toBe(false);
      await way();
      expect(isKnown(stream, queuedAt)).toBe(true);
    }
  });

  test('is not learnt from the promise of the device for a stream that may be gone', async () => {
    const foreign = madeElsewhere();
    using silent = Stream.fromHandle(foreign.address);
    using stream = new Stream();
    const queuedAt = silent.identity.synchronizing;
    foreign.destroy();
    await Device.get().synchronize();
    expect(isKnown(stream, 0)).toBe(true);
    expect(isKnown(silent, queuedAt)).toBe(false);
    Device.get().synchronizeSync();
    expect(isKnown(silent, queuedAt)).toBe(true);
  });

  test('is not learnt from a query that fails, nor from a synchronization that began earlier', async () => {
    using stream = new Stream({ nonBlocking: true });
    using hold = stream.hold();
    const early = stream.synchronize();
    const queuedAt = stream.identity.synchronizing;
    stream.launchHostFunction(() => {});
    expect(stream.query()).toBe(false);
    hold.release();
    await early;
    expect(isKnown(stream, queuedAt)).toBe(false);
    await stream.synchronize();
    expect(isKnown(stream, queuedAt)).toBe(true);
  });
});
