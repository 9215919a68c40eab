import { alreadyDisposed } from '../../basics/errors.js';
import type { Device } from '../device.js';
import { keptResult } from '../native.js';
import {
  type Inspect,
  type InspectionOptions,
  inspected,
  inspectedDisposal,
  inspectObject,
  refuseCloning,
} from '../workers/local-object.js';

/** What differs between graphs and executable graphs. */
export interface GraphKind {
  /** For errors: `the graph`. */
  readonly name: string;
  readonly destroy: (handle: number) => void;
  /** Destroys what belonged to an object that was collected. */
  readonly unreachable: FinalizationRegistry<number>;
}

/** What graphs and executable graphs have in common: an object of the driver that is destroyed once. */
export abstract class GraphObject implements Disposable {
  readonly device: Device;
  /** @internal The native handle; -1 once disposed. */
  handle: number;
  readonly #kind: GraphKind;

  /** @internal Takes up what the last native call made. */
  constructor(device: Device, kind: GraphKind) {
    this.device = device;
    this.handle = keptResult(1);
    this.#kind = kind;
    kind.unreachable.register(this, this.handle, this);
    refuseCloning(this);
  }

  /** @internal What `console.log` shows. */
  [inspected](depth: number, options: InspectionOptions, inspect: Inspect): string {
    return inspectObject(this, { device: this.device.index, isDisposed: inspectedDisposal(this.isDisposed) }, depth, options, inspect);
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
  }

  /** The same as `[Symbol.dispose]()`. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  protected assertLive(operation: string): void {
    if (this.handle < 0) throw alreadyDisposed(operation, this.#kind.name);
  }
}
