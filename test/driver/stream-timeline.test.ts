import { describe, expect, test } from 'vitest';
import type { StreamObserver, StreamTimeline } from '../../src/driver/stream-timeline.js';
import { Device, driverCallCounts, Event, Stream } from '../../src/index.js';

class Observer implements StreamObserver {
  readonly ends: { timeline: StreamTimeline; event: Event | undefined }[] = [];
  readonly #needsEvent: boolean;

  constructor(needsEvent: boolean) {
    this.#needsEvent = needsEvent;
  }

  needsSettlement(): boolean {
    return this.#needsEvent;
  }

  streamEnded(timeline: StreamTimeline, event: Event | undefined): void {
    this.ends.push({ timeline, event });
  }
}

describe('the end of a stream', () => {
  test('is told to every observer, with one event for all if any needs one', () => {
    const stream = new Stream({ nonBlocking: true });
    const observers = [new Observer(false), new Observer(true), new Observer(true)];
    for (const observer of observers) stream.timeline.observe(observer);
    const hold = stream.hold();
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

  test('records nothing where nobody needs an event', () => {
    const stream = new Stream();
    const observer = new Observer(false);
    stream.timeline.observe(observer);
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
    stream.timeline.observe(observer);
    expect(same.timeline).toBe(stream.timeline);
    same.dispose();
    expect(observer.ends).toHaveLength(0);
    stream.dispose();
    expect(observer.ends).toHaveLength(1);
  });

  test('is not told to one that no longer observes', () => {
    const stream = new Stream();
    const observer = new Observer(true);
    stream.timeline.observe(observer);
    stream.timeline.unobserve(observer);
    stream.dispose();
    expect(observer.ends).toHaveLength(0);
  });

  test('gives its slot to another stream only afterwards', () => {
    const first = new Stream();
    const second = new Stream();
    expect(first.timeline.slot).not.toBe(second.timeline.slot);
    const { slot, id } = first.timeline;
    first.dispose();
    using third = new Stream();
    expect(third.timeline.slot).toBe(slot);
    expect(third.id).not.toBe(id);
    second.dispose();
  });
});

describe('how far a stream is known to have run', () => {
  const isKnown = (stream: Stream, queuedAt: number) => stream.timeline.synchronized > queuedAt;

  test('is told by synchronizing, by a query that says so, and by the device', async () => {
    using stream = new Stream({ nonBlocking: true });
    const ways = [
      () => stream.synchronizeSync(),
      () => stream.synchronize(),
      () => stream.query(),
      () => Device.get().synchronizeSync(),
      () => Stream.fromHandle(stream.nativeHandle).synchronizeSync(),
    ];
    for (const way of ways) {
      const queuedAt = stream.timeline.synchronizing;
      expect(isKnown(stream, queuedAt)).toBe(false);
      await way();
      expect(isKnown(stream, queuedAt)).toBe(true);
    }
  });

  test('is not told by a query that says no, nor by a synchronization that began before', async () => {
    using stream = new Stream({ nonBlocking: true });
    const hold = stream.hold();
    const early = stream.synchronize();
    const queuedAt = stream.timeline.synchronizing;
    stream.launchHostFunction(() => {});
    expect(stream.query()).toBe(false);
    hold.release();
    await early;
    expect(isKnown(stream, queuedAt)).toBe(false);
    await stream.synchronize();
    expect(isKnown(stream, queuedAt)).toBe(true);
  });
});
