import { setImmediate as nextTurn } from 'node:timers/promises';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
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

  describe('as time passes,', () => {
    beforeEach(() => {
      vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval', 'performance'] });
    });

    afterEach(() => {
      // Nobody waits any more.
      expect(vi.getTimerCount()).toBe(0);
      vi.useRealTimers();
    });

    test('share one collection a second, if nobody of some line was served', async () => {
      const addresses = new AddressCountingResource();
      let count = 0;
      const [moving, stalled] = [waitingCalls(() => count++), waitingCalls(() => 0)];
      for (const { calls } of [moving, stalled]) collectWhileWaiting(calls);
      drop(addresses);
      // What was made in this turn is reachable until its end.
      await nextTurn();
      vi.advanceTimersByTime(1000);
      expect([moving.seconds, stalled.seconds]).toEqual([[false], [true]]);
      expect(addresses.live.size).toBeLessThanOrEqual(1);
    });

    test('are told of no collection while all lines move', async () => {
      const addresses = new AddressCountingResource();
      let count = 0;
      const { calls, seconds } = waitingCalls(() => count++);
      collectWhileWaiting(calls);
      drop(addresses);
      vi.advanceTimersByTime(1000);
      expect([seconds, addresses.live.size]).toEqual([[false], 10]);
    });

    test('are not looked at before they have waited for about a second themselves', () => {
      const [first, later] = [waitingCalls(() => 0), waitingCalls(() => 0)];
      collectWhileWaiting(first.calls);
      vi.advanceTimersByTime(500);
      collectWhileWaiting(later.calls);
      vi.advanceTimersByTime(500);
      expect([first.seconds, later.seconds]).toEqual([[true], []]);
      vi.advanceTimersByTime(1000);
      expect([first.seconds, later.seconds]).toEqual([[true], [true]]);
    });

    test('are looked at every second, also if others of their line begin to wait meanwhile', () => {
      const seconds: boolean[] = [];
      const calls = { keepProcessAlive: () => true, served: () => 0, onSecond: (isStalled: boolean) => void seconds.push(isStalled) };
      collectWhileWaiting(calls);
      vi.advanceTimersByTime(999);
      expect(seconds).toEqual([]);
      collectWhileWaiting(calls);
      vi.advanceTimersByTime(1);
      expect(seconds).toEqual([true]);
      vi.advanceTimersByTime(1000);
      expect(seconds).toEqual([true, true]);
      stopCollectingFor(calls);
    });

    test('are stalled in each second in which nobody was served', () => {
      const seconds: boolean[] = [];
      let served = 0;
      const calls = { keepProcessAlive: () => true, served: () => served, onSecond: (isStalled: boolean) => void seconds.push(isStalled) };
      collectWhileWaiting(calls);
      served++;
      for (let second = 0; second < 3; second++) vi.advanceTimersByTime(1000);
      expect(seconds).toEqual([false, true, true]);
      stopCollectingFor(calls);
    });

    test('are not told any more once one before them has ended their wait', () => {
      const later = waitingCalls(() => 0);
      const first = {
        keepProcessAlive: () => true,
        served: () => 0,
        onSecond: () => {
          for (const calls of [first, later.calls]) stopCollectingFor(calls);
        },
      };
      for (const calls of [first, later.calls]) collectWhileWaiting(calls);
      vi.advanceTimersByTime(1000);
      expect(later.seconds).toEqual([]);
    });
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
