import { Command, InvalidArgumentError, Option } from 'commander';
import { bytesOf, formatBytes, formatCount, MiB, sizeMeant } from '../../basics/units.js';
import { noSuchLayer } from '../formats/layer-allocations.js';
import { diffSides, sideOf } from '../report/diff-runs.js';
import { packReportRun } from '../report/pack-report-run.js';
import type { RunOverview } from '../report/report-contents.js';
import { ExitCode } from './exit-code.js';
import { logArgument } from './log-argument.js';
import { integerParser, jsonOption, layerOption } from './options.js';
import { visibleInLine } from './output.js';
import { readRun } from './read-log.js';
import { type Column, formatTable } from './table.js';
import type { Terminal } from './terminal.js';

const examples = `
Thresholds: peak, leak and reserved in bytes, fragmentation in percent, leaks, failures and allocations as numbers.

Exit status: 0; 1 if a threshold is exceeded, in any of the logs; 2 if a log cannot be read.

Examples:
  $ cistern summary run.cistern
  $ cistern summary run-*.cistern --fail-above leak=0       # a log of each process
  $ cistern summary run.cistern --fail-above peak=8GiB,leak=0,fragmentation=20%
  $ cistern summary snapshot.pickle --json
`;

type Layer = RunOverview['layers'][number];

/** What a threshold can be of: the figure, how its limit is read, and how both are shown. */
interface Measure {
  readonly of: (layer: Layer) => number;
  readonly parse: (text: string) => number | undefined;
  readonly format: (value: number) => string;
  readonly expected: string;
}

const inBytes = { parse: bytesOf, format: formatBytes, expected: 'a size such as 8GiB, or 0' };
const asCount = { parse: countOf, format: formatCount, expected: 'a number' };
const inPercent = { parse: percentOf, format: (value: number) => `${(100 * value).toFixed(1)} %`, expected: 'a share such as 20%' };

const measures: Readonly<Record<string, Measure>> = {
  peak: { of: ({ peakLiveBytes }) => peakLiveBytes, ...inBytes },
  reserved: { of: ({ peakReservedBytes }) => peakReservedBytes ?? 0, ...inBytes },
  leak: { of: ({ neverFreedBytes }) => neverFreedBytes, ...inBytes },
  leaks: { of: ({ neverFreedCount }) => neverFreedCount, ...asCount },
  fragmentation: { of: ({ fragmentationAtPeak }) => fragmentationAtPeak, ...inPercent },
  failures: { of: ({ failureCount }) => failureCount, ...asCount },
  allocations: { of: ({ allocationCount }) => allocationCount, ...asCount },
};

