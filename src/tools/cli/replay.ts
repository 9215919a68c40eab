import { join, parse } from 'node:path';
import { Command, Option } from 'commander';
import { formatBytes, formatCount } from '../../basics/units.js';
import { Device } from '../../driver/device.js';
import { parseSpecification } from '../../specification/parse-specification.js';
import { createResourceStack } from '../../specification/resource-stack.js';
import type { AllocationLog } from '../replay/allocation-log.js';
import { explainFailure, type FailureExplanation } from '../replay/explain-failure.js';
import { recordReplay } from '../replay/record-replay.js';
import { defaultRepeat, replayLog } from '../replay/replay-log.js';
import type { ReplayResult } from '../replay/replay-result.js';
import { FileOption, forceOption } from './command-files.js';
import { ExitCode } from './exit-code.js';
import { type FailedReplay, orError } from './failed-replay.js';
import { failureText } from './failure-text.js';
import { logArgument } from './log-argument.js';
import { describeStreams, formatOf, openDevice, type StackOptions, stackOptions } from './options.js';
import { visibleInLine } from './output.js';
import { progressBar } from './progress-bar.js';
import { logTitle, readLog } from './read-log.js';
import { replayTable } from './replay-table.js';
import { hint, type Terminal, tellOfFile } from './terminal.js';

/** The stacks compared if no `--resource` is given. */
const defaultSpecifications = [
  'cuda',
  'cuda-async',
  'pool(cuda, deallocationEvents=eager)',
  'pool(cuda, deallocationEvents=deferred)',
  'pool(cuda, deallocationEvents=off)',
];

const examples = `
A specification reads inside out, in the order in which you would construct the resources; "cistern
resources" lists the kinds and their options. The time covers only the replay, and the
driver calls only those of the stack. If the log frees on a stream other than the allocation's, the replay
first makes that stream wait, as a correct program would, and does not count that wait and its event. Several
stacks in one run share what the JavaScript engine has learnt: to compare figures that differ little, replay
one stack per run.

Exit status: 0 if nothing failed, 1 if an allocation or a replay failed or memory was leaked, 2 if an argument or the log is wrong.

Examples:
  $ cistern replay trace.csv.gz
  $ cistern replay run.cistern --layer 'pool(cuda)'
  $ cistern replay trace.csv --streams thread --repeat 9 --format markdown
  $ cistern replay trace.csv --resource 'limiting(pool(cuda-async, initialBytes=1GiB, deallocationEvents=deferred), limitBytes=8GiB)' --json
  $ cistern replay trace.csv --resource 'pool(cuda)' --device software --device-memory 2GiB
  $ cistern replay trace.csv --resource 'pool(cuda, maximumBytes=600MiB)' --until-failure
  $ cistern replay trace.csv --resource 'pool(cuda)' --timeline pool.cistern && cistern report pool.cistern -o pool.html
`;

interface ReplayCommandOptions extends StackOptions {
  readonly untilFailure?: boolean | undefined;
  readonly timeline?: string | undefined;
}

/** A stack that completed the log, in place of an explanation. */
interface Completed {
  readonly resource: string;
  readonly failure: null;
}

/** `cistern replay`: replays a log through stacks of resources and compares them. */
export function replayCommand(terminal: Terminal, exitWith: (code: number) => void): Command {
  const own = [
    new Option(
      '--until-failure',
      'stop at the first allocation that fails, and explain why it failed and what would have prevented it',
    ).conflicts('repeat'),
    new FileOption(
      '--timeline <file>',
      'replay once and record what each stack does, for "cistern report"; with several stacks, the names get numbers',
      'overwritten',
      timelinesOf,
    ).conflicts(['repeat', 'untilFailure', 'format', 'json']),
    forceOption(),
  ];
  const command = new Command('replay').addArgument(logArgument());
  for (const option of stackOptions('a stack to replay through', defaultSpecifications, own)) command.addOption(option);
  return command
    .addHelpText('after', examples)
    .action(async (path: string, options: ReplayCommandOptions) => exitWith(await replay(path, options, terminal)));
}

async function replay(path: string, options: ReplayCommandOptions, terminal: Terminal): Promise<number> {
  const specifications = options.resource ?? defaultSpecifications;
  // Reports typing mistakes before a long log is read.
  for (const specification of specifications) parseSpecification(specification);
  openDevice(options, terminal);
  const log = await readLog(path, terminal, options.layer);
  if (options.timeline !== undefined) return record(log, specifications, timelinesOf(options.timeline, options), options, terminal);
  return options.untilFailure === true ? explain(log, specifications, options, terminal) : compare(log, specifications, options, terminal);
}

async function record(
  log: AllocationLog,
  specifications: readonly string[],
  timelines: readonly string[],
  { streams }: ReplayCommandOptions,
  terminal: Terminal,
): Promise<number> {
  const bar = progressBar(terminal, 'recording', specifications.length);
  let failures = 0;
  try {
    for (const [i, specification] of specifications.entries()) {
      bar.update(i, specification);
      const path = timelines[i] as string;
      const recorded = await recordReplay(log, specification, path, { streams });
      failures += recorded.failures;
      const failed = recorded.failures === 0 ? '' : `, ${formatCount(recorded.failures)} allocations failed`;
      await tellOfFile(terminal, path, `${recorded.resource}${failed}`);
    }
  } finally {
    bar.stop();
  }
  return failures === 0 ? ExitCode.success : ExitCode.failure;
}

/** The file of each stack. */
function timelinesOf(timeline: string, { resource = defaultSpecifications }: Pick<ReplayCommandOptions, 'resource'>): readonly string[] {
  return resource.length === 1 ? [timeline] : resource.map((_, i) => numbered(timeline, i + 1));
}

