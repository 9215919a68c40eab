/**
 * Checks the results of a resource for the one above it. Any object with the methods of a resource
 * can be in a stack, so code that calls `allocate` of a resource that it was given checks every
 * result.
 *
 *     foreign code ── allocate ──► adaptor, keeper or buffer
 *                              ▲
 *                              └── servedPointer: an address that can be memory of the request, or a FaultyResourceError
 *
 * An address that is an allocation, but of no use to the caller, is freed again: one that is not
 * aligned, and one that an asynchronous `allocate` promised. An address that overlaps memory of the
 * caller is not, because the resource would free memory in use.
 */

import { FaultyResourceError, formatPointer, formatValue, reasonOf } from '../basics/errors.js';
import { ALLOCATION_ALIGNMENT, alignUp } from '../basics/units.js';
import { isThenable } from '../basics/validation.js';
import type { Stream } from '../driver/streams/stream.js';
import type { DevicePointer, MemoryResource } from '../memory-resource.js';
import type { Segment } from '../suballocation/blocks.js';
import { usableStream } from './bulk-frees.js';

/**
 * Returns the result of a resource's `allocate`, if it can be the address of the memory.
 * @param alignment the one that was requested, if the caller relies on more than 256
 * @throws FaultyResourceError
 */
export function servedPointer(
  pointer: DevicePointer,
  by: MemoryResource,
  bytes: number,
  stream: Stream,
  alignment: number = ALLOCATION_ALIGNMENT,
): DevicePointer {
  // The remainder of a double is slow. Short, so that it is inlined everywhere.
  return typeof pointer === 'number' &&
    pointer > 0 &&
    pointer <= Number.MAX_SAFE_INTEGER - bytes &&
    alignUp(pointer, ALLOCATION_ALIGNMENT) === pointer &&
    (alignment <= ALLOCATION_ALIGNMENT || pointer % alignment === 0)
    ? pointer
    : unusualAnswer(pointer, by, bytes, stream, alignment);
}

/** The error for memory that overlaps what the caller already has of the resource. */
export function servedTwice(pointer: DevicePointer, by: MemoryResource, bytes: number, held: Segment): FaultyResourceError {
  return faulty(
    by,
    pointer,
    bytes,
    `which overlaps ${held.bytes} bytes at ${formatPointer(held.address)} that it allocated before and that are not freed`,
  );
}

/**
 * Lets a resource free in its own time, if its `deallocate` returned a promise: an error that comes
 * too late for the caller becomes a process warning.
 */
export function noteFree(result: unknown, by: MemoryResource): void {
  if (result !== undefined && isThenable(result)) warnOfRejection(result, by);
}

/** Whether a value is the address of so many bytes, none of them beyond 2^53 - 1. */
function isAddress(value: unknown, bytes: number): value is number {
  // Number.isInteger makes this many times slower (Node 20).
  return typeof value === 'number' && value > 0 && value <= Number.MAX_SAFE_INTEGER - bytes && Math.floor(value) === value;
}

/** The null pointer for zero bytes; everything else is wrong. */
function unusualAnswer(answer: unknown, by: MemoryResource, bytes: number, stream: Stream, alignment: number): DevicePointer {
  if (answer === 0 && bytes === 0) return 0;
  if (answer === 0) throw faulty(by, answer, bytes, 'the null pointer; it must throw an OutOfMemoryError if it has no memory');
  if (isThenable(answer)) {
    giveBackPromised(answer, by, bytes, stream);
    throw faulty(by, answer, bytes, 'but allocate must return the address itself: it must be synchronous');
  }
  if (!isAddress(answer, bytes)) throw faulty(by, answer, bytes, 'which cannot be the address of that many bytes');
  const multiple = Math.max(alignment, ALLOCATION_ALIGNMENT);
  const refusal = giveBack(answer, by, bytes, stream);
  const rest = refusal === undefined ? 'it was freed again' : 'it could not be freed again';
  throw faulty(by, answer, bytes, `which is not a multiple of ${multiple}; ${rest}`, refusal);
}

function faulty(by: MemoryResource, answer: unknown, bytes: number, fault: string, cause?: unknown): FaultyResourceError {
  const shown = typeof answer === 'number' ? formatPointer(answer) : formatValue(answer);
  const options = cause === undefined ? {} : { cause };
  return new FaultyResourceError(nameOf(by), answer, `returned ${shown} for ${bytes} bytes, ${fault}`, options);
}

function nameOf(resource: MemoryResource): string {
  return resource.constructor?.name || 'resource';
}

/** Frees memory that is of no use to the caller. Returns the error if the resource refuses. */
export function giveBack(pointer: DevicePointer, to: MemoryResource, bytes: number, stream: Stream): unknown {
  try {
    noteFree(to.deallocate(pointer, bytes, usableStream(stream)), to);
    return undefined;
  } catch (error) {
    return error ?? new Error('the resource threw nothing');
  }
}

function giveBackPromised(promise: PromiseLike<unknown>, to: MemoryResource, bytes: number, stream: Stream): void {
  promise.then(
    (pointer) => {
      if (isAddress(pointer, bytes)) giveBack(pointer, to, bytes, stream);
    },
    () => {},
  );
}

function warnOfRejection(promise: PromiseLike<unknown>, by: MemoryResource): void {
  promise.then(undefined, (error: unknown) => {
    const reason = reasonOf(error);
    process.emitWarning(`the ${nameOf(by)} promised to free memory, but did not: ${reason}; deallocate must be synchronous`, {
      code: 'CISTERN_FAULTY_RESOURCE',
    });
  });
}
