import { setTimeout as pause } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { OutOfMemoryError } from '../../src/basics/errors.js';
import { DeviceBuffer } from '../../src/buffers/device-buffer.js';
import {
  type CollectionStage,
  collectUntil,
  collectWhileWaiting,
  keepAliveIfAsked,
  stopCollectingFor,
  tryAgainCollecting,
  type WaitingCalls,
} from '../../src/collector/when-memory-is-short.js';
import { Stream } from '../../src/driver/streams/stream.js';
import { AddressCountingResource } from '../buffers/address-counting-resource.js';

const shortage = new OutOfMemoryError('none is left', { requestedBytes: 1, path: [] });

function drop(addresses: AddressCountingResource): void {
  for (let i = 0; i < 10; i++) new DeviceBuffer(1000, { resource: addresses, stream: Stream.legacyDefault() });
}

describe('an allocation that failed', () => {
  test('is tried again once a collection has freed something', () => {
    const addresses = new AddressCountingResource();
    drop(addresses);
    expect(tryAgainCollecting(shortage, () => addresses.live.size)).toBeLessThanOrEqual(1);
  });

  test('fails with its own error if nothing was freed, and other errors pass', () => {
    const other = new Error('unlike');
    expect(() => tryAgainCollecting(other, () => 17)).toThrow(other);
    const tried = (['settle', 'minor-collection', 'major-collection'] as const).map((stage) => ({ stage, recoveredBytes: 0 }));
    const last = new OutOfMemoryError('none is left', { requestedBytes: 1, path: [], stages: tried });
    expect(() => tryAgainCollecting(last, () => 17)).toThrow(last);
  });
});

test('a limit is kept by the cheapest collections that suffice', () => {
  const run = (after: number) => {
    const stages: CollectionStage[] = [];
    collectUntil(
      () => stages.length >= after,
      ['minor-collection', 'major-collection'],
      (stage) => stages.push(stage),
    );
    return stages;
  };
  expect(run(1)).toEqual(['minor-collection']);
  expect(run(2)).toEqual(['minor-collection', 'major-collection']);
  expect(run(3)).toEqual(['minor-collection', 'major-collection']);
});

describe('calls that wait', () => {
  /** What each second told, until there was one. */
  function waitingCalls(served: () => number) {
    const seconds: boolean[] = [];
    const calls: WaitingCalls = {
      keepProcessAlive: () => true,
      served,
      onSecond: (isStalled) => {
        seconds.push(isStalled);
        stopCollectingFor(calls);
      },
    };
    return { calls, seconds };
  }

  test('share one collection a second, if nobody of some line was served', async () => {
    const addresses = new AddressCountingResource();
    let count = 0;
    const [moving, stalled] = [waitingCalls(() => count++), waitingCalls(() => 0)];
    for (const { calls } of [moving, stalled]) collectWhileWaiting(calls);
    drop(addresses);
    while (stalled.seconds.length === 0) await pause(10);
    expect(moving.seconds).toEqual([false]);
    expect(stalled.seconds).toEqual([true]);
    expect(addresses.live.size).toBeLessThanOrEqual(1);
  });

  test('are told of no collection while all lines move', async () => {
    const addresses = new AddressCountingResource();
    let count = 0;
    const { calls, seconds } = waitingCalls(() => count++);
    collectWhileWaiting(calls);
    const kept = new DeviceBuffer(1000, { resource: addresses, stream: Stream.legacyDefault() });
    while (seconds.length === 0) await pause(10);
    expect(seconds).toEqual([false]);
    kept.dispose();
  });

  test('keep the process alive only while one of them asks', () => {
    let [first, second] = [false, false];
    const line = (keepProcessAlive: () => boolean): WaitingCalls => ({ keepProcessAlive, served: () => 0, onSecond: () => {} });
    const timers = () => process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length;
    const [calm, urgent] = [line(() => first), line(() => second)];
    const before = timers();
    collectWhileWaiting(calm);
    collectWhileWaiting(urgent);
    expect(timers()).toBe(before);
    second = true;
    keepAliveIfAsked();
    expect(timers()).toBe(before + 1);
    stopCollectingFor(urgent);
    expect(timers()).toBe(before);
    first = true;
    keepAliveIfAsked();
    expect(timers()).toBe(before + 1);
    stopCollectingFor(calm);
    expect(timers()).toBe(before);
  });
});
