/**
 * Reports an allocation that failed for lack of memory, at the moment when the program is about to see the error. Code
 * that tries again, or first recovers memory, makes an attempt around its inner attempts.
 *
 *     program ──► buffer: tries, collects garbage, tries again ──► resource ──► resource below
 *                 └ the outermost attempt tells, if all of it failed
 */
import { OutOfMemoryError } from '../basics/errors.js';
import type { MemoryResource } from '../memory-resource.js';
import { interceptConstruction } from './interceptor.js';

type FailureObserver = (error: OutOfMemoryError, resource: MemoryResource) => void;

let observer: FailureObserver | undefined;
let depth = 0;

/** Whether there is an observer; if not, no code needs to call `attempt`. */
export function areFailuresObserved(): boolean {
  return observer !== undefined;
}

/** Reports the failures of every resource of cistern's own classes that is constructed from now on, and of buffers. */
export function observeFailures(tell: FailureObserver): void {
  observer = tell;
  interceptConstruction((resource) => ({
    allocate: (next, ...call) => attempt(resource, () => next(...call)),
    deallocate: (next, ...call) => next(...call),
  }));
}

/** Runs an attempt to allocate. */
export function attempt<T>(resource: MemoryResource, allocate: () => T): T {
  depth++;
  try {
    return allocate();
  } catch (error) {
    if (depth === 1 && error instanceof OutOfMemoryError) observer?.(error, resource);
    throw error;
  } finally {
    depth--;
  }
}
