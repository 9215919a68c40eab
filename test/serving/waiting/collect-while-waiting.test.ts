import { setTimeout as pause } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { DeviceBuffer, Stream } from '../../../src/index.js';
import {
  collectWhileWaiting,
  keepAliveIfAsked,
  stopCollectingFor,
  type WaitingCalls,
} from '../../../src/serving/waiting/collect-while-waiting.js';
import { AddressCountingResource } from '../../buffers/address-counting-resource.js';

function drop(addresses: AddressCountingResource): void {
  for (let i = 0; i < 10; i++) new DeviceBuffer(1000, { resource: addresses, stream: Stream.legacyDefault() });
}

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

  test('are not looked at before they have waited for about a second themselves', async () => {
    const [first, later] = [waitingCalls(() => 0), waitingCalls(() => 0)];
    collectWhileWaiting(first.calls);
    await pause(500);
    const began = performance.now();
    collectWhileWaiting(later.calls);
    while (later.seconds.length === 0) await pause(10);
    // With the first, it would have been after half a second.
    expect(performance.now() - began).toBeGreaterThan(850);
    expect([first.seconds, later.seconds]).toEqual([[true], [true]]);
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
