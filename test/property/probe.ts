import { formatPointer } from '../../src/basics/errors.js';
import { alignUp } from '../../src/basics/units.js';
import {
  ALLOCATION_ALIGNMENT,
  type DeallocationFence,
  type DevicePointer,
  type MemoryKind,
  type MemoryResource,
  type MemoryResourceAdaptor,
  OutOfMemoryError,
  type ReservingMemoryResource,
  type Stream,
} from '../../src/index.js';
import { Violation } from './violation.js';

/** Whether the program is making a wrong call. */
export interface Misuse {
  isGoingOn: boolean;
}

/**
 * Stands between two resources of a stack and checks every call against a naive model: live ranges
 * do not overlap, pointers have the requested alignment, and a freed pointer is live with the size
 * of its allocation.
 */
export class Probe implements MemoryResourceAdaptor {
  readonly upstream: MemoryResource;
  readonly memoryKind: MemoryKind;
  readonly device: MemoryResource['device'];
  /** Sizes by pointer. */
  readonly live = new Map<DevicePointer, number>();
  /** Live bytes: as requested, and with each allocation rounded up to 256 bytes. */
  liveBytes = 0;
  roundedBytes = 0;
  peakBytes = 0;
  /** All allocations since the start. */
  allocations = 0;
  allocatedBytes = 0;
  /** How often it was called. */
  calls = 0;
  readonly #misuse: Misuse;

  constructor(upstream: MemoryResource, misuse: Misuse) {
    this.upstream = upstream;
    this.#misuse = misuse;
    this.memoryKind = upstream.memoryKind;
    this.device = upstream.device;
  }

  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    this.calls++;
    const pointer = this.upstream.allocate(bytes, stream, alignment);
    if ((pointer === 0) !== (bytes === 0)) throw new Violation(`${this.#name} gave ${formatPointer(pointer)} for ${bytes} bytes`);
    if (bytes > 0) this.#add(pointer, bytes, Math.max(alignment ?? 0, ALLOCATION_ALIGNMENT));
    return pointer;
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    this.calls++;
    if (pointer === 0) {
      this.upstream.deallocate(pointer, bytes, stream, fence);
      return;
    }
    if (this.live.get(pointer) !== bytes) {
      // The resource below must refuse it.
      if (this.#misuse.isGoingOn) {
        this.upstream.deallocate(pointer, bytes, stream, fence);
        throw new Violation(
          `${this.#name} took a free of ${bytes} bytes at ${String(pointer)}, where ${this.live.get(pointer) ?? 0} are live`,
        );
      }
      throw new Violation(
        `${this.#name} is asked to free ${bytes} bytes at ${formatPointer(pointer)}, where ${this.live.get(pointer) ?? 0} are live`,
      );
    }
    // Removed first: the same address may be given out again during this call.
    this.forget(pointer);
    try {
      this.upstream.deallocate(pointer, bytes, stream, fence);
    } catch (error) {
      this.#count(pointer, bytes);
      throw error;
    }
  }

  /** Notes that memory was freed by other means than a call. */
  forget(pointer: DevicePointer): void {
    const bytes = this.live.get(pointer) as number;
    this.live.delete(pointer);
    this.liveBytes -= bytes;
    this.roundedBytes -= alignUp(bytes, ALLOCATION_ALIGNMENT);
  }

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  [Symbol.dispose](): void {}

  get #name(): string {
    return this.upstream.constructor.name;
  }

  #add(pointer: DevicePointer, bytes: number, alignment: number): void {
    if (pointer % alignment !== 0)
      throw new Violation(`${this.#name} returned ${formatPointer(pointer)}, which is not a multiple of ${alignment}`);
    for (const [other, otherBytes] of this.live) {
      if (pointer < other + otherBytes && other < pointer + bytes) {
        throw new Violation(
          `${this.#name} gave ${bytes} bytes at ${formatPointer(pointer)}, but ${otherBytes} are live at ${formatPointer(other)}`,
        );
      }
    }
    this.allocations++;
    this.allocatedBytes += bytes;
    this.#count(pointer, bytes);
    if (this.liveBytes > this.peakBytes) this.peakBytes = this.liveBytes;
  }

  #count(pointer: DevicePointer, bytes: number): void {
    this.live.set(pointer, bytes);
    this.liveBytes += bytes;
    this.roundedBytes += alignUp(bytes, ALLOCATION_ALIGNMENT);
  }
}

/** The upstream calls that can be interrupted. */
export type LeafCall = 'allocate' | 'deallocate';

/**
 * The lowest resource: has a limit, and calls back once during a call, like an upstream that runs
 * host functions.
 */
export class Leaf implements MemoryResource {
  readonly upstream: ReservingMemoryResource;
  readonly memoryKind: MemoryKind;
  readonly device: MemoryResource['device'];
  interruption: { readonly call: LeafCall; readonly run: () => void } | undefined;
  readonly #limitBytes: number;
  #liveBytes = 0;

  constructor(upstream: ReservingMemoryResource, limitBytes: number) {
    this.upstream = upstream;
    this.memoryKind = upstream.memoryKind;
    this.device = upstream.device;
    this.#limitBytes = limitBytes;
  }

  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    if (Number.isSafeInteger(bytes) && bytes > this.#limitBytes - this.#liveBytes) {
      throw new OutOfMemoryError('the leaf is at its limit', { requestedBytes: bytes, path: ['Leaf'] });
    }
    const pointer = this.upstream.allocate(bytes, stream, alignment);
    this.#liveBytes += bytes;
    this.#interrupt('allocate');
    return pointer;
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream): void {
    this.upstream.deallocate(pointer, bytes, stream);
    this.#liveBytes -= bytes;
    this.#interrupt('deallocate');
  }

  /** Whether a free waits for the device. */
  get isBlocking(): boolean {
    return !('usage' in this.upstream);
  }

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  [Symbol.dispose](): void {
    this.upstream[Symbol.dispose]();
  }

  #interrupt(call: LeafCall): void {
    const interruption = this.interruption;
    if (interruption?.call !== call) return;
    this.interruption = undefined;
    interruption.run();
  }
}
