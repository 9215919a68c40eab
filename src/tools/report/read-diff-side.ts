import { appendEvents } from '../formats/event-columns.js';
import { orderLayers } from '../formats/layers.js';
import { type LogSource, OpenLog, type ReadLogOptions } from '../formats/log-source.js';
import { isReadWhole, readEvents, readWholeRun } from '../formats/read-recorded-run.js';
import { RecordedNames, type RunDescription } from '../formats/recorded-run.js';
import { type DiffGroup, keysFor, type ReadSide } from './diff-runs.js';
import { DiffSide } from './diff-side.js';

/** Reads a log to compare it. A recording or an RMM log is never completely in memory. */
export async function readDiffSide(
  source: LogSource,
  options: ReadLogOptions,
  by: DiffGroup | undefined,
): Promise<ReadSide & Pick<RunDescription, 'damage' | 'skippedRecordCount'>> {
  const keys = keysFor(by);
  const log = await OpenLog.open(source, options);
  if (isReadWhole(log)) {
    const run = await readWholeRun(log);
    const side = new DiffSide(run.layers, keys);
    appendEvents(run, side);
    return { ...descriptionOf(run), side, places: undefined };
  }
  const names = new RecordedNames();
  const side = new DiffSide(names.layers, keys);
  const origin = await readEvents(log, names, side);
  return { ...descriptionOf({ ...origin, ...names }), ...orderLayers(names.layers), side };
}

/** Without the columns, which would stay in memory. */
function descriptionOf({
  source,
  layers,
  stacks,
  labels,
  accounts,
  phases,
  damage,
  skippedRecordCount,
}: Pick<RunDescription, 'source' | 'layers' | 'stacks' | 'labels' | 'accounts' | 'phases' | 'damage' | 'skippedRecordCount'>) {
  return { source, layers, stacks, labels, accounts, phases, damage, skippedRecordCount };
}
