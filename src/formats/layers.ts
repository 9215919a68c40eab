import type { RecordedLayer } from './recorded-run.js';

/**
 * The index of the layer nearest to the program among those that `hasEvents` accepts, or of those with a name; `undefined` where there is
 * none. Of several that are as near, it is the one that was recorded first.
 */
export function nearestLayer(layers: readonly RecordedLayer[], hasEvents: (layer: number) => boolean, name?: string): number | undefined {
  return layersFromTop(layers).find((layer) => (name === undefined ? hasEvents(layer) : layers[layer]?.name === name));
}

/** The indexes of the layers, those nearest to the program first; as near, in order. */
function layersFromTop(layers: readonly RecordedLayer[]): number[] {
  const depths = layers.map(() => 0);
  for (const layer of layers.keys()) {
    const seen = new Set([layer]);
    for (let at = layer, next = layers[at]?.upstream; next !== undefined && next < layers.length; at = next, next = layers[at]?.upstream) {
      // A recording may say anything: layers that stand on each other are as near as they were found.
      if (seen.has(next)) break;
      seen.add(next);
      depths[next] = Math.max(depths[next] as number, (depths[at] as number) + 1);
    }
  }
  return [...layers.keys()].sort((a, b) => (depths[a] as number) - (depths[b] as number));
}

/** Layers with those nearest to the program first, and for each of the given ones its place there; no places where that is its own. */
export function orderLayers(layers: readonly RecordedLayer[]): { layers: readonly RecordedLayer[]; places: readonly number[] | undefined } {
  const order = layersFromTop(layers);
  const places = order.map((_, layer) => order.indexOf(layer));
  const ordered = order.map((layer) => {
    const { name, upstream } = layers[layer] as RecordedLayer;
    return { name, upstream: upstream === undefined ? undefined : places[upstream] };
  });
  return { layers: ordered, places: places.some((place, layer) => place !== layer) ? places : undefined };
}
