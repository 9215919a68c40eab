import { expect } from 'vitest';
import { mailbox, native } from '../../src/driver/native.js';
import {
  copyToHostSync,
  type DeallocationFence,
  Device,
  type DevicePointer,
  type MemoryResource,
  Stream,
  type StreamHold,
  set,
} from '../../src/index.js';
import { driverCallCounts } from '../../src/tools/testing/index.js';

/** The policies for a free without a fence. */
export const policies = ['eager', 'deferred', 'off'] as const;

/** The policies under which another stream may take freed memory at once, and waits in its order. */
export const sharingPolicies = ['eager', 'deferred'] as const;

/** Nobody wakes a thread that waits here. */
const nobody = new Int32Array(new SharedArrayBuffer(4));

/**
 * Fails if the stream gets past what it must wait for. Long enough for work that does not wait to
 * finish; it leaves this thread's core to it.
 */
export function expectWaiting(stream: Stream): void {
  for (let looks = 0; looks < 10; looks++) {
    Atomics.wait(nobody, 0, 0, 2);
    expect(stream.query()).toBe(false);
  }
}

/**
 * Writes memory on a stream that received it while another stream, which may still use it, is held.
 * Fails unless the stream waits for the held one, and unless its writes are there once everything
 * has run.
 */
export function expectOrdered(pointer: number, bytes: number, stream: Stream, hold: StreamHold): void {
  set(pointer, 9, 1, bytes, stream);
  expectWaiting(stream);
  hold.release();
  Device.get().synchronizeSync();
  expect(valuesOf(pointer, bytes, stream)).toEqual([9]);
}

/**
 * Memory that a stream is still writing: the stream is held, and the write is queued behind that,
 * until `hold` is released or this object is disposed.
 */
export class BusyBlock implements Disposable {
  readonly pointer: DevicePointer;
  readonly hold: StreamHold;
  readonly #resource: MemoryResource;
  readonly #bytes: number;
  readonly #writer: Stream;

  constructor(resource: MemoryResource, pointer: DevicePointer, bytes: number, writer: Stream) {
    this.pointer = pointer;
    this.#resource = resource;
    this.#bytes = bytes;
    this.#writer = writer;
    this.hold = writer.hold();
    set(pointer, 1, 1, bytes, writer);
  }

  /** Allocates on one stream what another, or the same, writes. */
  static allocate(resource: MemoryResource, bytes: number, stream: Stream, writer: Stream = stream): BusyBlock {
    return new BusyBlock(resource, resource.allocate(bytes, stream), bytes, writer);
  }

  /** As `allocate`; the writing stream has freed the memory, too. */
  static freed(resource: MemoryResource, bytes: number, stream: Stream, writer?: Stream): BusyBlock {
    const block = BusyBlock.allocate(resource, bytes, stream, writer);
    try {
      block.free();
    } catch (error) {
      block.hold.release();
      throw error;
    }
    return block;
  }

  /** Frees the memory on the stream that is still writing it. */
  free(fence?: DeallocationFence): void {
    this.#resource.deallocate(this.pointer, this.#bytes, this.#writer, fence);
  }

  /** Fails unless a stream's next allocation gets this memory, and the stream waits for the write. */
  expectHandedTo(stream: Stream, resource: MemoryResource = this.#resource): void {
    expect(resource.allocate(this.#bytes, stream)).toBe(this.pointer);
    expectOrdered(this.pointer, this.#bytes, stream, this.hold);
  }

  [Symbol.dispose](): void {
    this.hold.release();
  }
}

/** The distinct values of the bytes, once `stream` has run. */
export function valuesOf(pointer: number, bytes: number, stream: Stream): number[] {
  const host = new Uint8Array(bytes);
  copyToHostSync(host, pointer, stream);
  return distinctBytes(host);
}

/** The distinct values of bytes, in the order in which they occur first. Bytes that are all the same take a hundredth of the time of a set. */
function distinctBytes(bytes: Uint8Array): number[] {
  const areAllTheSame = Buffer.compare(bytes.subarray(1), bytes.subarray(0, -1)) === 0;
  return [...new Set(areAllTheSame ? bytes.subarray(0, 1) : bytes)];
}

/** The number of recorded events, and of waits of a stream for one. */
export function eventCalls(during: () => void): { records: number; waits: number } {
  const before = driverCallCounts();
  during();
  const after = driverCallCounts();
  return { records: after.eventRecords - before.eventRecords, waits: after.eventWaits - before.eventWaits };
}

/** A stream that, as far as `Stream` knows, was created elsewhere. */
export function madeElsewhere(device = 0): { address: number; destroy: () => void } {
  // Opens the driver.
  Device.get(device);
  native().createStream(device, false, 0);
  const handle = mailbox[1] as number;
  native().streamAddress(handle);
  return { address: mailbox[1] as number, destroy: () => native().releaseStream(handle) };
}

/** The number of recorded events. */
export function eventRecords(during: () => void): number {
  return eventCalls(during).records;
}

/** The number of waits of a stream for an event. */
export function eventWaits(during: () => void): number {
  return eventCalls(during).waits;
}

/**
 * Runs `action` in a host function, where no call may wait; returns what it returns, and throws
 * what it throws.
 */
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
