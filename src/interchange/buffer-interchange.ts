/** Lets other libraries of the process use the memory of a buffer. */
import type { CudaArrayInterface, CudaArrayInterfaceOptions } from './cuda-array-interface.js';
import type { DLPackCapsule, DLPackOptions } from './dlpack.js';

/** How a {@link DeviceBuffer} describes its memory to other libraries. */
export interface BufferInterchange {
  /**
   * Describes an array in this buffer in the form of `__cuda_array_interface__`, version 3. The
   * description owns nothing: do not dispose or move the buffer until the user of the array is
   * done. That user waits for the `stream` in the description, which is the buffer's, before it
   * uses the memory; and you must make the buffer's stream wait for it before you write, resize or
   * dispose the buffer. Does nothing on the device.
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
   * Passes an array in this buffer to another library, as a DLPack capsule. Nothing is copied, and the
   * buffer stays usable: its memory is freed once the buffer no longer has it and the consumer has
   * called the deleter. The consumer may do that on any thread; this environment learns of it from its
   * event loop. If the capsule is never consumed, the garbage collector calls the deleter. If this
   * environment ends first, the memory is still freed only after the deleter's call. Before that, do
   * not dispose or rewind the resource, or end the run of a cache; the memory of an attached buffer is
   * returned when this worker ends. A shared buffer can only be exported with `readOnly`. An exported
   * buffer can be neither released nor handed over to another worker.
   *
   * Stream order: the consumer's stream waits for the work queued on the buffer's. When the deleter
   * is called, the buffer's stream waits for the work queued on the consumer's, so the memory is
   * freed in stream order. Does not block, except for host memory without a `stream`.
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
