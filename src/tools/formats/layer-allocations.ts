import { formatValue, InvalidLogError } from '../../basics/errors.js';
import { EventKind } from './event-columns.js';
import { nearestLayer, sharesLabels } from './layers.js';
import type { RecordedRun } from './recorded-run.js';

/** The allocations of one layer, numbered from 0 in order, and their frees. */
export interface LayerAllocations {
  /** By allocation: the event that made it. */
  readonly events: readonly number[];
  /** By allocation: its last label, an index into the run's labels. */
  readonly labels: readonly number[];
  /** Allocations and frees in order: an allocation, `~allocation` for its free. */
  readonly operations: readonly number[];
  /** By operation: its event. */
  readonly operationEvents: readonly number[];
}

/**
 * The layer of a name or, without one, the layer nearest to the program that has allocations; 0 if there
 * are none.
 * @throws InvalidLogError if there is no layer of that name.
 */
export function chosenLayer(run: Pick<RecordedRun, 'source' | 'layers' | 'kinds' | 'layerOf'>, name: string | undefined): number {
  const { source, layers, kinds, layerOf } = run;
  const withAllocations = new Set<number>();
  for (let i = 0; i < kinds.length; i++) if ((kinds[i] as number) <= EventKind.failure) withAllocations.add(layerOf[i] as number);
  const layer = nearestLayer(layers, (index) => withAllocations.has(index), name);
  if (layer !== undefined || name === undefined) return layer ?? 0;
  throw noSuchLayer({ source, layers }, name);
}

export function noSuchLayer({ source, layers }: Pick<RecordedRun, 'source' | 'layers'>, name: string): InvalidLogError {
  const known = [...new Set(layers.map((each) => each.name))].join(', ');
  return new InvalidLogError(source, undefined, `has no layer ${formatValue(name)}; there are: ${known || 'none'}`);
}

/**
 * Matches the allocations and frees of a layer with each other. Frees of memory that the log did not
 * allocate are left out. An allocation of zero bytes counts as freed immediately, because it has no
 * memory, and may share its pointer with others.
 */
export function allocationsOf(run: RecordedRun, layer: number): LayerAllocations {
  const { eventCount, kinds, layerOf, firsts, seconds, layers } = run;
  const events: number[] = [];
  const labels: number[] = [];
  const operations: number[] = [];
  const operationEvents: number[] = [];
  const live = new Map<number, number>();
  const operate = (operation: number, event: number) => {
    operations.push(operation);
    operationEvents.push(event);
  };
  for (let i = 0; i < eventCount; i++) {
    const kind = kinds[i] as number;
    const pointer = firsts[i] as number;
    if (kind === EventKind.label) {
      const labelled = sharesLabels(layers, layerOf[i] as number, layer) ? live.get(pointer) : undefined;
      if (labelled !== undefined) labels[labelled] = seconds[i] as number;
      continue;
    }
    if (layerOf[i] !== layer) continue;
    if (kind === EventKind.allocate) {
      const allocation = events.push(i) - 1;
      labels.push(0);
      operate(allocation, i);
      if (seconds[i] === 0) operate(~allocation, i);
      else live.set(pointer, allocation);
    } else if (kind === EventKind.free) {
      const freed = live.get(pointer);
      if (freed === undefined) continue;
      live.delete(pointer);
      operate(~freed, i);
    }
  }
  return { events, labels, operations, operationEvents };
}
