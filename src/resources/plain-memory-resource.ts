import { ALLOCATION_ALIGNMENT } from '../basics/units.js';
import { assertAlignment, assertBytes, assertPointer, optionNames } from '../basics/validation.js';
import type { Device } from '../driver/device.js';
import type { PlainMemory } from '../driver/memory/plain-memory.js';
import { assertStream, type Stream } from '../driver/streams/stream.js';
import type { DeallocationFence, DevicePointer, MemoryResource, ReservingMemoryResource } from '../memory-resource.js';
import { LeafMemoryResource } from './leaf-memory-resource.js';

/** What a resource needs of its memory, which `VirtualMemory` has too. */
type Memory = Pick<PlainMemory, 'kind' | 'device' | 'liveBytes' | 'peakBytes' | 'resetPeak' | 'allocate' | 'deallocate'>;

/** Options of the resources without stream order. */
export interface PlainMemoryResourceOptions {
  /** @defaultValue the first device */
  readonly device?: Device | undefined;
}

export const plainMemoryResourceOptionNames = optionNames<PlainMemoryResourceOptions>({ device: true });

/**
 * The base of the resources without stream order. Every call goes to the driver, any stream can use
 * an allocation immediately, and a free waits for the work queued on its stream. A free of memory
 * that the driver owns (any kind but `host`) also runs this thread's host functions until none is
 * outstanding, so it never returns if each of them queues the next. Two resources that share their
 * memory are equal: each may free what the other allocated.
 */
export abstract class PlainMemoryResource extends LeafMemoryResource implements ReservingMemoryResource {
  readonly #memory: Memory;
  readonly #maximumAlignment: number;
  readonly #populateThreads: number | undefined;

  /** @param populateThreads as for `PlainMemory.allocate` */
  protected constructor(memory: Memory, maximumAlignment: number, populateThreads?: number) {
    super(memory.kind, memory.device);
    this.#memory = memory;
    this.#maximumAlignment = maximumAlignment;
    this.#populateThreads = populateThreads;
  }

  get reservedBytes(): number {
    return this.#memory.liveBytes;
  }

  get peakReservedBytes(): number {
    return this.#memory.peakBytes;
  }

  resetPeakReservedBytes(): void {
    this.#memory.resetPeak();
  }

  allocate(bytes: number, stream: Stream, alignment: number = ALLOCATION_ALIGNMENT): DevicePointer {
    assertBytes(bytes);
    assertAlignment(alignment, this.#maximumAlignment);
    assertStream(stream, 'allocate');
    this.assertLive('allocate');
    if (bytes === 0) return 0;
    try {
      return this.#allocate(bytes, alignment);
    } catch (error) {
      return this.#allocateWithHelp(error, bytes, stream, alignment);
    }
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, _fence?: DeallocationFence): void {
    assertPointer(pointer);
    assertBytes(bytes);
    assertStream(stream, 'deallocate');
    if (pointer === 0) return;
    this.beforeFree(stream);
    this.#memory.deallocate(pointer, bytes, stream);
  }

  /** Apart (V8: no capture). */
  #allocateWithHelp(error: unknown, bytes: number, stream: Stream, alignment: number): DevicePointer {
    return this.withNeighbours(error, bytes, stream, () => this.#allocate(bytes, alignment));
  }

  #allocate(bytes: number, alignment: number): DevicePointer {
    return this.#memory.allocate(bytes, Math.max(alignment, ALLOCATION_ALIGNMENT), this.#populateThreads);
  }

  override isEqual(other: MemoryResource): boolean {
    return other instanceof PlainMemoryResource && other.#memory === this.#memory;
  }

  /** Waits for work that may still use memory freed on a stream, if the memory is not the driver's. */
  protected beforeFree(_stream: Stream): void {}

  /** @internal */
  protected override shown(): object {
    return { ...super.shown(), reservedBytes: this.reservedBytes };
  }
}
