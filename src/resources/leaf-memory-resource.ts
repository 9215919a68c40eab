import { alreadyDisposed, OutOfMemoryError } from '../basics/errors.js';
import type { Device, MemoryKind } from '../driver/device.js';
import type { Stream } from '../driver/streams/stream.js';
import { type Inspection, inspected, inspectObject, refuseCloning } from '../driver/workers/local-object.js';
import { askNeighbours, describeNeighbours, mayAsk, mostRounds } from '../kept-memory/neighbours.js';
import type { DeallocationFence, DevicePointer, MemoryResource } from '../memory-resource.js';
import { announceConstruction } from '../observing/interceptor.js';
import { stackName } from '../resource-kind.js';

/** The common part of the leaves: what they are called, how they are shown, and that they can be disposed. */
export abstract class LeafMemoryResource implements MemoryResource {
  readonly memoryKind: MemoryKind;
  readonly device: Device;
  #isDisposed = false;

  protected constructor(memoryKind: MemoryKind, device: Device) {
    this.memoryKind = memoryKind;
    this.device = device;
    refuseCloning(this);
    announceConstruction(this);
  }

  /** The stack as a specification writes it, without options: `cuda`. */
  toString(): string {
    return stackName(this);
  }

  /** @internal What `console.log` shows. */
  [inspected](...inspection: Inspection): string {
    return inspectObject(this, { ...this.shown(), isDisposed: this.#isDisposed }, inspection);
  }

  abstract allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer;

  abstract deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void;

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  /**
   * Ends allocation through this object. Its allocations stay, and can still be freed by it or by
   * an equal resource.
   */
  [Symbol.dispose](): void {
    this.#isDisposed = true;
  }

  /** The same as `[Symbol.dispose]()`. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  /** @internal */
  protected get isDisposed(): boolean {
    return this.#isDisposed;
  }

  /** @internal The fields that `console.log` shows. */
  protected shown(): object {
    return { device: this.device.index, memoryKind: this.memoryKind };
  }

  /**
   * @internal Calls a function again for as long as others on the device return memory.
   * @param error what it threw when it was called first
   * @throws the error, which names who keeps memory
   */
  protected withNeighbours(error: unknown, bytes: number, stream: Stream, allocate: () => DevicePointer): DevicePointer {
    if (!(error instanceof OutOfMemoryError) || !mayAsk()) throw error;
    const asking = { resource: this, below: [this], roundsLeft: mostRounds };
    while (askNeighbours(asking, error, bytes, stream) > 0) {
      try {
        return allocate();
      } catch (next) {
        if (!(next instanceof OutOfMemoryError)) throw next;
      }
    }
    error.message += describeNeighbours(asking, error);
    throw error;
  }

  /** @internal Throws if the resource is disposed. */
  protected assertLive(operation: string): void {
    if (this.#isDisposed) throw alreadyDisposed(operation, `the ${this.constructor.name}`);
  }
}
