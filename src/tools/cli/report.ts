import { readFile, stat } from 'node:fs/promises';
import { basename } from 'node:path';
import { Command, Option } from 'commander';
import { invalidValue } from '../../basics/errors.js';
import { formatBytes, formatCount } from '../../basics/units.js';
import { parsePlan } from '../../plans/plan.js';
import { appendEvents, EventKind } from '../formats/event-columns.js';
import type { RecordedRun } from '../formats/recorded-run.js';
import { planAllocations } from '../planning/plan-allocations.js';
import { plannedRun } from '../planning/planned-run.js';
import type { AllocationLog } from '../replay/allocation-log.js';
import { AllocationProjection } from '../replay/project-allocations.js';
import { PackedReportRun, packReportRun } from '../report/pack-report-run.js';
import { readReportRunAnd } from '../report/read-report-run.js';
import type { ReportGraphs } from '../report/report-contents.js';
import { writeReport } from '../report/write-report.js';
import { FileOption, forceOption } from './command-files.js';
import { graphsForReport } from './compare-graphs.js';
import { emptyLogAdvice } from './error-advice.js';
import { fitForReport, ReplayedEvents } from './fit-for-report.js';
import { logArgument, logNamed } from './log-argument.js';
import { parseTime } from './options.js';
import { progressBar } from './progress-bar.js';
import { readRun, readWithWarnings } from './read-log.js';
import { streamBeside, type Terminal, tellOfFile, warn } from './terminal.js';

const examples = `
The report is one HTML file. It needs no network and no server: open it in any browser, send it to anyone. It sends nothing anywhere.

Examples:
  $ cistern report trace.csv.gz                              # writes report.html
  $ cistern report run.cistern -o run.html --title 'Training, batch 64'
  $ cistern report pool.cistern arena.cistern -o both.html   # side by side
  $ cistern report run.cistern --plan                        # beside a plan of the same allocations
  $ zcat trace.csv.gz | cistern report - --time-limit 30s     # from another program

The page also says how much memory other stacks need for the log. That takes up to five seconds, on the
software device; "cistern fit" searches to the end.
`;

interface ReportCommandOptions {
  readonly output: string;
  readonly title?: string | undefined;
  readonly json?: boolean | undefined;
  /** The path of a plan; `true` to compute one. */
  readonly plan?: string | true | undefined;
  /** In milliseconds. */
  readonly timeLimit: number;
}

/** `cistern report`: writes a page that shows where memory went. */
export function reportCommand(terminal: Terminal): Command {
  return new Command('report')
    .addArgument(
      logArgument(
        '<logs...>',
        'the paths of logs (RMM CSV, recordings, PyTorch snapshots or reports, plain or gzip); - is standard input; several are shown side by side',
      ),
    )
    .addOption(new FileOption('-o, --output <file>', 'the page to write', 'overwritten').default('report.html'))
    .addOption(forceOption())
    .addOption(new Option('--title <text>', "the page's title (default: the names of the logs)"))
    .addOption(
      new Option('--time-limit <time>', 'how long to search for the least memory that other stacks need; 0s skips the search')
        .argParser(parseTime)
        .default(5000, '5s'),
    )
    .addOption(
      new FileOption('--plan [file]', 'show a plan next to the log: the given one from cistern plan, or otherwise a new one', 'read'),
    )
    .addOption(new Option('--json', 'also print the figures of each log as JSON'))
    .addHelpText('after', examples)
    .action((paths: readonly string[], options: ReportCommandOptions) => report(paths, options, terminal));
}

async function report(paths: readonly string[], options: ReportCommandOptions, terminal: Terminal): Promise<void> {
  const { output, title, plan, timeLimit, json = false } = options;
  if (plan !== undefined && paths.length > 1) throw invalidValue('--plan needs exactly one log');
  const runs: (PackedReportRun | RecordedRun)[] = [];
  const logs: (AllocationLog | undefined)[] = [];
  const graphs: (ReportGraphs | undefined)[] = [];
  for (const path of paths) {
    const { run, log, graphs: own } = plan === undefined ? await readPacked(path, terminal) : await readWhole(path, terminal);
    runs.push(run);
    logs.push(log);
    graphs.push(graphsForReport(own, timeLimit));
    if (log === undefined && !hasAllocations(run)) warn(terminal, `${run.source} has no allocations: ${emptyLogAdvice}`);
  }
  const [first] = runs as [PackedReportRun | RecordedRun];
  if (plan !== undefined) {
    const run = first as RecordedRun;
    runs.push(plannedRun(run, plan === true ? planAllocations(run) : parsePlan(await readFile(plan, 'utf8'), plan)));
  }
  const fits = fitForReport(logs, timeLimit, terminal);
  const bar = progressBar(terminal, 'writing', 1);
  try {
    await writeReport(runs, output, {
      title,
      ...(plan === undefined ? {} : { comparedRun: 1, title: title ?? basename(first.source) }),
      fits,
      graphs,
      onProgress: (done, source) => bar.update(done, source),
    });
  } finally {
    bar.stop();
  }
  if (json) {
    const figures = runs.slice(0, paths.length).map((run) => (run instanceof PackedReportRun ? run : packReportRun(run)).overview);
    (await streamBeside(terminal, output)).write(`${JSON.stringify(figures, undefined, 2)}\n`);
    return;
  }
  const events = runs.slice(0, paths.length).reduce((sum, { eventCount }) => sum + eventCount, 0);
  const written = await stat(output);
  const size = written.isFile() ? ` in ${formatBytes(written.size)}` : '';
  await tellOfFile(terminal, output, `${formatCount(events)} events${size}`);
}

function hasAllocations(run: PackedReportRun | RecordedRun): boolean {
  if (run instanceof PackedReportRun)
    return run.overview.layers.some(({ allocationCount, failureCount }) => allocationCount + failureCount > 0);
  return run.kinds.some((kind) => kind === EventKind.allocate || kind === EventKind.failure);
}

const consequence = 'the report shows only the events before that';

/** A log for the page, and for replays if that is possible. */
interface ReadLog {
  readonly run: PackedReportRun | RecordedRun;
  readonly log: AllocationLog | undefined;
  readonly graphs: readonly AllocationLog[];
}

async function readPacked(path: string, terminal: Terminal): Promise<ReadLog> {
  const { source, name } = logNamed(path);
  let events: ReplayedEvents | undefined;
  const run = await readWithWarnings(terminal, consequence, (onProgress) =>
    readReportRunAnd(source, { name, onProgress }, (names) => {
      events = new ReplayedEvents(new AllocationProjection(name, names, undefined));
      return events;
    }),
  );
  const { log, graphs = [] } = events?.finish(run) ?? {};
  return { run, log, graphs };
}

async function readWhole(path: string, terminal: Terminal): Promise<ReadLog> {
  const run = await readRun(path, terminal, consequence);
  const events = new ReplayedEvents(new AllocationProjection(logNamed(path).name, run, undefined));
  appendEvents(run, events);
  return { run, ...events.finish(run) };
}
