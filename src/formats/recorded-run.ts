import type { EventColumns, EventColumnsBuilder } from './event-columns.js';
import { orderLayers } from './layers.js';

/** A resource that was recorded. */
export interface RecordedLayer {
  /** Its name, such as `pool`. */
  readonly name: string;
  /** The index of the layer below it, or `undefined` if none was recorded. */
  readonly upstream: number | undefined;
}

/** A named part of a program; {@link annotate} makes them. */
export interface RecordedPhase {
  readonly name: string;
  /** The index of the phase around it, or 0. */
  readonly outer: number;
}

/** Where a log stops being readable. */
export interface RecordingDamage {
  /** The first byte that cannot be relied on. */
  readonly offset: number;
  /** What is wrong there, in a few words. */
  readonly fault: string;
  /** Whether the file merely ends there, as that of a killed process does. */
  readonly isTruncation: boolean;
}

/** How a log of RMM's writes what can be written in several ways: versions differ. */
export interface CsvSpelling {
  /** What is between seconds and microseconds. */
  readonly timeSeparator: '.' | ':';
  readonly nullPointer: '(nil)' | '0x0' | '0';
}

/** What a log says beside its events, and the names that these refer to by their indexes. */
export interface RunDescription {
  /** The path or name of the log. */
  readonly source: string;
  /** Milliseconds since 1970 at time 0, or `undefined` if time 0 is some midnight. */
  readonly startedAt: number | undefined;
  /** Minutes that local time was ahead of UTC. */
  readonly utcOffsetMinutes: number;
  /** What was recorded, the layer nearest to the program first. A log of RMM's has one. */
  readonly layers: readonly RecordedLayer[];
  /** The streams, as the log names them. */
  readonly streams: readonly string[];
  /** The threads, as the log names them. */
  readonly threads: readonly string[];
  /** Entry 0 stands for no phase. */
  readonly phases: readonly RecordedPhase[];
  /** JavaScript or Python stacks, innermost call first, a line `function (file:line:column)` each. Entry 0 stands for no stack. */
  readonly stacks: readonly string[];
  /** Entry 0 stands for no label. */
  readonly labels: readonly string[];
  /** Where the log stops being readable; the events are those before it. */
  readonly damage: RecordingDamage | undefined;
}

/** Everything that a log holds, whatever its format. */
export interface RecordedRun extends RunDescription, EventColumns {
  /** How a log of RMM's was written, so that it can be written again as it was; `undefined` for what never was one. */
  readonly csv: CsvSpelling | undefined;
}

/** The names of a log while it is read. Layers are in the order in which they were found. */
export class RecordedNames {
  readonly layers: RecordedLayer[] = [];
  readonly streams: string[] = [];
  readonly threads: string[] = [];
  readonly phases: RecordedPhase[] = [{ name: '', outer: 0 }];
  readonly stacks: string[] = [''];
  readonly labels: string[] = [''];
}

/** What a {@link RecordedRun} says of the log as a whole. */
export type RecordedRunOrigin = Pick<RecordedRun, 'source' | 'startedAt' | 'utcOffsetMinutes' | 'damage' | 'csv'>;

/** The run of what was read, with the layers nearest to the program first. Nothing may be appended any more. */
export function finishRun(origin: RecordedRunOrigin, names: RecordedNames, builder: EventColumnsBuilder): RecordedRun {
  const { layers, places } = orderLayers(names.layers);
  const columns = builder.take();
  const { layerOf } = columns;
  // What is of no layer has 0, whatever that is.
  if (places !== undefined) for (let i = 0; i < layerOf.length; i++) layerOf[i] = places[layerOf[i] as number] ?? 0;
  return { ...origin, ...names, layers, ...columns };
}
