import assert from 'node:assert/strict';
import {
  ArgumentRangeError,
  ArgumentTypeError,
  type CisternErrorCode,
  formatValue,
  LifetimeError,
  OutOfMemoryError,
} from '../../basics/errors.js';
import { ALLOCATION_ALIGNMENT } from '../../basics/units.js';
import { copyFromHost, copyToHostSync } from '../../driver/memory/transfer.js';
import { Stream } from '../../driver/streams/stream.js';
import type { DeallocationFence, MemoryResource } from '../../memory-resource.js';
import type { ConformanceSubject, ResourceHarness, ResourceSupport } from './harness.js';

/** A live allocation. */
export interface Block {
  readonly pointer: number;
  readonly bytes: number;
}

type LifetimeErrorCode = Extract<CisternErrorCode, `ERR_CISTERN_${'DISPOSED' | 'FOREIGN_POINTER' | 'DOUBLE_FREE' | 'WRONG_SIZE'}`>;

/**
 * The objects of one case: a fresh resource, streams, and live blocks. Disposing it cleans up after
 * a failed case.
 */
export class TestBed implements Disposable {
  readonly harness: ResourceHarness;
  readonly supports: ResourceSupport;
  readonly resource: MemoryResource;
  readonly stream: Stream;
  readonly #subjects: ConformanceSubject[] = [];
  readonly #streams: Stream[] = [];
  readonly #live = new Map<number, Block>();

  constructor(harness: ResourceHarness) {
    this.harness = harness;
    this.supports = harness.supports;
    this.resource = this.anotherResource();
    this.stream = this.newStream();
  }

  anotherResource(): MemoryResource {
    const subject = this.harness.create();
    this.#subjects.push(subject);
    return subject.resource;
  }

  newStream(): Stream {
    const stream = new Stream({ device: this.resource.device, nonBlocking: true });
    this.#streams.push(stream);
    return stream;
  }

  /** A share of the capacity of a bounded resource, rounded down to whole allocations. */
  shareOfCapacity(share: number): number {
    const capacity = this.supports.capacityBytes ?? 0;
    return Math.floor((share * capacity) / ALLOCATION_ALIGNMENT) * ALLOCATION_ALIGNMENT;
  }

  allocate(bytes: number, stream = this.stream, alignment?: number): Block {
    const pointer = this.resource.allocate(bytes, stream, alignment);
    assert.ok(
      Number.isSafeInteger(pointer) && pointer > 0,
      `the pointer to ${bytes} bytes must be a safe integer above 0, got ${formatValue(pointer)}`,
    );
    assert.equal(pointer % ALLOCATION_ALIGNMENT, 0, `the pointer to ${bytes} bytes must be a multiple of 256, got ${pointer}`);
    for (const other of this.#live.values()) {
      assert.ok(
        pointer + bytes <= other.pointer || other.pointer + other.bytes <= pointer,
        `live allocations must not overlap: ${bytes} bytes at ${pointer}, and ${other.bytes} bytes at ${other.pointer}`,
      );
    }
    const block = { pointer, bytes };
    this.#live.set(pointer, block);
    return block;
  }

  free(block: Block, stream = this.stream, fence?: DeallocationFence): void {
    const returned: unknown = this.resource.deallocate(block.pointer, block.bytes, stream, fence);
    this.#live.delete(block.pointer);
    if (!(returned instanceof Promise)) return;
    returned.catch(() => {});
    assert.fail('deallocate must be synchronous, but returned a promise');
  }

  /** Fills a block with one byte, in stream order. */
  fill(block: Block, value: number, stream = this.stream): void {
    copyFromHost(block.pointer, new Uint8Array(block.bytes).fill(value), stream);
  }

  /** Waits for the stream, and asserts that every byte of a block still has a value. */
  assertFilled(block: Block, value: number, stream = this.stream): void {
    const bytes = new Uint8Array(block.bytes);
    copyToHostSync(bytes, block.pointer, stream);
    // Thirty times as fast as a function that is called for each byte.
    if (Buffer.from(bytes.buffer).equals(Buffer.alloc(bytes.length, value))) return;
    const wrong = bytes.findIndex((byte) => byte !== value);
    assert.fail(`byte ${wrong} of ${block.bytes} at ${block.pointer} must be ${value}, got ${bytes[wrong]}`);
  }

  /**
   * Asserts that an error changed nothing: a live block is intact, and another can be allocated,
   * used and freed.
   */
  assertIntact(block: Block, value: number): void {
    this.assertFilled(block, value);
    const other = this.allocate(1000);
    this.fill(other, value ^ 255);
    this.assertFilled(other, value ^ 255);
    this.assertFilled(block, value);
    this.free(other);
  }

  [Symbol.dispose](): void {
    for (const { pointer, bytes } of this.#live.values()) attempt(() => this.resource.deallocate(pointer, bytes, this.stream));
    for (const subject of this.#subjects) {
      subject.resource[Symbol.dispose]();
      subject.dispose?.();
    }
    for (const stream of this.#streams) stream.dispose();
  }
}

/**
 * Asserts that `action` throws an argument error with the code that fits `value`: an error of type
 * if it is not a number, of range if it is.
 */
export function assertRefused(value: unknown, name: string, action: () => void): void {
  const [type, code] =
    typeof value === 'number'
      ? ([ArgumentRangeError, 'ERR_OUT_OF_RANGE'] as const)
      : ([ArgumentTypeError, 'ERR_INVALID_ARG_TYPE'] as const);
  const error = assertThrows(action, `${name} ${formatValue(value)}`);
  assert.ok(error instanceof type, `${name} ${formatValue(value)} must be refused with ${type.name}, got ${describe(error)}`);
  assert.equal(error.code, code);
}

/** Asserts that `action` throws a LifetimeError with one of the codes. */
export function assertLifetimeError(codes: readonly LifetimeErrorCode[], what: string, action: () => void): void {
  const error = assertThrows(action, what);
  assert.ok(error instanceof LifetimeError, `${what} must throw a LifetimeError, got ${describe(error)}`);
  assert.ok((codes as readonly string[]).includes(error.code), `${what} must have code ${codes.join(' or ')}, got ${error.code}`);
}

/** Asserts that `action` throws an OutOfMemoryError about `bytes` bytes. */
export function assertOutOfMemory(bytes: number, action: () => void): void {
  const what = `an allocation of ${bytes} bytes`;
  const error = assertThrows(action, what);
  assert.ok(error instanceof OutOfMemoryError, `${what} must throw an OutOfMemoryError, got ${describe(error)}`);
  assert.equal(error.code, 'ERR_CISTERN_OUT_OF_MEMORY');
  assert.equal(error.requestedBytes, bytes);
  assert.ok(error.path.length > 0, `the error of ${what} must name the resource that failed`);
}

function assertThrows(action: () => void, what: string): unknown {
  try {
    action();
  } catch (error) {
    return error;
  }
  assert.fail(`${what} must be refused, but was accepted`);
}

function describe(error: unknown): string {
  return error instanceof Error ? `${error.constructor.name}: ${error.message}` : formatValue(error);
}

/** Runs a clean-up after a failure, ignoring its errors so that they do not hide the failure. */
function attempt(action: () => void): void {
  try {
    action();
  } catch {}
}
