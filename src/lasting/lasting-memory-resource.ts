import { setTimeout as sleep } from 'node:timers/promises';
import {
  ArgumentRangeError,
  alreadyFreed,
  CisternError,
  formatPointer,
  notAllocatedHere,
  OutOfMemoryError,
  wrongSize,
} from '../basics/errors.js';
import { ALLOCATION_ALIGNMENT, alignUp, formatBytes } from '../basics/units.js';
import {
  assertAlignment,
  assertBytes,
  assertMilliseconds,
  assertName,
  assertOptions,
  assertPointer,
  optionNames,
} from '../basics/validation.js';
import { type Device, deviceOption } from '../driver/device.js';
import { assertStream, Stream } from '../driver/streams/stream.js';
import type { DeallocationFence, DevicePointer, ReservingMemoryResource } from '../memory-resource.js';
import { LeafMemoryResource } from '../resources/leaf-memory-resource.js';
import { type Segment, segmentAround } from '../suballocation/blocks.js';
import { KeepConnection } from './keep-connection.js';
import { closeDescriptor, defaultSocketPath } from './local-socket.js';
import { MappedRegion } from './mapped-region.js';
import { assertLayout, assertRegion, mostAllocations } from './protocol.js';

/** Options of {@link LastingMemoryResource}. */
export interface LastingMemoryResourceOptions {
  /** The name of the region: 1 to 64 letters, digits and `._:/-`. */
  readonly region: string;
  /** The size of the region, rounded up to whole pages of 2 MiB. All processes must give the same. */
  readonly bytes: number;
  /**
   * A text that changes whenever contents of an older program, or of other files, would be of no use: a hash of the weights and of the
   * code that arranges them. 1 to 128 printable characters without spaces.
   */
  readonly layout: string;
  /** @defaultValue the first device */
  readonly device?: Device | undefined;
  /**
   * Whether a committed region may be mapped elsewhere if this process uses its addresses already. Addresses of the region that are stored in
   * it are then wrong.
   * @defaultValue false
   */
  readonly anyAddress?: boolean | undefined;
  /**
   * The path of the socket of `cistern keep`.
   * @defaultValue `CISTERN_KEEP`, otherwise where `cistern keep` listens by default
   */
  readonly socket?: string | undefined;
}

/** Options of {@link LastingMemoryResource.open}. */
export interface OpenLastingOptions extends LastingMemoryResourceOptions {
  /**
   * How long to wait for a process that writes the region.
   * @defaultValue no limit
   */
  readonly timeoutMilliseconds?: number | undefined;
  /** Ends the wait. */
  readonly signal?: AbortSignal | undefined;
}

const ofBoth = { region: true, bytes: true, layout: true, device: true, anyAddress: 'boolean', socket: true } as const;
const knownOptions = optionNames<LastingMemoryResourceOptions>(ofBoth);
const knownOpenOptions = optionNames<OpenLastingOptions>({ ...ofBoth, timeoutMilliseconds: true, signal: true });

/** An allocation, by its place in the region. */
interface Allocation extends Segment {
  isFreed: boolean;
}

/** Between two attempts to open a region that a process writes. */
const shortestWait = 10;
const longestWait = 250;

/** Where regions are put, so that later processes find the same addresses free: systems put nothing there by themselves. */
const firstPlace = 2 ** 44;
const placeBytes = 2 ** 36;
const places = 512;

/**
 * Device memory that outlives its process: a region that `cistern keep` holds by name. The process that opens it first fills it and calls
 * {@link LastingMemoryResource.commit}; from then on every process that opens it, later or at the same time, has the contents, read-only,
 * at the same addresses. A server that restarts has its weights in place.
 *
 * Every process must make the same allocations in the same order: they are placed one after the other, and in a committed region
 * an allocation of another size is refused. Freed memory is not reused.
 *
 * If the process that writes ends before it commits, the region is empty again, and the next one that opens it fills it.
 *
 * Stream order: any stream of the device can use an allocation immediately, and a free does nothing but count. `dispose` unmaps the
 * region once all of it is freed and the devices have done what was queued. Alignment: 256 bytes. The whole region counts as
 * `reservedBytes`.
 *
 * It has no name in specifications, since a program must fill the region and commit it. Linux only. Neither RMM nor PyTorch has a counterpart.
 * @example
 * ```ts
 * using weights = await LastingMemoryResource.open({ region: 'weights', bytes: 2 * GiB, layout: 'sha256-of-the-file' });
 * using stream = new Stream();
 * using layer = new DeviceBuffer(64 * MiB, { resource: weights, stream });
 * if (weights.isWriting) {
 *   layer.fill(1); // or copy a file there
 *   weights.commit();
 * }
 * ```
 */
