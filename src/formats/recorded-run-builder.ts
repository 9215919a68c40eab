import { orderLayers } from './layers.js';
import type { RecordedLayer, RecordedPhase, RecordedRun, RecordingDamage } from './recorded-run.js';
import type { CsvSpelling, RecordKind } from './recording/recording-format.js';

/** What takes the events of a recording, one by one and in order. */
export interface RecordedEvents {
  readonly eventCount: number;
  append(
    kind: RecordKind,
    layer: number,
    stream: number,
    thread: number,
    phase: number,
    stack: number,
    time: number,
    first: number,
    second: number,
  ): void;
}

/** The names that the events of a recording refer to; see {@link RecordedRun}. */
export class RecordedNames {
  readonly layers: RecordedLayer[] = [];
  readonly streams: string[] = [];
  readonly threads: string[] = [];
  readonly phases: RecordedPhase[] = [{ name: '', outer: 0 }];
  readonly stacks: string[] = [''];
  readonly labels: string[] = [''];
}

/** What a {@link RecordedRun} says of the log as a whole. */
export interface RecordedRunOrigin {
  readonly source: string;
  readonly startedAt: number | undefined;
  readonly utcOffsetMinutes: number;
  readonly damage: RecordingDamage | undefined;
  readonly csv: CsvSpelling | undefined;
}

type Column = Uint8Array | Uint16Array | Uint32Array | Float64Array;

const initialCapacity = 4096;

/** Makes a {@link RecordedRun}: columns that grow. */
export class RecordedRunBuilder implements RecordedEvents {
  #capacity = initialCapacity;
  #count = 0;
  #kinds = new Uint8Array(initialCapacity);
  #layers = new Uint8Array(initialCapacity);
  #streams = new Uint16Array(initialCapacity);
  #threads = new Uint16Array(initialCapacity);
  #phases = new Uint16Array(initialCapacity);
  #stacks = new Uint32Array(initialCapacity);
  #times = new Float64Array(initialCapacity);
  #firsts = new Float64Array(initialCapacity);
  #seconds = new Float64Array(initialCapacity);

  get eventCount(): number {
    return this.#count;
  }

  append(
    kind: RecordKind,
    layer: number,
    stream: number,
    thread: number,
    phase: number,
    stack: number,
    time: number,
    first: number,
    second: number,
  ): void {
    if (this.#count === this.#capacity) this.#resize(this.#capacity * 2);
    const row = this.#count++;
    this.#kinds[row] = kind;
    this.#layers[row] = layer;
    this.#streams[row] = stream;
    this.#threads[row] = thread;
    this.#phases[row] = phase;
    this.#stacks[row] = stack;
    this.#times[row] = time;
    this.#firsts[row] = first;
    this.#seconds[row] = second;
  }

  /** The run, with the layers nearest to the program first. The builder must not be used any more. */
  finish(origin: RecordedRunOrigin, names: RecordedNames): RecordedRun {
    const { layers, places } = orderLayers(names.layers);
    const column = this.#layers;
    // What is of no layer has 0, whatever that is.
    if (places !== undefined) for (let i = 0; i < this.#count; i++) column[i] = places[column[i] as number] ?? 0;
    const whole = <T extends Column>(grown: T) => grown.subarray(0, this.#count) as T;
    return {
      ...origin,
      layers,
      streams: names.streams,
      threads: names.threads,
      phases: names.phases,
      stacks: names.stacks,
      labels: names.labels,
      eventCount: this.#count,
      kinds: whole(this.#kinds),
      layerOf: whole(this.#layers),
      streamOf: whole(this.#streams),
      threadOf: whole(this.#threads),
      phaseOf: whole(this.#phases),
      stackOf: whole(this.#stacks),
      times: whole(this.#times),
      firsts: whole(this.#firsts),
      seconds: whole(this.#seconds),
    };
  }

  #resize(capacity: number): void {
    this.#capacity = capacity;
    this.#kinds = resized(this.#kinds, new Uint8Array(capacity));
    this.#layers = resized(this.#layers, new Uint8Array(capacity));
    this.#streams = resized(this.#streams, new Uint16Array(capacity));
    this.#threads = resized(this.#threads, new Uint16Array(capacity));
    this.#phases = resized(this.#phases, new Uint16Array(capacity));
    this.#stacks = resized(this.#stacks, new Uint32Array(capacity));
    this.#times = resized(this.#times, new Float64Array(capacity));
    this.#firsts = resized(this.#firsts, new Float64Array(capacity));
    this.#seconds = resized(this.#seconds, new Float64Array(capacity));
  }
}

/** `target` with what `column` holds. */
function resized<T extends Column>(column: T, target: T): T {
  target.set(column);
  return target;
}
