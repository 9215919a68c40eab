import { ArgumentRangeError } from '../basics/errors.js';
import { assertBytes, assertName, assertOptions, optionNames } from '../basics/validation.js';
import { type Device, deviceOption } from '../driver/device.js';
import { VirtualMemory } from '../driver/memory/virtual-memory.js';
import type { Stream } from '../driver/streams/stream.js';
import type { DeallocationFence, DevicePointer, GrowingMemoryResource } from '../memory-resource.js';
import { SleepableMemory } from '../observing/sleepable.js';
import { defineUpstream } from '../resource-kind.js';
import { PlainMemoryResource } from './plain-memory-resource.js';

/** Options of {@link VirtualMemoryResource}. */
export interface VirtualMemoryResourceOptions {
  /** @defaultValue the first device */
  readonly device?: Device | undefined;
  /**
   * The size of the range of addresses to reserve, at least 1, rounded up to whole pages. Addresses
   * take no memory. Allocations fail once the range has no hole that fits, however much memory the
   * device has left.
   * @defaultValue four times the device's memory
   */
  readonly reservationBytes?: number | undefined;
  /**
   * A name for the purpose of the memory, such as `weights`. You can make {@link sleepResource} and {@link
   * wakeResource} treat only memory with a given tag.
   * @defaultValue none
   */
  readonly tag?: string | undefined;
}

const knownOptions = optionNames<VirtualMemoryResourceOptions>({ device: true, reservationBytes: true, tag: true });

/** Holes between allocations cost only addresses, so reserve more of them than there is memory. */
const reservationPerTotal = 4;

/**
 * Device memory that is mapped to one reserved range of addresses (`cuMemAddressReserve`,
 * `cuMemCreate`, `cuMemMap`). An allocation takes whole pages at the lowest free addresses where it
 * fits. So consecutive allocations are adjacent, unless an older hole fits, and a pool above it
 * needs neither an initial size nor large blocks.
 *
 * `deallocate` frees an allocation, or a part of adjacent allocations: the range must begin at a
 * multiple of `granularityBytes` from the start of the first one, and end at such a multiple or
 * where an allocation ends. The memory is returned to the device, and later allocations can use the
 * addresses.
 *
 * Stream order: any stream of the device can use an allocation immediately. A free waits for its
 * stream, because `cuMemUnmap` may not. Alignment: up to `granularityBytes`. Every piece takes
 * several driver calls, so put a pool on it. `reservedBytes` counts whole pages.
 *
 * An allocation of fewer than 16 pages is mapped page by page; a larger one in pieces of up to an eighth of it, as a piece takes the driver
 * the same time however large it is. Only whole pieces can be returned: if you free a part of one, its memory and its addresses stay
 * until the rest of it is free.
 *
 * You can return the memory to the device for a while, and get it back at the same addresses: see
 * {@link sleepResource}.
 *
 * RMM has no counterpart. PyTorch's allocator has an option for this, `expandable_segments`.
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
  /** The name for the purpose of the memory. */
  readonly tag: string | undefined;
  /** @internal */
  readonly sleepable: SleepableMemory;
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
    this.sleepable = new SleepableMemory(memory);
  }

  /**
   * The bytes of the mapped pages, also of those that are free and kept. Pages that are asleep do not count, unless the driver
   * refused to unmap them.
   */
  override get reservedBytes(): number {
    return this.#memory.mappedBytes + this.#memory.keptBytes;
  }

  /** Whether its memory is asleep, falling asleep or waking up ({@link sleepResource}). */
  get isAsleep(): boolean {
    return this.sleepable.isAsleep;
  }

  override deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    super.deallocate(pointer, bytes, stream, fence);
    this.sleepable.sleep?.freed(pointer, bytes);
  }

  /**
   * Ends allocation. Live allocations stay valid, and can be freed; freeing the last one returns
   * the addresses.
   */
  override [Symbol.dispose](): void {
    super[Symbol.dispose]();
    this.#memory.close();
    this.sleepable.sleep?.close();
  }

  protected override beforeFree(): void {
    this.sleepable.sleep?.beforeFree();
  }
}

/** `virtual` in a specification. */
export const virtualKind = defineUpstream({
  name: 'virtual',
  summary: 'device memory in pages, mapped one after the other to a reserved range of addresses',
  options: {
    reservationBytes: { type: 'size', summary: 'the addresses reserved', default: "four times the device's memory" },
    tag: { type: 'text', summary: 'the purpose of the memory, by which it can sleep separately', default: 'none' },
  },
  example: 'virtual(reservationBytes=4GiB)',
  create: ({ device, options }) => new VirtualMemoryResource({ device, ...options }),
});