export class LastingMemoryResource extends LeafMemoryResource implements ReservingMemoryResource {
  /** @internal */
  static override readonly name = 'LastingMemoryResource';
  /** The name of the region. */
  readonly region: string;
  /** The size of the region, in whole pages. */
  readonly regionBytes: number;
  /** Where the region begins. */
  readonly address: DevicePointer;
  readonly #name: string;
  readonly #connection: KeepConnection;
  readonly #memory: MappedRegion;
  /** By the order of allocation, and so of addresses. */
  readonly #allocations: Allocation[] = [];
  /** What the writing process allocated, if this one reads. */
  #expected: readonly number[] | undefined;
  #endOffset = 0;
  #liveCount = 0;
  #hasEnded = false;

  /**
   * @throws CisternError (`ERR_CISTERN_REGION_IN_USE`) while another process writes the region: {@link LastingMemoryResource.open} waits;
   * (`ERR_CISTERN_REGION_MISMATCH`) if the region has another layout, size or device, or if its addresses are taken here;
   * (`ERR_CISTERN_KEEP_UNAVAILABLE`) if `cistern keep` does not answer within five seconds
   * @throws OutOfMemoryError if the device, or the limit of `cistern keep`, has no room for a new region
   * @throws DriverError (`CUDA_ERROR_NOT_SUPPORTED`) if the device's memory cannot be sent to other processes.
   */
  constructor(options: LastingMemoryResourceOptions) {
    assertOptions(options, knownOptions);
    const { region, layout, anyAddress = false, socket = defaultSocketPath() } = options;
    assertRegion(region);
    assertLayout(layout);
    assertBytes(options.bytes);
    if (options.bytes === 0) throw new ArgumentRangeError('bytes must be at least 1, got 0');
    assertName(socket, 'socket');
    const device = deviceOption(options.device);
    super('device', device);
    this.region = region;
    this.#name = `the region '${region}'`;
    const bytes = alignUp(options.bytes, pageBytes);
    this.#connection = new KeepConnection(socket);
    try {
      const request = { op: 'open', region, layout, bytes, device: device.uuid } as const;
      const { reply, descriptor } = this.#connection.request(request, `cannot open ${this.#name}`);
      this.#expected = reply.is === 'reading' ? reply.sizes : undefined;
      this.#memory =
        reply.is === 'reading'
          ? this.#mapCommitted(bytes, reply.address, !anyAddress, descriptor)
          : this.#mapNew(bytes, firstPlace + placeBytes * placeOf(region));
    } catch (error) {
      this.#connection.close();
      throw error;
    }
    this.address = this.#memory.address;
    this.regionBytes = this.#memory.bytes;
  }

  /**
   * The same as the constructor, but waits while another process writes the region: until it has committed, or has ended.
   * @throws CisternError (`ERR_CISTERN_REGION_IN_USE`) at the end of `timeoutMilliseconds`; what the signal says
   */
  static async open(options: OpenLastingOptions): Promise<LastingMemoryResource> {
    assertOptions(options, knownOpenOptions);
    const { timeoutMilliseconds, signal, ...rest } = options;
    if (timeoutMilliseconds !== undefined) assertMilliseconds(timeoutMilliseconds, 'timeoutMilliseconds');
    const end = performance.now() + (timeoutMilliseconds ?? Number.POSITIVE_INFINITY);
    for (let wait = shortestWait; ; wait = Math.min(2 * wait, longestWait)) {
      signal?.throwIfAborted();
      try {
        return new LastingMemoryResource(rest);
      } catch (error) {
        const isInUse = error instanceof CisternError && error.code === 'ERR_CISTERN_REGION_IN_USE';
        if (!isInUse || performance.now() >= end) throw error;
      }
      await sleep(Math.min(wait, Math.max(1, end - performance.now())), undefined, signal === undefined ? {} : { signal });
    }
  }

  /** Whether this process fills the region, so that it has no contents yet. */
  get isWriting(): boolean {
    return this.#expected === undefined;
  }

  get reservedBytes(): number {
    return this.#hasEnded ? 0 : this.regionBytes;
  }

  get peakReservedBytes(): number {
    return this.regionBytes;
  }

  /** Does nothing: the region has one size. */
  resetPeakReservedBytes(): void {}

