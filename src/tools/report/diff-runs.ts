import { ArgumentRangeError, formatValue } from '../../basics/errors.js';
import { formatBytes } from '../../basics/units.js';
import { assertOneOf, assertOptions, optionNames } from '../../basics/validation.js';
import { assertRecordedRun } from '../formats/assert-recorded-run.js';
import { appendEvents } from '../formats/event-columns.js';
import { noSuchLayer } from '../formats/layer-allocations.js';
import type { RecordedRun, RunDescription } from '../formats/recorded-run.js';
import { callSites, usualGroup, withoutLine } from './call-sites.js';
import { type DiffFigures, type DiffKey, DiffSide } from './diff-side.js';
import { programFolder, shortenPaths } from './shorten-paths.js';

/** The properties by which {@link diffRuns} can group allocations. */
export type DiffGroup = 'function' | 'line' | 'label' | 'account' | 'phase' | 'size';

/** The groups, in the order in which help texts list them. */
export const diffGroups: readonly DiffGroup[] = Object.freeze(['function', 'line', 'label', 'account', 'phase', 'size']);

/** Options of {@link diffRuns}. */
export interface DiffRunsOptions {
  /**
   * The property to group allocations by. `function` and `line` are the innermost call in the
   * program's own code; `function` omits line numbers, because every edit of a file shifts them.
   * `account` is the one in whose scope an allocation was made. `size` is a range from one power of
   * two to the next.
   * @defaultValue `'function'` if both runs have stacks, otherwise `'label'` if both have labels,
   * otherwise `'size'`
   */
  readonly by?: DiffGroup | undefined;
  /**
   * The name of the layer to look at in both runs.
   * @defaultValue in each run, the layer nearest to the program that has allocations
   */
  readonly layer?: string | undefined;
}

const knownOptions = optionNames<DiffRunsOptions>({ by: true, layer: true });

/** One group of allocations in both runs. */
export interface DiffRow {
  /** The function, line, label, path of an account, phase or range of sizes. */
  readonly name: string;
  readonly before: DiffFigures;
  readonly after: DiffFigures;
}

/** How two runs differ. You can write it as JSON. */
export interface RunDiff {
  readonly by: DiffGroup;
  /** All allocations together; `name` is empty. */
  readonly total: DiffRow;
  /** The groups that either run has, in the order of their names. */
  readonly rows: readonly DiffRow[];
}

/**
 * Compares the allocations of two runs of a program, group by group, to find the call sites, labels,
 * accounts, phases or sizes that grew. Frees of memory that a run did not allocate are left out.
 * @throws ArgumentTypeError or ArgumentRangeError if an option is not valid.
 * @throws InvalidLogError if a run has no layer of the given name.
 * @example
 * ```ts
 * const { rows } = diffRuns(await readRecordedRun('monday.cistern'), await readRecordedRun('tuesday.cistern'));
 * const leaks = rows.filter(({ before, after }) => after.endBytes > before.endBytes);
 * ```
 */
export function diffRuns(before: RecordedRun, after: RecordedRun, options: DiffRunsOptions = {}): RunDiff {
  assertRecordedRun(before, 'before');
  assertRecordedRun(after, 'after');
  assertOptions(options, knownOptions);
  return diffSides(sideOf(before, options.by), sideOf(after, options.by), options);
}

/**
 * A side of a comparison, from a log that was read.
 * @internal
 */
export function sideOf(run: RecordedRun, by?: DiffGroup): ReadSide {
  const side = new DiffSide(run.layers, keysFor(by));
  appendEvents(run, side);
  return { ...run, side, places: undefined };
}

/**
 * A log that was read to be compared.
 * @internal
 */
export interface ReadSide extends Pick<RunDescription, 'source' | 'layers' | 'stacks' | 'labels' | 'accounts' | 'phases'> {
  readonly side: DiffSide;
  /** For each layer of the events, its index in `layers`, if these differ. */
  readonly places: readonly number[] | undefined;
}

