import { markCopy } from '../../package/copy.js';
import type { Device } from '../device.js';
import { mailbox, native } from '../native.js';
import { check, warnOfLost } from '../status.js';
import type { Stream } from '../streams/stream.js';
import { refuseStream, StreamIdentity } from '../streams/stream-identity.js';
import { finalizationRegistry } from '../workers/collected-objects.js';
import type { Graph } from './graph.js';
import { assertGraph, type GraphKind, GraphObject } from './graph-object.js';

/** CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE. */
const updateFailure = 910;

const kind: GraphKind = {
  name: 'the executable graph',
  source: 'Graph.instantiate',
  destroy,
  unreachable: finalizationRegistry('executable graph', 'CISTERN_UNREACHABLE_GRAPH', destroy),
};

/**
 * A graph that can be launched, any number of times.
 *
 * RMM has no counterpart; CUDA's is `CUgraphExec`.
 */
export class GraphExec extends GraphObject {
  /** @internal Wraps the executable graph that the last native call returned. */
  constructor(device: Device) {
    super(device, kind);
  }

  /**
   * Queues all of the graph's work. It runs after everything queued on the stream so far, and after
   * earlier launches of this executable graph on any stream; later work on the stream runs after it. Does
   * not block.
   *
   * Host functions of the graph run on this thread, as with {@link Stream.launchHostFunction}. If they can
   * never run, a process warning (`CISTERN_LOST_HOST_FUNCTION`) says so.
   * @throws ArgumentTypeError if `stream` is not a stream, LifetimeError if it or this object is disposed,
   * CisternError (`ERR_CISTERN_CAPTURING`) if the stream is captured, DriverError if the driver refuses,
   * such as when memory that the last launch allocated is not freed.
   */
  launch(stream: Stream): void {
    this.#assertUse('launch a graph', stream);
    const { memory } = this;
    memory?.beforeLaunch(stream);
    native().launchGraph(this.handle, stream.handle, warnOfLostFunctions);
    check('launch a graph');
    memory?.launched(stream);
  }

  /**
   * Prepares the next launch, in the order of the stream, so that it takes less time. Does not block.
   * @throws as {@link GraphExec.launch}
   */
  upload(stream: Stream): void {
    this.#assertUse('upload a graph', stream);
    native().uploadGraph(this.handle, stream.handle);
    check('upload a graph');
  }

  /**
   * Adopts the addresses and values of another graph, which must have the same nodes and edges.
   * Later launches use them; launches that are already queued do not.
   * @returns whether this was possible; if not, nothing has changed, and you must instantiate the
   * other graph
   * @throws ArgumentTypeError if `graph` is not a graph, LifetimeError if it or this object is disposed,
   * DriverError if the driver refuses for any other reason.
   */
  update(graph: Graph): boolean {
    this.assertLive('update a graph');
    assertGraph(graph, 'update a graph');
    native().updateGraphExec(this.handle, graph.handle);
    if (mailbox[0] === updateFailure) return false;
    check('update a graph');
    this.useMemory(graph.memory);
    return true;
  }

  #assertUse(operation: string, stream: Stream): void {
    this.assertLive(operation);
    if (!(stream instanceof Object) || !(stream.identity instanceof StreamIdentity) || stream.isDisposed) refuseStream(stream, operation);
  }
}

markCopy(GraphExec);

function warnOfLostFunctions(status: number): void {
  if (status > 0) warnOfLost('host functions of a graph', status);
}

function destroy(handle: number): void {
  native().destroyGraphExec(handle);
  check('destroy an executable graph');
}
