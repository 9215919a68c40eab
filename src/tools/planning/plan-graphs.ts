import { ArgumentRangeError, ArgumentTypeError, formatValue } from '../../basics/errors.js';
import type { Plan } from '../../plans/plan.js';
import type { OrderedSequence } from '../../plans/sequence.js';
import { type PlanOptions, planAllocations } from './plan-allocations.js';
import { privatePoolBytes } from './private-pool.js';
import { type PlanSource, sequenceOf } from './sequences.js';

/** The memory of one graph; all in bytes. */
export interface GraphPlan {
  /** The place of each of its allocations. */
  readonly plan: Plan;
  readonly allocationCount: number;
  /** The most bytes that are live at once, as requested. */
  readonly peakLiveBytes: number;
  /** The same, each allocation rounded up to the alignment: no plan needs less. */
  readonly lowerBoundBytes: number;
  /** The bytes that a private pool of PyTorch reserves for this graph alone. */
  readonly poolBytes: number;
  /** The bytes that its plan needs. */
  readonly plannedBytes: number;
}

/** The memory of several graphs, in several arrangements; all in bytes. */
export interface GraphsPlan {
  readonly graphs: readonly GraphPlan[];
  /**
   * The largest lower bound of a graph: graphs that never run at the same time need at least this.
   */
  readonly lowerBoundBytes: number;
  /** A private pool for each graph, as PyTorch has it by default. */
  readonly poolsBytes: number;
  /** One private pool for all of them (`graph_pool_handle`), captured in the given order. */
  readonly sharedPoolBytes: number;
  /** A planned block for each graph. */
  readonly plannedApartBytes: number;
  /** One planned region for all of them, as large as the largest plan. The order does not matter. */
  readonly plannedBytes: number;
}

/**
 * Plans the memory of CUDA graphs that never run at the same time, and compares it with the private pools
 * that PyTorch would capture them from.
 *
 * The pools are a model of `CUDACachingAllocator` with default settings: segments of 2 MiB for requests of up
 * to 1 MiB, otherwise of 20 MiB or more, which are neither joined nor returned; best fit; a block belongs to
 * the stream that it was allocated on. Memory that a graph never frees counts as free when the next one is
 * captured. If a program keeps it, or uses blocks on several streams, PyTorch needs more.
 *
 * RMM has no counterpart.
 * @param graphs the allocations and frees of at least one graph, in the order of their captures,
 * such as results of `readGraphLogs`
 * @param options as for `planAllocations`; the time limit is for each graph
 * @throws OutOfMemoryError if a graph has no plan within `maximumBytes`.
 * @throws ArgumentTypeError, ArgumentRangeError for invalid options, or if there is no graph.
 * @throws CisternError (`ERR_CISTERN_INVALID_PLAN`) if a sequence is inconsistent.
 * @example
 * ```ts
 * const { plannedBytes, sharedPoolBytes, poolsBytes } = planGraphs(await readGraphLogs('trace.csv.gz'));
 * console.log(`${plannedBytes} bytes instead of ${sharedPoolBytes}, or ${poolsBytes} in pools of their own`);
 * ```
 */
export function planGraphs(graphs: readonly PlanSource[], options: PlanOptions = {}): GraphsPlan {
  if (!Array.isArray(graphs)) throw new ArgumentTypeError(`graphs must be an array, got ${formatValue(graphs)}`);
  if (graphs.length === 0) throw new ArgumentRangeError('graphs must hold at least one graph, got none');
  const sequences = graphs.map(sequenceOf);
  const planned = sequences.map((sequence): GraphPlan => {
    const plan = planAllocations(sequence, options);
    return {
      plan,
      allocationCount: sequence.sizes.length,
      peakLiveBytes: peakOf(sequence),
      lowerBoundBytes: plan.lowerBoundBytes,
      poolBytes: privatePoolBytes([sequence]),
      plannedBytes: plan.totalBytes,
    };
  });
  const sum = (bytes: (graph: GraphPlan) => number) => planned.reduce((total, graph) => total + bytes(graph), 0);
  const most = (bytes: (graph: GraphPlan) => number) => planned.reduce((total, graph) => Math.max(total, bytes(graph)), 0);
  return {
    graphs: planned,
    lowerBoundBytes: most(({ lowerBoundBytes }) => lowerBoundBytes),
    poolsBytes: sum(({ poolBytes }) => poolBytes),
    sharedPoolBytes: privatePoolBytes(sequences),
    plannedApartBytes: sum(({ plannedBytes }) => plannedBytes),
    plannedBytes: most(({ plannedBytes }) => plannedBytes),
  };
}

function peakOf({ operations, sizes }: OrderedSequence): number {
  let live = 0;
  let peak = 0;
  for (let i = 0; i < operations.length; i++) {
    const operation = operations[i] as number;
    live += operation >= 0 ? (sizes[operation] as number) : -(sizes[~operation] as number);
    peak = Math.max(peak, live);
  }
  return peak;
}
