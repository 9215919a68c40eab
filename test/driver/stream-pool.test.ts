import { describe, expect, test } from 'vitest';
import { Device, StreamPool, type StreamPoolOptions } from '../../src/index.js';
import { driverCallCounts, failCall } from '../../src/tools/testing/index.js';

describe('StreamPool', () => {
  test('has sixteen streams by default, like RMM’s', () => {
    using pool = new StreamPool();
    expect(pool.size).toBe(16);
    expect(new Set([...pool].map(({ id }) => id)).size).toBe(16);
    expect(pool.device).toBe(Device.get());
    expect([...pool].every((stream) => !stream.isNonBlocking)).toBe(true);
  });

  test('hands its streams out in turn', () => {
    using pool = new StreamPool({ size: 3 });
    const ids = Array.from({ length: 7 }, () => pool.next().id);
    expect(new Set(ids).size).toBe(3);
    expect(ids.slice(3, 6)).toEqual(ids.slice(0, 3));
    expect(ids[6]).toBe(ids[0]);
    expect([...pool].map(({ id }) => id)).toEqual(ids.slice(0, 3));
  });

  test('returns the same stream for the same number', () => {
    using pool = new StreamPool({ size: 3 });
    const streams = [...pool];
    expect([0, 1, 2, 3, 4, 2 ** 53 - 1].map((index) => streams.indexOf(pool.at(index)))).toEqual([0, 1, 2, 0, 1, (2 ** 53 - 1) % 3]);
    expect(pool.next()).toBe(streams[0]);
  });

  test('creates its streams with the given options', () => {
    const device = Device.get(1);
    const { greatest } = device.streamPriorityRange();
    using pool = new StreamPool({ size: 2, device, nonBlocking: true, priority: greatest });
    expect(pool.device).toBe(device);
    for (const stream of pool) expect([stream.device, stream.isNonBlocking, stream.priority]).toEqual([device, true, greatest]);
  });

  test('disposes its streams, and hands out none afterwards', () => {
    const pool = new StreamPool({ size: 2 });
    const streams = [...pool];
    pool.dispose();
    pool.dispose();
    expect(streams.every(({ isDisposed }) => isDisposed)).toBe(true);
    for (const use of [() => pool.next(), () => pool.at(0), () => [...pool]]) {
      expect(use).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    }
    expect(pool.size).toBe(2);
  });

  test('leaves no stream behind if the driver refuses one', () => {
    const before = driverCallCounts();
    failCall('cuStreamCreateWithPriority', 3, 2);
    expect(() => new StreamPool()).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DRIVER' }));
    const after = driverCallCounts();
    expect(Number(after.byFunction['cuStreamDestroy']) - Number(before.byFunction['cuStreamDestroy'])).toBe(2);
  });

  test.each<[StreamPoolOptions, string, string]>([
    [{ size: 0 }, 'ERR_OUT_OF_RANGE', 'size must be an integer from 1 to 65536, got 0'],
    [{ size: 1.5 }, 'ERR_OUT_OF_RANGE', 'size must be an integer'],
    [{ size: 65_537 }, 'ERR_OUT_OF_RANGE', 'size must be an integer'],
    [{ size: '4' as never }, 'ERR_INVALID_ARG_TYPE', 'size must be a number, got "4"'],
    [{ size: 2, priority: 'high' as never }, 'ERR_INVALID_ARG_TYPE', 'priority must be'],
    [null as never, 'ERR_INVALID_ARG_TYPE', 'options must be an object'],
  ])('refuses %j', (options, code, message) => {
    expect(() => new StreamPool(options)).toThrow(expect.objectContaining({ code, message: expect.stringContaining(message) }));
  });

  test.each([-1, 0.5, 2 ** 53, '0', undefined])('has no stream with the number %j', (index) => {
    using pool = new StreamPool({ size: 1 });
    expect(() => pool.at(index as number)).toThrow(/^index must be/);
  });
});
