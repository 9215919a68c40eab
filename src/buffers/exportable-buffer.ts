import { ArgumentTypeError, formatValue } from '../basics/errors.js';
import { type BufferMemory, memoryOf } from './buffer-memory.js';
import type { DeviceMemory } from './transfers/buffer-contents.js';

/** A buffer whose memory other libraries and processes can use: a {@link DeviceBuffer}, or a pin of a `SpillableBuffer`. */
export interface ExportableBuffer extends DeviceMemory {
  /** @internal Throws if the memory cannot be used. */
  readonly [memoryOf]: BufferMemory;
}

/** @throws ArgumentTypeError if it is no buffer */
export function exportableMemory(buffer: ExportableBuffer): BufferMemory {
  if (typeof buffer === 'object' && buffer !== null && memoryOf in buffer) return buffer[memoryOf];
  throw new ArgumentTypeError(`buffer must be a DeviceBuffer or a pin of a SpillableBuffer, got ${formatValue(buffer)}`);
}
