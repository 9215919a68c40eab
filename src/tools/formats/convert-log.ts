import { ArgumentTypeError, formatValue, InvalidLogError, invalidValue } from '../../basics/errors.js';
import { formatCount } from '../../basics/units.js';
import { assertOneOf, assertOptions, optionNames } from '../../basics/validation.js';
import { writeWhole } from '../files/write-whole.js';
import { chromeTrace } from './chrome-trace/convert-to-chrome-trace.js';
import { appendEvents, EventColumnsBuilder, EventKind, type EventSink, eventsOf, type LoggedEvent } from './event-columns.js';
import { EventTally, type LayerTally } from './event-tally.js';
import { HeldEvents } from './held-events.js';
import { noSuchLayer } from './layer-allocations.js';
import { nearestLayer, orderLayers } from './layers.js';
import { type LogFormat, type LogProgress, type LogSource, logFormats, OpenLog } from './log-source.js';
import { SnapshotPlan, snapshotPickle } from './pytorch-snapshot/convert-to-snapshot.js';
import { isReadWhole, readEvents, readWholeRun } from './read-recorded-run.js';
import { type DescribedRun, finishRun, RecordedNames, type RecordedRun, type RecordingDamage, type WrittenEvents } from './recorded-run.js';
import { encodeEvents } from './recording/convert-to-recording.js';
import { rmmCsv } from './rmm-csv/convert-to-rmm-csv.js';

/** Formats that a log can be converted to. */
export type ConvertedFormat = 'rmm-csv' | 'recording' | 'pytorch-snapshot' | 'chrome-trace';

/** The formats that {@link convertLog} writes. */
export const convertedFormats = ['rmm-csv', 'recording', 'pytorch-snapshot', 'chrome-trace'] as const satisfies readonly ConvertedFormat[];

/** File name endings and their formats; `.gz` may follow those that are marked. */
const endings: readonly (readonly [ending: string, format: ConvertedFormat, mayBeGzip: boolean])[] = [
  ['.csv', 'rmm-csv', true],
  ['.cistern', 'recording', true],
  ['.pickle', 'pytorch-snapshot', false],
  ['.json', 'chrome-trace', true],
];

const growthOmission = 'blocks that a layer took from its upstream or returned';
const orderOmission = 'event records and waits';

/** Options of {@link convertLog}. */
export interface ConvertLogOptions {
  /**
   * The format of the log.
   * @defaultValue detected from its bytes
   */
  readonly from?: LogFormat | undefined;
  /**
   * The format to write.
   * @defaultValue taken from the output's name: `.csv`, `.cistern`, `.json`, each also with `.gz`,
   * or `.pickle`
   */
  readonly to?: ConvertedFormat | undefined;
  /**
   * The layer whose allocations are written, for formats that hold one layer: an RMM log or a
   * snapshot.
   * @defaultValue the layer nearest to the program that has allocations
   */
  readonly layer?: string | undefined;
  /**
   * The log's name in error messages.
   * @defaultValue the path, or `log` if the source is not a path
   */
  readonly name?: string | undefined;
  /** Called after each piece of the log is read, and after each piece of the output is written. */
  readonly onProgress?: ((progress: ConversionProgress) => void) | undefined;
}

const knownOptions = optionNames<ConvertLogOptions>({ from: true, layer: true, name: true, onProgress: 'function', to: true });

/** The progress of a conversion. */
export interface ConversionProgress {
  readonly step: 'reading' | 'writing';
  /** Bytes read, or events written. */
  readonly done: number;
  /** The total of these, if it is known. */
  readonly total: number | undefined;
}

/** The result of {@link convertLog}. */
export interface Conversion {
  /** The format written. */
  readonly format: ConvertedFormat;
  /** Number of events in the log. */
  readonly eventCount: number;
  /**
   * The contents of the log that the format cannot hold, in a few words each, such as `stacks of
   * events: 12`.
   */
  readonly omissions: readonly string[];
  /**
   * Set if the log ends early, for example because the process was killed; everything before that
   * was converted.
   */
  readonly truncation: RecordingDamage | undefined;
}

