import { AddressMap } from '../../../src/suballocation/address-map.js';
import { EventKind } from '../../../src/tools/formats/event-columns.js';
import type { RecordedRun } from '../../../src/tools/formats/recorded-run.js';
import { neverEnds, type ReportRun } from '../../../src/tools/formats/report/report-run.js';
import { shortenPaths } from '../../../src/tools/report/shorten-paths.js';

/**
 * What a page must find in the report of a run: written independently of the packing code, with
 * everything in memory.
 */
export function createReportRun(run: RecordedRun): ReportRun {
  const { eventCount, kinds } = run;
  const count = { spans: 0, changes: 0, failures: 0, phases: 0 };
  for (let event = 0; event < eventCount; event++) {
    const kind = kinds[event];
    if (kind === EventKind.allocate || kind === EventKind.growth) count.spans++;
    else if (kind === EventKind.failure) count.failures++;
    else if (kind === EventKind.phaseBegin || kind === EventKind.phaseEnd) count.phases++;
  }
  const capacity = count.spans;
  const bytes = new Float64Array(capacity);
  const pointers = new Float64Array(capacity);
  const starts = new Uint32Array(capacity);
  const ends = new Uint32Array(capacity).fill(neverEnds);
  const isBlock = new Uint8Array(capacity);
  const layerOf = new Uint8Array(capacity);
  const streamOf = new Uint16Array(capacity);
  const endStreamOf = new Uint16Array(capacity);
  const threadOf = new Uint16Array(capacity);
  const phaseOf = new Uint16Array(capacity);
  const stackOf = new Uint32Array(capacity);
  const accountOf = new Uint16Array(capacity);
  const labelOf = new Uint32Array(capacity);
  const times = new Float64Array(2 * capacity);
  const changes = new Int32Array(2 * capacity);
  const failures = {
    count: count.failures,
    times: new Float64Array(count.failures),
    bytes: new Float64Array(count.failures),
    layerOf: new Uint8Array(count.failures),
    streamOf: new Uint16Array(count.failures),
    phaseOf: new Uint16Array(count.failures),
    accountOf: new Uint16Array(count.failures),
  };
  const phaseMarks = {
    count: count.phases,
    times: new Float64Array(count.phases),
    phaseOf: new Uint16Array(count.phases),
    isEnd: new Uint8Array(count.phases),
  };
  /** Live allocations and live blocks by address, for each layer. */
  const live = Array.from({ length: 2 * Math.max(1, run.layers.length) }, () => new AddressMap());

  let spans = 0;
  let changeCount = 0;
  let failureCount = 0;
  let phaseCount = 0;
  let eventRecordCount = 0;
  let eventWaitCount = 0;
  let unmatchedFreeCount = 0;
  const first = run.times[0] ?? 0;
  let time = 0;

  const end = (span: number, stream: number) => {
    ends[span] = changeCount;
    endStreamOf[span] = stream;
    times[changeCount] = time;
    changes[changeCount++] = ~span;
  };

  for (let event = 0; event < eventCount; event++) {
    // Threads that share a log may write events slightly out of order.
    time = Math.max(time, Math.round((run.times[event] as number) - first));
    const kind = kinds[event];
    const layer = run.layerOf[event] as number;
    const stream = run.streamOf[event] as number;
    const pointer = run.firsts[event] as number;
    const isOfBlock = kind === EventKind.growth || kind === EventKind.release;
    const addresses = live[2 * layer + (isOfBlock ? 1 : 0)] as AddressMap;
    switch (kind) {
      case EventKind.allocate:
      case EventKind.growth: {
        const size = run.seconds[event] as number;
        // Allocations of zero bytes have no address range.
        if (!(size > 0)) break;
        const before = addresses.take(pointer);
        if (before >= 0) end(before, stream);
        bytes[spans] = size;
        pointers[spans] = pointer;
        starts[spans] = changeCount;
        isBlock[spans] = isOfBlock ? 1 : 0;
        layerOf[spans] = layer;
        streamOf[spans] = stream;
        endStreamOf[spans] = stream;
        threadOf[spans] = run.threadOf[event] as number;
        phaseOf[spans] = run.phaseOf[event] as number;
        stackOf[spans] = run.stackOf[event] ?? 0;
        accountOf[spans] = run.accountOf[event] ?? 0;
        addresses.insert(pointer, spans);
        times[changeCount] = time;
        changes[changeCount++] = spans++;
        break;
      }
      case EventKind.free:
      case EventKind.release: {
        if (pointer === 0) break;
        const span = addresses.take(pointer);
        if (span >= 0) end(span, stream);
        else unmatchedFreeCount++;
        break;
      }
      case EventKind.label:
        for (let at = 0; at < live.length; at += 2) {
          const span = (live[at] as AddressMap).get(pointer);
          // A label of a place is the reason for a move, and no name of an allocation.
          const isOfPlace = run.layers[layer]?.isPlace === true || run.layers[at / 2]?.isPlace === true;
          if (isOfPlace && at / 2 !== layer) continue;
          if (span >= 0) labelOf[span] = run.seconds[event] as number;
        }
        break;
      case EventKind.failure:
        failures.times[failureCount] = time;
        failures.bytes[failureCount] = run.seconds[event] as number;
        failures.layerOf[failureCount] = layer;
        failures.streamOf[failureCount] = stream;
        failures.accountOf[failureCount] = run.accountOf[event] as number;
        failures.phaseOf[failureCount++] = run.phaseOf[event] as number;
        break;
      case EventKind.phaseBegin:
      case EventKind.phaseEnd:
        phaseMarks.times[phaseCount] = time;
        phaseMarks.phaseOf[phaseCount] = pointer;
        phaseMarks.isEnd[phaseCount++] = kind === EventKind.phaseBegin ? 0 : run.seconds[event] === 0 ? 1 : 2;
        break;
      case EventKind.eventRecord:
        eventRecordCount++;
        break;
      case EventKind.eventWait:
        eventWaitCount++;
    }
  }

  const addresses = distinct(pointers.slice(0, spans).sort());
  const addressOf = new Uint32Array(spans);
  for (let span = 0; span < spans; span++) addressOf[span] = indexIn(addresses, pointers[span] as number);
  const { source, utcOffsetMinutes, layers, streams, threads, phases, labels, accounts, notes, damage, skippedRecordCount } = run;
  return {
    ...{ source, utcOffsetMinutes, streams, threads, phases, labels, accounts, notes, damage, skippedRecordCount, eventCount },
    stacks: shortenPaths(run.stacks),
    layers: layers.length > 0 ? layers : [{ name: 'log', upstream: undefined }],
    startedAt: run.startedAt === undefined ? undefined : run.startedAt + first / 1e6,
    ...{ eventRecordCount, eventWaitCount, unmatchedFreeCount },
    durationNanoseconds: time,
    times: times.slice(0, changeCount),
    changes: changes.slice(0, changeCount),
    addresses,
    spans: {
      count: spans,
      addressOf,
      bytes: bytes.slice(0, spans),
      starts: starts.slice(0, spans),
      ends: ends.slice(0, spans),
      isBlock: isBlock.slice(0, spans),
      layerOf: layerOf.slice(0, spans),
      streamOf: streamOf.slice(0, spans),
      endStreamOf: endStreamOf.slice(0, spans),
      threadOf: threadOf.slice(0, spans),
      phaseOf: phaseOf.slice(0, spans),
      stackOf: stackOf.slice(0, spans),
      accountOf: accountOf.slice(0, spans),
      labelOf: labelOf.slice(0, spans),
    },
    failures,
    phaseMarks,
  };
}

/** The distinct values of an ascending sequence. */
function distinct(ascending: Float64Array): Float64Array {
  let kept = 0;
  for (let i = 0; i < ascending.length; i++)
    if (i === 0 || ascending[i] !== ascending[kept - 1]) ascending[kept++] = ascending[i] as number;
  return ascending.slice(0, kept);
}

function indexIn(ascending: Float64Array, value: number): number {
  let low = 0;
  let high = ascending.length - 1;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((ascending[middle] as number) < value) low = middle + 1;
    else high = middle;
  }
  return low;
}
