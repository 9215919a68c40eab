/** The memory that CUDA graphs hold, for `cistern plan --graphs` and for reports. */
import { CisternError } from '../../basics/errors.js';
import { formatBytes, formatCount } from '../../basics/units.js';
import { type GraphsPlan, planGraphs } from '../planning/plan-graphs.js';
import type { AllocationLog } from '../replay/allocation-log.js';
import type { ReportGraphs } from '../report/report-contents.js';
import { readGraphs } from './read-log.js';
import { type Column, formatTable } from './table.js';
import type { Terminal } from './terminal.js';

interface CompareGraphsOptions {
  readonly json?: boolean | undefined;
  /** For each graph, in milliseconds. */
  readonly timeLimit: number;
  readonly alignment?: number | undefined;
  readonly layer?: string | undefined;
}

/** Prints how much memory the graphs in some logs hold, separately and together. */
export async function compareGraphs(paths: readonly string[], options: CompareGraphsOptions, terminal: Terminal): Promise<void> {
  const { json, timeLimit, alignment, layer } = options;
  const logs: AllocationLog[] = [];
  for (const path of paths) logs.push(...(await readGraphs(path, terminal, layer)));
  const plan = planGraphs(logs, {
    timeLimitMilliseconds: timeLimit,
    ...(alignment === undefined ? {} : { alignmentBytes: alignment }),
  });
  const named = withNames(plan, logs);
  terminal.stdout.write(json === true ? `${JSON.stringify(named, undefined, 2)}\n` : describe(named, terminal));
}

/**
 * The memory that the graphs of a log hold; `undefined` if it has none, or if they cannot be
 * planned.
 * @param milliseconds how long this may take
 */
export function graphsForReport(logs: readonly AllocationLog[], milliseconds: number): ReportGraphs | undefined {
  if (logs.length === 0 || milliseconds === 0) return undefined;
  try {
    return withNames(planGraphs(logs, { timeLimitMilliseconds: milliseconds / logs.length }), logs);
  } catch (error) {
    if (error instanceof CisternError) return undefined;
    throw error;
  }
}

/** The figures, without the plans. */
function withNames({ graphs, ...sums }: GraphsPlan, logs: readonly AllocationLog[]): ReportGraphs {
  return { graphs: graphs.map(({ plan: _, ...figures }, i) => ({ name: (logs[i] as AllocationLog).source, ...figures })), ...sums };
}

function describe({ graphs, ...sums }: ReportGraphs, { stdout }: Terminal): string {
  const { lowerBoundBytes, poolsBytes, sharedPoolBytes, plannedApartBytes, plannedBytes } = sums;
  const overBound = (bytes: number) => (lowerBoundBytes === 0 ? '-' : (bytes / lowerBoundBytes).toFixed(3));
  const row = (title: string, bytes: number) => [title, formatBytes(bytes), formatCount(bytes), overBound(bytes)];
  const each = graphs.map((graph) => [
    graph.name,
    formatCount(graph.allocationCount),
    ...[graph.peakLiveBytes, graph.lowerBoundBytes, graph.poolBytes, graph.plannedBytes].map(formatBytes),
  ]);
  const arrangements = [
    row('a private pool for each', poolsBytes),
    row('one private pool for all, captured in this order', sharedPoolBytes),
    row('planned, a separate block for each', plannedApartBytes),
    row('planned, one region for all', plannedBytes),
  ];
  return `${formatTable(graphColumns, each, 'table', stdout)}\n${formatTable(arrangementColumns, arrangements, 'table', stdout)}`;
}

const numbers = (titles: readonly string[]) => titles.map((title): Column => ({ title, align: 'right' }));
const graphColumns: readonly Column[] = [
  { title: 'graph', align: 'left' },
  ...numbers(['allocations', 'peak live', 'lower bound', 'in a pool', 'planned']),
];
const arrangementColumns: readonly Column[] = [
  { title: 'memory', align: 'left' },
  ...numbers(['', 'bytes', 'over the largest\nlower bound']),
];
