import { Command } from 'commander';
import { formatBytes, formatCount } from '../../basics/units.js';
import { parseSpecification } from '../../specification/parse-specification.js';
import type { AllocationLog } from '../replay/allocation-log.js';
import { type FitResult, type FittedMaximum, fitLog } from '../replay/fit-log.js';
import type { ReplayTime } from '../replay/replay-result.js';
import { assertNoMaximum } from '../replay/specification-maximum.js';
import { ExitCode } from './exit-code.js';
import { type FailedReplay, orError } from './failed-replay.js';
import { logArgument } from './log-argument.js';
import { describeStreams, formatOf, openDevice, type StackOptions, stackOptions } from './options.js';
import { progressBar } from './progress-bar.js';
import { logTitle, readLog } from './read-log.js';
import { type Column, formatTable } from './table.js';
import { hint, type Terminal } from './terminal.js';

/** The stacks compared if no `--resource` is given. */
const defaultSpecifications = [
  'pool(cuda, deallocationEvents=eager)',
  'pool(cuda, deallocationEvents=deferred)',
  'pool(cuda, deallocationEvents=off)',
  'arena(cuda)',
];

const examples = `
The maximum applies to the innermost resource that can have one (pool, arena, fixed-size, monotonic);
if there is none, a limit is put around the leaf. A replay with the result completed the log; one with
256 bytes less did not. A larger maximum may not be enough, because a pool with a larger maximum grows
in different steps. A pool whose specification has no initialBytes is tried in two ways: growing as it needs
memory, and taking all of its maximum at once. The smaller maximum is the result; "taken" says which
way it was, and both overheads are shown. The times are those with the smallest maximum and without
one, measured alternately.

JSON is one object for one --resource, and a list for several.

Exit status: 0 if every stack completes the log with some maximum, 1 if one does not, 2 if an argument or the log is wrong.

Examples:
  $ cistern fit trace.csv.gz
  $ cistern fit trace.csv.gz --resource 'pool(cuda, deallocationEvents=deferred)' --json
  $ cistern fit trace.csv.gz --resource 'pool(cuda)' --resource 'binning(pool(cuda), bins=[1MiB])' --streams thread --format markdown
`;

/** `cistern fit`: finds the smallest maximum that completes a log. */
export function fitCommand(terminal: Terminal, exitWith: (code: number) => void): Command {
  const command = new Command('fit').addArgument(logArgument());
  for (const option of stackOptions('a stack without a maximum', defaultSpecifications)) command.addOption(option);
  return command
    .addHelpText('after', examples)
    .action(async (path: string, options: StackOptions) => exitWith(await runFit(path, options, terminal)));
}

async function runFit(path: string, options: StackOptions, terminal: Terminal): Promise<number> {
  const specifications = options.resource ?? defaultSpecifications;
  for (const specification of specifications) assertNoMaximum(parseSpecification(specification));
  openDevice(options, terminal);
  const log = await readLog(path, terminal, options.layer);
  const results = fitAll(log, specifications, options, terminal);
  const format = formatOf(options);
  if (format === 'json') terminal.stdout.write(`${JSON.stringify(results.length === 1 ? results[0] : results, undefined, 2)}\n`);
  else {
    const table = formatTable(columns, results.map(row), format, terminal.stdout);
    terminal.stdout.write(`${logTitle(log)}, ${describeStreams(options.streams)}\n\n${table}`);
  }
  for (const result of results) {
    if ('error' in result) terminal.stderr.write(`error: ${result.resource}: ${result.error.message}\n`);
    else if (result.fitted === null) terminal.stderr.write(`error: ${result.resource}: no maximum completes the log\n`);
  }
  const failed = results.find((result) => 'error' in result || result.fitted === null);
  if (failed === undefined) return ExitCode.success;
  hint(terminal, `"cistern replay ${path} --resource '${failed.resource}' --until-failure" says why`);
  return ExitCode.failure;
}

function fitAll(
  log: AllocationLog,
  specifications: readonly string[],
  options: StackOptions,
  terminal: Terminal,
): (FitResult | FailedReplay)[] {
  const { streams, repeat } = options;
  const bar = progressBar(terminal, 'fitting', specifications.length, (perSecond) => `${perSecond.toFixed(1)} replays/s`);
  let replays = 0;
  try {
    return specifications.map((specification, i) => {
      const onProgress = ({ left }: { left: number }) => {
        replays++;
        // Assumes that each remaining stack needs as many replays.
        const total = ((replays + left) / (i + 1)) * specifications.length;
        bar.update(replays, specification, Math.max(total, replays));
      };
      return orError(specification, () => fitLog(log, specification, { streams, onProgress, repeat }));
    });
  } finally {
    bar.stop();
  }
}

const columns: readonly Column[] = [
  { title: 'resource', align: 'left' },
  { title: 'smallest\nmaximum', align: 'right' },
  { title: 'in\nbytes', align: 'right' },
  { title: 'peak\nlive', align: 'right' },
  { title: 'taken', align: 'left' },
  { title: 'overhead\nas needed', align: 'right' },
  { title: 'overhead\nat once', align: 'right' },
  { title: 'ns/op\nsmallest', align: 'right' },
  { title: 'ns/op\nunlimited', align: 'right' },
  { title: 'replays', align: 'right' },
];

function row(result: FitResult | FailedReplay): string[] {
  if ('error' in result) return [result.resource, `failed: ${result.error.code}`];
  const { smallestMaximumBytes, taking, maxima, nanosecondsPerOperation } = result;
  return [
    result.resource,
    smallestMaximumBytes === null ? 'none' : formatBytes(smallestMaximumBytes),
    smallestMaximumBytes === null ? '-' : String(smallestMaximumBytes),
    formatBytes(result.peakLiveBytes),
    taking === null ? '-' : taking === 'at-once' ? 'at once' : 'as needed',
    formatOverhead(maxima.asNeeded),
    formatOverhead(maxima.atOnce),
    formatTime(nanosecondsPerOperation.smallest),
    formatTime(nanosecondsPerOperation.unlimited),
    formatCount(result.replays),
  ];
}

function formatOverhead(maximum: FittedMaximum | null): string {
  return maximum === null || maximum.overheadRatio === null ? '-' : `${(100 * maximum.overheadRatio).toFixed(1)} %`;
}

function formatTime(time: ReplayTime | null): string {
  return time === null ? '-' : time.median.toFixed(1);
}
