import type { RecordedLayer } from '../layers.js';
import { type ColumnHead, ColumnWriter, type PackedColumn, packedBytes, unpackColumn } from './column.js';
import { neverEnds, type ReportRun } from './report-run.js';

/** A report's data about a log, except the columns. */
export type ReportTexts = Omit<ReportRun, 'times' | 'changes' | 'addresses' | 'spans' | 'failures' | 'phaseMarks'>;

/**
 * The columns of a packed run, in storage order, and the type of array that each is unpacked into.
 */
const columnTypes = {
  /** One per change. */
  times: Float64Array,
  /**
   * For each change: 0 if it begins a span; if it ends one, how many spans ago that span began. The
   * numbers are small if lifetimes are short.
   */
  changes: Uint32Array,
  addresses: Float64Array,
  addressOf: Uint32Array,
  bytes: Float64Array,
  isBlock: Uint8Array,
  layerOf: Uint8Array,
  streamOf: Uint16Array,
  /** The streams of the changes that end spans. */
  endStreams: Uint16Array,
  threadOf: Uint16Array,
  phaseOf: Uint16Array,
  stackOf: Uint32Array,
  accountOf: Uint16Array,
  /** The spans that are given labels, in order of time, and the labels. */
  labelled: Uint32Array,
  labelOf: Uint32Array,
  failureTimes: Float64Array,
  failureBytes: Float64Array,
  failureLayerOf: Uint8Array,
  failureStreamOf: Uint16Array,
  failurePhaseOf: Uint16Array,
  failureAccountOf: Uint16Array,
  phaseTimes: Float64Array,
  phaseMarkOf: Uint16Array,
  phaseIsEnd: Uint8Array,
} as const;

/** Columns in which most values are slightly larger than the value before. */
const ascending: ReadonlySet<string> = new Set(['times', 'addresses', 'labelled', 'failureTimes', 'phaseTimes']);

type ColumnTypes = typeof columnTypes;

export const columnNames = Object.keys(columnTypes) as readonly (keyof ColumnTypes)[];

/** One value for each column of a packed run. */
export type ReportColumns<Column> = { readonly [Name in keyof ColumnTypes]: Column };

/** Writers for all columns. */
export function columnWriters(): ReportColumns<ColumnWriter> {
  return eachColumn((name) => new ColumnWriter(ascending.has(name)));
}

/** Applies a change to each column. */
export function mapColumns<From, To>(columns: ReportColumns<From>, change: (column: From) => To): ReportColumns<To> {
  return eachColumn((name) => change(columns[name]));
}

/**
 * Copies `columnTypes` and replaces each property: V8 keeps the properties of an object that
 * received so many one by one in a slow hash table.
 */
function eachColumn<Column>(make: (name: keyof ColumnTypes) => Column): ReportColumns<Column> {
  const columns: Record<string, unknown> = { ...columnTypes };
  for (const name of Object.keys(columns)) columns[name] = make(name as keyof ColumnTypes);
  return columns as ReportColumns<Column>;
}

/** The texts of a packed run and the heads of its columns, stored as JSON before the columns. */
export interface ReportHead
  extends Omit<ReportTexts, 'startedAt' | 'damage' | 'layers'>,
    Partial<Pick<ReportTexts, 'startedAt' | 'damage'>> {
  readonly layers: readonly (Omit<RecordedLayer, 'upstream'> & { readonly upstream?: number | undefined })[];
  readonly spanCount: number;
  readonly columns: ReportColumns<ColumnHead>;
}

/**
 * The bytes of a run, in pieces, before compression: `u32 bytes of JSON`, the JSON, then the
 * columns in its order.
 */
export function* packedPieces(texts: ReportTexts, packed: ReportColumns<PackedColumn>): Generator<Uint8Array> {
  const columns = mapColumns(packed, ({ head }) => head);
  // JSON omits undefined values.
  const json = new TextEncoder().encode(JSON.stringify({ ...texts, spanCount: packed.bytes.head.count, columns }));
  const length = new Uint8Array(4);
  new DataView(length.buffer).setUint32(0, json.length, true);
  yield length;
  yield json;
  for (const { pieces } of Object.values<PackedColumn>({ ...packed })) yield* pieces;
}

