import { ArgumentTypeError, formatValue } from '../basics/errors.js';
import { assertOptions, optionNames } from '../basics/validation.js';
import { BufferMemory } from '../buffers/buffer-memory.js';
import { assertLabel } from '../buffers/create-memory.js';
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

/** Options of {@link DeviceBuffer.open}. */
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
  readonly label?: string;
}

const knownOptions = optionNames<OpenOptions>({ label: true, stream: true });

/**
 * Opens a buffer that another process has exported. @param creator the function that the program
 * called
 */
export function openedMemory(
  handle: Uint8Array | HandleInJson,
  options: OpenOptions,
  creator: (...args: never[]) => unknown,
): BufferMemory {
  const bytes = bytesOfHandle(handle);
  assertOptions(options, knownOptions);
  const { stream, label } = options;
  assertStream(stream, 'open a buffer');
  assertLabel(label);
  const createdAt = creationStack(creator);
  const imported = openImport(bytes, stream);
  stream.identity.outdateFences();
  const resource = new ImportedMemory(imported);
  const memory = new BufferMemory(resource[origin], resource, stream, imported.alignment, label, createdAt);
  if (imported.bytes === 0) resource.close(stream);
  memory.adopt(imported.pointer, imported.bytes);
  memory.byteLength = imported.byteLength;
  return memory;
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
