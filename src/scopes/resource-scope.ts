/**
 * Scopes, which provide a function, and everything that it calls, with values that are not passed
 * as arguments. A scope covers the function and its asynchronous continuations. It is one frame of
 * an immutable linked list:
 *
 *     innermost                                                outermost
 *     { kind: 'caching', … } -> { kind: 'resource', … } -> { kind: 'resource', … } -> undefined
 *
 * Code looks at the frames of the kinds that it knows and skips the others. There may be many of these: a program that
 * starts each step in the scopes of the one before has as many as it has had steps. So every 16th frame has a table with the
 * innermost frame of each kind. Entering costs one object. Reading costs nothing before the first scope of an environment
 * was entered, and at most 16 steps afterwards.
 *
 * Up to Node 22, the storage keeps the innermost frame at the resource of the execution, which has an id
 * of its own, so that only `enterScope` changes the frame of an id. The storage is then asked once for each id in a row:
 * asking it takes about 15 ns in code that goes on after an await, which is as long as the rest of an allocation.
 */
import { AsyncLocalStorage, executionAsyncId, executionAsyncResource } from 'node:async_hooks';
import { ArgumentTypeError, formatValue } from '../basics/errors.js';
import { assertFunction, isThenable } from '../basics/validation.js';
import { Device } from '../driver/device.js';
import { useScopes } from '../driver/streams/scope-of-host-functions.js';
import { assertMemoryResource, type DevicePointer, type MemoryResource } from '../memory-resource.js';
import type { MemoryOwner } from '../ownership/bulk-frees.js';

/** One scope, and those around it. */
export interface ScopeFrame {
  /** What kind of scope it is. */
  readonly kind: string;
  /** The scope around it. */
  readonly outer: ScopeFrame | undefined;
  /** How many scopes are around it. */
  readonly depth: number;
  /** The innermost of this scope and those around it, by kind; only every 16th frame has it. */
  readonly innermost: ReadonlyMap<string, ScopeFrame> | undefined;
}

/** How a scope is entered: without what follows from the scopes around it. */
export type OwnPartOf<Frame extends ScopeFrame> = Omit<Frame, Exclude<keyof ScopeFrame, 'kind'>>;

const framesPerTable = 16;

interface ResourceFrame extends ScopeFrame {
  readonly kind: 'resource';
  readonly resource: MemoryResource;
}

/** Memory whose owner is notified when the scope that it was allocated in ends. */
export interface ScopedMemory extends MemoryOwner {
  /** The scopes that the owner was created in. */
  readonly home: ScopeFrame | undefined;
  /** The owner outlives every scope. */
  leaveScopes(): void;
}

/** A scope that, at its end, takes back the memory that was allocated in it. */
export interface CachingScope {
  /**
   * Registers the owner of memory that was just allocated. If the owner was not created in this
   * scope, its memory leaves the scope. Returns whether the memory belongs to this scope.
   */
  adopt(pointer: DevicePointer, owner: ScopedMemory): boolean;
}

interface CachingFrame extends ScopeFrame {
  readonly kind: 'caching';
  /** `undefined` outside every caching scope. */
  readonly scope: CachingScope | undefined;
}

const frames = new AsyncLocalStorage<ScopeFrame>();
let wasEntered = false;
/** Whether the frame is kept at the resource of the execution; known once a scope was entered. */
let isKeptByExecution = false;
/** The execution whose frame was read last, and that frame; never 0, which several can have as their id. */
const none = -1;
let lastExecution = none;
let lastFrame: ScopeFrame | undefined;

/** Whether this environment ever had a scope. */
export function hasScopes(): boolean {
  return wasEntered;
}

/** The innermost current scope. */
export function innermostFrame(): ScopeFrame | undefined {
  if (!wasEntered) return undefined;
  return executionAsyncId() === lastExecution ? lastFrame : askStorage();
}

