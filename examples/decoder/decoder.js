// A toy decoder: the shapes of a transformer, with weights that mean nothing.
import { DeviceBuffer } from 'cistern';

/** The batch sizes for which vLLM captures graphs, up to 512. */
export const batchSizes = [1, 2, 4, ...range(8, 256, 8), ...range(272, 512, 16)];

export class Decoder {
  #kernels;
  #multiply;
  #stream;
  #graphs;
  #weights;
  /** Of the rows of a batch that belong to no request. */
  #spare;
  /** The captured steps, by their batch sizes. */
  #steps = new Map();

  /**
   * @param {object} parts
   * @param {Record<'normalize' | 'attend' | 'activate', import('../kernels/cuda.js').Kernel>} parts.kernels
   * @param {(a: number, b: number, c: number, rows: number, inner: number, columns: number, adds: boolean) => void} parts.multiply
   * @param {import('cistern').Stream} parts.stream
   * @param {import('cistern').MemoryResource} parts.resource for what stays
   * @param {import('cistern/graphs').GraphMemoryResource} parts.graphs for the scratch memory of steps
   * @param {number} parts.layers
   * @param {number} parts.width
   */
  constructor({ kernels, multiply, stream, resource, graphs, layers, width }) {
    this.#kernels = kernels;
    this.#multiply = multiply;
    this.#stream = stream;
    this.#graphs = graphs;
    this.width = width;
    this.layers = layers;
    const most = batchSizes.at(-1);
    // A step reads and writes these, so they stay in place.
    this.hidden = new DeviceBuffer(4 * most * width, { resource, stream });
    this.caches = new DeviceBuffer(8 * most, { resource, stream });
    this.hidden.copyFrom(new Float32Array(most * width).fill(1));
    this.#spare = new DeviceBuffer(this.cacheBytes, { resource, stream });
    this.#spare.fill(0);
    const matrix = (rows, columns, seed) => new DeviceBuffer(weights(rows, columns, seed), { resource, stream });
    this.#weights = Array.from({ length: layers }, (_, layer) => ({
      query: matrix(width, width, 4 * layer),
      output: matrix(width, width, 4 * layer + 1),
      up: matrix(width, 4 * width, 4 * layer + 2),
      down: matrix(4 * width, width, 4 * layer + 3),
    }));
  }

  /** The bytes of a request's cache. */
  get cacheBytes() {
    return 4 * this.layers * this.width;
  }

  /** The work of one token for each row of a batch: seven launches a layer. */
  step(rows) {
    const { width } = this;
    const stream = this.#stream;
    const { normalize, attend, activate } = this.#kernels;
    const scratch = (columns) => new DeviceBuffer(4 * rows * columns, { resource: this.#graphs, stream });
    for (const [layer, { query, output, up, down }] of this.#weights.entries()) {
      const normal = scratch(width);
      normalize.launch(stream, rows, 256, this.hidden.ptr, normal.ptr, rows, width);
      const mixed = scratch(width);
      this.#multiply(normal.ptr, query.ptr, mixed.ptr, rows, width, width, false);
      attend.launch(stream, rows, 256, mixed.ptr, this.caches.ptr, rows, width, layer);
      this.#multiply(mixed.ptr, output.ptr, this.hidden.ptr, rows, width, width, true);
      mixed.dispose();
      normalize.launch(stream, rows, 256, this.hidden.ptr, normal.ptr, rows, width);
      const wide = scratch(4 * width);
      this.#multiply(normal.ptr, up.ptr, wide.ptr, rows, width, 4 * width, false);
      activate.launch(stream, Math.ceil((rows * 4 * width) / 256), 256, wide.ptr, rows * 4 * width);
      this.#multiply(wide.ptr, down.ptr, this.hidden.ptr, rows, 4 * width, width, true);
      wide.dispose();
      normal.dispose();
    }
  }

  /** Captures the step for each batch size; all of them share the memory of the largest. */
  capture() {
    this.point([], batchSizes.at(-1));
    for (const rows of batchSizes) this.#graphs.warmUp(`batch ${rows}`, () => this.step(rows));
    for (const rows of batchSizes) {
      const graph = this.#graphs.capture(this.#stream, () => this.step(rows), { name: `batch ${rows}` });
      this.#steps.set(rows, { graph, exec: graph.instantiate() });
    }
  }

  /** A token for each of these requests, whose caches lie at these addresses, by the graph of the next larger batch. */
  decode(addresses) {
    const rows = batchSizes.find((size) => size >= addresses.length);
    this.point(addresses, rows);
    this.#steps.get(rows).exec.launch(this.#stream);
  }

  /** Has the rows of the next step use these caches. */
  point(addresses, rows) {
    this.caches.copyFrom(BigUint64Array.from({ length: rows }, (_, row) => BigInt(addresses[row] ?? this.#spare.ptr)));
  }

  dispose() {
    for (const { graph, exec } of this.#steps.values()) {
      exec.dispose();
      graph.dispose();
    }
    for (const layer of this.#weights) for (const matrix of Object.values(layer)) matrix.dispose();
    this.#spare.dispose();
    this.hidden.dispose();
    this.caches.dispose();
  }
}

/** Small numbers of both signs, always the same, with a sum of squares of about 1 in each column. */
export function weights(rows, columns, seed) {
  let state = seed + 1;
  const scale = Math.sqrt(3 / rows);
  return Float32Array.from({ length: rows * columns }, () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return (state / 2 ** 31 - 1) * scale;
  });
}

function range(first, last, step) {
  return Array.from({ length: (last - first) / step + 1 }, (_, i) => first + i * step);
}
