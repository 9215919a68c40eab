import { ArgumentTypeError, formatValue } from '../../basics/errors.js';
import { assertOptions, optionNames } from '../../basics/validation.js';
import { markCopy } from '../../package/copy.js';
import type { Device } from '../device.js';
import { keptResult, native } from '../native.js';
import { check } from '../status.js';
import { finalizationRegistry } from '../workers/collected-objects.js';
import { GraphExec } from './graph-exec.js';
import { type GraphKind, GraphObject } from './graph-object.js';
import { retainInGraph } from './user-objects.js';

/** Options of {@link Graph.instantiate}. */
export interface GraphInstantiationOptions {
  /**
   * Whether a launch first frees memory that the graph's last launch allocated and that is still not
   * freed. Otherwise, such a launch fails.
   * @defaultValue false
   */
  readonly freesOnLaunch?: boolean | undefined;
}

const instantiationOptions = optionNames<GraphInstantiationOptions>({ freesOnLaunch: 'boolean' });

/** How many nodes of each kind a graph has. */
export interface GraphNodeCounts {
  readonly kernels: number;
  readonly copies: number;
  readonly fills: number;
  readonly hostFunctions: number;
  readonly allocations: number;
  readonly frees: number;
  /** Graphs that are nodes ({@link Stream.addChildGraph}). Their own nodes are not counted. */
  readonly childGraphs: number;
  /** Nodes of every other kind. */
  readonly others: number;
  readonly total: number;
}

const nodeTypes = { kernels: 0, copies: 1, fills: 2, hostFunctions: 3, childGraphs: 4, allocations: 10, frees: 11 } as const;
/** As many kinds as CUDA has. */
const nodeTypeCount = 14;

const kind: GraphKind = {
  name: 'the graph',
  source: 'Stream.capture',
  destroy,
  unreachable: finalizationRegistry('graph', 'CISTERN_UNREACHABLE_GRAPH', destroy),
};

/**
 * Work that was captured from streams ({@link Stream.capture}), with its order. It runs only as a
 * {@link GraphExec}.
 *
 * A graph keeps the addresses that its work uses, but not the memory: keep the memory allocated
 * until the graph's last launch has run.
 *
 * RMM has no counterpart; CUDA's is `CUgraph`.
 * @example
 * ```ts
 * using stream = new Stream();
 * using upstream = new CudaMemoryResource();
 * const pointer = upstream.allocate(4096, stream);
 * using graph = stream.capture(() => set(pointer, 0, 1, 4096, stream));
 * using exec = graph.instantiate();
 * exec.launch(stream);
 * await stream.synchronize();
 * upstream.deallocate(pointer, 4096, stream);
 * ```
 */
export class Graph extends GraphObject {
  /** @internal Wraps the graph that the last native call returned. */
  constructor(device: Device) {
    super(device, kind);
  }

  /**
   * How many nodes of each kind the graph has.
   * @throws LifetimeError if the graph is disposed.
   */
  get nodeCounts(): GraphNodeCounts {
    this.assertLive('count the nodes of a graph');
    const counts = new Float64Array(nodeTypeCount);
    native().countGraphNodes(this.handle, counts);
    check('count the nodes of a graph');
    const total = keptResult(1);
    const named = Object.fromEntries(Object.entries(nodeTypes).map(([name, type]) => [name, counts[type] as number]));
    const others = total - Object.values(named).reduce((sum, count) => sum + count, 0);
    return Object.freeze({ ...named, others, total }) as GraphNodeCounts;
  }

  /**
   * Makes an executable graph, which can be launched. You can dispose this graph afterwards. A graph
   * that allocates memory can have only one executable graph at a time.
   * @throws ArgumentTypeError for invalid options, LifetimeError if the graph is disposed, DriverError if
   * the driver refuses.
   */
  instantiate(options: GraphInstantiationOptions = {}): GraphExec {
    assertOptions(options, instantiationOptions);
    this.assertLive('instantiate a graph');
    native().instantiateGraph(this.handle, options.freesOnLaunch === true);
    check('instantiate a graph');
    const exec = new GraphExec(this.device);
    exec.useMemory(this.memory);
    return exec;
  }

  /**
   * Keeps an object, such as a buffer that the graph uses, reachable for as long as the graph, an
   * executable graph made from it later, or one of their launches exists. An executable graph that is
   * updated ({@link GraphExec.update}) releases its objects, and keeps those of the other graph instead.
   *
   * If you dispose a retained buffer, its memory is freed nevertheless. RMM has no counterpart;
   * CUDA's is `cuGraphRetainUserObject`.
   * @throws ArgumentTypeError if it is not an object, LifetimeError if the graph is disposed, DriverError if
   * the driver refuses.
   * @example
   * ```ts
   * using stream = new Stream();
   * const buffer = new DeviceBuffer(4096, { stream });
   * using graph = stream.capture(() => set(buffer.ptr, 0, 1, 4096, stream));
   * graph.retain(buffer);
   * ```
   */
  retain(object: object): void {
    if ((typeof object !== 'object' && typeof object !== 'function') || object === null) {
      throw new ArgumentTypeError(`object must be an object, got ${formatValue(object)}`);
    }
    this.assertLive('retain an object in a graph');
    retainInGraph(this.handle, object);
  }

  /**
   * Writes the graph to a file for Graphviz, for you to look at. The driver decides what it contains.
   * @param path of the file, which is replaced
   * @throws ArgumentTypeError if `path` is not a string, LifetimeError if the graph is disposed,
   * DriverError if the file cannot be written.
   */
  writeDot(path: string): void {
    if (typeof path !== 'string') throw new ArgumentTypeError(`path must be a string, got ${formatValue(path)}`);
    this.assertLive('write a graph');
    native().writeGraph(this.handle, path);
    check(`write a graph to ${path}`);
  }
}

markCopy(Graph);

function destroy(handle: number): void {
  native().destroyGraph(handle);
  check('destroy a graph');
}
