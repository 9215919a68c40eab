import { type ArgumentRangeError, invalidValue } from '../../basics/errors.js';
import { formatBytes } from '../../basics/units.js';
import type { Plan } from '../../plans/plan.js';
import type { OrderedSequence } from '../../plans/sequence.js';
import { assertRecordedRun } from '../formats/assert-recorded-run.js';
import { EventColumnsBuilder, EventKind } from '../formats/event-columns.js';
import type { RecordedRun } from '../formats/recorded-run.js';
import { sequenceOfRun } from './sequences.js';

/** The start of the plan's block: an address other than 0, aligned for every plan. */
const base = 2 ** 40;

/**
 * A run as it would be if its allocations were at the places of a plan, in one block. `writeReport`
 * can show it next to the run itself. It has the events of the layer nearest to the program, and its
 * {@link RecordedRun.source} says how large the plan is.
 * @param plan a plan of this run, or of another one with the same operations and at least the same
 * sizes
 * @throws ArgumentRangeError if the plan is of another program.
 * @throws InvalidLogError if the run allocates memory that is live, or frees memory that is not.
 * @example
 * ```ts
 * const run = await readRecordedRun('run.cistern');
 * await writeReport([run, plannedRun(run, planAllocations(run))], 'report.html', { comparedRun: 1 });
 * ```
 */
export function plannedRun(run: RecordedRun, plan: Plan): RecordedRun {
  assertRecordedRun(run, 'run');
  const { sequence, layer } = sequenceOfRun(run);
  assertFits(run, plan, sequence);
  const builder = new EventColumnsBuilder();
  const { eventCount, kinds, layerOf, streamOf, threadOf, phaseOf, stackOf, accountOf, times, firsts, seconds } = run;
  const copy = (i: number, kind: number, first: number, second: number) =>
    builder.append({
      kind: kind as EventKind,
      layer: 0,
      stream: streamOf[i] as number,
      thread: threadOf[i] as number,
      phase: phaseOf[i] as number,
      stack: stackOf[i] as number,
      account: accountOf[i] as number,
      time: times[i] as number,
      first,
      second,
    });
  const addressOf = (number: number) => base + (plan.offsets[number] as number);
  /** By address in the run: what is live there in the plan. */
  const live = new Map<number, number>();
  let allocations = 0;
  if (plan.totalBytes > 0 && eventCount > 0) copy(0, EventKind.growth, base, plan.totalBytes);
  for (let i = 0; i < eventCount; i++) {
    const kind = kinds[i] as number;
    const first = firsts[i] as number;
    const bytes = seconds[i] as number;
    const labelled = kind === EventKind.label ? live.get(first) : undefined;
    if (labelled !== undefined) copy(i, kind, addressOf(labelled), bytes);
    else if (kind === EventKind.phaseBegin || kind === EventKind.phaseEnd) copy(i, kind, first, bytes);
    if (layerOf[i] !== layer || bytes === 0 || (kind !== EventKind.allocate && kind !== EventKind.free)) continue;
    if (kind === EventKind.allocate) live.set(first, allocations++);
    copy(i, kind, addressOf(live.get(first) as number), bytes);
    if (kind === EventKind.free) live.delete(first);
  }
  const { startedAt, utcOffsetMinutes, streams, threads, phases, stacks, labels, accounts, notes } = run;
  const names = { startedAt, utcOffsetMinutes, streams, threads, phases, stacks, labels, accounts, notes };
  const layers = [{ name: 'plan', upstream: undefined }];
  return { ...names, ...builder.finish(), layers, source: titleOf(plan), damage: undefined, skippedRecordCount: 0, csv: undefined };
}

/** Without a slash, because reports shorten paths. */
function titleOf({ totalBytes, lowerBoundBytes, gap }: Plan): string {
  return `plan of ${formatBytes(totalBytes)}, lower bound ${formatBytes(lowerBoundBytes)}, gap ${(gap * 100).toFixed(2)} %`;
}

/** A plan may free more at the end: `cistern plan` frees what the log does not. */
function assertFits({ source }: RecordedRun, plan: Plan, { operations, sizes }: OrderedSequence): void {
  for (let i = 0; i < operations.length; i++) {
    const operation = operations[i] as number;
    if (plan.operations[i] !== operation) throw unfit(source, `operation ${i}`);
    if (operation >= 0 && (sizes[operation] as number) > (plan.sizes[operation] as number))
      throw unfit(source, `the size of allocation ${operation}`);
  }
  if (plan.sizes.length !== sizes.length) throw unfit(source, 'the number of allocations');
}

function unfit(source: string, what: string): ArgumentRangeError {
  return invalidValue(`the plan is not one of ${source}: they differ in ${what}`);
}
