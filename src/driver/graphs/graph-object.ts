import { ArgumentTypeError, alreadyDisposed, formatValue } from '../../basics/errors.js';
import { assertMadeByCistern } from '../../basics/validation.js';
import type { Device } from '../device.js';
import { keptResult } from '../native.js';
import type { Stream } from '../streams/stream.js';
import { finalizationRegistry } from '../workers/collected-objects.js';
import { type Inspection, inspected, inspectObject, refuseCloning } from '../workers/local-object.js';
import type { Graph } from './graph.js';

/** The differences between graphs and executable graphs. */
export interface GraphKind {
  /** For errors: `the graph`. */
  readonly name: string;
  /** The call that returns one. */
  readonly source: string;
  readonly destroy: (handle: number) => void;
  /** Destroys the native object of an object that was collected. */
  readonly unreachable: FinalizationRegistry<number>;
}

/**
 * Memory that a graph shares with the executable graphs made from it, and that nothing else may use during a
 * launch.
 */
export interface GraphMemory {
  /** One more graph or executable graph uses the memory, until it calls `release`. */
  retain(): void;
  /** Must not throw. */
  release(): void;
  /** Orders the stream after everything that may have used the memory before. */
  beforeLaunch(stream: Stream): void;
  /** A launch was queued on the stream. Must not throw. */
  launched(stream: Stream): void;
}

const collected = finalizationRegistry<GraphMemory>('graph', 'CISTERN_UNREACHABLE_GRAPH', (memory) => memory.release());

/** Throws unless `graph` is a graph that is not disposed. */
export function assertGraph(graph: Graph, operation: string): void {
  if (!(graph instanceof Object) || typeof graph.handle !== 'number' || typeof graph.instantiate !== 'function') {
    throw new ArgumentTypeError(`graph must be a Graph, got ${formatValue(graph)}`);
  }
  if (graph.isDisposed) throw alreadyDisposed(operation, 'the graph');
}

/** The base of graphs and executable graphs: an object of the driver that is destroyed once. */
export abstract class GraphObject implements Disposable {
  readonly device: Device;
  /** @internal The native handle; -1 once disposed. */
  handle: number;
  /** @internal The memory that it uses and keeps alive, if it was captured with memory. */
  memory: GraphMemory | undefined;
  readonly #kind: GraphKind;

  /** @internal Wraps the object that the last native call created. */
  constructor(device: Device, kind: GraphKind) {
    // Otherwise it would wrap a handle that belongs to another object.
    assertMadeByCistern(device, new.target.name, kind.source);
    this.device = device;
    this.handle = keptResult(1);
    this.#kind = kind;
    kind.unreachable.register(this, this.handle, this);
    refuseCloning(this);
  }

  /** @internal What `console.log` shows. */
  [inspected](...inspection: Inspection): string {
    return inspectObject(this, { device: this.device.index, isDisposed: this.isDisposed }, inspection);
  }

  /** Whether it is disposed. */
  get isDisposed(): boolean {
    return this.handle < 0;
  }

  /**
   * Returns it to the driver. Executable graphs made from a graph stay as they are, and launches that are
   * queued still run. A second call does nothing.
   * @throws DriverError if the driver refuses; it is then not disposed.
   */
  [Symbol.dispose](): void {
    if (this.handle < 0) return;
    this.#kind.destroy(this.handle);
    this.handle = -1;
    this.#kind.unreachable.unregister(this);
    this.useMemory(undefined);
  }

  /** @internal From now on it uses this memory, or none. */
  useMemory(memory: GraphMemory | undefined): void {
    const { memory: before } = this;
    if (memory === before) return;
    memory?.retain();
    this.memory = memory;
    collected.unregister(this);
    if (memory !== undefined) collected.register(this, memory, this);
    before?.release();
  }

  /** The same as `[Symbol.dispose]()`. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  protected assertLive(operation: string): void {
    if (this.handle < 0) throw alreadyDisposed(operation, this.#kind.name);
  }
}
