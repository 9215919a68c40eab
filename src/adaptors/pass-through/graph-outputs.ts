import type { DevicePointer, MemoryResource, MemoryResourceAdaptor } from '../../memory-resource.js';
import { AddressTable } from '../../suballocation/address-table.js';
import { layersOf } from '../layers.js';

/** An allocation that a log recorded during a capture. */
interface Captured<Head> {
  readonly bytes: number;
  readonly head: Head;
}

/** How many captures with memory this environment is in. */
let captures = 0;
/** The logs that have recorded allocations since then. */
const logs = new Set<{ captureEnded(resource: MemoryResource, isOutput: IsOutput): void }>();

/** Whether an allocation is one that a capture has not freed, and whose address other graphs may use, too. */
type IsOutput = (pointer: DevicePointer, bytes: number) => boolean;

/**
 * Runs a capture with memory of a resource, so that logs can distinguish its allocations from others.
 * @param isOutput is called after the capture
 */
export function logCapture<T>(resource: MemoryResource, capture: () => T, isOutput: IsOutput): T {
  captures++;
  try {
    return capture();
  } finally {
    captures--;
    for (const each of logs) each.captureEnded(resource, isOutput);
    if (captures === 0) logs.clear();
  }
}

/**
 * The outputs of graphs in the log of an adaptor: memory that a capture has not freed. They stay where they are, but
 * the next graph may have an allocation at the same address. So that no address is live twice, the log records them as
 * freed at the end of the capture, and does not record the program's later frees.
 *
 *     program   allocate x  …  end of the capture   allocate x (next graph)   free x   …   free x
 *     log       allocate x  …  free x               allocate x                free x
 *
 * Memory that a graph has for itself (`GraphMemoryResource.kept`) stays live in a log until the program, or the end of
 * the graph, frees it.
 */
export class GraphOutputs<Head> {
  readonly #adaptor: MemoryResourceAdaptor;
  readonly #logFree: (pointer: DevicePointer, bytes: number, head: Head) => void;
  /** By address: live allocations made since the first open capture began. */
  #captured = new AddressTable<Captured<Head>>();
  /** By address: how many outputs are freed in the log, but not by the program. */
  readonly #outputs = new AddressTable<number>();

  /** @param logFree adds a free to the log; `head` is that of the allocation. Must not throw. */
  constructor(adaptor: MemoryResourceAdaptor, logFree: (pointer: DevicePointer, bytes: number, head: Head) => void) {
    this.#adaptor = adaptor;
    this.#logFree = logFree;
  }

  /** An allocation was logged. */
  allocated(pointer: DevicePointer, bytes: number, head: Head): void {
    if (captures === 0) {
      // The memory of graphs that had this address no longer exists.
      if (this.#outputs.size > 0) this.#outputs.delete(pointer);
    } else if (pointer !== 0) {
      this.#captured.set(pointer, { bytes, head });
      logs.add(this);
    }
  }

  /** Whether an allocation that the program frees is already free in the log. */
  hasFreed(pointer: DevicePointer): boolean {
    return this.#outputs.size > 0 && this.#outputs.has(pointer) && !this.#captured.has(pointer);
  }

  /** Notes that the allocation at an address is freed. */
  freed(pointer: DevicePointer): void {
    if (this.#captured.size + this.#outputs.size === 0 || this.#captured.delete(pointer)) return;
    const left = (this.#outputs.get(pointer) ?? 0) - 1;
    if (left > 0) this.#outputs.set(pointer, left);
    else this.#outputs.delete(pointer);
  }

  captureEnded(resource: MemoryResource, isOutput: IsOutput): void {
    // The memory that the resource takes for its graphs stays allocated in the logs below it.
    if (layersOf(this.#adaptor.upstream).includes(resource)) {
      for (const [pointer, { bytes, head }] of this.#captured) {
        if (!isOutput(pointer, bytes)) continue;
        this.#captured.delete(pointer);
        this.#logFree(pointer, bytes, head);
        this.#outputs.set(pointer, (this.#outputs.get(pointer) ?? 0) + 1);
      }
    }
    if (captures === 0 && this.#captured.size > 0) this.#captured = new AddressTable();
  }
}
