import { alreadyFreed, formatPointer, notAllocatedHere, UnsupportedError, wrongSize } from '../basics/errors.js';
import { type Origin, origin, type ResourceWithOrigin } from '../buffers/origin.js';
import type { Device } from '../driver/device.js';
import { type Event, recordedEvent } from '../driver/streams/event.js';
import { assertStream, type Stream } from '../driver/streams/stream.js';
import { type Inspection, inspected, inspectObject, refuseCloning } from '../driver/workers/local-object.js';
import type { DevicePointer, MemoryResource } from '../memory-resource.js';
import { closeImport, type ImportedRange } from './process-memory.js';
import { endLater } from './wait-for-processes.js';

const imported: Origin = {
  isCounted: false,
  isShared: false,
  notToWorkers: 'its memory belongs to another process',
  notToProcesses: 'its memory belongs to another process, and only that one can export it',
};

/**
 * The resource of a buffer that another process exported. A free unmaps its memory once the work
 * queued on the freeing stream has run, which also tells the other process. If this process ends
 * first, the kernel does the same.
 */
export class ImportedMemory implements ResourceWithOrigin {
  readonly memoryKind = 'device';
  readonly device: Device;
  readonly #memory: ImportedRange;
  #isFreed = false;

  constructor(memory: ImportedRange) {
    this.device = memory.device;
    this.#memory = memory;
    refuseCloning(this);
  }

  /** @internal What `console.log` shows. */
  [inspected](...inspection: Inspection): string {
    return inspectObject(this, { device: this.device.index, memoryKind: this.memoryKind }, inspection);
  }

  get [origin](): Origin {
    return imported;
  }

  /** @throws UnsupportedError always */
  allocate(bytes: number): DevicePointer {
    throw new UnsupportedError(
      `cannot allocate ${bytes} bytes: the memory of the buffer belongs to another process; first recast the buffer to a resource of this process`,
    );
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream): void {
    if (pointer === 0) return;
    const refusal = `the memory of another process cannot free ${formatPointer(pointer)}`;
    if (pointer !== this.#memory.pointer) throw notAllocatedHere(refusal);
    if (this.#isFreed) throw alreadyFreed(refusal);
    if (bytes !== this.#memory.bytes) throw wrongSize(refusal, bytes, this.#memory.bytes);
    assertStream(stream, 'deallocate');
    this.close(stream);
    this.#isFreed = true;
  }

  /** Ends the import once the stream's work has run. */
  close(stream: Stream): void {
    const { number } = this.#memory;
    const event = stream.query() ? undefined : recordedEvent(stream);
    if (event !== undefined || !closeImport(number)) endLater(new PendingClose(number, event));
  }

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  /** Does nothing: the buffer owns the memory. */
  [Symbol.dispose](): void {}
}

/** Memory that is unmapped after an event. */
class PendingClose {
  readonly #number: number;
  #event: Event | undefined;

  constructor(number: number, event: Event | undefined) {
    this.#number = number;
    this.#event = event;
  }

  endIfOver(): boolean {
    try {
      if (this.#event?.query() === false) return false;
      this.#event?.dispose();
      this.#event = undefined;
      return closeImport(this.#number);
    } catch {
      // The device is in error: the memory stays mapped until the process ends.
      return true;
    }
  }
}
