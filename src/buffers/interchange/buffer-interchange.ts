/** How other libraries of the process use the memory of a buffer. */
import type { CudaArrayInterface, CudaArrayInterfaceOptions } from './cuda-array-interface.js';
import type { DLPackCapsule, DLPackOptions } from './dlpack.js';

/** How a {@link DeviceBuffer} describes its memory to other libraries. */
export interface BufferInterchange {
  /**
   * Describes an array in this buffer in the form of `__cuda_array_interface__`, version 3. The
   * description owns nothing: the buffer must stay as it is, undisposed and at its address, until
   * whoever uses the array is done. They wait for the `stream` in the description, which is the
   * buffer's, before they use the memory; and the buffer's stream must wait for them before the
   * buffer is written, resized or disposed. Does nothing on the device.
   *
   * RMM has no counterpart in C++; its `DeviceBuffer` in Python has the attribute.
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid shape, type or stride, or an array
   * outside the buffer.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the buffer or its stream is disposed;
   * CisternError (`ERR_CISTERN_INVALID_STATE`) if `readOnly` is false and the buffer is shared.
   * @example
   * ```ts
   * const { data, stream } = buffer.toCudaArrayInterface({ shape: [2, 3], typestr: '<f4' });
   * ```
   */
  toCudaArrayInterface(options: CudaArrayInterfaceOptions): CudaArrayInterface;

  /**
   * Gives an array in this buffer to another library, as a DLPack capsule. Nothing is copied, and
   * the buffer stays usable: its memory is freed once the buffer has given it up and the consumer
   * has called the deleter. The consumer may call that on any thread; this environment learns of it
   * from its event loop. If nobody consumes the capsule, the garbage collector calls the deleter. If
   * this environment ends first, the memory is freed after the deleter's call all the same. The
   * resource must not be disposed, rewound or, for a cache, end its run before that; and the memory of
   * an attached buffer goes home when this worker ends. A shared buffer can only be exported with
   * `readOnly`. An exported buffer can be neither released nor handed to another worker.
   *
   * Stream order: the consumer's stream waits for what is queued on the buffer's. When the deleter
   * is called, the buffer's stream waits for what is queued on the consumer's, so the memory is freed
   * in stream order. Does not block, except for host memory without a `stream`.
   *
   * RMM has no counterpart.
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid shape, type, stride or stream, or an
   * array outside the buffer; UnsupportedError for elements that are not whole bytes.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the buffer or a stream is disposed; DriverError
   * if the driver refuses.
   * @example
   * ```ts
   * const capsule = buffer.toDLPack({ shape: [2, 3], dtype: 'float32', stream: consumer });
   * ```
   */
  toDLPack(options: DLPackOptions): DLPackCapsule;
}
