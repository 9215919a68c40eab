import { ArgumentRangeError, formatPointer, OutOfMemoryError } from '../basics/errors.js';
import { ALLOCATION_ALIGNMENT, formatBytes } from '../basics/units.js';
import {
  assertAlignment,
  assertBytes,
  assertFunction,
  assertOneOf,
  assertOptions,
  assertPointer,
  optionNames,
} from '../basics/validation.js';
import { type Device, deviceOption, type MemoryKind } from '../driver/device.js';
import { assertStream, assertStreamOf, type Stream } from '../driver/streams/stream.js';
import type { DeallocationFence, DevicePointer } from '../memory-resource.js';
import { giveBack, noteFree, servedPointer } from '../ownership/served-memory.js';
import { LeafMemoryResource } from './leaf-memory-resource.js';

/**
 * Allocates memory for a {@link CallbackMemoryResource}: at least `bytes` bytes (1 or more),
 * ordered on `stream`, at a multiple of `alignment` (256 or more). Returns its address, or 0 if
 * there is no memory; or throws.
 */
export type AllocateCallback = (bytes: number, stream: Stream, alignment: number) => DevicePointer;

/**
 * Frees memory that an {@link AllocateCallback} allocated, ordered on `stream`. `bytes` is the
 * requested size. `fence` is the fence of this free, if any: a policy, or an event that covers
 * every use of the memory. It must throw only if it has freed nothing.
 */
export type DeallocateCallback = (pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence) => void;

/** Options of {@link CallbackMemoryResource}. */
export interface CallbackMemoryResourceOptions {
  /** @defaultValue the first device */
  readonly device?: Device | undefined;
  /**
   * The kind of memory that the functions return.
   * @defaultValue `'device'`
   */
  readonly memoryKind?: MemoryKind | undefined;
}

const knownOptions = optionNames<CallbackMemoryResourceOptions>({ device: true, memoryKind: true });

/**
 * Memory from two functions, such as those of another library's allocator.
 *
 * Arguments are checked before the functions are called, and the functions never see zero bytes or
 * the null pointer. Only `deallocate` can check whether a pointer is live; if yours does not, put a
 * {@link TrackingResourceAdaptor} on this resource.
 *
 * Stream order and alignment are as the functions implement them.
 *
 * Counterpart of `rmm::mr::callback_memory_resource`, whose functions get no fence, because RMM has
 * none.
 * @example
 * ```ts
 * using memory = new CudaAsyncMemoryResource();
 * using resource = new CallbackMemoryResource(
 *   (bytes, stream) => {
 *     console.log(`${bytes} bytes on stream ${stream.id}`);
 *     return memory.allocate(bytes, stream);
 *   },
 *   (pointer, bytes, stream, fence) => memory.deallocate(pointer, bytes, stream, fence),
 * );
 * ```
 */
export class CallbackMemoryResource extends LeafMemoryResource {
  /** @internal */
  static override readonly name = 'CallbackMemoryResource';
  /** Not set once this is disposed. */
  #allocate: AllocateCallback | undefined;
  readonly #deallocate: DeallocateCallback;

  /**
   * @throws ArgumentTypeError, ArgumentRangeError if an argument is not a function, or for an
   * invalid option.
   */
  constructor(allocate: AllocateCallback, deallocate: DeallocateCallback, options: CallbackMemoryResourceOptions = {}) {
    assertFunction(allocate, 'allocate');
    assertFunction(deallocate, 'deallocate');
    assertOptions(options, knownOptions);
    const { memoryKind = 'device' } = options;
    assertOneOf(memoryKind, ['device', 'managed', 'pinned-host', 'host'], 'memoryKind');
    super(memoryKind, deviceOption(options.device));
    this.#allocate = allocate;
    this.#deallocate = deallocate;
  }

  /**
   * @throws OutOfMemoryError if the function returns 0; also any error that the function throws.
   * @throws FaultyResourceError if the function returns something other than the address of memory.
   * An address that is not a multiple of 256 is freed again.
   * @throws ArgumentRangeError if the address is not a multiple of a larger requested alignment; it
   * is freed again.
   */
  allocate(bytes: number, stream: Stream, alignment: number = ALLOCATION_ALIGNMENT): DevicePointer {
    assertBytes(bytes);
    assertAlignment(alignment);
    this.assertLive('allocate');
    this.#assertUsable(stream, 'allocate');
    if (bytes === 0) return 0;
    // Not called as a method, so that the functions do not get this object as `this`.
    const allocate = this.#allocate as AllocateCallback;
    const aligned = Math.max(alignment, ALLOCATION_ALIGNMENT);
    let pointer: DevicePointer;
    try {
      pointer = allocate(bytes, stream, aligned);
    } catch (error) {
      throw error instanceof OutOfMemoryError ? error.through(this.constructor.name) : error;
    }
    if (pointer === 0) {
      throw new OutOfMemoryError(`the allocate function has no memory: ${formatBytes(bytes)} (${bytes} bytes) were asked for`, {
        requestedBytes: bytes,
        path: [this.constructor.name],
      });
    }
    servedPointer(pointer, this, bytes, stream);
    if (pointer % aligned === 0) return pointer;
    giveBack(pointer, this, bytes, stream);
    throw new ArgumentRangeError(
      `alignment must be one that the allocate function supports, got ${alignment}; it returned ${formatPointer(pointer)}, which is freed again`,
    );
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    assertPointer(pointer);
    assertBytes(bytes);
    this.#assertUsable(stream, 'deallocate');
    if (pointer === 0) return;
    const deallocate = this.#deallocate;
    noteFree(deallocate(pointer, bytes, stream, fence), this);
  }

  /**
   * Ends allocation through this object, and releases the allocate function. Memory that the functions
   * allocated stays allocated, and you can still free it through this object.
   */
  override [Symbol.dispose](): void {
    super[Symbol.dispose]();
    this.#allocate = undefined;
  }

  #assertUsable(stream: Stream, operation: string): void {
    assertStream(stream, operation);
    if (this.memoryKind === 'device') assertStreamOf(stream, this.device, operation);
  }
}
