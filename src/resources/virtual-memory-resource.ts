import { ArgumentRangeError } from '../basics/errors.js';
import { assertBytes, assertName, assertOptions, optionNames } from '../basics/validation.js';
import { type Device, deviceOption } from '../driver/device.js';
import { VirtualMemory } from '../driver/memory/virtual-memory.js';
import type { Stream } from '../driver/streams/stream.js';
import { Sleeper } from '../lifetimes/sleeper.js';
import type { DeallocationFence, DevicePointer, GrowingMemoryResource } from '../memory-resource.js';
import { defineUpstream } from '../resource-kind.js';
import { PlainMemoryResource } from './plain-memory-resource.js';

/** Options of {@link VirtualMemoryResource}. */
export interface VirtualMemoryResourceOptions {
  /** @defaultValue the first device */
  readonly device?: Device;
  /**
   * The size of the range of addresses to reserve, at least 1, rounded up to whole pages. Addresses
   * take no memory. Allocations fail once the range has no hole that fits, however much memory the
   * device has left.
   * @defaultValue four times the device's memory
   */
  readonly reservationBytes?: number;
  /**
   * Names what the memory is for, such as `weights`: {@link sleepResource} and {@link wakeResource} can be
   * told to treat only memory with a tag.
   * @defaultValue none
   */
  readonly tag?: string;
}

const knownOptions = optionNames<VirtualMemoryResourceOptions>({ device: true, reservationBytes: true, tag: true });

/** Holes between allocations cost addresses only, so there are more of these than memory. */
const reservationPerTotal = 4;

/**
 * Device memory that is mapped to one reserved range of addresses (`cuMemAddressReserve`,
 * `cuMemCreate`, `cuMemMap`). An allocation takes whole pages at the lowest free addresses where it
 * fits. So allocations that follow each other are adjacent, unless an older hole fits, and a pool
 * above it needs neither an initial size nor large blocks.
 *
 * `deallocate` frees an allocation, or a part of adjacent allocations: the range must begin at a
 * multiple of `granularityBytes` from the start of the first one, and end at such a multiple or
 * where an allocation ends. Its memory goes back to the device, and its addresses serve later
 * allocations.
 *
 * Stream order: every stream of the device may use an allocation at once; a free waits for its
 * stream, because `cuMemUnmap` need not. Alignment: up to `granularityBytes`. Every page is several driver calls, so put a pool on it. `reservedBytes` counts whole pages.
 *
 * The memory can be given back to the device for a while, and comes back at the same addresses:
 * {@link sleepResource}.
 *
 * RMM has no counterpart. PyTorch's allocator has the same as an option, `expandable_segments`.
 * @example
 * ```ts
 * using upstream = new VirtualMemoryResource();
 * using stream = new Stream();
 * const first = upstream.allocate(8 * MiB, stream);
 * const second = upstream.allocate(8 * MiB, stream); // first + 8 * MiB
 * upstream.deallocate(first + 4 * MiB, 8 * MiB, stream); // half of each
 * upstream.deallocate(first, 4 * MiB, stream);
 * upstream.deallocate(second + 4 * MiB, 4 * MiB, stream);
 * ```
 */
export class VirtualMemoryResource extends PlainMemoryResource implements GrowingMemoryResource {
  /** @internal */
  static override readonly name = 'VirtualMemoryResource';
  readonly granularityBytes: number;
  /** The size of the reserved range of addresses, in whole pages. */
  readonly reservationBytes: number;
  /** What the memory is for. */
  readonly tag: string | undefined;
  /** @internal */
  readonly sleeper: Sleeper;
  readonly #memory: VirtualMemory;

  /**
   * @throws DriverError (`CUDA_ERROR_NOT_SUPPORTED`) if the device has no virtual memory management.
   * @throws OutOfMemoryError if the addresses cannot be reserved.
   */
  constructor(options: VirtualMemoryResourceOptions = {}) {
    assertOptions(options, knownOptions);
    const device = deviceOption(options.device);
    const { reservationBytes = reservationPerTotal * device.totalBytes, tag } = options;
    if (tag !== undefined) assertName(tag, 'tag');
    assertBytes(reservationBytes, 'reservationBytes');
    if (reservationBytes === 0) throw new ArgumentRangeError('reservationBytes must be at least 1, got 0');
    const memory = new VirtualMemory(device, reservationBytes);
    super(memory, memory.granularityBytes);
    this.#memory = memory;
    this.granularityBytes = memory.granularityBytes;
    this.reservationBytes = memory.reservationBytes;
    this.tag = tag;
    this.sleeper = new Sleeper(memory);
  }

  /**
   * The bytes of the pages that are mapped: none of those that are asleep, unless the driver refused to
   * unmap some.
   */
  override get reservedBytes(): number {
    return this.#memory.mappedBytes;
  }

  /** Whether its memory is asleep, or on the way there or back ({@link sleepResource}). */
  get isAsleep(): boolean {
    return !this.sleeper.isAwake;
  }

  override deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    super.deallocate(pointer, bytes, stream, fence);
    this.sleeper.freed();
  }

  /**
   * Ends allocation. What is still allocated stays, and can be freed; with the last of it the
   * addresses are given back.
   */
  override [Symbol.dispose](): void {
    super[Symbol.dispose]();
    this.#memory.close();
    this.sleeper.close();
  }

  protected override beforeFree(): void {
    this.sleeper.beforeFree();
  }
}

/** `virtual` in a specification. */
export const virtualKind = defineUpstream({
  name: 'virtual',
  summary: 'device memory in pages, mapped one after the other to a reserved range of addresses',
  options: {
    reservationBytes: { type: 'size', summary: 'the addresses reserved', default: "four times the device's memory" },
    tag: { type: 'text', summary: 'what the memory is for, to sleep apart', default: 'none' },
  },
  example: 'virtual(reservationBytes=4GiB)',
  create: ({ device, options }) => new VirtualMemoryResource({ device, ...options }),
});