/** Layers that keep memory and have these options, by the names that recordings give them. */
const keepers = /^(?:caching|pool)(?: #\d+)?$/;
/** Less is not worth a sentence. */
const leastAdvisedBytes = 64 * MiB;

interface Threshold {
  readonly measure: string;
  readonly limit: number;
}

interface SummaryOptions {
  readonly json?: boolean | undefined;
  readonly failAbove?: readonly Threshold[] | undefined;
  readonly layer?: string | undefined;
  readonly limit: number;
}

/** `cistern summary`: prints the figures of each log, and fails if one is above its threshold. */
export function summaryCommand(terminal: Terminal, exitWith: (code: number) => void): Command {
  return new Command('summary')
    .addArgument(logArgument('<logs...>', 'the paths of logs; - is standard input'))
    .addOption(
      new Option('--fail-above <thresholds>', `exit with 1 if a figure is larger: ${Object.keys(measures).join(', ')}`).argParser(
        parseThresholds,
      ),
    )
    .addOption(layerOption())
    .addOption(new Option('--limit <n>', 'how many call sites to print').argParser(integerParser(1)).default(5))
    .addOption(jsonOption())
    .addHelpText('after', examples)
    .action(async (logs: readonly string[], options: SummaryOptions) => {
      const summaries: Summary[] = [];
      for (const log of logs) {
        if (options.json !== true && summaries.length > 0) terminal.stdout.write('\n');
        summaries.push(await summarize(log, options, terminal));
      }
      if (options.json === true) terminal.stdout.write(`${JSON.stringify(logs.length === 1 ? summaries[0] : summaries, undefined, 2)}\n`);
      for (const [i, { exceeded }] of summaries.entries()) {
        for (const { measure, limit, value } of exceeded) {
          const { format } = measures[measure] as Measure;
          const where = logs.length === 1 ? '' : `${visibleInLine(logs[i] as string)}: `;
          terminal.stderr.write(`error: ${where}${measure} is ${format(value)}, above ${format(limit)}\n`);
        }
      }
      if (summaries.some(({ exceeded }) => exceeded.length > 0)) exitWith(ExitCode.failure);
    });
}

/** What `--json` prints of a log. */
interface Summary extends Pick<RunOverview, 'source' | 'eventCount' | 'durationNanoseconds' | 'isDamaged' | 'layers'> {
  readonly layer: Layer;
  readonly by: string;
  readonly neverFreed: readonly LargestGroup[];
  readonly atPeak: readonly LargestGroup[];
  readonly exceeded: readonly (Threshold & { readonly value: number })[];
}

interface LargestGroup {
  readonly name: string;
  readonly bytes: number;
  readonly count: number;
}

/** Prints the figures of a log, unless they are to be JSON. */
async function summarize(log: string, options: SummaryOptions, terminal: Terminal): Promise<Summary> {
  const { json = false, failAbove = [], layer: wanted, limit } = options;
  const run = await readRun(log, terminal, 'the summary is of the events before that');
  const { overview } = packReportRun(run);
  const layer = wanted === undefined ? overview.layers[overview.layer] : overview.layers.find(({ name }) => name === wanted);
  if (layer === undefined) throw noSuchLayer(run, wanted ?? '');
  const side = sideOf(run);
  // A program that allocated nothing has no layer to compare.
  const { by, rows } = run.layers.length === 0 ? { by: 'size', rows: [] } : diffSides(side, side, { layer: layer.name });
  const exceeded = failAbove.flatMap(({ measure, limit: most }) => {
    const value = (measures[measure] as Measure).of(layer);
    return value > most ? [{ measure, limit: most, value }] : [];
  });
  const largest = (bytes: 'endBytes' | 'peakBytes', count: 'endCount' | 'peakCount') =>
    rows
      .map(({ name, after }) => ({ name, bytes: after[bytes], count: after[count] }))
      .filter((group) => group.bytes > 0)
      .sort((a, b) => b.bytes - a.bytes)
      .slice(0, limit);
  const neverFreed = largest('endBytes', 'endCount');
  const atPeak = largest('peakBytes', 'peakCount');
  if (!json) {
    terminal.stdout.write(textOf(overview, layer, terminal));
    terminal.stdout.write(tableOf(`never freed, by ${by}`, neverFreed, terminal));
    terminal.stdout.write(tableOf(`live at the peak, by ${by}`, atPeak, terminal));
  }
  const { source, eventCount, durationNanoseconds, isDamaged, layers } = overview;
  return { source, eventCount, durationNanoseconds, isDamaged, layer, by, neverFreed, atPeak, layers, exceeded };
}

function textOf(overview: Omit<RunOverview, 'fits' | 'graphs'>, layer: Layer, terminal: Terminal): string {
  const { peakLiveBytes, peakReservedBytes, neverFreedBytes, neverFreedCount, fragmentationAtPeak, largestHoleAtPeak, holesAtPeak } = layer;
  const rows = [
    ['layer', overview.layers.length === 1 ? layer.name : `${layer.name}, of ${overview.layers.map(({ name }) => name).join(', ')}`],
    ['events', `${formatCount(overview.eventCount)} in ${(overview.durationNanoseconds / 1e9).toFixed(3)} s`],
    ['allocations', `${formatCount(layer.allocationCount)}, failed: ${formatCount(layer.failureCount)}`],
    ['peak', formatBytes(peakLiveBytes)],
    ['reserved', peakReservedBytes === null ? 'unknown' : `${formatBytes(peakReservedBytes)} at most`],
    ['leak', neverFreedCount === 0 ? 'nothing' : `${formatBytes(neverFreedBytes)} in ${formatCount(neverFreedCount)} allocations`],
    [
      'fragmentation',
      `${inPercent.format(fragmentationAtPeak)} at the peak${holesAtPeak === 0 ? '' : `: ${formatBytes(holesAtPeak)} free between allocations, at most ${formatBytes(largestHoleAtPeak)} together`}`,
    ],
    ...adviceOf(layer).map((advice) => ['advice', advice]),
  ].map((cells) => cells.map((cell) => visibleInLine(cell)));
  const columns: readonly Column[] = [
    { title: visibleInLine(overview.source), align: 'left' },
    { title: '', align: 'left' },
  ];
  return formatTable(columns, rows, 'table', terminal.stdout);
}

/** What to do about a resource that held much more than was ever in use, as a cache without a maximum does that is asked for ever new sizes. */
function adviceOf({ name, growthCount, peakLiveBytes, peakReservedBytes }: Layer): string[] {
  const isMuch = peakReservedBytes !== null && peakReservedBytes >= leastAdvisedBytes && peakReservedBytes > 2 * peakLiveBytes;
  if (!keepers.test(name) || growthCount === 0 || !isMuch) return [];
  const held = `it held ${formatBytes(peakReservedBytes)} for at most ${formatBytes(peakLiveBytes)} in use`;
  const sizes = name.startsWith('caching') ? ', because it keeps a block for each size that it was asked for' : '';
  return [`${held}${sizes}: a maximum (maximumBytes) limits that, and idleMilliseconds returns what nobody needs`];
}

function tableOf(title: string, groups: readonly LargestGroup[], terminal: Terminal): string {
  if (groups.length === 0) return '';
  const columns: readonly Column[] = [
    { title, align: 'left' },
    { title: 'bytes', align: 'right' },
    { title: 'allocations', align: 'right' },
  ];
  const rows = groups.map(({ name, bytes, count }) => [visibleInLine(name), formatBytes(bytes), formatCount(count)]);
  return `\n${formatTable(columns, rows, 'table', terminal.stdout)}`;
}

function parseThresholds(text: string, previous: readonly Threshold[] = []): readonly Threshold[] {
  const thresholds = text.split(',').map((part): Threshold => {
    const [, name = '', value = ''] = /^\s*(\w+)\s*=(.*)$/.exec(part) ?? [];
    const measure = Object.hasOwn(measures, name) ? measures[name] : undefined;
    if (measure === undefined)
      throw new InvalidArgumentError(`a threshold is ${Object.keys(measures).join(', ')} and its limit, such as peak=8GiB, got "${part}"`);
    const limit = measure.parse(value.trim());
    if (limit === undefined) {
      const meant = measure.parse === bytesOf ? sizeMeant(value) : undefined;
      throw new InvalidArgumentError(
        `${name} must be ${measure.expected}, got "${value}"${meant === undefined ? '' : `: did you mean ${meant}?`}`,
      );
    }
    return { measure: name, limit };
  });
  return [...previous, ...thresholds];
}

function countOf(text: string): number | undefined {
  return /^\d{1,15}$/.test(text) ? Number(text) : undefined;
}

function percentOf(text: string): number | undefined {
  const percent = /^(\d{1,3}(?:\.\d+)?)\s*%?$/.exec(text)?.[1];
  return percent === undefined || Number(percent) > 100 ? undefined : Number(percent) / 100;
}
