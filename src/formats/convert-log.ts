import { ArgumentRangeError, formatValue, InvalidLogError } from '../errors.js';
import { writeWhole } from '../files/write-whole.js';
import { assertOneOf, assertOptions, optionNames } from '../validation.js';
import { chromeTrace } from './chrome-trace/convert-to-chrome-trace.js';
import { EventKind } from './event-columns.js';
import { nearestLayer } from './layers.js';
import type { LogFormat, LogSource } from './log-source.js';
import { SnapshotPlan, snapshotPickle } from './pytorch-snapshot/convert-to-snapshot.js';
import { readRecordedRun } from './read-recorded-run.js';
import type { RecordedRun, RecordingDamage } from './recorded-run.js';
import { encodeRecording } from './recording/convert-to-recording.js';
import { rmmCsv } from './rmm-csv/convert-to-rmm-csv.js';
import type { WrittenEvents } from './written-events.js';

/** Formats that a log can be written in. */
export type ConvertedFormat = LogFormat | 'chrome-trace';

/** The formats that {@link convertLog} writes. */
export const convertedFormats = ['rmm-csv', 'recording', 'pytorch-snapshot', 'chrome-trace'] as const satisfies readonly ConvertedFormat[];

/** What an ending of a path says about the format; `.gz` may come after those that are marked. */
const endings: readonly (readonly [ending: string, format: ConvertedFormat, mayBeGzip: boolean])[] = [
  ['.csv', 'rmm-csv', true],
  ['.cistern', 'recording', true],
  ['.pickle', 'pytorch-snapshot', false],
  ['.json', 'chrome-trace', true],
];

const growthOmission = 'blocks that a layer took from its upstream or gave back';
const orderOmission = 'event records and waits';

/** Options of {@link convertLog}. */
export interface ConvertLogOptions {
  /**
   * What the log is.
   * @defaultValue what its bytes say
   */
  readonly from?: LogFormat;
  /**
   * What is written.
   * @defaultValue what the output's name says: `.csv`, `.cistern`, `.json`, each also with `.gz`, or `.pickle`
   */
  readonly to?: ConvertedFormat;
  /**
   * The layer whose allocations are written to a format that holds one: an RMM log or a snapshot.
   * @defaultValue the one nearest to the program that has any
   */
  readonly layer?: string;
  /** Called after every piece of the log that was read, and of the output that was written. */
  readonly onProgress?: (progress: ConversionProgress) => void;
}

const knownOptions = optionNames<ConvertLogOptions>({ from: true, layer: true, onProgress: true, to: true });

/** How far a conversion has come. */
export interface ConversionProgress {
  readonly step: 'reading' | 'writing';
  /** Bytes that were read, or events that were written. */
  readonly done: number;
  /** Of how many, where that is known. */
  readonly total: number | undefined;
}

/** What {@link convertLog} did. */
export interface Conversion {
  /** What was written. */
  readonly format: ConvertedFormat;
  /** Events of the log. */
  readonly eventCount: number;
  /** What the log held and the format cannot, in a few words each, such as `stacks of events: 12`. */
  readonly omissions: readonly string[];
  /** Where the log ends early, as that of a killed process does; what comes before was converted. */
  readonly truncation: RecordingDamage | undefined;
}

/**
 * Writes a log in another format: an RMM log, a recording, a snapshot for PyTorch's memory viewer, or a trace for Perfetto. The file is
 * there as a whole or not at all.
 *
 * An RMM log that becomes a recording and an RMM log again is what it was, byte by byte. `docs/formats.md` says what each format keeps.
 * @param source a path, a `file:` URL, or the bytes in pieces
 * @param output the path of the file to be written
 * @throws InvalidLogError for a log that is damaged and does not merely end early, and for a layer that it does not have.
 * @throws ArgumentRangeError where neither option nor name says what to write.
 * @throws a system error of Node (`ENOENT`, `ENOSPC`, …) for a file that cannot be read or written.
 * @example
 * ```ts
 * const { omissions } = await convertLog('run.cistern', 'run.pickle');
 * for (const omission of omissions) console.log(`left out: ${omission}`);
 * ```
 */
export async function convertLog(source: LogSource, output: string, options: ConvertLogOptions = {}): Promise<Conversion> {
  assertOptions(options, knownOptions);
  const format = outputFormat(output, options.to);
  if (options.from !== undefined) assertOneOf(options.from, ['rmm-csv', 'recording', 'pytorch-snapshot'], 'from');
  const { onProgress } = options;
  const run = await readRecordedRun(source, {
    ...(options.from === undefined ? {} : { format: options.from }),
    onProgress: ({ bytesRead, totalBytes }) => onProgress?.({ step: 'reading', done: bytesRead, total: totalBytes }),
  });
  const { damage } = run;
  if (damage !== undefined && !damage.isTruncation) {
    throw new InvalidLogError(run.source, undefined, `is damaged at byte ${damage.offset}: ${damage.fault}`);
  }
  const written: WrittenEvents = { count: 0 };
  const { pieces, omissions } = converted(run, format, options.layer, written);
  await writeWhole(output, async (sink) => {
    for (const piece of pieces) {
      await sink.write(piece);
      onProgress?.({ step: 'writing', done: written.count, total: run.eventCount });
    }
  });
  return { format, eventCount: run.eventCount, omissions, truncation: damage };
}

