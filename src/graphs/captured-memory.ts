import { alreadyDisposed } from '../basics/errors.js';
import type { GraphMemory } from '../driver/graphs/graph-object.js';
import { assertAwake } from '../driver/memory/guarded-addresses.js';
import type { Stream } from '../driver/streams/stream.js';
import type { DevicePointer } from '../memory-resource.js';
import type { Segment } from '../suballocation/blocks.js';
import type { GraphRegion } from './graph-region.js';
import type { LaunchOrder } from './launch-order.js';

/** The memory of a graph that was captured with memory. */
export class CapturedMemory implements GraphMemory {
  readonly name: string;
  /** By extent of the region: the bytes from its beginning on that the graph uses. */
  usedBytes: ReadonlyMap<DevicePointer, number> = new Map();
  /** Memory that belongs only to this graph. */
  readonly kept: Segment[] = [];
  /** Where it had allocations at the end of the capture, and those that it has for itself. */
  readonly pointers: DevicePointer[] = [];
  /** The bytes that a plan needs at least; `undefined` if the graph was captured without one, or deviated. */
  lowerBoundBytes: number | undefined;
  requests = 0;
  /** What was remembered for bulk frees before the capture, and at its end. */
  rememberedBefore = 0;
  rememberedLast = 0;
  #users = 0;
  #hasEnded = false;
  readonly #region: GraphRegion;
  readonly #order: LaunchOrder;
  readonly #onEnd: (memory: CapturedMemory, reason: string) => void;

  /** @param onEnd called once, when neither the graph nor anything made from it is left */
  constructor(name: string, region: GraphRegion, order: LaunchOrder, onEnd: (memory: CapturedMemory, reason: string) => void) {
    this.name = name;
    this.#region = region;
    this.#order = order;
    this.#onEnd = onEnd;
  }

  /** The bytes of the region that the graph uses. */
  get regionBytes(): number {
    return [...this.usedBytes.values()].reduce((sum, bytes) => sum + bytes, 0);
  }

  get keptBytes(): number {
    return this.kept.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  retain(): void {
    this.#users++;
  }

  release(): void {
    if (--this.#users === 0) this.end();
  }

  /** Ends its memory. Executable graphs made from the graph can no longer be launched. */
  end(reason = 'its graph is disposed'): void {
    if (this.#hasEnded) return;
    this.#hasEnded = true;
    this.#onEnd(this, reason);
  }

  beforeLaunch(stream: Stream): void {
    if (this.#hasEnded) throw alreadyDisposed('launch a graph', 'the GraphMemoryResource that has its memory');
    for (const [address, bytes] of this.usedBytes) assertAwake(address, bytes, 'launch a graph');
    for (const { address, bytes } of this.kept) assertAwake(address, bytes, 'launch a graph');
    this.#order.order(stream);
    this.#region.orderLaunch(stream);
  }

  launched(stream: Stream): void {
    this.#order.used(stream);
    this.#region.launched();
  }
}
