/**
 * The one place that lets other code observe the calls of a resource: to remember allocations so that
 * they can be taken back, to record them for `CISTERN_LOG_FILE`, and to count them for the watch page.
 *
 *     program ── allocate ──► the latest interceptor ──► … ──► the first ──► the method of the class
 *
 * A resource gets its interceptors while it is constructed, from its own class (`intercept`) or from
 * whoever asked to see every resource (`interceptConstruction`). It then has an `allocate` and a
 * `deallocate` of its own, which hide those of its class; a resource without interceptors has not, so
 * its calls take not one step more. The functions that go on are made once, not at each call.
 */

import type { Stream } from '../driver/streams/stream.js';
import { type MemoryResource, registerResource } from '../memory-resource.js';

/** Observes the calls of one resource, or answers them itself. */
export interface Interceptor {
  /** @param next goes on: the interceptor behind this one, or the resource itself */
  allocate(next: MemoryResource['allocate'], ...call: Parameters<MemoryResource['allocate']>): ReturnType<MemoryResource['allocate']>;
  /** @param next goes on: the interceptor behind this one, or the resource itself */
  deallocate(next: MemoryResource['deallocate'], ...call: Parameters<MemoryResource['deallocate']>): void;
  /** The resource was disposed. */
  disposed?(): void;
}

/** Chooses an interceptor for a resource that is being constructed. */
type InterceptorChoice = (resource: MemoryResource) => Interceptor | undefined;

/** The callbacks that see every resource. */
let choices: InterceptorChoice[] = [];

/** The resource whose constructor takes memory from those below it, if one does. */
let taker: MemoryResource | undefined;

/** Puts an interceptor in front of those that a resource has. */
export function intercept(resource: MemoryResource, interceptor: Interceptor): void {
  const allocate = resource.allocate.bind(resource);
  const deallocate = resource.deallocate.bind(resource);
  resource.allocate = (bytes, stream, alignment) => interceptor.allocate(allocate, bytes, stream, alignment);
  resource.deallocate = (pointer, bytes, stream, fence) => interceptor.deallocate(deallocate, pointer, bytes, stream, fence);
  if (interceptor.disposed === undefined) return;
  const dispose = resource[Symbol.dispose].bind(resource);
  resource[Symbol.dispose] = () => {
    dispose();
    interceptor.disposed?.();
  };
}

/** Whether the calls of a resource are observed, so that each must be made separately. */
export function isIntercepted(resource: MemoryResource): boolean {
  return Object.hasOwn(resource, 'allocate');
}

/** Allocates for each size, so that observers see every call: all, or none. */
export function allocateEach(resource: MemoryResource, sizes: Float64Array, stream: Stream, pointers: Float64Array): void {
  let done = 0;
  try {
    for (; done < sizes.length; done++) pointers[done] = resource.allocate(sizes[done] as number, stream);
  } catch (error) {
    deallocateEach(resource, pointers.subarray(0, done), sizes, stream);
    throw error;
  }
}

/** Frees each, so that observers see every call. */
export function deallocateEach(resource: MemoryResource, pointers: Float64Array, sizes: Float64Array, stream: Stream): void {
  for (let i = 0; i < pointers.length; i++) resource.deallocate(pointers[i] as number, sizes[i] as number, stream);
}

/** Offers an interceptor to every resource of cistern's own classes that is constructed from now on. */
export function interceptConstruction(choose: InterceptorChoice): void {
  choices.push(choose);
}

/**
 * Constructs a resource that the program does not know about.
 * @param choose the only callback that may choose an interceptor
 */
export function constructUnseen<T>(construct: () => T, choose: InterceptorChoice): T {
  const previous = choices;
  choices = [choose];
  try {
    return construct();
  } finally {
    choices = previous;
  }
}

/** A base class calls this in its constructor, as soon as `device` and `upstream` are set. */
export function announceConstruction(resource: MemoryResource): void {
  registerResource(resource);
  for (const choose of choices) {
    const interceptor = choose(resource);
    if (interceptor !== undefined) intercept(resource, interceptor);
  }
}

/**
 * Runs the part of a resource's constructor that takes memory from the resources below: those calls
 * are the resource's, not the program's.
 */
export function takingInitialMemory<T>(resource: MemoryResource, take: () => T): T {
  const outer = taker;
  taker = resource;
  try {
    return take();
  } finally {
    taker = outer;
  }
}

/** The resource whose constructor takes memory from those below it, if one does. */
export function initialTaker(): MemoryResource | undefined {
  return taker;
}