/**
 * The format that a path asks for.
 * @throws ArgumentRangeError where it does not say, and no format is given.
 */
function outputFormat(path: string, given: ConvertedFormat | undefined): ConvertedFormat {
  if (given !== undefined) {
    assertOneOf(given, convertedFormats, 'to');
    return given;
  }
  const named = endings.find(([ending, , mayBeGzip]) => path.endsWith(ending) || (mayBeGzip && path.endsWith(`${ending}.gz`)));
  if (named !== undefined) return named[1];
  const known = endings.map(([ending, , mayBeGzip]) => (mayBeGzip ? `${ending}, ${ending}.gz` : ending)).join(', ');
  throw new ArgumentRangeError(
    `the name ${formatValue(path)} does not say what to write: let it end in ${known}, or say which format`,
    'ERR_INVALID_ARG_VALUE',
  );
}

/** The bytes of a run in a format, and what it leaves out. */
function converted(
  run: RecordedRun,
  format: ConvertedFormat,
  layerName: string | undefined,
  written: WrittenEvents,
): { pieces: Iterable<string | Uint8Array>; omissions: string[] } {
  if (format === 'recording' || format === 'chrome-trace') {
    if (layerName !== undefined) {
      throw new ArgumentRangeError(`layer cannot be chosen for ${format}, which holds all of them`, 'ERR_INVALID_ARG_VALUE');
    }
    return { pieces: format === 'recording' ? encodeRecording(run, written) : chromeTrace(run, written), omissions: [] };
  }
  const layer = chosenLayer(run, layerName);
  const omissions = otherLayers(run, layer);
  if (format === 'rmm-csv') return { pieces: rmmCsv(run, layer, written), omissions: [...omissions, ...omissionsOfCsv(run, layer)] };
  const plan = new SnapshotPlan(run, layer);
  return { pieces: snapshotPickle(plan, written), omissions: [...omissions, ...omissionsOfSnapshot(plan)] };
}

/** @throws InvalidLogError where there is no layer of that name. */
function chosenLayer(run: RecordedRun, name: string | undefined): number {
  const withAllocations = new Set<number>();
  for (let i = 0; i < run.eventCount; i++) if ((run.kinds[i] as number) <= EventKind.failure) withAllocations.add(run.layerOf[i] as number);
  const layer = nearestLayer(run.layers, (index) => withAllocations.has(index), name);
  if (layer !== undefined || name === undefined) return layer ?? 0;
  const known = [...new Set(run.layers.map((each) => each.name))].join(', ');
  throw new InvalidLogError(run.source, undefined, `has no layer ${formatValue(name)}; there are: ${known || 'none'}`);
}

function otherLayers(run: RecordedRun, layer: number): string[] {
  const counts = new Map<number, number>();
  for (let i = 0; i < run.eventCount; i++) {
    const other = run.layerOf[i] as number;
    if ((run.kinds[i] as number) <= EventKind.failure && other !== layer) counts.set(other, (counts.get(other) ?? 0) + 1);
  }
  return [...counts].flatMap(([other, count]) => counted(`events of the layer ${run.layers[other]?.name}`, count));
}

function omissionsOfCsv(run: RecordedRun, layer: number): string[] {
  let stacks = 0;
  let phases = 0;
  for (let i = 0; i < run.eventCount; i++) {
    if ((run.kinds[i] as number) > EventKind.failure || run.layerOf[i] !== layer) continue;
    if (run.stackOf[i] !== 0) stacks++;
    if (run.phaseOf[i] !== 0) phases++;
  }
  return [
    ...counted('stacks of events', stacks),
    ...counted('phases of events', phases),
    ...counted(growthOmission, countOf(run, [EventKind.growth, EventKind.release])),
    ...counted(orderOmission, countOf(run, [EventKind.eventRecord, EventKind.eventWait])),
    ...counted('labels', countOf(run, [EventKind.label])),
  ];
}

function omissionsOfSnapshot({ run, keeper, omissions }: SnapshotPlan): string[] {
  return [
    ...counted('threads, of which nothing is told', run.threads.length > 1 ? run.threads.length : 0),
    ...counted('events of zero bytes', omissions.empty),
    ...counted('frees of what the log does not allocate', omissions.foreignFrees),
    ...counted('allocations at an address that is live', omissions.doubles),
    ...counted('releases of blocks with allocations in them', omissions.abandoned),
    ...counted(growthOmission, keeper === undefined ? countOf(run, [EventKind.growth, EventKind.release]) : 0),
    ...counted(orderOmission, countOf(run, [EventKind.eventRecord, EventKind.eventWait])),
  ];
}

function countOf(run: RecordedRun, kinds: readonly number[]): number {
  return run.kinds.reduce((total, kind) => (kinds.includes(kind) ? total + 1 : total), 0);
}

function counted(what: string, count: number): string[] {
  return count === 0 ? [] : [`${what}: ${count.toLocaleString('en-US')}`];
}