/**
 * Writes a log in another format: an RMM log, a recording, a snapshot for PyTorch's memory viewer,
 * or a trace for Perfetto. The file is written completely or not at all.
 *
 * An RMM log that is converted to a recording and back is unchanged, byte by byte.
 * `docs/formats.md` lists what each format keeps.
 * @param source a path, a `file:` URL, or the bytes in pieces
 * @param output the path of the file to write
 * @throws InvalidLogError if the log is damaged (a log that merely ends early is not), or has no
 * layer of that name.
 * @throws ArgumentRangeError if neither the option nor the name determines the format to write.
 * @throws a system error of Node (`ENOENT`, `ENOSPC`, …) if a file cannot be read or written.
 * @example
 * ```ts
 * const { omissions } = await convertLog('run.cistern', 'run.pickle');
 * for (const omission of omissions) console.log(`left out: ${omission}`);
 * ```
 */
export async function convertLog(source: LogSource, output: string, options: ConvertLogOptions = {}): Promise<Conversion> {
  assertOptions(options, knownOptions);
  const format = formatToWrite(output, options.to);
  if (options.from !== undefined) assertOneOf(options.from, logFormats, 'from');
  const { onProgress, from, name } = options;
  const reading = {
    ...(from === undefined ? {} : { format: from }),
    name,
    onProgress: ({ bytesRead, totalBytes }: LogProgress) => onProgress?.({ step: 'reading', done: bytesRead, total: totalBytes }),
  };
  const log = await readConvertible(await OpenLog.open(source, reading), format);
  const { damage, skippedRecordCount: skipped } = log.run;
  if (damage !== undefined && !damage.isTruncation) {
    throw new InvalidLogError(log.run.source, undefined, `is damaged at byte ${damage.offset}: ${damage.fault}`);
  }
  const omissions = await writeConverted(log, output, { ...options, to: format });
  if (skipped > 0) omissions.push(`records that only a newer cistern knows: ${skipped}`);
  return { format, eventCount: log.eventCount, omissions, truncation: damage };
}

/**
 * Writes a run to a file, completely or not at all. Returns the contents that the format leaves
 * out.
 * @internal
 */
export function writeRun(run: RecordedRun, output: string, options: Omit<ConvertLogOptions, 'from'> = {}): Promise<string[]> {
  return writeConverted(convertible(run), output, options);
}

/** A log that can be written in other formats. */
interface ConvertibleLog {
  readonly run: DescribedRun;
  /** All of it, which some formats need. */
  readonly columns: RecordedRun | undefined;
  readonly eventCount: number;
  readonly layers: ReadonlyMap<number, LayerTally>;
  readonly tally: EventTally;
  /** Can be taken once. */
  readonly events: () => Iterable<Readonly<LoggedEvent>>;
}

/** Reads a log. Its events are only held until they are written, if the format needs no more. */
async function readConvertible(log: OpenLog, format: ConvertedFormat): Promise<ConvertibleLog> {
  if (isReadWhole(log)) return convertible(await readWholeRun(log));
  const names = new RecordedNames();
  if (format !== 'recording' && format !== 'rmm-csv') {
    const events = new EventColumnsBuilder();
    return convertible(finishRun(await readEvents(log, names, events), names, events));
  }
  const tally = new EventTally();
  const held = new HeldEvents();
  const sink: EventSink = {
    get eventCount() {
      return held.eventCount;
    },
    append: (event) => {
      tally.append(event);
      held.append(event);
    },
  };
  const origin = await readEvents(log, names, sink);
  const { layers, places } = orderLayers(names.layers);
  return {
    run: { ...origin, ...names, layers },
    columns: undefined,
    eventCount: held.eventCount,
    layers: tally.layers(places),
    tally,
    events: () => held.take(places),
  };
}

function convertible(run: RecordedRun): ConvertibleLog {
  const tally = new EventTally();
  appendEvents(run, tally);
  return { run, columns: run, eventCount: run.eventCount, layers: tally.layers(undefined), tally, events: () => eventsOf(run) };
}

async function writeConverted(
  log: ConvertibleLog,
  output: string,
  { to, layer, onProgress }: Omit<ConvertLogOptions, 'from'>,
): Promise<string[]> {
  const written: WrittenEvents = { count: 0 };
  const { pieces, omissions } = converted(log, formatToWrite(output, to), layer, written);
  await writeWhole(output, async (sink) => {
    for (const piece of pieces) {
      await sink.write(piece);
      onProgress?.({ step: 'writing', done: written.count, total: log.eventCount });
    }
  });
  return omissions;
}

