import { Command, Option } from 'commander';
import { Device } from '../driver/device.js';
import { CisternError, InvalidLogError, SpecificationError } from '../errors.js';
import type { AllocationLog } from '../replay/allocation-log.js';
import { readAllocationLog } from '../replay/read-allocation-log.js';
import { defaultRepeat, replayLog } from '../replay/replay-log.js';
import type { ReplayResult, ReplayStreams } from '../replay/replay-result.js';
import { parseSpecification } from '../specification/parse-specification.js';
import { createResourceStack } from '../specification/resource-stack.js';
import { formatBytes } from '../units.js';
import { ExitCode } from './exit-code.js';
import { type DeviceOptions, deviceMemoryOption, deviceOption, jsonOption, openDevice, parsePositiveInteger } from './options.js';
import { progressBar } from './progress-bar.js';
import { type FailedReplay, replayTable } from './replay-table.js';
import { formatCount, type Terminal, warn } from './terminal.js';

/** What is compared where no `--resource` is given. */
const defaultSpecifications = ['cuda', 'cuda-async', 'pool(cuda, events=eager)', 'pool(cuda, events=deferred)', 'pool(cuda, events=off)'];

const examples = `
A specification reads inside out, as one would construct the resources; "cistern resources" lists the kinds and their options.
The time is that of the replay alone; the driver calls are the stack's own. A free on another stream than the allocation's comes after
a wait, as in a correct program; those events and waits are not counted as the stack's. Several stacks in one run share what the
JavaScript engine has learnt: for figures that differ by little, replay one stack per run.

Exit status: 0 if nothing failed, 1 if an allocation or a replay failed or memory was leaked, 2 if an argument or the log is wrong.

Examples:
  $ cistern replay trace.csv.gz
  $ cistern replay trace.csv --streams thread --repeat 9
  $ cistern replay trace.csv --resource 'limiting(pool(cuda-async, initial=1GiB, events=deferred), limit=8GiB)' --json
  $ cistern replay trace.csv --resource 'pool(cuda)' --device software --device-memory 2GiB
`;

interface ReplayCommandOptions extends DeviceOptions {
  readonly resource?: readonly string[];
  readonly streams: ReplayStreams;
  readonly repeat?: number;
  readonly json?: boolean;
}

/** `cistern replay`: replays a log through stacks of resources and compares them. */
export function replayCommand(terminal: Terminal, exitWith: (code: number) => void): Command {
  return new Command('replay')
    .description('Replay an allocation log of RMM (CSV, plain or gzip) through stacks of resources, and compare them.')
    .argument('<log>', 'the path of the log')
    .addOption(
      new Option(
        '--resource <specification>',
        `a stack to replay through; repeatable (default: ${defaultSpecifications.join('; ')})`,
      ).argParser((text, previous: readonly string[] | undefined) => [...(previous ?? []), text]),
    )
    .addOption(
      new Option('--streams <streams>', "the log's own streams, one for each thread, or one")
        .choices(['log', 'thread', 'single'])
        .default('log'),
    )
    .addOption(
      new Option('--repeat <n>', 'how often to measure each stack (default: until a million operations, 3 to 100 times)').argParser(
        parsePositiveInteger,
      ),
    )
    .addOption(deviceOption())
    .addOption(deviceMemoryOption())
    .addOption(jsonOption())
    .addHelpText('after', examples)
    .action(async (path: string, options: ReplayCommandOptions) => exitWith(await replay(path, options, terminal)));
}

async function replay(path: string, options: ReplayCommandOptions, terminal: Terminal): Promise<number> {
  const specifications = options.resource ?? defaultSpecifications;
  // Typing mistakes are told before a long log is read.
  for (const specification of specifications) parseSpecification(specification);
  openDevice(options, terminal);
  const log = await readLog(path, terminal);
  const results = replayAll(log, specifications, options, terminal);

  if (options.json === true) terminal.stdout.write(`${JSON.stringify(results, undefined, 2)}\n`);
  else terminal.stdout.write(`${title(log, options)}\n\n${replayTable(results, terminal.stdout)}`);
  for (const result of results) warnOfFaults(result, log, terminal);
  return results.every(isClean) ? ExitCode.success : ExitCode.failure;
}

async function readLog(path: string, terminal: Terminal): Promise<AllocationLog> {
  const bar = progressBar(terminal, 'reading', 1);
  try {
    const log = await readAllocationLog(path, {
      onProgress: ({ bytesRead, totalBytes, events }) => bar.update(bytesRead / (totalBytes || 1), `${formatCount(events)} events`),
    });
    bar.stop();
    if (log.failureCount > 0) warn(terminal, `${path} reports ${formatCount(log.failureCount)} failed allocations, which are skipped`);
    if (log.unfreedCount > 0) {
      const what = `${formatCount(log.unfreedCount)} allocations (${formatBytes(log.unfreedBytes)})`;
      warn(terminal, `${path} never frees ${what}; they are freed at the end`);
    }
    return log;
  } finally {
    bar.stop();
  }
}

function replayAll(
  log: AllocationLog,
  specifications: readonly string[],
  options: ReplayCommandOptions,
  terminal: Terminal,
): (ReplayResult | FailedReplay)[] {
  const { streams, repeat = defaultRepeat(log) } = options;
  const bar = progressBar(terminal, 'replaying', specifications.length * (repeat + 1));
  let replays = 0;
  try {
    return specifications.map((specification) => {
      const onReplay = () => bar.update(++replays, specification);
      try {
        return replayLog(log, () => createResourceStack(specification), { streams, repeat, onReplay });
      } catch (error) {
        if (!(error instanceof CisternError) || error instanceof SpecificationError || error instanceof InvalidLogError) throw error;
        return { resource: specification, error: { code: error.code, message: error.message } };
      }
    });
  } finally {
    bar.stop();
  }
}

function title(log: AllocationLog, options: ReplayCommandOptions): string {
  const device = Device.get();
  const repeat = options.repeat ?? defaultRepeat(log);
  const streams = { log: "the log's streams", thread: 'one stream for each thread', single: 'one stream' }[options.streams];
  return [
    `${log.source}: ${formatCount(log.eventCount)} events, threads: ${log.threads.length}, streams: ${log.streams.length}, at most ${formatBytes(log.peakLiveBytes)} live`,
    `on ${device.name} with ${formatBytes(device.totalBytes)}, ${streams}, ${repeat === 1 ? 'measured once each' : `measured ${repeat} times each`}`,
  ].join('\n');
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
    terminal.stderr.write(`error: ${result.resource}: ${formatCount(failures)} allocations failed, the first at ${where}: ${message}\n`);
  }
  if (leakedBytes !== null && leakedBytes > 0) {
    terminal.stderr.write(`error: ${result.resource}: ${formatBytes(leakedBytes)} were still held at the end\n`);
  }
}
