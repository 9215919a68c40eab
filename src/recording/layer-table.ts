/** The last layer: the next one could not be named as an upstream. */
const lastLayer = 254;
const lastLayerName = '(more layers)';

interface Layer {
  readonly name: string;
  readonly upstream: number | undefined;
  readonly isPlace: boolean;
  readonly isShared: boolean;
  /** Whether a resource uses it. */
  isTaken: boolean;
}

/**
 * Numbers for layers, from 0 on. When a resource ends, its layer goes to the next resource with the
 * same name and upstream; a shared layer is for all of them at the same time. When all numbers are in use, further resources share the last one.
 */
export class LayerTable {
  readonly #layers: Layer[] = [];
  readonly #define: (index: number, name: string, upstream: number | undefined, isPlace: boolean) => void;

  /** @param define called with each number before its first use */
  constructor(define: (index: number, name: string, upstream: number | undefined, isPlace: boolean) => void) {
    this.#define = define;
  }

  /**
   * @param isPlace see {@link RecordedLayer.isPlace}; never ends
   * @param isShared whether all resources of this name and upstream that ask for it share the layer
   */
  add(name: string, upstream: number | undefined, isPlace = false, isShared = false): number {
    const isOpen = (layer: Layer) => !layer.isTaken || (isShared && layer.isShared);
    const vacant = this.#layers.findIndex((layer) => isOpen(layer) && layer.name === name && layer.upstream === upstream);
    if (vacant >= 0) {
      (this.#layers[vacant] as Layer).isTaken = true;
      return vacant;
    }
    if (this.#layers.length > lastLayer) return lastLayer;
    const index = this.#layers.length;
    const isLast = index === lastLayer;
    const layer: Layer = isLast
      ? { name: lastLayerName, upstream: undefined, isPlace: false, isShared: false, isTaken: true }
      : { name, upstream, isPlace, isShared, isTaken: true };
    this.#layers.push(layer);
    this.#define(index, layer.name, layer.upstream, layer.isPlace);
    return index;
  }

  remove(index: number): void {
    const layer = this.#layers[index];
    if (layer !== undefined && index < lastLayer) layer.isTaken = false;
  }
}
