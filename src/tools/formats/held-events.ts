import { type EventKind, type EventSink, emptyEvent, type LoggedEvent } from './event-columns.js';

const chunkLength = 65_536;

/** A column for each field of an event. */
type Column = Float64Array;
type Columns = readonly [Column, Column, Column, Column, Column, Column, Column, Column, Column, Column];
const columnCount = 10;

/**
 * Events that are kept only until something can be done with them in order, such as writing them after the names
 * that all of them use. They are in chunks, whose columns are as narrow as their values allow, about 13
 * bytes an event rather than the 36 of {@link EventColumns}; a chunk goes when it has been taken.
 *
 *     value[i] = minimum + unit · stored[i]        nothing is stored if all values of a chunk are the same
 */
export class HeldEvents implements EventSink {
  readonly #chunks: (readonly NarrowColumn[])[] = [];
  /** The last chunk, as it is filled or taken. */
  readonly #staged: readonly Column[] = Array.from({ length: columnCount }, () => new Float64Array(chunkLength));
  #filled = 0;
  eventCount = 0;

  append(event: Readonly<LoggedEvent>): void {
    if (this.#filled === chunkLength) this.#pack();
    const [kind, layer, stream, thread, phase, stack, account, time, first, second] = this.#staged as Columns;
    const at = this.#filled++;
    this.eventCount++;
    kind[at] = event.kind;
    layer[at] = event.layer;
    stream[at] = event.stream;
    thread[at] = event.thread;
    phase[at] = event.phase;
    stack[at] = event.stack;
    account[at] = event.account;
    time[at] = event.time;
    first[at] = event.first;
    second[at] = event.second;
  }

  /**
   * The events, in order, all in one object: each is valid until the next. Afterwards there are none, and none
   * may be added.
   * @param places for each layer of the events, its new index, if layers change places
   */
  *take(places?: readonly number[]): Generator<Readonly<LoggedEvent>> {
    this.#pack();
    const [kind, layer, stream, thread, phase, stack, account, time, first, second] = this.#staged as Columns;
    const event = emptyEvent();
    const chunks = this.#chunks.splice(0).reverse();
    for (let columns = chunks.pop(); columns !== undefined; columns = chunks.pop()) {
      for (const [field, column] of columns.entries()) column.copyTo(this.#staged[field] as Float64Array);
      for (let i = 0; i < (columns[0] as NarrowColumn).count; i++) {
        const place = layer[i] as number;
        event.kind = kind[i] as EventKind;
        event.layer = places === undefined ? place : (places[place] ?? 0);
        event.stream = stream[i] as number;
        event.thread = thread[i] as number;
        event.phase = phase[i] as number;
        event.stack = stack[i] as number;
        event.account = account[i] as number;
        event.time = time[i] as number;
        event.first = first[i] as number;
        event.second = second[i] as number;
        yield event;
      }
    }
  }

  #pack(): void {
    if (this.#filled === 0) return;
    this.#chunks.push(this.#staged.map((values) => new NarrowColumn(values.subarray(0, this.#filled))));
    this.#filled = 0;
  }
}

/** Values in as few bytes as they need. */
class NarrowColumn {
  readonly count: number;
  readonly #minimum: number;
  readonly #unit: number;
  readonly #stored: Uint8Array | Uint16Array | Uint32Array | Float64Array | undefined;

  constructor(values: Float64Array) {
    this.count = values.length;
    const { minimum, unit, most } = scaleOf(values);
    this.#minimum = minimum;
    this.#unit = unit;
    if (most === 0) return;
    const { length } = values;
    this.#stored =
      most < 2 ** 8
        ? new Uint8Array(length)
        : most < 2 ** 16
          ? new Uint16Array(length)
          : most < 2 ** 32
            ? new Uint32Array(length)
            : new Float64Array(length);
    for (let i = 0; i < length; i++) this.#stored[i] = ((values[i] as number) - minimum) / unit;
  }

  copyTo(values: Float64Array): void {
    const stored = this.#stored;
    const minimum = this.#minimum;
    const unit = this.#unit;
    if (stored === undefined) values.fill(minimum, 0, this.count);
    else for (let i = 0; i < stored.length; i++) values[i] = minimum + unit * (stored[i] as number);
  }
}

/** The minimum of some values, the power of two that all distances from it are multiples of, and the greatest multiple. */
function scaleOf(values: Float64Array): { minimum: number; unit: number; most: number } {
  let minimum = values[0] as number;
  let maximum = minimum;
  let areIntegers = true;
  for (let i = 0; i < values.length; i++) {
    const value = values[i] as number;
    areIntegers &&= Number.isSafeInteger(value);
    if (value < minimum) minimum = value;
    else if (value > maximum) maximum = value;
  }
  // Stored as they are.
  if (!areIntegers || !Number.isSafeInteger(maximum - minimum)) return { minimum: 0, unit: 1, most: Number.POSITIVE_INFINITY };
  let bits = 0;
  for (let i = 0; i < values.length; i++) bits |= (values[i] as number) - minimum;
  // The lowest bit that any has; the sign bit is the highest.
  const unit = bits === 0 ? 2 ** 31 : (bits & -bits) >>> 0;
  return { minimum, unit, most: (maximum - minimum) / unit };
}
