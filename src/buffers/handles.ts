/** The handles of exported buffers, and what both sides of an export need besides. */
import { setTimeout as sleep } from 'node:timers/promises';
import { ArgumentTypeError, formatValue } from '../basics/errors.js';
import { optionNames } from '../basics/validation.js';
import { noticeEndedImporters } from '../driver/memory/process-memory.js';
import type { Stream } from '../driver/streams/stream.js';
import type { MemoryResource } from '../memory-resource.js';
import type { ProcessExport } from './process-export.js';

/** A `Buffer` as JSON shows it, and as `process.send` transmits it by default. */
export interface HandleInJson {
  readonly type: 'Buffer';
  readonly data: readonly number[];
}

/** Options of {@link DeviceBuffer.open}. */
export interface OpenOptions {
  /**
   * The stream that the memory is ordered on in this process. It waits for what was queued on the
   * buffer's stream when it was exported.
   */
  readonly stream: Stream;
  /**
   * A name for people.
   * @defaultValue none
   */
  readonly label?: string;
}

/** @internal */
export const openOptionNames = optionNames<OpenOptions>({ label: true, stream: true });

/** @throws ArgumentTypeError for anything but bytes. */
export function bytesOfHandle(handle: unknown): Uint8Array {
  try {
    if (ArrayBuffer.isView(handle)) return new Uint8Array(handle.buffer, handle.byteOffset, handle.byteLength);
    const { type, data } = (typeof handle === 'object' && handle !== null ? handle : {}) as Partial<HandleInJson>;
    if (type === 'Buffer' && Array.isArray(data)) return Uint8Array.from(data);
  } catch {
    // An array that was transferred, or elements that are not numbers.
  }
  throw new ArgumentTypeError(`handle must be the bytes that export of a buffer returned, got ${formatValue(handle)}`);
}

/** The resource at the bottom of a stack. */
export function leafOf(resource: MemoryResource): MemoryResource {
  let leaf = resource;
  while ('upstream' in leaf && typeof leaf.upstream === 'object' && leaf.upstream !== null) leaf = leaf.upstream as MemoryResource;
  return leaf;
}

const longestDelay = 16;

/** Resolves once no other process uses exported memory. Keeps this process alive. */
export async function untilUnused(processExport: ProcessExport): Promise<void> {
  noticeEndedImporters();
  for (let delay = 1; processExport.isUsed; delay = Math.min(2 * delay, longestDelay)) {
    await sleep(delay);
    noticeEndedImporters();
  }
}
