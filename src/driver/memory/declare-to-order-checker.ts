/** What resources tell the order checker of `cistern/checking` about parts of their memory. */
import { alreadyDisposed } from '../../basics/errors.js';
import { assertBytes, assertPointer } from '../../basics/validation.js';
import { native } from '../native.js';
import { isCheckingOrder } from '../order-checks.js';
import { check } from '../status.js';
import type { Stream } from '../streams/stream.js';

/**
 * Tells the order checker that a part of one of the caller's own allocations is now in use on the
 * stream. Call this in a resource that allocates parts of larger blocks: the stream must be ordered
 * after all earlier uses, and after the last {@link declareFree}. Does nothing unless stream order
 * is checked. Memory that was not allocated through cistern, or that the driver does not know, is
 * not watched.
 * @throws ArgumentTypeError, ArgumentRangeError, LifetimeError (only while stream order is checked)
 */
export function declareAllocation(pointer: number, bytes: number, stream: Stream): void {
  if (!isCheckingOrder()) return;
  assertDeclaration(pointer, bytes, stream);
  native().declareAllocation(pointer, bytes, stream.handle);
  check('declare an allocation');
}

/**
 * Tells the order checker that the memory of a {@link declareAllocation} is free again, in the
 * stream's order. All uses must be ordered before this point of the stream, and none may follow.
 * @throws ArgumentTypeError, ArgumentRangeError, LifetimeError (only while stream order is checked)
 */
export function declareFree(pointer: number, bytes: number, stream: Stream): void {
  if (!isCheckingOrder()) return;
  assertDeclaration(pointer, bytes, stream);
  native().declareFree(pointer, bytes, stream.handle);
  check('declare a free');
}

function assertDeclaration(pointer: number, bytes: number, stream: Stream): void {
  assertPointer(pointer);
  assertBytes(bytes);
  if (stream.isDisposed) throw alreadyDisposed('declare memory', `stream ${stream.id}`);
}
