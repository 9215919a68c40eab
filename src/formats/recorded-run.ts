import type { CsvSpelling, RecordKind } from './recording/recording-format.js';

/** A resource that was recorded. */
export interface RecordedLayer {
  /** Its name, such as `pool`. */
  readonly name: string;
  /** The index of the layer below it, or `undefined` where none was recorded. */
  readonly upstream: number | undefined;
}

/** A named part of a program; {@link annotate} makes them. */
export interface RecordedPhase {
  readonly name: string;
  /** The index of the phase around it, or 0. */
  readonly outer: number;
}

/** Where a recording stops being readable. */
export interface RecordingDamage {
  /** The first byte that cannot be relied on. */
  readonly offset: number;
  /** What is wrong there, in a few words. */
  readonly fault: string;
  /** Whether the file merely ends there, as that of a killed process does. */
  readonly isTruncation: boolean;
}

/**
 * Everything that a log holds, in columns with an entry for each event, in order. What is only in a recording of cistern's is empty or 0 for
 * other logs.
 */
export interface RecordedRun {
  /** The path or name of the log. */
  readonly source: string;
  /** Milliseconds since 1970 at time 0, or `undefined` where time 0 is some midnight. */
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
  readonly eventCount: number;
  /** What happened: a {@link RecordKind} up to `label`. */
  readonly kinds: Uint8Array;
  /** Indexes into {@link RecordedRun.layers}. */
  readonly layerOf: Uint8Array;
  /** Indexes into {@link RecordedRun.streams}. */
  readonly streamOf: Uint16Array;
  /** Indexes into {@link RecordedRun.threads}. */
  readonly threadOf: Uint16Array;
  /** Indexes into {@link RecordedRun.phases}. */
  readonly phaseOf: Uint16Array;
  /** Indexes into {@link RecordedRun.stacks}. */
  readonly stackOf: Uint32Array;
  /** Nanoseconds since time 0, as the log has them: where several threads wrote to one log, they may go back by a little. */
  readonly times: Float64Array;
  /** The first number of the record: the pointer, as a rule. Of a failure 0, or what the bytes have beyond the second. */
  readonly firsts: Float64Array;
  /** The second number of the record: bytes, as a rule. */
  readonly seconds: Float64Array;
  /** Where the log stops being readable; the events are those before it. */
  readonly damage: RecordingDamage | undefined;
  /** How a log of RMM's was written, so that it can be written again as it was; `undefined` for what never was one. */
  readonly csv: CsvSpelling | undefined;
}