/**
 * What must be added up while a log is read; without a group, whatever may be chosen.
 * @internal
 */
export function keysFor(by: DiffGroup | undefined): readonly DiffKey[] {
  if (by === undefined) return ['stack', 'label', 'size'];
  assertOneOf(by, diffGroups, 'by');
  return [keyOf[by]];
}

const keyOf: Readonly<Record<DiffGroup, DiffKey>> = {
  function: 'stack',
  line: 'stack',
  label: 'label',
  account: 'account',
  phase: 'phase',
  size: 'size',
};

/**
 * The same for logs that were read to be compared.
 * @internal
 */
export function diffSides(before: ReadSide, after: ReadSide, { by = usualGroup([before, after]), layer }: DiffRunsOptions): RunDiff {
  if (layer !== undefined && typeof layer !== 'string') throw new ArgumentRangeError(`layer must be a name, got ${formatValue(layer)}`);
  const [folderBefore, folderAfter] = foldersOf(before, after);
  const [first, second] = [figuresOf(before, by, layer, folderBefore), figuresOf(after, by, layer, folderAfter)];
  const names = [...new Set([...first.groups.keys(), ...second.groups.keys()])].sort();
  return {
    by,
    total: { name: '', before: first.total, after: second.total },
    rows: names.map((name) => ({ name, before: first.groups.get(name) ?? nothing, after: second.groups.get(name) ?? nothing })),
  };
}

/**
 * The folder of each run's program, which is omitted from file names. If one folder is inside the other,
 * they belong to the same program, of which one run shows less.
 */
function foldersOf(...runs: readonly [ReadSide, ReadSide]): readonly [string, string] {
  const [before, after] = runs.map(({ stacks }) => programFolder(stacks)) as [string, string];
  if (before === '' || after === '') return [before, after];
  if (before.startsWith(after)) return [after, after];
  return after.startsWith(before) ? [before, before] : [before, after];
}

type MutableFigures = { -readonly [Name in keyof DiffFigures]: DiffFigures[Name] };

const nothing: DiffFigures = { peakBytes: 0, peakCount: 0, endBytes: 0, endCount: 0, allocatedBytes: 0, allocatedCount: 0 };

/** The figures of the groups of a run, by name. */
function figuresOf(
  run: ReadSide,
  by: DiffGroup,
  layer: string | undefined,
  folder: string,
): { total: DiffFigures; groups: Map<string, DiffFigures> } {
  const figures = run.side.finish(run.layers, run.places, layer);
  if (figures === undefined) throw noSuchLayer(run, layer as string);
  const nameOf = namesOf(run, by, folder);
  const total: MutableFigures = { ...nothing };
  const groups = new Map<string, MutableFigures>();
  for (const [number, some] of figures.groups(keyOf[by])) {
    const name = nameOf(number);
    const group = groups.get(name) ?? { ...nothing };
    groups.set(name, group);
    for (const sum of [group, total]) for (const each of Object.keys(nothing) as (keyof DiffFigures)[]) sum[each] += some[each];
  }
  return { total, groups };
}

/** The name of a group by its number. */
function namesOf(run: ReadSide, by: DiffGroup, folder: string): (group: number) => string {
  switch (by) {
    case 'function':
    case 'line': {
      const { names, of } = callSites(shortenPaths(run.stacks, folder));
      const shown = by === 'line' ? names : names.map(withoutLine);
      return (stack) => shown[of[stack] as number] as string;
    }
    case 'label':
      return (label) => run.labels[label] || 'no label';
    case 'account':
      return (account) => run.accounts[account] || 'no account';
    case 'phase':
      return (phase) => run.phases[phase]?.name || 'no phase';
    case 'size':
      return (size) => (size === 0 ? formatBytes(0) : `${formatBytes(2 ** (size - 1))} to ${formatBytes(2 ** size)}`);
  }
}
