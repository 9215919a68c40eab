/**
 * Observes a program's allocations through any resource, without preparation by the program: each
 * resource gets a hidden adaptor that only the program's own calls pass through, but not the calls
 * with which one resource takes memory from another.
 *
 *     program ──► pool: the unseen adaptor ──► pool ──► cuda: no adaptor, the call comes from above
 */

import { layersOf } from '../adaptors/layers.js';
import type { Stream } from '../driver/streams/stream.js';
import type { DeallocationFence, DevicePointer, MemoryResource } from '../memory-resource.js';
import { constructUnseen, type Interceptor, initialTaker, interceptConstruction } from '../observing/interceptor.js';
import { AddressMap } from '../suballocation/address-map.js';
import { none } from '../suballocation/blocks.js';

/** An observer of a program's calls. */
export interface ProgramObserver<Adaptor extends MemoryResource> {
  /** Whether a resource is an observing adaptor, made by the program or here. */
  isAdaptor(resource: MemoryResource): resource is Adaptor;
  /**
   * Whether an adaptor that the program made already observes for this observer, so that everything below it is
   * covered.
   */
  isOwn(adaptor: Adaptor): boolean;
  /** Makes the adaptor for the program's calls of a resource, at the first call. */
  adaptorOf(resource: MemoryResource): Adaptor;
  /** A resource for which an adaptor was made is disposed. */
  disposed(adaptor: Adaptor): void;
}

/** Observes every resource that is constructed from now on. */
export function observeProgramCalls<Adaptor extends MemoryResource>(observer: ProgramObserver<Adaptor>): void {
  const current: CurrentCall = { layers: undefined };
  const covering = (adaptor: Adaptor) => new CoversWhatIsBelow(adaptor, current, () => observer.isOwn(adaptor));
  interceptConstruction((resource) =>
    observer.isAdaptor(resource) ? covering(resource) : new ProgramCalls(resource, observer, current, covering),
  );
}

/**
 * The layers of the stack that is being called. Only the call of the outermost layer is the
 * program's.
 */
interface CurrentCall {
  layers: ReadonlySet<MemoryResource> | undefined;
}

/** Sends the program's direct calls of a resource through an adaptor. */
class ProgramCalls<Adaptor extends MemoryResource> implements Interceptor {
  readonly #resource: MemoryResource;
  readonly #observer: ProgramObserver<Adaptor>;
  readonly #current: CurrentCall;
  readonly #covering: (adaptor: Adaptor) => Interceptor;
  #adaptor: Adaptor | undefined;
  /** The adaptor's allocations. A block that a pool took from here is returned past the adaptor. */
  readonly #live = new AddressMap();

  constructor(
    resource: MemoryResource,
    observer: ProgramObserver<Adaptor>,
    current: CurrentCall,
    covering: (adaptor: Adaptor) => Interceptor,
  ) {
    this.#resource = resource;
    this.#observer = observer;
    this.#current = current;
    this.#covering = covering;
  }

  allocate(next: MemoryResource['allocate'], bytes: number, stream: Stream, alignment?: number): DevicePointer {
    if (this.#isFromAbove()) return next(bytes, stream, alignment);
    this.#adaptor ??= constructUnseen(
      () => this.#observer.adaptorOf(this.#resource),
      (adaptor) => this.#covering(adaptor as Adaptor),
    );
    const pointer = this.#adaptor.allocate(bytes, stream, alignment);
    if (pointer !== 0) this.#live.insert(pointer, 0);
    return pointer;
  }

  deallocate(
    next: MemoryResource['deallocate'],
    pointer: DevicePointer,
    bytes: number,
    stream: Stream,
    fence: DeallocationFence | undefined,
  ): void {
    const live = this.#live;
    const isLive = () => typeof pointer === 'number' && live.get(pointer) !== none;
    if (this.#current.layers?.has(this.#resource) || !isLive()) {
      next(pointer, bytes, stream, fence);
      if (isLive()) live.remove(pointer);
      return;
    }
    // Removed before the call, because a host function that runs during it may get the same memory
    // again.
    live.remove(pointer);
    try {
      (this.#adaptor as Adaptor).deallocate(pointer, bytes, stream, fence);
    } catch (error) {
      live.insert(pointer, 0);
      throw error;
    }
  }

  disposed(): void {
    if (this.#adaptor !== undefined) this.#observer.disposed(this.#adaptor);
  }

  /** Whether a call comes from a resource that is built on this one, not from the program. */
  #isFromAbove(): boolean {
    if (this.#current.layers?.has(this.#resource)) return true;
    const taker = initialTaker();
    return taker !== undefined && layersOf(taker).includes(this.#resource);
  }
}

/** While an observing adaptor is called, the resources below it are not observed again. */
class CoversWhatIsBelow implements Interceptor {
  readonly #adaptor: MemoryResource;
  readonly #current: CurrentCall;
  readonly #isInUse: () => boolean;
  #layers: ReadonlySet<MemoryResource> | undefined;

  constructor(adaptor: MemoryResource, current: CurrentCall, isInUse: () => boolean) {
    this.#adaptor = adaptor;
    this.#current = current;
    this.#isInUse = isInUse;
  }

  allocate(next: MemoryResource['allocate'], bytes: number, stream: Stream, alignment?: number): DevicePointer {
    const previous = this.#enter();
    try {
      return next(bytes, stream, alignment);
    } finally {
      this.#current.layers = previous;
    }
  }

  deallocate(
    next: MemoryResource['deallocate'],
    pointer: DevicePointer,
    bytes: number,
    stream: Stream,
    fence: DeallocationFence | undefined,
  ): void {
    const previous = this.#enter();
    try {
      next(pointer, bytes, stream, fence);
    } finally {
      this.#current.layers = previous;
    }
  }

  /** Returns the layers to restore when the call ends. */
  #enter(): ReadonlySet<MemoryResource> | undefined {
    const previous = this.#current.layers;
    if (!this.#isInUse()) return previous;
    this.#layers ??= new Set(layersOf(this.#adaptor));
    this.#current.layers = this.#layers;
    return previous;
  }
}