/**
 * The format of an output path.
 * @throws ArgumentRangeError if no format is given and the path's ending is unknown.
 * @internal
 */
export function formatToWrite(path: string, given: ConvertedFormat | undefined): ConvertedFormat {
  if (typeof path !== 'string') throw new ArgumentTypeError(`output must be a path, got ${formatValue(path)}`);
  if (given !== undefined) {
    assertOneOf(given, convertedFormats, 'to');
    return given;
  }
  const named = formatOfName(path);
  if (named !== undefined) return named;
  const known = endings.map(([ending, , mayBeGzip]) => (mayBeGzip ? `${ending}, ${ending}.gz` : ending)).join(', ');
  throw invalidValue(`the name ${formatValue(path)} does not say what to write: end it in ${known}, or give the format`);
}

/**
 * The format that a file's name says, if it says one.
 * @internal
 */
export function formatOfName(path: string): ConvertedFormat | undefined {
  return endings.find(([ending, , mayBeGzip]) => path.endsWith(ending) || (mayBeGzip && path.endsWith(`${ending}.gz`)))?.[1];
}

/** The bytes of a log in a format, and the contents that the format leaves out. */
function converted(
  log: ConvertibleLog,
  format: ConvertedFormat,
  layerName: string | undefined,
  written: WrittenEvents,
): { pieces: Iterable<string | Uint8Array>; omissions: string[] } {
  const { run, layers } = log;
  // Formats that need all of a log are given its columns.
  const columns = log.columns as RecordedRun;
  if (format === 'recording' || format === 'chrome-trace') {
    if (layerName !== undefined) {
      throw invalidValue(`layer cannot be chosen for ${format}, which holds all of them`);
    }
    return { pieces: format === 'recording' ? encodeEvents(run, log.events(), written) : chromeTrace(columns, written), omissions: [] };
  }
  const layer = nearestLayer(run.layers, (index) => layers.has(index), layerName);
  if (layer === undefined && layerName !== undefined) throw noSuchLayer(run, layerName);
  const chosen = layer ?? 0;
  const omissions = otherLayers(log, chosen);
  if (format === 'rmm-csv')
    return { pieces: rmmCsv(run, log.events(), chosen, written), omissions: [...omissions, ...omissionsOfCsv(log, chosen)] };
  const plan = new SnapshotPlan(columns, chosen);
  return { pieces: snapshotPickle(plan, written), omissions: [...omissions, ...omissionsOfSnapshot(plan, log)] };
}

function otherLayers({ run, layers }: ConvertibleLog, layer: number): string[] {
  return [...layers].flatMap(([other, { events }]) =>
    other === layer ? [] : counted(`events of the layer ${run.layers[other]?.name}`, events),
  );
}

function omissionsOfCsv({ layers, tally }: ConvertibleLog, layer: number): string[] {
  const { stacks = 0, phases = 0, accounts = 0 } = layers.get(layer) ?? {};
  return [
    ...counted('stacks of events', stacks),
    ...counted('phases of events', phases),
    ...counted('accounts of events', accounts),
    ...counted(growthOmission, tally.countOf(EventKind.growth, EventKind.release)),
    ...counted(orderOmission, tally.countOf(EventKind.eventRecord, EventKind.eventWait)),
    ...counted('labels', tally.countOf(EventKind.label)),
  ];
}

function omissionsOfSnapshot({ run, pool, omissions }: SnapshotPlan, { tally }: ConvertibleLog): string[] {
  return [
    ...counted('threads', run.threads.length > 1 ? run.threads.length : 0),
    ...counted('accounts', run.accounts.length - 1),
    ...counted('events of zero bytes', omissions.empty),
    ...counted('frees of memory that the log does not allocate', omissions.foreignFrees),
    ...counted('allocations at a live address', omissions.doubles),
    ...counted('releases of blocks that still hold allocations', omissions.abandoned),
    ...counted(growthOmission, pool === undefined ? tally.countOf(EventKind.growth, EventKind.release) : 0),
    ...counted(orderOmission, tally.countOf(EventKind.eventRecord, EventKind.eventWait)),
  ];
}

function counted(what: string, count: number): string[] {
  return count === 0 ? [] : [`${what}: ${formatCount(count)}`];
}
