import type { CsvSpelling } from '../../recording/recording-format.js';
import type { EventColumns, EventColumnsBuilder } from './event-columns.js';
import { orderLayers, type RecordedLayer } from './layers.js';

/** A named part of a program; `annotate` makes them. */
export interface RecordedPhase {
  readonly name: string;
  /** The index of the phase around it, or 0. */
  readonly outer: number;
  /**
   * `true` for captures of a graph by a `GraphMemoryResource`: allocations in the phase are the graph's
   * memory.
   */
  readonly isGraph?: true | undefined;
}

/** Where and why a log cannot be read further. */
export interface RecordingDamage {
  /** Offset of the first unreliable byte. */
  readonly offset: number;
  /** The fault, in a few words. */
  readonly fault: string;
  /** Whether the file merely ends there, for example because the process was killed. */
  readonly isTruncation: boolean;
}

/** The greatest distance from 1970 that a date can have, in milliseconds. */
const maximumDate = 8.64e15;
const minutesPerDay = 24 * 60;

/** Whether a number of a log can be when it was started, in milliseconds since 1970. */
export function isDate(value: unknown): value is number {
  return Number.isFinite(value) && Math.abs(value as number) <= maximumDate;
}

/** Whether a number of a log can be the minutes between local time and UTC. */
export function isUtcOffset(value: unknown): value is number {
  return Number.isFinite(value) && Math.abs(value as number) <= minutesPerDay;
}

/** A log's properties, and the names that its events refer to by index. */
export interface RunDescription {
  /** The path or name of the log. */
  readonly source: string;
  /**
   * Milliseconds since 1970 at time 0, or `undefined` if time 0 is a midnight of an unknown day.
   */
  readonly startedAt: number | undefined;
  /** Minutes by which local time was ahead of UTC. */
  readonly utcOffsetMinutes: number;
  /** The recorded resources, the layer nearest to the program first. An RMM log has one. */
  readonly layers: readonly RecordedLayer[];
  /** The streams, as the log names them. */
  readonly streams: readonly string[];
  /** The threads, as the log names them. */
  readonly threads: readonly string[];
  /** Entry 0 stands for no phase. */
  readonly phases: readonly RecordedPhase[];
  /**
   * JavaScript or Python stacks, innermost call first, one line `function (file:line:column)` per
   * call. Entry 0 stands for no stack.
   */
  readonly stacks: readonly string[];
  /** Entry 0 stands for no label. */
  readonly labels: readonly string[];
  /** The paths of accounts, such as `tenant-a/request`. Entry 0 stands for no account. */
  readonly accounts: readonly string[];
  /** Human-readable notes of the program. */
  readonly notes: readonly string[];
  /** Set if the log cannot be read to its end; the events are those before that point. */
  readonly damage: RecordingDamage | undefined;
  /**
   * Number of records of a recording that are left out, because a newer cistern wrote them and this one
   * does not know their kind.
   */
  readonly skippedRecordCount: number;
}

/** A log without its events. */
export type DescribedRun = RunDescription & Pick<RecordedRun, 'csv'>;

/** Everything that a log holds, independent of its format. */
export interface RecordedRun extends RunDescription, EventColumns {
  /**
   * How the RMM log was spelled, so that it can be written again unchanged; `undefined` if the run
   * never was an RMM log.
   */
  readonly csv: CsvSpelling | undefined;
}

/** The names in a log, while it is read. Layers are in the order in which they were found. */
export class RecordedNames {
  readonly layers: RecordedLayer[] = [];
  readonly streams: string[] = [];
  readonly threads: string[] = [];
  readonly phases: RecordedPhase[] = [{ name: '', outer: 0 }];
  readonly stacks: string[] = [''];
  readonly labels: string[] = [''];
  readonly accounts: string[] = [''];
  readonly notes: string[] = [];
}

/** The properties of a {@link RecordedRun} that apply to the log as a whole. */
export type RecordedRunOrigin = Pick<RecordedRun, 'source' | 'startedAt' | 'utcOffsetMinutes' | 'damage' | 'skippedRecordCount' | 'csv'>;

/**
 * Builds the run from what was read, with the layers nearest to the program first. Nothing may be
 * appended afterwards.
 */
export function finishRun(origin: RecordedRunOrigin, names: RecordedNames, builder: EventColumnsBuilder): RecordedRun {
  const { layers, places } = orderLayers(names.layers);
  const columns = builder.finish();
  const { layerOf } = columns;
  // Events without a layer have 0, which is mapped to whatever layer 0 becomes.
  if (places !== undefined) for (let i = 0; i < layerOf.length; i++) layerOf[i] = places[layerOf[i] as number] ?? 0;
  return { ...origin, ...names, layers, ...columns };
}

/** The progress of writing a run; the writer updates it with each piece that it yields. */
export interface WrittenEvents {
  count: number;
}
