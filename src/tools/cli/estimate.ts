import { Command, InvalidArgumentError, Option } from 'commander';
import { invalidValue } from '../../basics/errors.js';
import { formatBytes, formatCount } from '../../basics/units.js';
import { type ConvertedFormat, formatToWrite, writeRun } from '../formats/convert-log.js';
import { type EstimateCheck, type EstimateSample, type EstimateSource, RunEstimator } from '../replay/estimate-run.js';
import { FileOption, forceOption } from './command-files.js';
import { logArgument } from './log-argument.js';
import { type FormatOptions, formatOf, formatOptions, layerOption, parseSize, toOption } from './options.js';
import { readRun } from './read-log.js';
import { type Column, formatTable } from './table.js';
import { streamBeside, type Terminal, tellOfFile } from './terminal.js';

const examples = `
Record the same program at two or more values of one number, such as its batch size. The logs must have
the same allocations and frees in the same order; only the sizes differ. Each allocation is fitted by a
line through its sizes or, with three logs or more, by a parabola if a line misses them.

"live at the peak" is what the program itself needs. A pool needs more: write the estimated log with -o, and
find out how much with cistern fit, or try a device size with cistern replay --device-memory.

With three logs or more, the command also estimates the largest one from the others, so that you see how far
you can trust the estimate.

Examples:
  $ cistern estimate batch-8.cistern batch-16.cistern --values 8,16 --at 64
  $ cistern estimate b8.csv.gz b16.csv.gz b32.csv.gz --values 8,16,32 --memory 24GiB   # the largest that fits
  $ cistern estimate b8.csv b16.csv --values 8,16 --at 64 -o b64.csv && cistern fit b64.csv
`;

interface EstimateCommandOptions extends FormatOptions {
  readonly values: readonly number[];
  readonly at?: number | undefined;
  readonly memory?: number | undefined;
  readonly output?: string | undefined;
  readonly to?: ConvertedFormat | undefined;
  readonly layer?: string | undefined;
}

/** The command's output as JSON. */
interface EstimateResult {
  readonly logs: readonly EstimateSource[];
  /** Null if no value was requested, or none fits. */
  readonly estimate: Omit<EstimateSource, 'source'> | null;
  readonly check: EstimateCheck | null;
  /** With `--memory`: the largest value that fits; 0 if none does, null if every one does. */
  readonly largestValue?: number | null;
}

/** `cistern estimate`: estimates what a log would need at another value. */
export function estimateCommand(terminal: Terminal): Command {
  const command = new Command('estimate')
    .addArgument(logArgument('<logs...>', 'the paths of logs of the same program'))
    .addOption(
      new Option('--values <numbers>', 'the batch size, or other number that differs, for each log, in order')
        .argParser(parseValues)
        .makeOptionMandatory(),
    )
    .addOption(new Option('--at <number>', 'the value to estimate').argParser(parseValue))
    .addOption(new Option('--memory <size>', 'find the largest value that fits into this much memory').argParser(parseSize))
    .addOption(new FileOption('-o, --output <file>', 'the file to write the estimated log to', 'overwritten'))
    .addOption(toOption())
    .addOption(forceOption())
    .addOption(layerOption());
  for (const option of formatOptions()) command.addOption(option);
  return command
    .addHelpText('after', examples)
    .action((paths: readonly string[], options: EstimateCommandOptions) => estimate(paths, options, terminal));
}

async function estimate(paths: readonly string[], options: EstimateCommandOptions, terminal: Terminal): Promise<void> {
  const { values, at, memory, output, layer } = options;
  const to = output === undefined ? undefined : formatToWrite(output, options.to);
  if (values.length !== paths.length)
    throw invalidValue(`--values has ${values.length} numbers for ${paths.length} logs: give one for each log`);
  if (at === undefined && memory === undefined) throw invalidValue('nothing to estimate: give --at or --memory');
  const samples: EstimateSample[] = [];
  for (const [i, path] of paths.entries()) {
    samples.push({ run: await readRun(path, terminal, 'the estimate uses only the events before that'), value: values[i] as number });
  }
  const estimator = new RunEstimator(samples, layer === undefined ? {} : { layer });
  const largest = memory === undefined ? undefined : (estimator.largestValue(memory) ?? 0);
  const value = at ?? (Number.isFinite(largest) ? largest || undefined : undefined);
  if (output !== undefined && value === undefined) throw invalidValue('no value to write a log for: give --at');
  const result: EstimateResult = {
    logs: estimator.sources,
    estimate: value === undefined ? null : { value, peakLiveBytes: estimator.peakLiveBytes(value) },
    check: estimator.check() ?? null,
    ...(largest === undefined ? {} : { largestValue: Number.isFinite(largest) ? largest : null }),
  };
  if (output !== undefined) await writeRun(estimator.run(value as number), output, to === undefined ? {} : { to });
  const format = formatOf(options);
  const text = await streamBeside(terminal, output);
  if (format === 'json') text.write(`${JSON.stringify(result, undefined, 2)}\n`);
  else text.write(`${formatTable(columns, rows(result), format, text)}${sentences(result, memory)}`);
  if (output !== undefined && format !== 'json') {
    text.write('\n');
    await tellOfFile(terminal, output, `the log at ${value}`);
  }
}

const columns: readonly Column[] = [
  { title: 'value', align: 'right' },
  { title: 'live at the peak', align: 'right' },
  { title: 'bytes', align: 'right' },
  { title: '', align: 'left' },
];

function rows({ logs, estimate }: EstimateResult): string[][] {
  const row = (value: number, bytes: number, from: string) => [String(value), formatBytes(bytes), formatCount(bytes), from];
  return [
    ...logs.map(({ value, peakLiveBytes, source }) => row(value, peakLiveBytes, source)),
    ...(estimate === null ? [] : [row(estimate.value, estimate.peakLiveBytes, 'estimated')]),
  ];
}

function sentences({ check, largestValue, logs }: EstimateResult, memory = 0): string {
  const told: string[] = [];
  if (largestValue === null) told.push(`The peak does not grow beyond ${formatBytes(memory)}, whatever the value.`);
  else if (largestValue === 0) told.push(`Not even the value 1 fits into ${formatBytes(memory)}.`);
  else if (largestValue !== undefined)
    told.push(`The largest value that fits into ${formatBytes(memory)} is ${largestValue}; a pool needs somewhat more memory.`);
  if (check !== null) {
    const others = logs.slice(0, -1).map(({ value }) => value);
    const off = check.peakLiveBytes === 0 ? 0 : check.estimatedBytes / check.peakLiveBytes - 1;
    told.push(
      `From ${others.join(', ')} alone, the estimate for ${check.value} would have been ${formatBytes(check.estimatedBytes)}: ${(100 * Math.abs(off)).toFixed(1)} % ${off < 0 ? 'too little' : 'too much'}.`,
    );
  }
  return told.map((sentence) => `\n${sentence}\n`).join('');
}

function parseValue(text: string): number {
  const value = Number(text);
  if (/^\d+(\.\d+)?$/.test(text) && value > 0 && value <= Number.MAX_SAFE_INTEGER) return value;
  throw new InvalidArgumentError('It must be a number above 0, and at most 2^53 - 1.');
}

function parseValues(text: string): number[] {
  return text.split(',').map(parseValue);
}