/** Numbers a path: `pool.cistern.gz` with 2 is `pool-2.cistern.gz`. */
function numbered(path: string, number: number): string {
  const { dir, base } = parse(path);
  const dot = base.indexOf('.', 1);
  const end = dot < 0 ? base.length : dot;
  return join(dir, `${base.slice(0, end)}-${number}${base.slice(end)}`);
}

function compare(log: AllocationLog, specifications: readonly string[], options: ReplayCommandOptions, terminal: Terminal): number {
  const results = replayAll(log, specifications, options, terminal);
  const format = formatOf(options);
  if (format === 'json') terminal.stdout.write(`${JSON.stringify(results, undefined, 2)}\n`);
  else terminal.stdout.write(`${title(log, options)}\n\n${replayTable(results, format, terminal.stdout)}`);
  for (const result of results) warnOfFaults(result, log, terminal);
  const failed = results.find((result) => 'error' in result || result.failures > 0);
  if (failed !== undefined) adviseOnMemory(failed, log, options, terminal);
  return results.every(isClean) ? ExitCode.success : ExitCode.failure;
}

function explain(log: AllocationLog, specifications: readonly string[], options: ReplayCommandOptions, terminal: Terminal): number {
  const { streams } = options;
  const format = formatOf(options);
  const bar = progressBar(terminal, 'explaining', specifications.length);
  let replays = 0;
  let results: (FailureExplanation | FailedReplay | Completed)[];
  try {
    results = specifications.map((specification, i) => {
      const onReplay = () => bar.update(i, `${formatCount(++replays)} replays, ${specification}`);
      return orError(
        specification,
        () => explainFailure(log, specification, { streams, onReplay }) ?? { resource: specification, failure: null },
      );
    });
  } finally {
    bar.stop();
  }
  if (format === 'json') terminal.stdout.write(`${JSON.stringify(results, undefined, 2)}\n`);
  else {
    const texts = results.flatMap((result) => {
      if ('error' in result) return [];
      return result.failure === null ? [`${result.resource}: completes the log.\n`] : [failureText(result, log, format, terminal.stdout)];
    });
    terminal.stdout.write([`${logTitle(log)}\n`, ...texts].join('\n'));
  }
  for (const result of results) if ('error' in result) terminal.stderr.write(`error: ${result.resource}: ${result.error.message}\n`);
  return results.every((result) => !('error' in result) && result.failure === null) ? ExitCode.success : ExitCode.failure;
}

function replayAll(
  log: AllocationLog,
  specifications: readonly string[],
  options: ReplayCommandOptions,
  terminal: Terminal,
): (ReplayResult | FailedReplay)[] {
  const { streams, repeat = defaultRepeat(log) } = options;
  const total = specifications.length * (repeat + 1) * log.eventCount;
  const bar = progressBar(terminal, 'replaying', total, (perSecond) => `${formatCount(Math.round(perSecond))} events/s`);
  let events = 0;
  try {
    return specifications.map((specification) => {
      const onReplay = () => {
        events += log.eventCount;
        bar.update(events, specification);
      };
      return orError(specification, () => replayLog(log, () => createResourceStack(specification), { streams, repeat, onReplay }));
    });
  } finally {
    bar.stop();
  }
}

function title(log: AllocationLog, options: ReplayCommandOptions): string {
  const device = Device.get();
  const repeat = options.repeat ?? defaultRepeat(log);
  const times = repeat === 1 ? 'measured once each' : `measured ${repeat} times each`;
  return `${logTitle(log)}\non ${device.name} with ${formatBytes(device.totalBytes)}, ${describeStreams(options.streams)}, ${times}`;
}

function isClean(result: ReplayResult | FailedReplay): boolean {
  return !('error' in result) && result.failures === 0 && (result.leakedBytes ?? 0) === 0;
}

function warnOfFaults(result: ReplayResult | FailedReplay, log: AllocationLog, terminal: Terminal): void {
  if ('error' in result) {
    terminal.stderr.write(`error: ${result.resource}: ${result.error.message}\n`);
    return;
  }
  const { firstFailure, failures, leakedBytes } = result;
  if (firstFailure !== null) {
    const { line, event, bytes, stream, message } = firstFailure;
    const where = `${log.source}, line ${line} (event ${formatCount(event)}, ${bytes} bytes, stream ${stream})`;
    terminal.stderr.write(
      `error: ${result.resource}: ${formatCount(failures)} allocations failed, the first at ${visibleInLine(where)}: ${message}\n`,
    );
  }
  if (leakedBytes !== null && leakedBytes > 0) {
    terminal.stderr.write(`error: ${result.resource}: ${formatBytes(leakedBytes)} were still held at the end\n`);
  }
}

/** Prints advice if memory ran out. */
function adviseOnMemory(failed: ReplayResult | FailedReplay, log: AllocationLog, options: ReplayCommandOptions, terminal: Terminal): void {
  if ('error' in failed && failed.error.code !== 'ERR_CISTERN_OUT_OF_MEMORY') return;
  const device = Device.get();
  if (log.peakLiveBytes > device.totalBytes) {
    const cure = options.device === 'cuda' ? 'replay it with --device software --device-memory' : 'give it more with --device-memory';
    hint(
      terminal,
      `the log needs at least ${formatBytes(log.peakLiveBytes)}, but the device has only ${formatBytes(device.totalBytes)}: ${cure}`,
    );
  } else if ('error' in failed) {
    hint(terminal, `the stack requests more in one piece than the device's ${formatBytes(device.totalBytes)}: try a smaller initial size`);
  } else {
    const command = `cistern replay ${log.source} --resource '${failed.resource}' --until-failure`;
    hint(terminal, `"${command}" shows why, and what would help; "cistern fit" finds out how much memory is needed`);
  }
}
