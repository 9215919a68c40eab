import { ArgumentTypeError, formatValue } from '../../basics/errors.js';
import { checkedSequence, checkedWaits, type OrderedSequence } from '../../plans/sequence.js';
import { type EventRecord, SequenceBuilder } from '../../plans/sequence-builder.js';
import { appendEvents } from '../formats/event-columns.js';
import type { RecordedRun } from '../formats/recorded-run.js';
import type { AllocationLog } from '../replay/allocation-log.js';
import { AllocationProjection } from '../replay/project-allocations.js';

/** What a plan can be made from. */
export type PlanSource = AllocationLog | RecordedRun | OrderedSequence;

/**
 * The operations of a source, and what orders its streams.
 * @throws ArgumentTypeError if it is nothing that a plan can be made from.
 * @throws CisternError (`ERR_CISTERN_INVALID_PLAN`) if it is a sequence that contradicts itself.
 */
export function sequenceOf(source: PlanSource): OrderedSequence {
  if (typeof source !== 'object' || source === null)
    throw new ArgumentTypeError(`a log or a recording is needed, got ${formatValue(source)}`);
  if ('chunks' in source) return sequenceOfLog(source);
  if ('kinds' in source) return sequenceOfRun(source).sequence;
  if (!('operations' in source)) throw new ArgumentTypeError(`a log or a recording is needed, got ${formatValue(source)}`);
  return { ...checkedSequence(source, 'the sequence'), waits: checkedWaits(source, 'the sequence') };
}

/** The operations of a log, and what orders its streams. */
export function sequenceOfLog(log: AllocationLog): OrderedSequence {
  const { chunks, streams: names, orders } = log;
  const builder = new SequenceBuilder();
  const bySlot: number[] = [];
  const records = new Map<number, EventRecord>();
  let operations = 0;
  let next = 0;
  for (const { count, operations: slots, sizes, streams } of chunks) {
    for (let i = 0; i < count; i++, operations++) {
      for (; orders.positions[next] === operations; next++) {
        const recording = orders.recordings[next] as number;
        const stream = orders.streams[next];
        const record = recording > 0 ? builder.record(stream) : records.get(-recording);
        if (record === undefined) continue;
        if (recording > 0) records.set(recording, record);
        else builder.wait(stream, record);
      }
      if (sizes[i] === 0) continue;
      const slot = slots[i] as number;
      const stream = names[streams[i] as number];
      if (slot >= 0) bySlot[slot] = builder.allocate(sizes[i] as number, stream);
      else builder.free(bySlot[~slot] as number, stream);
    }
  }
  return builder.finish();
}

/** The operations of the layer nearest to the program, and which layer it is. */
export function sequenceOfRun(run: RecordedRun): { readonly sequence: OrderedSequence; readonly layer: number | undefined } {
  const projection = new AllocationProjection(run.source, run, undefined);
  appendEvents(run, projection);
  return { sequence: sequenceOfLog(projection.finish({ damage: undefined, skippedRecordCount: 0 })), layer: projection.layer };
}
