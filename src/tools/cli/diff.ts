import { Command, Option } from 'commander';
import { formatBytes, formatCount } from '../../basics/units.js';
import { type DiffGroup, type DiffRow, diffGroups, diffSides, type ReadSide, type RunDiff } from '../report/diff-runs.js';
import type { DiffFigures } from '../report/diff-side.js';
import { readDiffSide } from '../report/read-diff-side.js';
import { emptyLogAdvice } from './error-advice.js';
import { logArgument, logNamed } from './log-argument.js';
import { type FormatOptions, formatOf, formatOptions, integerParser, layerOption } from './options.js';
import { visibleInLine } from './output.js';
import { readWithWarnings } from './read-log.js';
import { type Column, formatTable, type OutputFormat } from './table.js';
import { type Terminal, warn } from './terminal.js';

const examples = `
A group's bytes are those that are live at the peak of each log; with --measure, those that are never
freed, or all that were allocated. Groups that grew come first.

"function" and "line" are the innermost call in the program's own code, as in a report; "function" omits
line numbers, because every edit shifts them. The default is "function" if both logs have stacks, otherwise
"label" if both have labels, otherwise "size".

Examples:
  $ cistern diff monday.cistern tuesday.cistern
  $ cistern diff before.cistern after.cistern --measure end          # what leaks now
  $ cistern diff monday.html tuesday.html                            # reports hold their logs
  $ cistern diff batch-8.csv.gz batch-16.csv.gz --by size
  $ cistern diff main.cistern branch.cistern --by line --limit 5 --format markdown
`;

/** The bytes of a group that can be compared. */
const measures = {
  peak: { bytes: 'peakBytes', count: 'peakCount', title: 'live at the peak' },
  end: { bytes: 'endBytes', count: 'endCount', title: 'never freed' },
  allocated: { bytes: 'allocatedBytes', count: 'allocatedCount', title: 'allocated' },
} as const;

type Measure = keyof typeof measures;

interface DiffCommandOptions extends FormatOptions {
  readonly by?: DiffGroup | undefined;
  readonly measure: Measure;
  readonly limit: number;
  readonly layer?: string | undefined;
}

/** `cistern diff`: shows what grew from one log to another. */
export function diffCommand(terminal: Terminal): Command {
  const command = new Command('diff')
    .addArgument(
      logArgument('<before>', 'the path of a log (RMM CSV, recording, PyTorch snapshot or report, plain or gzip); - is standard input'),
    )
    .addArgument(logArgument('<after>', 'the path of a later log'))
    .addOption(new Option('--by <group>', 'what to group allocations by').choices(diffGroups))
    .addOption(new Option('--measure <measure>', 'which bytes to compare').choices(Object.keys(measures)).default('peak'))
    .addOption(new Option('--limit <n>', 'how many groups to print').argParser(integerParser(1)).default(20))
    .addOption(layerOption());
  for (const option of formatOptions()) command.addOption(option);
  return command
    .addHelpText('after', examples)
    .action((before: string, after: string, options: DiffCommandOptions) => diff(before, after, options, terminal));
}

async function diff(before: string, after: string, options: DiffCommandOptions, terminal: Terminal): Promise<void> {
  const { by, layer, measure, limit } = options;
  const consequence = 'only the events before that are compared';
  const readSide = (path: string) => {
    const { source, name } = logNamed(path);
    return readWithWarnings(terminal, consequence, (onProgress) => readDiffSide(source, { name, onProgress }, by));
  };
  const runs = [await readSide(before), await readSide(after)] as const;
  const result = diffSides(...runs, { by, layer });
  for (const [i, side] of [result.total.before, result.total.after].entries()) {
    if (side.allocatedCount === 0) warn(terminal, `${runs[i]?.source} has no allocations: ${emptyLogAdvice}`);
  }
  const format = formatOf(options);
  terminal.stdout.write(
    format === 'json' ? `${JSON.stringify(result, undefined, 2)}\n` : describe(result, runs, measure, limit, format, terminal),
  );
}

function describe(
  { by, total, rows }: RunDiff,
  [before, after]: readonly [ReadSide, ReadSide],
  measure: Measure,
  limit: number,
  format: Exclude<OutputFormat, 'json'>,
  terminal: Terminal,
): string {
  const { bytes, count, title } = measures[measure];
  const growth = (row: DiffRow) => row.after[bytes] - row.before[bytes];
  const changed = rows.filter((row) => growth(row) !== 0 || row.after[count] !== row.before[count]);
  changed.sort((a, b) => growth(b) - growth(a) || (a.name < b.name ? -1 : 1));
  // The groups that shrank the most come last, but are worth showing as much as those that grew.
  const shown = changed.length <= limit ? changed : [...changed].sort((a, b) => Math.abs(growth(b)) - Math.abs(growth(a))).slice(0, limit);
  const isShown = new Set(shown);
  const table = formatTable(
    groupColumns(by, title),
    changed.filter((row) => isShown.has(row)).map((row) => [row.name, ...cells(row, bytes, count)]),
    format,
    terminal.stdout,
  );
  const totals = Object.values(measures).map((each) => [each.title, ...cells(total, each.bytes, each.count)]);
  const rest = [
    changed.length > shown.length ? `${formatCount(changed.length - shown.length)} more with smaller changes (--limit)` : '',
    rows.length > changed.length ? `${formatCount(rows.length - changed.length)} unchanged` : '',
  ].filter((text) => text !== '');
  return [
    `From ${visibleInLine(before.source)} to ${visibleInLine(after.source)}\n\n`,
    formatTable(totalColumns, totals, format, terminal.stdout),
    '\n',
    changed.length === 0 ? `${title}, by ${by}: no change\n` : table,
    rest.length === 0 ? '' : `\n${rest.join(', ')}\n`,
  ].join('');
}

type BytesName = (typeof measures)[Measure]['bytes'];
type CountName = (typeof measures)[Measure]['count'];

function cells({ before, after }: { before: DiffFigures; after: DiffFigures }, bytes: BytesName, count: CountName): string[] {
  const change = after[bytes] - before[bytes];
  const counts = after[count] - before[count];
  return [
    formatBytes(before[bytes]),
    formatBytes(after[bytes]),
    signed(change, formatBytes),
    before[bytes] === 0 || change === 0 ? '' : inPercent(change / before[bytes]),
    formatCount(after[count]),
    signed(counts, formatCount),
  ];
}

/** A change in percent, or as a factor if it is large. */
function inPercent(ratio: number): string {
  return ratio < 10 ? `${signed(100 * ratio, (percent) => percent.toFixed(1))} %` : `× ${formatCount(Math.round(1 + ratio))}`;
}

function signed(value: number, format: (value: number) => string): string {
  if (value === 0) return '';
  return `${value < 0 ? '-' : '+'}${format(Math.abs(value))}`;
}

const numbers = (titles: readonly string[]) => titles.map((title): Column => ({ title, align: 'right' }));
const figures = numbers(['before', 'after', 'change', '', 'allocations', '']);
const totalColumns: readonly Column[] = [{ title: 'bytes', align: 'left' }, ...figures];
const groupColumns = (by: DiffGroup, title: string): readonly Column[] => [{ title: `${title}, by ${by}`, align: 'left' }, ...figures];
