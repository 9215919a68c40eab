/**
 * Scopes: what code that is called, now or later, finds without being handed it. A scope holds for a function and for everything that
 * continues it asynchronously, and is one frame of a linked list that is never changed:
 *
 *     innermost                                                outermost
 *     { kind: 'caching', … } -> { kind: 'resource', … } -> { kind: 'resource', … } -> undefined
 *
 * A frame concerns whoever knows its kind; everybody else passes it by. Entering costs one object; reading costs nothing before the first
 * scope of an environment was entered, and a step for each frame since.
 */
import { AsyncLocalStorage } from 'node:async_hooks';
import type { MemoryOwner } from './bulk-frees.js';
import { Device } from './driver/device.js';
import { ArgumentTypeError, formatValue } from './errors.js';
import type { DevicePointer, MemoryResource } from './memory-resource.js';
import { assertFunction } from './validation.js';

/** One scope, and those around it. */
export interface ScopeFrame {
  /** Whom it concerns. */
  readonly kind: string;
  /** The scope around it. */
  readonly outer: ScopeFrame | undefined;
}

interface ResourceFrame extends ScopeFrame {
  readonly kind: 'resource';
  readonly resource: MemoryResource;
}

/** Memory whose owner is told when the scope ends that it was allocated in. */
export interface ScopedMemory extends MemoryOwner {
  /** The scopes that the owner was made in. */
  readonly home: ScopeFrame | undefined;
  /** The owner outlives every scope. */
  leaveScopes(): void;
}

/** A scope that takes back, when it ends, what was allocated in it. */
export interface CachingScope {
  /**
   * Gives memory that was just allocated an owner. Memory of an owner that was not made in this scope leaves it. Returns whether the memory is
   * this scope's.
   */
  adopt(pointer: DevicePointer, owner: ScopedMemory): boolean;
}

interface CachingFrame extends ScopeFrame {
  readonly kind: 'caching';
  readonly scope: CachingScope;
}

const frames = new AsyncLocalStorage<ScopeFrame>();
let wasEntered = false;

/** The innermost scope that runs now. */
export function innermostFrame(): ScopeFrame | undefined {
  return wasEntered ? frames.getStore() : undefined;
}

/** Runs a function in a scope of the given kind, inside the scopes that run now, and returns what it returns. */
export function enterScope<Frame extends { readonly kind: string }, T>(frame: Frame, fn: () => T): T {
  assertFunction(fn, 'fn');
  wasEntered = true;
  return frames.run({ ...frame, outer: frames.getStore() }, fn);
}

/** Whether what the function of a scope returned goes on asynchronously. */
export function isThenable(value: unknown): value is PromiseLike<unknown> {
  return typeof (value as PromiseLike<unknown> | null | undefined)?.then === 'function';
}

/** The resource of the innermost `withResource` for a device, or `undefined` outside of one. */
export function scopedResource(device: Device): MemoryResource | undefined {
  for (let frame = innermostFrame(); frame !== undefined; frame = frame.outer) {
    if (isResourceFrame(frame) && frame.resource.device === device) return frame.resource;
  }
  return undefined;
}

function isResourceFrame(frame: ScopeFrame): frame is ResourceFrame {
  return frame.kind === 'resource';
}

/**
 * Runs a function with a resource as the current one of its device: buffers that are made in it without a `resource` take their memory
 * there. It holds for everything that the function calls, and for what it continues asynchronously: awaited promises, timers, callbacks of
 * Node's. Outside, and for other devices, everything is as before, whatever way the function ends. Of nested scopes for a device the
 * innermost wins.
 *
 * The resource is not disposed at the end: buffers made in the scope may outlive it, and free their memory there. A callback that others
 * call, such as a listener or a host function of a stream, runs in the caller's scope, not in the one that it was registered in.
 *
 * RMM has no scopes; `rmm::mr::set_current_device_resource_ref` before and after a block of code comes close, without asynchronous code.
 * @param fn a function, asynchronous or not
 * @returns what `fn` returns; for an asynchronous function its promise
 * @throws ArgumentTypeError for what is no resource or no function, and whatever `fn` throws.
 * @example
 * ```ts
 * using pool = new PoolMemoryResource(resource);
 * using stream = new Stream();
 * const total = await withResource(pool, async () => {
 *   using buffer = new DeviceBuffer(Float32Array.of(1, 2, 3), { stream });
 *   return (await buffer.toHost()).byteLength;
 * });
 * ```
 */
export function withResource<T>(resource: MemoryResource, fn: () => T): T {
  assertResourceOfDevice(resource);
  return enterScope({ kind: 'resource', resource }, fn);
}

/** @throws ArgumentTypeError for what has no device, without which nobody would find it. */
export function assertResourceOfDevice(resource: MemoryResource | null | undefined): void {
  if (resource?.device instanceof Device) return;
  throw new ArgumentTypeError(`resource must be a MemoryResource, got ${formatValue(resource)}`);
}

/** Runs a function in a caching scope, inside the scopes that run now, and returns what it returns. */
export function enterCachingScope<T>(scope: CachingScope, fn: () => T): T {
  return enterScope({ kind: 'caching', scope }, fn);
}

/** The innermost caching scope of a frame and those around it that is as it is wanted. */
export function findCachingScope(frame: ScopeFrame | undefined, isWanted: (scope: CachingScope) => boolean): CachingScope | undefined {
  for (let each = frame; each !== undefined && each.kind !== 'uncached'; each = each.outer) {
    if (isCachingFrame(each) && isWanted(each.scope)) return each.scope;
  }
  return undefined;
}

/** Tells the scope that memory was just allocated in who owns it. */
export function adoptInScope(pointer: DevicePointer, owner: ScopedMemory): void {
  findCachingScope(innermostFrame(), (scope) => scope.adopt(pointer, owner));
}

function isCachingFrame(frame: ScopeFrame): frame is CachingFrame {
  return frame.kind === 'caching';
}

/**
 * Runs a function outside of every caching scope: what it allocates comes from the resource below the caches, and is freed by nobody but the
 * caller. Holds for what the function continues asynchronously, too. Inside, a new scope can be entered as usual.
 *
 * Counterpart of GPUArrays' `@uncached`.
 * @param fn a function, asynchronous or not
 * @returns what `fn` returns; for an asynchronous function its promise
 * @throws ArgumentTypeError for what is no function, and whatever `fn` throws.
 * @example
 * ```ts
 * using cache = new CachingMemoryResource(resource);
 * using stream = new Stream();
 * const weights = cache.run(() => uncached(() => new DeviceBuffer(1 * MiB, { stream }))); // outlives the scope
 * weights.dispose();
 * ```
 */
export function uncached<T>(fn: () => T): T {
  return enterScope({ kind: 'uncached' }, fn);
}

/** Calls a function outside of every caching scope, as it is where there is none. For memory that its pooling resource gives back in its own time. */
export function withoutCaching<T>(fn: () => T): T {
  return innermostFrame() === undefined ? fn() : uncached(fn);
}