function askStorage(): ScopeFrame | undefined {
  const frame = frames.getStore();
  const execution = executionAsyncId();
  if (!isKeptByExecution || execution === 0) return frame;
  lastExecution = execution;
  lastFrame = frame;
  return frame;
}

function forgetLastFrame(): void {
  lastExecution = none;
  lastFrame = undefined;
}

/** Whether the resource of the execution refers to its frame. */
function findsAtExecution(frame: ScopeFrame): boolean {
  const resource = executionAsyncResource() as Readonly<Record<symbol, unknown>>;
  return Object.getOwnPropertySymbols(resource).some((key) => resource[key] === frame);
}

/**
 * Runs a function in a scope of the given kind, inside the current scopes, and returns its result.
 * @param frame an object that nothing else refers to, because it becomes the frame
 */
export function enterScope<Frame extends { readonly kind: string }, T>(frame: Frame, fn: () => T): T {
  assertFunction(fn, 'fn');
  const inner = within(frames.getStore(), frame);
  forgetLastFrame();
  try {
    return frames.run(inner, () => {
      if (!wasEntered) isKeptByExecution = findsAtExecution(inner);
      wasEntered = true;
      return fn();
    });
  } finally {
    forgetLastFrame();
  }
}

/** Makes an object a frame within another one. Properties that are set take a tenth of the time of a copy with more of them. */
function within(outer: ScopeFrame | undefined, own: { readonly kind: string }): ScopeFrame {
  const frame = own as { -readonly [Key in keyof ScopeFrame]: ScopeFrame[Key] };
  frame.outer = outer;
  frame.depth = outer === undefined ? 0 : outer.depth + 1;
  frame.innermost = undefined;
  if (frame.depth % framesPerTable === framesPerTable - 1) frame.innermost = innermostOfAll(frame);
  return frame;
}

function innermostOfAll(frame: ScopeFrame): Map<string, ScopeFrame> {
  const found = new Map<string, ScopeFrame>();
  for (let each: ScopeFrame | undefined = frame; each !== undefined; each = each.outer) {
    if (!found.has(each.kind)) found.set(each.kind, each);
    if (each.innermost === undefined) continue;
    for (const [kind, other] of each.innermost) if (!found.has(kind)) found.set(kind, other);
    break;
  }
  return found;
}

/** The innermost scope of a kind among a frame and those around it. */
export function innermostOf<Frame extends ScopeFrame>(kind: Frame['kind'], frame: ScopeFrame | undefined): Frame | undefined {
  let each = frame;
  while (each !== undefined && each.kind !== kind) each = each.innermost === undefined ? each.outer : each.innermost.get(kind);
  return each as Frame | undefined;
}

/** The next scope of the same kind around a frame. */
export function nextAround<Frame extends ScopeFrame>(frame: Frame): Frame | undefined {
  return innermostOf<Frame>(frame.kind, frame.outer);
}

/** Runs a function in the scopes of a frame, wherever it is called, and returns its result. */
export function runInFrame<T>(frame: ScopeFrame | undefined, fn: () => T): T {
  if (innermostFrame() === frame) return fn();
  forgetLastFrame();
  try {
    return frames.run(frame as ScopeFrame, fn);
  } finally {
    forgetLastFrame();
  }
}

useScopes({ current: innermostFrame, run: (frame, fn) => runInFrame(frame as ScopeFrame | undefined, fn) });

/**
 * Calls a function, and `end` when it has returned or thrown; for an asynchronous function, when its promise
 * has settled, before the promise returned here does. An error of `end` replaces the outcome.
 */
export function untilSettled<T>(fn: () => T, end: (hasFailed: boolean) => void): T {
  let result: T;
  let goesOn: boolean;
  try {
    result = fn();
    // Reads a property of the result, which may be a getter that throws.
    goesOn = isThenable(result);
  } catch (error) {
    end(true);
    throw error;
  }
  if (goesOn) return onceSettled(result as PromiseLike<unknown>, end) as T;
  end(false);
  return result;
}

