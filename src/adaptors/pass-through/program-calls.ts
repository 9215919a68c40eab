/**
 * Looks on at what a program allocates through any resource, without the program having prepared for
 * it: each resource gets an adaptor that the program does not see, and that only the program's own
 * calls pass. What a resource takes from the resources below it passes none.
 *
 *     program ──► pool: the unseen adaptor ──► pool ──► cuda: no adaptor, the call comes from above
 */
import type { Stream } from '../../driver/streams/stream.js';
import { constructUnseen, type Interceptor, initialTaker, interceptConstruction } from '../../lifetimes/interceptor.js';
import type { DeallocationFence, DevicePointer, MemoryResource } from '../../memory-resource.js';
import { layersOf } from '../layers.js';

/** What looks on at a program's calls. */
export interface ProgramObserver<Adaptor extends MemoryResource> {
  /** Whether a resource is an adaptor of the kind that looks on, made by the program or here. */
  isAdaptor(resource: MemoryResource): resource is Adaptor;
  /** Whether an adaptor that the program made looks on for this observer, so that what is below it is seen already. */
  isOwn(adaptor: Adaptor): boolean;
  /** Makes the adaptor through which the program's calls of a resource go, at the first of them. */
  adaptorOf(resource: MemoryResource): Adaptor;
  /** A resource was disposed, for which an adaptor was made. */
  disposed(adaptor: Adaptor): void;
}

/** Looks on at every resource that is constructed from now on. */
export function observeProgramCalls<Adaptor extends MemoryResource>(observer: ProgramObserver<Adaptor>): void {
  const current: CurrentCall = { layers: undefined };
  const covering = (adaptor: Adaptor) => new CoversWhatIsBelow(adaptor, current, () => observer.isOwn(adaptor));
  interceptConstruction((resource) =>
    observer.isAdaptor(resource) ? covering(resource) : new ProgramCalls(resource, observer, current, covering),
  );
}

/** The layers of the stack that is being called: only the call of the outermost is the program's. */
interface CurrentCall {
  layers: ReadonlySet<MemoryResource> | undefined;
}

/** Sends what the program allocates through a resource directly through an adaptor. */
class ProgramCalls<Adaptor extends MemoryResource> implements Interceptor {
  readonly #resource: MemoryResource;
  readonly #observer: ProgramObserver<Adaptor>;
  readonly #current: CurrentCall;
  readonly #covering: (adaptor: Adaptor) => Interceptor;
  #adaptor: Adaptor | undefined;
  /** What the adaptor allocated: a block that a pool took from here goes back past it. */
  readonly #live = new Set<DevicePointer>();

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
    if (pointer !== 0) this.#live.add(pointer);
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
    if (this.#current.layers?.has(this.#resource) || !live.has(pointer)) {
      next(pointer, bytes, stream, fence);
      live.delete(pointer);
      return;
    }
    // Removed before the call: a host function that runs during it may be given the same memory
    // again.
    live.delete(pointer);
    try {
      (this.#adaptor as Adaptor).deallocate(pointer, bytes, stream, fence);
    } catch (error) {
      live.add(pointer);
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

/** While an adaptor is called that looks on, what is below it is not looked at again. */
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

  /** Returns what must be put back when the call ends. */
  #enter(): ReadonlySet<MemoryResource> | undefined {
    const previous = this.#current.layers;
    if (!this.#isInUse()) return previous;
    this.#layers ??= new Set(layersOf(this.#adaptor));
    this.#current.layers = this.#layers;
    return previous;
  }
}
