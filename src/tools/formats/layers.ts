/** A resource that was recorded. */
export interface RecordedLayer {
  /** Its name, such as `pool`. */
  readonly name: string;
  /** The index of the layer below it, or `undefined` if none was recorded. */
  readonly upstream: number | undefined;
  /**
   * `true` if the layer is a place of managed memory (the host or a device), not a resource: an
   * allocation in it is a page that came to the place, labelled with the reason, and a free is a page
   * that left.
   */
  readonly isPlace?: true | undefined;
  /**
   * `true` for memory that a CUDA graph, or several graphs that share a pool, keep for themselves:
   * the layer's allocations are also allocations of the resource that was captured.
   */
  readonly isGraph?: true | undefined;
}

/**
 * The index of the layer nearest to the program among those that `hasEvents` accepts or, if a name
 * is given, among those with this name; `undefined` if there is none. Ties go to the layer recorded
 * first. Places of managed memory are only found by name, after all resources.
 */
export function nearestLayer(layers: readonly RecordedLayer[], hasEvents: (layer: number) => boolean, name?: string): number | undefined {
  return layersFromTop(layers).find((layer) =>
    name === undefined ? !layers[layer]?.isPlace && hasEvents(layer) : layers[layer]?.name === name,
  );
}

/**
 * The indexes of the layers, nearest to the program first; ties in order of index. Places come last.
 */
function layersFromTop(layers: readonly RecordedLayer[]): number[] {
  const depths = layers.map(({ isPlace }) => (isPlace ? layers.length : 0));
  for (const layer of layers.keys()) {
    const seen = new Set([layer]);
    for (let at = layer, next = layers[at]?.upstream; next !== undefined && next < layers.length; at = next, next = layers[at]?.upstream) {
      // A damaged recording may contain a cycle of layers; they keep the depth found first.
      if (seen.has(next)) break;
      seen.add(next);
      depths[next] = Math.max(depths[next] as number, (depths[at] as number) + 1);
    }
  }
  return [...layers.keys()].sort((a, b) => (depths[a] as number) - (depths[b] as number));
}

/**
 * Whether a label of an allocation in one layer also names the memory at that pointer in another. A
 * label of a page says why the page is there, and nothing about allocations.
 */
export function sharesLabels(layers: readonly RecordedLayer[], from: number, to: number): boolean {
  return from === to || !(layers[from]?.isPlace || layers[to]?.isPlace);
}

/**
 * The layers, nearest to the program first, and the new place of each given layer; `places` is
 * `undefined` if the order is unchanged.
 */
export function orderLayers(layers: readonly RecordedLayer[]): { layers: readonly RecordedLayer[]; places: readonly number[] | undefined } {
  const order = layersFromTop(layers);
  const places = order.map((_, layer) => order.indexOf(layer));
  const ordered = order.map((layer) => {
    const recorded = layers[layer] as RecordedLayer;
    return { ...recorded, upstream: recorded.upstream === undefined ? undefined : places[recorded.upstream] };
  });
  return { layers: ordered, places: places.some((place, layer) => place !== layer) ? places : undefined };
}
