import { ArgumentTypeError, formatValue } from '../basics/errors.js';
import { assertOptions, optionNames } from '../basics/validation.js';
import { BufferMemory } from '../buffers/buffer-memory.js';
import { assertLabel } from '../buffers/create-memory.js';
import { DeviceBuffer } from '../buffers/device-buffer.js';
import { origin } from '../buffers/origin.js';
import { creationStack } from '../collector/free-unreachable-buffers.js';
import { assertStream, type Stream } from '../driver/streams/stream.js';
import { ImportedMemory } from './imported-memory.js';
import { openImport } from './process-memory.js';

/** A `Buffer` as JSON shows it, and as `process.send` transmits it by default. */
export interface HandleInJson {
  readonly type: 'Buffer';
  readonly data: readonly number[];
}

/** Options of {@link openBuffer}. */
export interface OpenOptions {
  /**
   * The stream that the memory is ordered on in this process. It waits for the work that was queued
   * on the buffer's stream when it was exported.
   */
  readonly stream: Stream;
  /**
   * A human-readable name.
   * @defaultValue none
   */
  readonly label?: string | undefined;
}

const knownOptions = optionNames<OpenOptions>({ label: true, stream: true });

/**
 * A buffer over memory that another process exported with {@link exportBuffer}. Nothing is
 * copied, and both processes may read and write. Its `ptr` differs from that in the other process.
 * When it is disposed or collected, the memory is unmapped after everything queued on its stream has
 * run; if this process ends, the system unmaps it. Until then, the other process keeps the memory.
 * You can open a handle any number of times.
 *
 * The buffer cannot grow; {@link DeviceBuffer.recast} moves it to a resource of this process. It can
 * be neither exported nor handed over to another worker. If the exporting process ends, the contents
 * stay readable on a software device; on CUDA, this is undefined.
 *
 * Stream order: `stream` waits for everything that the other process had queued on the buffer's
 * stream when it called `export`. If that process ends before this has run, the wait ends. Does not
 * block. RMM has no counterpart.
 * @param handle the result of `export`, in any typed array, or in the form that JSON gives a
 * `Buffer`
 * @throws LifetimeError (`ERR_CISTERN_STALE_HANDLE`) if the other process has ended or disposed its
 * buffer; (`ERR_CISTERN_FOREIGN_HANDLE`) for any other bytes, or memory of another kind of device.
 * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) in the process that exported the buffer, or if
 * 64 processes have memory of that process open.
 * @throws UnsupportedError for a handle of another version, or of a process that this one may not
 * access, such as another user's; DeviceUnavailableError if this process does not have the device.
 * @throws ArgumentTypeError, ArgumentRangeError for any other argument, or a stream of another
 * device; LifetimeError for a disposed stream; DriverError if the driver refuses.
 * @example
 * ```ts
 * process.once('message', (handle: Uint8Array) => {
 *   using stream = new Stream();
 *   using buffer = openBuffer(handle, { stream });
 *   buffer.fill(1);
 * });
 * ```
 */
export function openBuffer(handle: Uint8Array | HandleInJson, options: OpenOptions): DeviceBuffer {
  const bytes = bytesOfHandle(handle);
  assertOptions(options, knownOptions);
  const { stream, label } = options;
  assertStream(stream, 'open a buffer');
  assertLabel(label);
  const createdAt = creationStack(openBuffer);
  const imported = openImport(bytes, stream);
  stream.identity.outdateFences();
  const resource = new ImportedMemory(imported);
  const memory = new BufferMemory(resource[origin], resource, stream, imported.alignment, label, createdAt);
  if (imported.bytes === 0) resource.close(stream);
  memory.adopt(imported.pointer, imported.bytes);
  memory.byteLength = imported.byteLength;
  return DeviceBuffer.of(memory);
}

/** @throws ArgumentTypeError unless it contains bytes. */
function bytesOfHandle(handle: unknown): Uint8Array {
  try {
    if (ArrayBuffer.isView(handle)) return new Uint8Array(handle.buffer, handle.byteOffset, handle.byteLength);
    const { type, data } = handle as Partial<HandleInJson>;
    if (type === 'Buffer' && Array.isArray(data)) return Uint8Array.from(data);
  } catch {
    // Nothing at all, an array that was transferred, or elements that are not numbers.
  }
  throw new ArgumentTypeError(`handle must be the bytes that export of a buffer returned, got ${formatValue(handle)}`);
}