async function onceSettled<T>(promise: PromiseLike<T>, end: (hasFailed: boolean) => void): Promise<T> {
  let result: T;
  try {
    result = await promise;
  } catch (error) {
    end(true);
    throw error;
  }
  end(false);
  return result;
}

/** The resource of the innermost `withResource` for a device, or `undefined` outside one. */
export function scopedResource(device: Device): MemoryResource | undefined {
  let frame = innermostOf<ResourceFrame>('resource', innermostFrame());
  while (frame !== undefined && frame.resource.device !== device) frame = nextAround(frame);
  return frame?.resource;
}

/**
 * Runs a function with a resource as the current one of its device: buffers created in it without a
 * `resource` use this one. This includes everything that the function calls, and its asynchronous
 * continuations: awaited promises, timers, Node's callbacks. Nothing changes outside the function,
 * and for other devices. Of nested scopes for a device, the innermost takes precedence.
 *
 * The resource is not disposed at the end: buffers created in the scope may outlive it, and free
 * their memory there. A callback that other code calls, such as a listener, runs in the caller's scope, not in the one in which
 * you registered it; a host function of a stream runs in the scopes in which it was launched.
 *
 * RMM has no scopes; `rmm::mr::set_current_device_resource_ref` before and after a block of code
 * comes close, but only for synchronous code.
 * @param fn a function, asynchronous or not
 * @returns what `fn` returns; for an asynchronous function its promise
 * @throws ArgumentTypeError if `resource` is not a resource or `fn` is not a function; any error
 * that `fn` throws.
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

/** @throws ArgumentTypeError if it has no device, because it would then never be found. */
export function assertResourceOfDevice(resource: MemoryResource | null | undefined): void {
  assertMemoryResource(resource, 'resource');
  if (resource.device instanceof Device) return;
  throw new ArgumentTypeError(`resource must be a MemoryResource, got ${formatValue(resource)}`);
}

/** Runs a function in a caching scope, inside the current scopes, and returns its result. */
export function enterCachingScope<T>(scope: CachingScope, fn: () => T): T {
  return enterScope({ kind: 'caching', scope }, fn);
}

/** The innermost caching scope among a frame and those around it that `isWanted` accepts. */
export function findCachingScope(frame: ScopeFrame | undefined, isWanted: (scope: CachingScope) => boolean): CachingScope | undefined {
  let each = innermostOf<CachingFrame>('caching', frame);
  while (each?.scope !== undefined && !isWanted(each.scope)) each = nextAround(each);
  return each?.scope;
}

/**
 * Notifies the scope that memory was allocated in of its owner.
 * @param frame the innermost scope at the allocation; the current one if it was just allocated
 */
export function adoptInScope(pointer: DevicePointer, owner: ScopedMemory, frame: ScopeFrame | undefined = innermostFrame()): void {
  if (frame !== undefined) findCachingScope(frame, (scope) => scope.adopt(pointer, owner));
}

/**
 * Runs a function outside every caching scope: its allocations come from the resource below the
 * caches, and only you free them. This includes the function's asynchronous continuations. Inside,
 * you can enter a new scope as usual.
 *
 * Counterpart of GPUArrays' `@uncached`.
 * @param fn a function, asynchronous or not
 * @returns what `fn` returns; for an asynchronous function its promise
 * @throws ArgumentTypeError if `fn` is not a function, and whatever `fn` throws.
 * @example
 * ```ts
 * using cache = new CachingMemoryResource(resource);
 * using stream = new Stream();
 * const weights = cache.run(() => uncached(() => new DeviceBuffer(1 * MiB, { stream }))); // outlives the scope
 * weights.dispose();
 * ```
 */
export function uncached<T>(fn: () => T): T {
  return enterScope({ kind: 'caching', scope: undefined }, fn);
}

/**
 * Calls a function outside every caching scope, or directly if there is none. For memory that a
 * pooling resource returns in its own time.
 */
export function withoutCaching<T>(fn: () => T): T {
  return innermostFrame() === undefined ? fn() : uncached(fn);
}