  allocate(bytes: number, stream: Stream, alignment: number = ALLOCATION_ALIGNMENT): DevicePointer {
    assertBytes(bytes);
    assertAlignment(alignment, ALLOCATION_ALIGNMENT);
    assertStream(stream, 'allocate');
    this.assertLive('allocate');
    if (bytes === 0) return 0;
    const offset = this.#endOffset;
    if (this.#expected !== undefined) this.#assertExpected(bytes, this.#expected);
    else if (bytes > this.regionBytes - offset || this.#allocations.length === mostAllocations) throw this.#isFull(bytes);
    const address = this.address + offset;
    this.#allocations.push({ address, bytes, isFreed: false });
    this.#liveCount++;
    this.#endOffset = alignUp(offset + bytes, ALLOCATION_ALIGNMENT);
    return address;
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, _fence?: DeallocationFence): void {
    assertPointer(pointer);
    assertBytes(bytes);
    assertStream(stream, 'deallocate');
    if (pointer === 0) return;
    const allocation = segmentAround(this.#allocations, pointer);
    const refusal = `${this.#name} cannot free ${formatPointer(pointer)}`;
    if (allocation?.address !== pointer) throw notAllocatedHere(refusal);
    if (allocation.isFreed) throw alreadyFreed(refusal);
    if (allocation.bytes !== bytes) throw wrongSize(refusal, bytes, allocation.bytes);
    allocation.isFreed = true;
    this.#liveCount--;
    if (this.isDisposed) this.#end();
  }

  /**
   * Hands the region to `cistern keep`: other processes can read it from now on, and this one can write it no more. Waits for the work that is
   * queued on the devices, and blocks until then.
   * @throws CisternError (`ERR_CISTERN_KEEP_UNAVAILABLE`) if `cistern keep` has ended: the region belongs to this process alone, and can only
   * be read from now on; (`ERR_CISTERN_INVALID_STATE`) if it is committed already, or if a hold or a host function stalls a stream
   */
  commit(): void {
    this.assertLive('commit');
    if (!this.isWriting) throw new CisternError('ERR_CISTERN_INVALID_STATE', `cannot commit ${this.#name}: it is committed`);
    this.#memory.commit((descriptor) => {
      const sizes = this.#allocations.map((each) => each.bytes);
      this.#expected = sizes;
      this.#connection.request({ op: 'commit', address: this.address, sizes }, `cannot commit ${this.#name}`, descriptor);
    });
  }

  /** Ends allocation. The region is unmapped once all allocations are freed; if it is not committed, it is then empty. */
  override [Symbol.dispose](): void {
    super[Symbol.dispose]();
    this.#end();
  }

  /** @internal */
  protected override shown(): object {
    return { ...super.shown(), region: this.region, isWriting: this.isWriting, reservedBytes: this.reservedBytes };
  }

  #mapNew(bytes: number, address: number): MappedRegion {
    const map = () => new MappedRegion(this.device, this.#name, bytes, address, false);
    try {
      return map();
    } catch (error) {
      let memory: MappedRegion | undefined;
      this.withNeighbours(error, bytes, Stream.legacyDefault(this.device), () => {
        memory = map();
        return memory.address;
      });
      return memory as unknown as MappedRegion;
    }
  }

  #mapCommitted(bytes: number, address: number, onlyThere: boolean, descriptor: number | undefined): MappedRegion {
    if (descriptor === undefined)
      throw new CisternError('ERR_CISTERN_INVALID_STATE', `cannot open ${this.#name}: no descriptor came with it`);
    try {
      return new MappedRegion(this.device, this.#name, bytes, address, onlyThere, descriptor);
    } finally {
      closeDescriptor(descriptor);
    }
  }

  #assertExpected(bytes: number, expected: readonly number[]): void {
    const place = this.#allocations.length;
    if (expected[place] === bytes) return;
    const known =
      place < expected.length
        ? `it has ${expected[place]} bytes in the process that wrote it`
        : `the process that wrote it made ${expected.length}`;
    throw new CisternError(
      'ERR_CISTERN_REGION_MISMATCH',
      `cannot allocate ${bytes} bytes in ${this.#name}: it would be allocation ${place + 1}, and ${known}; all processes make the same allocations in the same order`,
    );
  }

  #isFull(bytes: number): OutOfMemoryError {
    const availableBytes = this.regionBytes - this.#endOffset;
    const reason =
      this.#allocations.length === mostAllocations
        ? `it has ${mostAllocations} allocations, which is the most`
        : `${formatBytes(Math.max(availableBytes, 0))} of ${formatBytes(this.regionBytes)} are left`;
    return new OutOfMemoryError(`${this.#name} is full: ${formatBytes(bytes)} (${bytes} bytes) were asked for, and ${reason}`, {
      requestedBytes: bytes,
      availableBytes,
      limitBytes: this.regionBytes,
      path: [this.constructor.name],
    });
  }

  #end(): void {
    if (this.#liveCount > 0 || this.#hasEnded) return;
    this.#hasEnded = true;
    this.#memory.close();
    this.#connection.close();
  }
}

/** What all known devices have; the driver rounds up further if a device has larger ones. */
const pageBytes = 2 ** 21;

/** Spreads names over the places (FNV-1a). */
function placeOf(name: string): number {
  let hash = 0x811c9dc5;
  for (let index = 0; index < name.length; index++) hash = Math.imul(hash ^ name.charCodeAt(index), 0x01000193);
  return (hash >>> 0) % places;
}
