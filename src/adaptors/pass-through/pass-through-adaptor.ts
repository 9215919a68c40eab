import { alreadyDisposed, CisternError, LifetimeError, OutOfMemoryError } from '../../basics/errors.js';
import { assertOneOf, assertOptions, type OptionNames } from '../../basics/validation.js';
import type { Device, MemoryKind } from '../../driver/device.js';
import { assertStream, type Stream } from '../../driver/streams/stream.js';
import { type Inspection, inspected, inspectObject, refuseCloning } from '../../driver/workers/local-object.js';
import {
  assertMemoryResource,
  type DeallocationEvents,
  type DeallocationEventsOption,
  type DeallocationFence,
  type DevicePointer,
  deallocationEventsOptionNames,
  type MemoryResource,
  type MemoryResourceAdaptor,
} from '../../memory-resource.js';
import { announceConstruction } from '../../observing/interceptor.js';
import { usableStream } from '../../ownership/bulk-frees.js';
import { noteFree, servedPointer } from '../../ownership/served-memory.js';
import { stackName } from '../../resource-kind.js';
import { deallocationEventsWords } from '../../stream-ordering/stream-ordering.js';
import { layersOf } from '../layers.js';
import { type RememberedAllocations, rememberIfTakenBack } from './remember-allocations.js';

/** Getters of the adaptors that only read a counter. */
const shownCounters = ['limitBytes', 'liveBytes', 'allocatedBytes', 'askedBytes', 'roundedBytes', 'fallbackBytes'];

/**
 * The base of adaptors that keep no memory: they pass each call on to their upstream, and observe
 * or refuse it.
 *
 * Each `allocate` begins with `assertUsable`, so that a disposed adaptor or stream is refused before anything
 * is counted, written or called.
 *
 * A derived class calls `this.upstream` in its own `allocate` and `deallocate`, because a shared
 * call site here would see every class of upstream (V8: one class).
 */
export abstract class PassThroughAdaptor implements MemoryResourceAdaptor {
  readonly upstream: MemoryResource;
  readonly memoryKind: MemoryKind;
  readonly device: Device;
  /**
   * The policy for the resources below at each free without a fence; if not set, frees pass
   * unchanged.
   */
  readonly deallocationEvents: DeallocationEvents | undefined;
  protected isDisposed = false;
  #remembered: RememberedAllocations | undefined;

  /**
   * @param optionNames an object with the name of each option that the derived class takes
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid upstream or option.
   */
  protected constructor(
    upstream: MemoryResource,
    options: DeallocationEventsOption,
    optionNames: OptionNames = deallocationEventsOptionNames,
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
    announceConstruction(this);
    this.rememberIfTakenBack(upstream);
  }

  /**
   * Whether an allocation of whole pages (of a power of two bytes), on a stream of `device`, is an allocation of the
   * upstream with the same address and size. If so, memory that grows in place below ({@link VirtualMemoryResource})
   * does so here, too. Override this in a class that changes sizes or addresses, or takes memory from elsewhere.
   */
  keepsPages(_pageBytes: number): boolean {
    return true;
  }

  /** The stack as a specification writes it, without options: `limiting(pool(cuda))`. */
  toString(): string {
    return stackName(this);
  }

  /** @internal What `console.log` shows. */
  [inspected](...inspection: Inspection): string {
    return inspectObject(this, this.#shown(), inspection);
  }

  abstract allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer;

  abstract deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void;

  /**
   * Whether `other` is this very object. If another object freed the memory, this one's counts or
   * logs would miss the free.
   */
  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  /**
   * Ends allocation through this object. Memory allocated through it can still be freed through it.
   * Does not dispose the upstream. A second call does nothing.
   */
  [Symbol.dispose](): void {
    this.isDisposed = true;
  }

  /** The same as `[Symbol.dispose]()`. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  /**
   * Names, limits and counters: every property that is a number or a string and needs no method
   * call.
   */
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

  /**
   * Call this at the beginning of every `allocate`, and again after foreign code has run.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if this object or the stream is disposed;
   * ArgumentTypeError if it is not a stream.
   */
  protected assertUsable(stream: Stream): void {
    if (this.isDisposed || stream?.isDisposed !== false) this.#refuse(stream);
  }

  #refuse(stream: Stream): void {
    this.assertLive('allocate');
    assertStream(stream, 'allocate');
  }

  /**
   * Returns the upstream's result of `allocate`, if it can be the address of the memory. Adaptors change
   * their state only after this, or undo the change.
   * @param by the resource, if it is not the upstream
   * @throws FaultyResourceError otherwise.
   */
  protected served(pointer: DevicePointer, bytes: number, stream: Stream, by: MemoryResource = this.upstream): DevicePointer {
    return servedPointer(pointer, by, bytes, stream);
  }

  /**
   * Handles the upstream's result of `deallocate`. If it is a promise, its rejection becomes a
   * process warning (`CISTERN_FAULTY_RESOURCE`).
   * @param by the resource, if it is not the upstream
   */
  protected freed(result: unknown, by: MemoryResource = this.upstream): void {
    noteFree(result, by);
  }

  /**
   * Returns memory to the upstream, if this adaptor could not do its own part of an allocation. If a
   * host function that ran in the upstream has disposed the stream, the host waits for the device.
   */
  protected giveBack(pointer: DevicePointer, bytes: number, stream: Stream): void {
    this.freed(this.upstream.deallocate(pointer, bytes, usableStream(stream), this.deallocationEvents));
  }

  /** Also called by adaptors that take memory from a second resource, which may take it back. */
  protected rememberIfTakenBack(below: MemoryResource): void {
    if (this.#remembered === undefined) this.#remembered = rememberIfTakenBack(this, below);
    else for (const layer of layersOf(below)) this.#remembered.below.add(layer);
  }

  /** Remembers memory that was allocated by a method other than `allocate`. Returns the pointer. */
  protected remember(pointer: DevicePointer, bytes: number, stream: Stream): DevicePointer {
    if (pointer !== 0) this.#remembered?.live.add(pointer, bytes, stream);
    return pointer;
  }

  /**
   * The error to throw after the upstream threw `error`: this adaptor is added to an out-of-memory
   * error.
   * @param bytes the size requested from this adaptor, if it requests more from the upstream
   */
  protected passOn(error: unknown, bytes?: number): unknown {
    if (!(error instanceof OutOfMemoryError)) return error;
    if (bytes === undefined || bytes === error.requestedBytes) return error.through(this.constructor.name);
    const name = this.constructor.name;
    return outOfMemoryThrough(name, error, bytes, `${error.message}; the ${name} was asked for ${bytes} bytes`, error);
  }
}

/** An upstream's out-of-memory error, rewritten by the adaptor above it with more detail. */
export function outOfMemoryThrough(
  name: string,
  error: OutOfMemoryError,
  requestedBytes: number,
  message: string,
  cause: Error,
  holders = error.holders,
): OutOfMemoryError {
  const { availableBytes, limitBytes, stages, path, account } = error;
  return new OutOfMemoryError(
    message,
    {
      requestedBytes,
      availableBytes,
      limitBytes,
      path: [name, ...path],
      stages,
      account,
      holders,
    },
    { cause },
  );
}

/** Whether `error` means that memory could not be allocated, and not that the call was wrong. */
export function isAllocationFailure(error: unknown): boolean {
  if (error instanceof CisternError) return !(error instanceof LifetimeError);
  return !(error instanceof TypeError || error instanceof RangeError);
}
