import { createReadStream } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { Command, Option } from 'commander';
import { formatBytes, formatCount } from '../../basics/units.js';
import { formatPlan, gapOf, type Plan } from '../../plans/plan.js';
import { writeWhole } from '../files/write-whole.js';
import { isMinimallocCsv, type MinimallocProblem, readMinimallocCsv, writeMinimallocCsv } from '../planning/minimalloc-csv.js';
import { type PlanAttempt, planAllocations } from '../planning/plan-allocations.js';
import type { AllocationLog } from '../replay/allocation-log.js';
import { FileOption, forceOption } from './command-files.js';
import { compareGraphs } from './compare-graphs.js';
import { logArgument, logNamed } from './log-argument.js';
import { layerOption, parseSize, parseTime } from './options.js';
import { visibleInLine } from './output.js';
import { readLog } from './read-log.js';
import { type Column, formatTable } from './table.js';
import { streamBeside, type Terminal, tellOfFile } from './terminal.js';

const examples = `
The log may be anything that cistern replay reads, or a problem in the CSV of Google's MiniMalloc
(id,lower,upper,size); for that, the output is its solution, with one more column, offset. Several logs
of one program give one plan, with the largest size at each place.

Streams share memory if a recording shows that one waited for the other. Other formats do not record waits.

The lower bound is the most bytes that are live at once. A plan is proven to be the best if its size is
the lower bound, or if the search has ruled out everything smaller.

With --graphs, each log is that of one CUDA graph; a PyTorch snapshot has a private pool for each graph.
The output compares the memory that the graphs hold in private pools of PyTorch, one for each or one for all
in the order of their captures, with planned memory, in separate blocks or in one region.

Examples:
  $ cistern plan trace.csv.gz -o plan.json
  $ cistern plan --graphs snapshot.pickle
  $ cistern plan --graphs batch-32.cistern batch-16.cistern batch-8.cistern
  $ cistern replay trace.csv.gz --resource 'planned(cuda, plan=plan.json)'
  $ cistern plan A.1048576.csv --max 1MiB --time-limit 60s -o solution.csv
`;

interface PlanCommandOptions {
  readonly output?: string | undefined;
  readonly json?: boolean | undefined;
  readonly timeLimit: number;
  readonly max?: number | undefined;
  readonly alignment?: number | undefined;
  readonly layer?: string | undefined;
  readonly graphs?: boolean | undefined;
}

/** `cistern plan`: computes a place for each allocation of a log. */
export function planCommand(terminal: Terminal): Command {
  return new Command('plan')
    .addArgument(logArgument('<logs...>', 'the paths of the logs; - is standard input'))
    .addOption(new FileOption('-o, --output <file>', 'the file to write the plan to', 'overwritten'))
    .addOption(forceOption())
    .addOption(new Option('--time-limit <time>', 'how long to search, such as 60s or 500ms').argParser(parseTime).default(5000, '5s'))
    .addOption(new Option('--max <size>', 'the most bytes that the plan may need').argParser(parseSize))
    .addOption(new Option('--alignment <size>', 'make every offset a multiple of this').argParser(parseSize))
    .addOption(new Option('--json', 'print JSON'))
    .addOption(layerOption())
    .addOption(new Option('--graphs', 'compare the memory that CUDA graphs hold, separate or shared').conflicts(['output', 'max']))
    .addHelpText('after', examples)
    .action((paths: readonly string[], options: PlanCommandOptions) =>
      options.graphs === true ? compareGraphs(paths, options, terminal) : makePlan(paths, options, terminal),
    );
}

async function makePlan(paths: readonly string[], options: PlanCommandOptions, terminal: Terminal): Promise<void> {
  const { output, json, timeLimit, max, alignment, layer } = options;
  const problem = paths.length === 1 ? await readProblem(paths[0] as string) : undefined;
  const logs: AllocationLog[] = [];
  for (const path of problem === undefined ? paths : []) logs.push(await readLog(path, terminal, layer));
  const attempts: PlanAttempt[] = [];
  const began = performance.now();
  const plan = planAllocations(problem === undefined ? logs : problem.sequence, {
    timeLimitMilliseconds: timeLimit,
    onAttempt: (attempt) => attempts.push(attempt),
    ...(max === undefined ? {} : { maximumBytes: max }),
    ...(alignment === undefined ? {} : { alignmentBytes: alignment }),
  });
  const milliseconds = performance.now() - began;
  if (output !== undefined) {
    await writeWhole(output, (sink) => sink.write(problem === undefined ? formatPlan(plan) : writeMinimallocCsv(problem, plan)));
  }
  const { totalBytes, lowerBoundBytes, isOptimal, gap } = plan;
  const text = await streamBeside(terminal, output);
  if (json === true) {
    const allocations = plan.sizes.length;
    text.write(`${JSON.stringify({ allocations, totalBytes, lowerBoundBytes, isOptimal, gap, milliseconds, attempts }, undefined, 2)}\n`);
    return;
  }
  text.write(
    `${visibleInLine(paths.map((path) => logNamed(path).name).join(', '))}: ${describe(plan)}\n\n${formatTable(columns, attempts.map(rowOf(plan)), 'table', text)}`,
  );
  if (output !== undefined) await tellOfFile(terminal, output, `${formatCount(plan.sizes.length)} allocations`);
}

async function readProblem(path: string): Promise<MinimallocProblem | undefined> {
  if (!path.endsWith('.csv')) return undefined;
  // An RMM log, which ends in .csv too, may be longer than any text.
  if (!isMinimallocCsv(await beginningOf(path))) return undefined;
  return readMinimallocCsv(await readFile(path, 'utf8'), path);
}

async function beginningOf(path: string): Promise<string> {
  let text = '';
  for await (const piece of createReadStream(path, { encoding: 'utf8', end: 1023 })) text += piece;
  return text;
}

function describe({ sizes, totalBytes, lowerBoundBytes, isOptimal, gap }: Plan): string {
  const proof = isOptimal ? 'the best possible' : `${(gap * 100).toFixed(2)} % above the lower bound`;
  return `${formatCount(sizes.length)} allocations in ${formatBytes(totalBytes)} (${totalBytes} bytes), ${proof}; lower bound ${lowerBoundBytes} bytes`;
}

const columns: readonly Column[] = [
  { title: 'algorithm', align: 'left' },
  { title: 'bytes', align: 'right' },
  { title: 'gap', align: 'right' },
  { title: 'time', align: 'right' },
];

function rowOf({ lowerBoundBytes }: Plan): (attempt: PlanAttempt) => string[] {
  return ({ algorithm, totalBytes, milliseconds }) => [
    algorithm,
    totalBytes === undefined ? '-' : formatCount(totalBytes),
    totalBytes === undefined ? '-' : `${(gapOf(totalBytes, lowerBoundBytes) * 100).toFixed(3)} %`,
    `${(milliseconds / 1000).toFixed(2)} s`,
  ];
}
