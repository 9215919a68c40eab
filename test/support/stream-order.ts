import { expect } from 'vitest';
import { mailbox, native } from '../../src/driver/native.js';
import { copyToHostSync, Device, driverCallCounts, Stream, type StreamHold, set } from '../../src/index.js';

/** What a free without a fence does. */
export const policies = ['eager', 'deferred', 'off'] as const;

/** Fails if the stream gets past what it should be waiting for. Long enough for work that does not wait to be over. */
export function expectWaiting(stream: Stream): void {
  const end = performance.now() + 20;
  while (performance.now() < end) expect(stream.query()).toBe(false);
}

/**
 * Writes memory on a stream that got it while another, which may still use it, is held. Fails unless the stream waits for the held one, and
 * unless what it wrote is there once everything has run.
 */
export function expectOrdered(pointer: number, bytes: number, stream: Stream, hold: StreamHold): void {
  set(pointer, 9, 1, bytes, stream);
  expectWaiting(stream);
  hold.release();
  Device.get().synchronizeSync();
  expect(valuesOf(pointer, bytes, stream)).toEqual([9]);
}

/** The distinct values of the bytes, once `stream` has run. */
export function valuesOf(pointer: number, bytes: number, stream: Stream): number[] {
  const host = new Uint8Array(bytes);
  copyToHostSync(host, pointer, stream);
  return [...new Set(host)];
}

/** How many events are recorded, and how often a stream is made to wait for one. */
export function eventCalls(during: () => void): { records: number; waits: number } {
  const before = driverCallCounts();
  during();
  const after = driverCallCounts();
  return { records: after.eventRecords - before.eventRecords, waits: after.eventWaits - before.eventWaits };
}

/** A stream that this environment did not make, as far as `Stream` knows. */
export function madeElsewhere(device = 0): { address: number; destroy: () => void } {
  native().createStream(device, false, 0);
  const handle = mailbox[1] as number;
  native().streamAddress(handle);
  return { address: mailbox[1] as number, destroy: () => native().releaseStream(handle) };
}

/** How many events are recorded. */
export function eventRecords(during: () => void): number {
  return eventCalls(during).records;
}

/** How often a stream is made to wait for an event. */
export function eventWaits(during: () => void): number {
  return eventCalls(during).waits;
}

/** Runs `action` in a host function, in which nothing can be waited for; returns what it returns, and throws what it throws. */
export function inHostFunction<T>(action: () => T): T {
  using stream = new Stream({ nonBlocking: true });
  const results: T[] = [];
  const errors: unknown[] = [];
  stream.launchHostFunction(() => {
    try {
      results.push(action());
    } catch (error) {
      errors.push(error);
    }
  });
  stream.synchronizeSync();
  if (errors.length > 0) throw errors[0];
  return results[0] as T;
}