/** Reads the bytes from {@link packedPieces}, which are trusted. */
export function unpackReportRun(bytes: Uint8Array): ReportRun {
  const json = jsonOf(bytes);
  return unpackColumns(JSON.parse(new TextDecoder().decode(json)) as ReportHead, bytes.subarray(4 + json.length));
}

/** The JSON of a packed run; fewer bytes than it has if the run ends early. */
export function jsonOf(bytes: Uint8Array): Uint8Array {
  return bytes.subarray(4, 4 + new DataView(bytes.buffer, bytes.byteOffset, bytes.length).getUint32(0, true));
}

/** Reads the columns of a packed run, whose head describes them. */
export function unpackColumns(head: ReportHead, bytes: Uint8Array): ReportRun {
  const { columns, spanCount: count, layers, startedAt, damage, ...texts } = head;
  const offsets = {} as Record<keyof ColumnTypes, number>;
  let offset = 0;
  for (const [name, column] of Object.entries(columns) as [keyof ColumnTypes, ColumnHead][]) {
    offsets[name] = offset;
    offset += packedBytes(column);
  }
  const read = <Name extends keyof ColumnTypes>(name: Name) => {
    const into = new columnTypes[name](columns[name].count);
    return unpackColumn(columns[name], bytes.subarray(offsets[name]), into) as InstanceType<ColumnTypes[Name]>;
  };
  const failureTimes = read('failureTimes');
  const phaseTimes = read('phaseTimes');
  const streamOf = read('streamOf');
  const { changes, starts, ends, endStreamOf } = changesFrom(read('changes'), streamOf, read('endStreams'));
  return {
    ...texts,
    startedAt,
    damage,
    layers: layers.map((layer): RecordedLayer => ({ upstream: undefined, ...layer })),
    times: read('times'),
    addresses: read('addresses'),
    changes,
    spans: {
      count,
      addressOf: read('addressOf'),
      bytes: read('bytes'),
      starts,
      ends,
      isBlock: read('isBlock'),
      layerOf: read('layerOf'),
      streamOf,
      endStreamOf,
      threadOf: read('threadOf'),
      phaseOf: read('phaseOf'),
      stackOf: read('stackOf'),
      accountOf: read('accountOf'),
      labelOf: labelsFrom(read('labelled'), read('labelOf'), count),
    },
    failures: {
      count: failureTimes.length,
      times: failureTimes,
      bytes: read('failureBytes'),
      layerOf: read('failureLayerOf'),
      streamOf: read('failureStreamOf'),
      phaseOf: read('failurePhaseOf'),
      accountOf: read('failureAccountOf'),
    },
    phaseMarks: {
      count: phaseTimes.length,
      times: phaseTimes,
      phaseOf: read('phaseMarkOf'),
      isEnd: read('phaseIsEnd'),
    },
  };
}

function changesFrom(
  distances: Uint32Array,
  streamOf: Uint16Array,
  endStreams: Uint16Array,
): { changes: Int32Array; starts: Uint32Array; ends: Uint32Array; endStreamOf: Uint16Array } {
  const changes = new Int32Array(distances.length);
  const starts = new Uint32Array(streamOf.length);
  const ends = new Uint32Array(streamOf.length).fill(neverEnds);
  const endStreamOf = Uint16Array.from(streamOf);
  let begun = 0;
  let ended = 0;
  for (let change = 0; change < distances.length; change++) {
    const distance = distances[change] as number;
    if (distance === 0) {
      starts[begun] = change;
      changes[change] = begun++;
    } else {
      const span = begun - distance;
      ends[span] = change;
      endStreamOf[span] = endStreams[ended++] as number;
      changes[change] = ~span;
    }
  }
  return { changes, starts, ends, endStreamOf };
}

function labelsFrom(labelled: Uint32Array, labels: Uint32Array, count: number): Uint32Array {
  const labelOf = new Uint32Array(count);
  for (let i = 0; i < labelled.length; i++) labelOf[labelled[i] as number] = labels[i] as number;
  return labelOf;
}
