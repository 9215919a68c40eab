import { InvalidLogError } from '../errors.js';
import { EventKind } from '../formats/event-columns.js';
import { nearestLayer } from '../formats/layers.js';
import type { RecordedRun } from '../formats/recorded-run.js';
import type { AllocationLog } from '../replay/allocation-log.js';
import type { OrderedSequence, StreamWait } from './lifetimes.js';

interface EventRecord {
  readonly recordedOn: unknown;
  readonly recordedAt: number;
  readonly recordedAfter: number;
}

interface Wait extends EventRecord {
  readonly at: number;
  readonly stream: unknown;
}

/** Collects the operations of a pass. Allocations of zero bytes are left out. */
class SequenceBuilder {
  readonly #operations: number[] = [];
  readonly #sizes: number[] = [];
  readonly #streams: number[] = [];
  readonly #freeStreams: number[] = [];
  readonly #waits: Wait[] = [];
  readonly #streamNumbers = new Map<unknown, number>();

  /** A record of a stream, for `wait`. */
  record(stream: unknown): EventRecord {
    return { recordedOn: stream, recordedAt: this.#operations.length, recordedAfter: this.#waits.length };
  }

  /** Returns the number of the allocation. */
  allocate(bytes: number, stream: unknown): number {
    const number = this.#sizes.push(bytes) - 1;
    this.#streams.push(this.#numberOf(stream));
    this.#freeStreams.push(-1);
    this.#operations.push(number);
    return number;
  }

  free(number: number, stream: unknown): void {
    this.#freeStreams[number] = this.#numberOf(stream);
    this.#operations.push(~number);
  }

  wait(stream: unknown, record: EventRecord): void {
    this.#waits.push({ at: this.#operations.length, stream, ...record });
  }

  /** Streams that only wait or record get the highest numbers. */
  finish(): OrderedSequence {
    const used = this.#streamNumbers.size;
    const waits = this.#waits.map(
      (wait): StreamWait => ({ ...wait, stream: this.#numberOf(wait.stream), recordedOn: this.#numberOf(wait.recordedOn) }),
    );
    return {
      operations: Int32Array.from(this.#operations),
      sizes: Float64Array.from(this.#sizes),
      streams: Int32Array.from(this.#streams),
      freeStreams: Int32Array.from(this.#freeStreams),
      ...(used > 1 && waits.length > 0 ? { waits } : {}),
    };
  }

  #numberOf(stream: unknown): number {
    const known = this.#streamNumbers.get(stream);
    if (known !== undefined) return known;
    this.#streamNumbers.set(stream, this.#streamNumbers.size);
    return this.#streamNumbers.size - 1;
  }
}

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

/** The layer nearest to the program that has allocations, with the events that order streams. */
export function sequenceOfRun(run: RecordedRun): OrderedSequence {
  const { kinds, layerOf, streamOf, firsts, seconds, eventCount, source } = run;
  const hasAllocations = new Set<number>();
  for (let i = 0; i < eventCount; i++) if (kinds[i] === EventKind.allocate) hasAllocations.add(layerOf[i] as number);
  const layer = nearestLayer(run.layers, (index) => hasAllocations.has(index), undefined) ?? 0;
  const builder = new SequenceBuilder();
  const live = new Map<number, number>();
  const records = new Map<number, EventRecord>();
  for (let i = 0; i < eventCount; i++) {
    const stream = streamOf[i] as number;
    const first = firsts[i] as number;
    const bytes = seconds[i] as number;
    const kind = kinds[i];
    if (kind === EventKind.eventRecord) records.set(first, builder.record(stream));
    if (kind === EventKind.eventWait) {
      const record = records.get(first);
      if (record !== undefined) builder.wait(stream, record);
    }
    if (layerOf[i] !== layer || bytes === 0) continue;
    if (kind === EventKind.allocate) {
      if (live.has(first)) throw new InvalidLogError(source, undefined, `event ${i} allocates memory that is live`);
      live.set(first, builder.allocate(bytes, stream));
    } else if (kind === EventKind.free) {
      const number = live.get(first);
      if (number === undefined) throw new InvalidLogError(source, undefined, `event ${i} frees memory that is not live`);
      live.delete(first);
      builder.free(number, stream);
    }
  }
  return builder.finish();
}
