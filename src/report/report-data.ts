import type { RecordedLayer, RecordedPhase, RecordingDamage } from '../formats/recorded-run.js';
import { type ColumnHead, type PackedColumn, packedBytes, unpackColumn } from './column.js';
import { neverEnds, type ReportRun } from './report-run.js';

/** What a report holds of a log beside its columns. */
export type ReportTexts = Omit<ReportRun, 'times' | 'changes' | 'addresses' | 'spans' | 'failures' | 'phaseMarks'>;

/** The texts of a packed run and the heads of its columns, as JSON in front of them. */
interface Head {
  readonly source: string;
  readonly startedAt?: number;
  readonly utcOffsetMinutes: number;
  readonly layers: readonly { readonly name: string; readonly upstream?: number }[];
  readonly streams: readonly string[];
  readonly threads: readonly string[];
  readonly phases: readonly RecordedPhase[];
  readonly stacks: readonly string[];
  readonly labels: readonly string[];
  readonly damage?: RecordingDamage;
  readonly eventCount: number;
  readonly eventRecordCount: number;
  readonly eventWaitCount: number;
  readonly unmatchedFreeCount: number;
  readonly durationNanoseconds: number;
  readonly spanCount: number;
  readonly columns: ReportColumns<ColumnHead>;
}

/** The columns of a packed run, in the order in which they are stored. */
export interface ReportColumns<Column> {
  /** Of each change. */
  readonly times: Column;
  /** For each change 0 where it begins a span, else how many spans ago the one began that it ends: small numbers where lives are short. */
  readonly changes: Column;
  readonly addresses: Column;
  readonly addressOf: Column;
  readonly bytes: Column;
  readonly isBlock: Column;
  readonly layerOf: Column;
  readonly streamOf: Column;
  /** The streams of the changes that end a span. */
  readonly endStreams: Column;
  readonly threadOf: Column;
  readonly phaseOf: Column;
  readonly stackOf: Column;
  /** The spans that are given a label, in the order of time, and the labels. */
  readonly labelled: Column;
  readonly labelOf: Column;
  readonly failureTimes: Column;
  readonly failureBytes: Column;
  readonly failureLayerOf: Column;
  readonly failureStreamOf: Column;
  readonly failurePhaseOf: Column;
  readonly phaseTimes: Column;
  readonly phaseMarkOf: Column;
  readonly phaseIsEnd: Column;
}

/** The bytes of a run, in pieces, before they are compressed: `u32 bytes of JSON`, the JSON, then the columns in its order. */
export function* packedPieces(texts: ReportTexts, packed: ReportColumns<PackedColumn>): Generator<Uint8Array> {
  const columns = Object.fromEntries(Object.entries(packed).map(([name, { head }]: [string, PackedColumn]) => [name, head]));
  // JSON leaves out what is undefined.
  const json = new TextEncoder().encode(JSON.stringify({ ...texts, spanCount: packed.bytes.head.count, columns }));
  const length = new Uint8Array(4);
  new DataView(length.buffer).setUint32(0, json.length, true);
  yield length;
  yield json;
  for (const { pieces } of Object.values<PackedColumn>({ ...packed })) yield* pieces;
}

/** Reads what {@link packedPieces} wrote. */
export function unpackReportRun(bytes: Uint8Array): ReportRun {
  const jsonBytes = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + jsonBytes))) as Head;
  const { columns, spanCount: count, layers, startedAt, damage, ...texts } = head;
  const offsets: Record<string, number> = {};
  let offset = 4 + jsonBytes;
  for (const [name, column] of Object.entries(columns)) {
    offsets[name] = offset;
    offset += packedBytes(column);
  }
  const read = <T extends { [index: number]: number }>(name: keyof typeof columns, make: new (length: number) => T): T => {
    const column = columns[name];
    return unpackColumn(column, bytes.subarray(offsets[name]), new make(column.count));
  };
  const failureTimes = read('failureTimes', Float64Array);
  const phaseTimes = read('phaseTimes', Float64Array);
  const streamOf = read('streamOf', Uint16Array);
  const { changes, starts, ends, endStreamOf } = changesFrom(read('changes', Uint32Array), streamOf, read('endStreams', Uint16Array));
  return {
    ...texts,
    startedAt,
    damage,
    layers: layers.map(({ name, upstream }): RecordedLayer => ({ name, upstream })),
    times: read('times', Float64Array),
    addresses: read('addresses', Float64Array),
    changes,
    spans: {
      count,
      addressOf: read('addressOf', Uint32Array),
      bytes: read('bytes', Float64Array),
      starts,
      ends,
      isBlock: read('isBlock', Uint8Array),
      layerOf: read('layerOf', Uint8Array),
      streamOf,
      endStreamOf,
      threadOf: read('threadOf', Uint16Array),
      phaseOf: read('phaseOf', Uint16Array),
      stackOf: read('stackOf', Uint32Array),
      labelOf: labelsFrom(read('labelled', Uint32Array), read('labelOf', Uint32Array), count),
    },
    failures: {
      count: failureTimes.length,
      times: failureTimes,
      bytes: read('failureBytes', Float64Array),
      layerOf: read('failureLayerOf', Uint8Array),
      streamOf: read('failureStreamOf', Uint16Array),
      phaseOf: read('failurePhaseOf', Uint16Array),
    },
    phaseMarks: {
      count: phaseTimes.length,
      times: phaseTimes,
      phaseOf: read('phaseMarkOf', Uint16Array),
      isEnd: read('phaseIsEnd', Uint8Array),
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
