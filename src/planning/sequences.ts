import { InvalidLogError } from '../errors.js';
import { EventKind } from '../formats/event-columns.js';
import { nearestLayer } from '../formats/layers.js';
import type { RecordedRun } from '../formats/recorded-run.js';
import type { OrderedSequence } from '../plans/sequence.js';
import { type EventRecord, SequenceBuilder } from '../plans/sequence-builder.js';
import type { AllocationLog } from '../replay/allocation-log.js';

export function sequenceOfLog(log: AllocationLog): OrderedSequence {
  const builder = new SequenceBuilder();
  const bySlot: number[] = [];
  for (const { count, operations, sizes, streams } of log.chunks) {
    for (let i = 0; i < count; i++) {
      const slot = operations[i] as number;
      if (sizes[i] === 0) continue;
      if (slot >= 0) bySlot[slot] = builder.allocate(sizes[i] as number, streams[i]);
      else builder.free(bySlot[~slot] as number, streams[i]);
    }
  }
  return builder.finish();
}

/** The operations of a run, and which of its events each of them is. */
export interface RunOperations {
  readonly sequence: OrderedSequence;
  /** By event: the allocation that it requests, `~number` of the one that it frees, or `notPlanned`. */
  readonly operationOf: Int32Array;
}

export const notPlanned = 2 ** 31 - 1;

/** The layer nearest to the program that has allocations, with the events that order streams. */
export function operationsOfRun(run: RecordedRun): RunOperations {
  const { kinds, layerOf, streamOf, firsts, seconds, eventCount, source } = run;
  const hasAllocations = new Set<number>();
  for (let i = 0; i < eventCount; i++) if (kinds[i] === EventKind.allocate) hasAllocations.add(layerOf[i] as number);
  const layer = nearestLayer(run.layers, (index) => hasAllocations.has(index));
  const builder = new SequenceBuilder();
  const operationOf = new Int32Array(eventCount).fill(notPlanned);
  const live = new Map<number, number>();
  const records = new Map<number, EventRecord>();
  for (let i = 0; i < eventCount; i++) {
    const stream = streamOf[i] as number;
    const first = firsts[i] as number;
    const bytes = seconds[i] as number;
    const kind = kinds[i];
    if (kind === EventKind.eventRecord) {
      const record = builder.record(stream);
      if (record !== undefined) records.set(first, record);
    }
    if (kind === EventKind.eventWait) {
      const record = records.get(first);
      if (record !== undefined) builder.wait(stream, record);
    }
    if (layerOf[i] !== layer || bytes === 0) continue;
    if (kind === EventKind.allocate) {
      if (live.has(first)) throw new InvalidLogError(source, undefined, `event ${i} allocates memory that is live`);
      const number = builder.allocate(bytes, stream);
      operationOf[i] = number;
      live.set(first, number);
    } else if (kind === EventKind.free) {
      const number = live.get(first);
      if (number === undefined) throw new InvalidLogError(source, undefined, `event ${i} frees memory that is not live`);
      live.delete(first);
      builder.free(number, stream);
      operationOf[i] = ~number;
    }
  }
  return { sequence: builder.finish(), operationOf };
}
