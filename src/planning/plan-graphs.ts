import { ArgumentRangeError, ArgumentTypeError, formatValue } from '../basics/errors.js';
import type { Plan } from '../plans/plan.js';
import type { OrderedSequence } from '../plans/sequence.js';
import { type PlanOptions, planAllocations } from './plan-allocations.js';
import { privatePoolBytes } from './private-pool.js';
import { type PlanSource, sequenceOf } from './sequences.js';

/** The memory of one graph; all in bytes. */
export interface GraphPlan {
  /** Where each of its allocations lies. */
  readonly plan: Plan;
  readonly allocationCount: number;
  /** The most that is live at once, as requested. */
  readonly peakLiveBytes: number;
  /** The same, each allocation rounded up to the alignment: no plan needs less. */
  readonly lowerBoundBytes: number;
  /** What a private pool of PyTorch reserves for this graph alone. */
  readonly poolBytes: number;
  /** What its plan needs. */
  readonly plannedBytes: number;
}

/** What several graphs hold, however their memory is arranged; all in bytes. */
export interface GraphsPlan {
  readonly graphs: readonly GraphPlan[];
  /** The largest lower bound of a graph: graphs that never run at the same time need no less. */
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
 * The pools are a model of `CUDACachingAllocator` with default settings: segments of 2 MiB for
 * requests of up to 1 MiB, else of 20 MiB or more, which are neither joined nor given back; best fit; a block
 * belongs to the stream that it was allocated on. What a graph never frees is taken to be free when the
 * next one is captured. Where a program keeps it, or uses blocks on several streams, PyTorch needs more.
 *
 * RMM has no counterpart.
 * @param graphs what each graph allocates and frees, in the order of their captures: results of
 * `readGraphLogs`, for example. At least one
 * @param options as for `planAllocations`; the time limit is for each graph
 * @throws OutOfMemoryError if a graph has no plan within `maximumBytes`.
 * @throws ArgumentTypeError, ArgumentRangeError for invalid options, or if there is no graph.
 * @throws CisternError (`ERR_CISTERN_INVALID_PLAN`) if a sequence contradicts itself.
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
