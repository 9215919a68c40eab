import { retained } from '../../src/driver/graphs/user-objects.js';
import type { Graph } from '../../src/index.js';

/** Makes a graph retain an object, and returns whether that is so still. */
export function retainedBy(graph: Graph): () => boolean {
  const object = {};
  graph.retain(object);
  return () => [...retained.values()].includes(object);
}
