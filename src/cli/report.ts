import { readFile, stat } from 'node:fs/promises';
import { Command, Option } from 'commander';
import { ArgumentRangeError } from '../errors.js';
import { type ReadRecordedRunOptions, readRecordedRun } from '../formats/read-recorded-run.js';
import type { RecordedRun } from '../formats/recorded-run.js';
import { planAllocations } from '../planning/plan-allocations.js';
import { plannedRun } from '../planning/planned-run.js';
import { parsePlan } from '../plans/plan.js';
import type { PackedReportRun } from '../report/pack-report-run.js';
import { readReportRun } from '../report/read-report-run.js';
import { writeReport } from '../report/write-report.js';
import { formatBytes } from '../units.js';
import { progressBar } from './progress-bar.js';
import { formatCount, type Terminal, tellOfFile, warn } from './terminal.js';

const examples = `
The report is one HTML file. It needs no network and no server: open it in any browser, send it to anyone. It sends nothing anywhere.

Examples:
  $ cistern report trace.csv.gz                              # writes report.html
  $ cistern report run.cistern -o run.html --title 'Training, batch 64'
  $ cistern report pool.cistern arena.cistern -o both.html   # side by side
  $ cistern report run.cistern --plan                        # beside a plan of the same allocations
`;

interface ReportCommandOptions {
  readonly output: string;
  readonly title?: string;
  /** The path of a plan; `true` if one is to be computed. */
  readonly plan?: string | true;
}

/** `cistern report`: writes a page that shows where memory went. */
export function reportCommand(terminal: Terminal): Command {
  return new Command('report')
    .description('Write a page that shows where memory went: curves, a map of addresses over time, fragmentation, call sites.')
    .argument('<logs...>', 'the paths of logs (RMM CSV, recordings or PyTorch snapshots, plain or gzip); several are shown side by side')
    .addOption(new Option('-o, --output <file>', 'the page to write').default('report.html'))
    .addOption(new Option('--title <text>', "the page's title (default: the names of the logs)"))
    .addOption(new Option('--plan [file]', 'show a plan of the log beside it: one that cistern plan wrote, or one that is computed now'))
    .addHelpText('after', examples)
    .action((paths: readonly string[], options: ReportCommandOptions) => report(paths, options, terminal));
}

async function report(paths: readonly string[], { output, title, plan }: ReportCommandOptions, terminal: Terminal): Promise<void> {
  const runs: (PackedReportRun | RecordedRun)[] = [];
  for (const path of paths) {
    runs.push(plan === undefined ? await readRun(path, terminal, readReportRun) : await readRun(path, terminal, readRecordedRun));
  }
  const [first, second] = runs;
  if (plan !== undefined) {
    if (second !== undefined) throw new ArgumentRangeError('--plan needs exactly one log', 'ERR_INVALID_ARG_VALUE');
    const run = first as RecordedRun;
    runs.push(plannedRun(run, plan === true ? planAllocations(run) : parsePlan(await readFile(plan, 'utf8'), plan)));
  }
  const bar = progressBar(terminal, 'writing', 1);
  try {
    await writeReport(runs, output, {
      ...(title === undefined ? {} : { title }),
      ...(plan === undefined ? {} : { comparedRun: 1, title: title ?? (first as RecordedRun).source }),
      onProgress: (done, source) => bar.update(done, source),
    });
  } finally {
    bar.stop();
  }
  const events = runs.slice(0, paths.length).reduce((sum, { eventCount }) => sum + eventCount, 0);
  await tellOfFile(terminal, output, `${output}: ${formatCount(events)} events in ${formatBytes((await stat(output)).size)}\n`);
}

async function readRun<Run extends PackedReportRun | RecordedRun>(
  path: string,
  terminal: Terminal,
  read: (path: string, options: ReadRecordedRunOptions) => Promise<Run>,
): Promise<Run> {
  const bar = progressBar(terminal, 'reading', 1, (bytesPerSecond) => `${formatBytes(Math.round(bytesPerSecond))}/s`);
  try {
    const run = await read(path, {
      onProgress: ({ bytesRead, totalBytes, events }) => bar.update(bytesRead, `${formatCount(events)} events`, totalBytes ?? bytesRead),
    });
    bar.stop();
    if (run.damage !== undefined) {
      const { offset, fault, isTruncation } = run.damage;
      const what = isTruncation ? 'ends early' : 'is damaged';
      warn(terminal, `${path} ${what}, at byte ${formatCount(offset)}: ${fault}; the report shows the events before that`);
    }
    return run;
  } finally {
    bar.stop();
  }
}
