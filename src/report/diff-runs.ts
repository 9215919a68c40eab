import { ArgumentRangeError, formatValue } from '../basics/errors.js';
import { formatBytes } from '../basics/units.js';
import { assertOneOf, assertOptions, optionNames } from '../basics/validation.js';
import { assertRecordedRun } from '../formats/assert-recorded-run.js';
import { allocationsOf, chosenLayer, type LayerAllocations } from '../formats/layer-allocations.js';
import type { RecordedRun } from '../formats/recorded-run.js';
import { callSites } from './call-sites.js';
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
  readonly by?: DiffGroup;
  /**
   * The name of the layer to look at in both runs.
   * @defaultValue in each run, the layer nearest to the program that has allocations
   */
  readonly layer?: string;
}

const knownOptions = optionNames<DiffRunsOptions>({ by: true, layer: true });

/** The figures of some allocations of a run. */
export interface DiffFigures {
  /** Bytes and number of those that are live when the whole run has the most bytes live. */
  readonly peakBytes: number;
  readonly peakCount: number;
  /** Bytes and number of those that are never freed. */
  readonly endBytes: number;
  readonly endCount: number;
  /** Bytes and number of all of them. */
  readonly allocatedBytes: number;
  readonly allocatedCount: number;
}

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
  const { by = usualGroup(before, after), layer } = options;
  assertOneOf(by, diffGroups, 'by');
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
function foldersOf(...runs: readonly [RecordedRun, RecordedRun]): readonly [string, string] {
  const [before, after] = runs.map(({ stacks }) => programFolder(stacks)) as [string, string];
  if (before === '' || after === '') return [before, after];
  if (before.startsWith(after)) return [after, after];
  return after.startsWith(before) ? [before, before] : [before, after];
}

function usualGroup(...runs: readonly RecordedRun[]): DiffGroup {
  if (runs.every(({ stacks }) => stacks.length > 1)) return 'function';
  return runs.every(({ labels }) => labels.length > 1) ? 'label' : 'size';
}

type MutableFigures = { -readonly [Name in keyof DiffFigures]: DiffFigures[Name] };

const nothing: DiffFigures = { peakBytes: 0, peakCount: 0, endBytes: 0, endCount: 0, allocatedBytes: 0, allocatedCount: 0 };

/** The figures of the groups of a run, by name. */
function figuresOf(
  run: RecordedRun,
  by: DiffGroup,
  layer: string | undefined,
  folder: string,
): { total: DiffFigures; groups: Map<string, DiffFigures> } {
  const allocations = allocationsOf(run, chosenLayer(run, layer));
  const nameOf = namesOf(run, by, allocations, folder);
  const total: MutableFigures = { ...nothing };
  const groups = new Map<string, MutableFigures>();
  const add = (allocation: number, what: 'peak' | 'end' | 'allocated') => {
    const bytes = run.seconds[allocations.events[allocation] as number] as number;
    const name = nameOf(allocation);
    const group = groups.get(name) ?? { ...nothing };
    groups.set(name, group);
    for (const figures of [group, total]) {
      figures[`${what}Bytes`] += bytes;
      figures[`${what}Count`]++;
    }
  };
  const live = new Set<number>();
  const { operations } = allocations;
  const peak = peakOf(run, allocations);
  for (const [i, operation] of operations.entries()) {
    if (operation < 0) live.delete(~operation);
    else {
      live.add(operation);
      add(operation, 'allocated');
    }
    if (i === peak) for (const allocation of live) add(allocation, 'peak');
  }
  for (const allocation of live) add(allocation, 'end');
  return { total, groups };
}

/** The operation after which most bytes are live; -1 if nothing ever is. */
function peakOf(run: RecordedRun, { events, operations }: LayerAllocations): number {
  let bytes = 0;
  let most = 0;
  let peak = -1;
  for (const [i, operation] of operations.entries()) {
    const size = run.seconds[events[operation < 0 ? ~operation : operation] as number] as number;
    bytes += operation < 0 ? -size : size;
    if (bytes <= most) continue;
    most = bytes;
    peak = i;
  }
  return peak;
}

/** The name of the group of an allocation. */
function namesOf(run: RecordedRun, by: DiffGroup, { events, labels }: LayerAllocations, folder: string): (allocation: number) => string {
  const eventOf = (allocation: number) => events[allocation] as number;
  switch (by) {
    case 'function':
    case 'line': {
      const { names, of } = callSites(shortenPaths(run.stacks, folder));
      const shown = by === 'line' ? names : names.map(withoutLine);
      return (allocation) => shown[of[run.stackOf[eventOf(allocation)] as number] as number] as string;
    }
    case 'label':
      return (allocation) => (run.labels[labels[allocation] as number] as string) || 'no label';
    case 'account':
      return (allocation) => (run.accounts[run.accountOf[eventOf(allocation)] as number] as string) || 'no account';
    case 'phase':
      return (allocation) => (run.phases[run.phaseOf[eventOf(allocation)] as number]?.name ?? '') || 'no phase';
    case 'size':
      return (allocation) => rangeOf(run.seconds[eventOf(allocation)] as number);
  }
}

/** A frame without its line, which shifts with every edit; functions without names are told apart by it. */
function withoutLine(frame: string): string {
  return frame.startsWith('<anonymous> ') ? frame : frame.replace(/(?::\d+){1,2}\)$/, ')');
}

/** The powers of two between which a size lies. */
function rangeOf(bytes: number): string {
  if (bytes === 0) return formatBytes(0);
  let least = 2 ** Math.floor(Math.log2(bytes));
  // The logarithm of a large number is rounded.
  if (least > bytes) least /= 2;
  return `${formatBytes(least)} to ${formatBytes(2 * least)}`;
}
