import type { Device } from '../driver/device.js';
import { type Inspect, type InspectionOptions, inspected, inspectObject, refuseCloning } from '../driver/local-object.js';
import type { MemoryKind } from '../driver/plain-memory.js';
import type { Stream } from '../driver/stream.js';
import { ArgumentTypeError, CisternError, formatValue, LifetimeError, OutOfMemoryError } from '../errors.js';
import { alreadyDisposed } from '../lifetime-errors.js';
import {
  type DeallocationEvents,
  type DeallocationEventsOption,
  type DeallocationFence,
  type DevicePointer,
  deallocationEventsOptionNames,
  type MemoryResource,
  type MemoryResourceAdaptor,
} from '../memory-resource.js';
import { deallocationEventsWords } from '../stream-ordering/stream-ordering.js';
import { assertOneOf, assertOptions, type OptionNames } from '../validation.js';
import { layersOf } from './layers.js';
import { type RememberedAllocations, rememberIfTakenBack } from './remember-allocations.js';

/** Getters of the adaptors that only read what was counted. */
const shownCounters = ['liveBytes', 'allocatedBytes', 'askedBytes', 'roundedBytes', 'fallbackBytes'];

/**
 * What the adaptors have in common that keep no memory: they hand each call to their upstream and observe or refuse it.
 *
 * A derived class calls `this.upstream` itself, in its own `allocate` and `deallocate`: a call made here would see every class of upstream
 * there is, and V8 could not inline it.
 */
export abstract class PassThroughAdaptor implements MemoryResourceAdaptor {
  readonly upstream: MemoryResource;
  readonly memoryKind: MemoryKind;
  readonly device: Device;
  /** What is asked of the resources below at each free that comes without a fence; not set, the call passes as it is. */
  readonly deallocationEvents: DeallocationEvents | undefined;
  protected isDisposed = false;
  #remembered: RememberedAllocations | undefined;

  /**
   * @param optionNames the names of all options that the derived class takes: an object with each of them
   * @throws ArgumentTypeError, ArgumentRangeError for an upstream or an option that is none.
   */
  protected constructor(
    upstream: MemoryResource,
    options: DeallocationEventsOption,
    optionNames: OptionNames<DeallocationEventsOption> = deallocationEventsOptionNames,
  ) {
    assertMemoryResource(upstream, 'upstream');
    assertOptions(options, optionNames);
    const { deallocationEvents } = options;
    if (deallocationEvents !== undefined) assertOneOf(deallocationEvents, deallocationEventsWords, 'deallocationEvents');
    this.upstream = upstream;
    this.memoryKind = upstream.memoryKind;
    this.device = upstream.device;
    this.deallocationEvents = deallocationEvents;
    refuseCloning(this);
    this.rememberIfTakenBack(upstream);
  }

  /** @internal What `console.log` shows. */
  [inspected](depth: number, options: InspectionOptions, inspect: Inspect): string {
    return inspectObject(this, this.#shown(), depth, options, inspect);
  }

  abstract allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer;

  abstract deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void;

  /** Whether `other` is this very object: memory freed through another one would be missing in what this one counts or writes. */
  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  /**
   * Ends the use of this object: it allocates no more. What was allocated through it can still be freed through it. The upstream stays as it is;
   * it is its owner's to dispose. Does nothing the second time.
   */
  [Symbol.dispose](): void {
    this.isDisposed = true;
  }

  /** The same as `[Symbol.dispose]()`. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  /** Names, limits and counters: whatever of it is a number or a text, as long as no method must be called for it. */
  #shown(): object {
    const values = Object.entries(this).filter(([, value]) => typeof value === 'number' || typeof value === 'string');
    const counters = shownCounters.map((name) => [name, (this as Readonly<Record<string, unknown>>)[name]]);
    const isDisposed = this.isDisposed ? true : undefined;
    return { device: this.device.index, ...Object.fromEntries([...values, ...counters]), isDisposed, upstream: this.upstream };
  }

  /** @throws LifetimeError (`ERR_CISTERN_DISPOSED`) once this object is disposed. */
  protected assertLive(operation: string): void {
    if (this.isDisposed) {
      throw alreadyDisposed(operation, `the ${this.constructor.name}`);
    }
  }

  /** For whoever takes memory from another resource than its upstream, too: that may take it back. */
  protected rememberIfTakenBack(below: MemoryResource): void {
    if (this.#remembered === undefined) this.#remembered = rememberIfTakenBack(this, below);
    else for (const layer of layersOf(below)) this.#remembered.below.add(layer);
  }

  /** For what is allocated by another method than `allocate`. Returns the pointer. */
  protected remember(pointer: DevicePointer, bytes: number, stream: Stream): DevicePointer {
    if (pointer !== 0) this.#remembered?.live.add(pointer, bytes, stream);
    return pointer;
  }

  /**
   * What to throw on where the upstream threw `error`: an out-of-memory error names this adaptor as well.
   * @param bytes what was asked of this adaptor, where it asks the upstream for more
   */
  protected passOn(error: unknown, bytes?: number): unknown {
    if (!(error instanceof OutOfMemoryError)) return error;
    if (bytes === undefined || bytes === error.requestedBytes) return error.through(this.constructor.name);
    const name = this.constructor.name;
    return outOfMemoryThrough(name, error, bytes, `${error.message}; the ${name} was asked for ${bytes} bytes`, error);
  }
}

/** An out-of-memory error of the upstream as one of the adaptor above it, which has more to say. */
export function outOfMemoryThrough(
  name: string,
  error: OutOfMemoryError,
  requestedBytes: number,
  message: string,
  cause: Error,
): OutOfMemoryError {
  const { availableBytes, limitBytes, stages, path } = error;
  return new OutOfMemoryError(
    message,
    {
      requestedBytes,
      ...(availableBytes === undefined ? {} : { availableBytes }),
      ...(limitBytes === undefined ? {} : { limitBytes }),
      path: [name, ...path],
      stages,
    },
    { cause },
  );
}

/** Whether an allocation threw `error` because there was no memory to be had, not because of how it was called. */
export function isAllocationFailure(error: unknown): boolean {
  if (error instanceof CisternError) return !(error instanceof LifetimeError);
  return !(error instanceof TypeError || error instanceof RangeError);
}

/** @throws ArgumentTypeError for what does not have the methods of a memory resource. */
export function assertMemoryResource(value: unknown, name: string): asserts value is MemoryResource {
  const candidate = value as Partial<MemoryResource> | null | undefined;
  if (typeof candidate?.allocate === 'function' && typeof candidate.deallocate === 'function') return;
  throw new ArgumentTypeError(`${name} must be a MemoryResource, got ${formatValue(value)}`);
}
