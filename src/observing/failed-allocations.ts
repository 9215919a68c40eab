/**
 * Reports an allocation that failed for lack of memory, at the moment when the program is about to see the error. Code
 * that tries again, or first recovers memory, makes an attempt around its inner attempts.
 *
 *     program ──► buffer: tries, collects garbage, tries again ──► resource ──► resource below
 *                 └ the outermost attempt tells, if all of it failed
 *
 * Code whose tries are calls of their own, since it waits between them or answers in another way, makes them tentatively, and
 * passes the error through `seen` if it throws it in the end.
 *
 *     program ──► pin, retry: tentatively( attempt ) … waits … tentatively( attempt ) … gives up ──► throw seen( error )
 */
import { OutOfMemoryError } from '../basics/errors.js';
import type { MemoryResource } from '../memory-resource.js';
import { enterScope, innermostFrame, innermostOf, nextAround, type OwnPartOf, type ScopeFrame } from '../scopes/resource-scope.js';
import { interceptConstruction } from './interceptor.js';

type FailureObserver = (error: OutOfMemoryError, resource: MemoryResource) => void;

let observer: FailureObserver | undefined;
let depth = 0;
/** How many calls are being made tentatively. */
let tentative = 0;
/** What failed tentatively, and where. */
const unseen = new WeakMap<Error, MemoryResource>();

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
    if (depth === 1 && error instanceof OutOfMemoryError) failed(error, resource);
    throw error;
  } finally {
    depth--;
  }
}

/** Runs a call whose failure the program need not see: the caller tries again, or passes its error through {@link seen}. */
export function tentatively<T>(call: () => T): T {
  tentative++;
  try {
    return call();
  } finally {
    tentative--;
  }
}

/** The error, which is thrown to the program after tentative calls. @param resource where it counts as failed, if it has not failed in one */
export function seen<E>(error: E, resource?: MemoryResource): E {
  if (observer === undefined || depth > 0 || !(error instanceof OutOfMemoryError)) return error;
  const where = unseen.get(error) ?? resource;
  if (where !== undefined) failed(error, where);
  return error;
}

interface TentativeFrame extends ScopeFrame {
  readonly kind: 'tentative';
  readonly tries: TentativeScope;
}

/** Makes tentative what functions do, also later, while they are awaited. */
export class TentativeScope {
  isOver = false;

  run<T>(fn: () => T): T {
    return observer === undefined ? fn() : enterScope<OwnPartOf<TentativeFrame>, T>({ kind: 'tentative', tries: this }, fn);
  }

  /** What still runs fails for the program from now on. */
  end(): void {
    this.isOver = true;
  }
}

function failed(error: OutOfMemoryError, resource: MemoryResource): void {
  if (tentative > 0 || isInTentativeScope()) unseen.set(error, resource);
  else observer?.(error, resource);
}

function isInTentativeScope(): boolean {
  let frame = innermostOf<TentativeFrame>('tentative', innermostFrame());
  while (frame?.tries.isOver) frame = nextAround(frame);
  return frame !== undefined;
}
