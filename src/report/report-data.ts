import type { RecordedLayer, RecordedPhase, RecordingDamage } from '../replay/recorded-run.js';
import { type ColumnHead, packColumn, unpackColumn } from './column.js';
import { neverEnds, type ReportRun } from './report-run.js';

/** The texts and heads of a packed {@link ReportRun}, as JSON in front of its columns. */
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
  readonly columns: Readonly<Record<string, ColumnHead>>;
}

/** The bytes of a run, in pieces, before they are compressed: `u32 bytes of JSON`, the JSON, then the columns in its order. */
export function packReportRun(run: ReportRun): Uint8Array[] {
  const { times, changes, addresses, spans, failures, phaseMarks, ...texts } = run;
  const columns: Record<string, ColumnHead> = {};
  const pieces: Uint8Array[] = [];
  const add = (name: string, values: ArrayLike<number>, isDelta = false) => {
    const { head, bytes } = packColumn(values, isDelta);
    columns[name] = head;
    pieces.push(bytes);
  };
  add('times', times, true);
  add('changes', distancesToSpans(changes));
  add('addresses', addresses, true);
  add('addressOf', spans.addressOf);
  add('bytes', spans.bytes);
  add('isBlock', spans.isBlock);
  add('layerOf', spans.layerOf);
  add('streamOf', spans.streamOf);
  add('endStreamOf', spans.endStreamOf);
  add('threadOf', spans.threadOf);
  add('phaseOf', spans.phaseOf);
  add('stackOf', spans.stackOf);
  add('labelOf', spans.labelOf);
  add('failureTimes', failures.times, true);
  add('failureBytes', failures.bytes);
  add('failureLayerOf', failures.layerOf);
  add('failureStreamOf', failures.streamOf);
  add('failurePhaseOf', failures.phaseOf);
  add('phaseTimes', phaseMarks.times, true);
  add('phaseMarkOf', phaseMarks.phaseOf);
  add('phaseIsEnd', phaseMarks.isEnd);
  // JSON leaves out what is undefined.
  const json = new TextEncoder().encode(JSON.stringify({ ...texts, spanCount: spans.count, columns }));
  const length = new Uint8Array(4);
  new DataView(length.buffer).setUint32(0, json.length, true);
  return [length, json, ...pieces];
}

/** Reads what {@link packReportRun} wrote. */
export function unpackReportRun(bytes: Uint8Array): ReportRun {
  const jsonBytes = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + jsonBytes))) as Head;
  const { columns, spanCount: count, layers, startedAt, damage, ...texts } = head;
  const offsets: Record<string, number> = {};
  let offset = 4 + jsonBytes;
  for (const [name, column] of Object.entries(columns)) {
    offsets[name] = offset;
    offset += column.count * column.planes;
  }
  const read = <T extends { [index: number]: number }>(name: string, make: new (length: number) => T): T => {
    const column = columns[name] as ColumnHead;
    return unpackColumn(column, bytes.subarray(offsets[name]), new make(column.count));
  };
  const failureTimes = read('failureTimes', Float64Array);
  const phaseTimes = read('phaseTimes', Float64Array);
  return {
    ...texts,
    startedAt,
    damage,
    layers: layers.map(({ name, upstream }): RecordedLayer => ({ name, upstream })),
    times: read('times', Float64Array),
    addresses: read('addresses', Float64Array),
    ...(({ changes, starts, ends }) => ({
      changes,
      spans: {
        count,
        addressOf: read('addressOf', Uint32Array),
        bytes: read('bytes', Float64Array),
        starts,
        ends,
        isBlock: read('isBlock', Uint8Array),
        layerOf: read('layerOf', Uint8Array),
        streamOf: read('streamOf', Uint16Array),
        endStreamOf: read('endStreamOf', Uint16Array),
        threadOf: read('threadOf', Uint16Array),
        phaseOf: read('phaseOf', Uint16Array),
        stackOf: read('stackOf', Uint32Array),
        labelOf: read('labelOf', Uint32Array),
      },
    }))(changesFrom(read('changes', Uint32Array), count)),
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

/** For each change 0 where it begins a span, else how many spans ago the one began that it ends: small numbers where lives are short. */
function distancesToSpans(changes: Int32Array): Uint32Array {
  let begun = 0;
  return Uint32Array.from(changes, (change) => {
    if (change < 0) return begun - ~change;
    begun++;
    return 0;
  });
}

function changesFrom(distances: Uint32Array, count: number): { changes: Int32Array; starts: Uint32Array; ends: Uint32Array } {
  const changes = new Int32Array(distances.length);
  const starts = new Uint32Array(count);
  const ends = new Uint32Array(count).fill(neverEnds);
  let begun = 0;
  for (let change = 0; change < distances.length; change++) {
    const distance = distances[change] as number;
    if (distance === 0) {
      starts[begun] = change;
      changes[change] = begun++;
    } else {
      const span = begun - distance;
      ends[span] = change;
      changes[change] = ~span;
    }
  }
  return { changes, starts, ends };
}
