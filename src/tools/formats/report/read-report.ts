/**
 * Reads the log in a report, from which its page is drawn. A report omits event records and waits, frees of
 * memory that the log never allocated, and allocations of zero bytes.
 */
import { constants } from 'node:buffer';
import { gunzipSync } from 'node:zlib';
import { InvalidLogError } from '../../../basics/errors.js';
import { type EventColumns, EventColumnsBuilder, EventKind, emptyEvent, type LoggedEvent } from '../event-columns.js';
import { Cost, type ReadingBudget } from '../reading-budget.js';
import type { RecordedRun, RunDescription } from '../recorded-run.js';
import { checkHead, ReportFault } from './check-head.js';
import { jsonOf, unpackColumns } from './report-data.js';
import type { ReportRun } from './report-run.js';

/** The beginning of an HTML page, and so of a report. */
export const htmlBeginning = '<!doctype html>';
/** The element that holds a log. */
export const runElement = { begin: '<script type="application/octet-stream" class="run">', end: '</script>' } as const;

const decoder = new TextDecoder('utf-8', { fatal: true });

/** @throws InvalidLogError if the page is not a report, is one of several logs, is damaged, or claims to hold more than `budget` allows */
export function readReport(name: string, page: Buffer, budget: ReadingBudget): RecordedRun {
  const begin = page.indexOf(runElement.begin);
  if (begin < 0) throw new InvalidLogError(name, undefined, 'is an HTML page, but not a report from cistern');
  const start = begin + runElement.begin.length;
  const end = page.indexOf(runElement.end, start);
  if (end < 0) throw new InvalidLogError(name, undefined, 'is a report that ends early');
  if (page.includes(runElement.begin, end)) throw new InvalidLogError(name, undefined, 'is a report of several logs; use a report of one');
  try {
    const run = unpack(unzip(Buffer.from(page.toString('latin1', start, end), 'base64'), budget), budget);
    return { ...descriptionOf(run), source: name, csv: undefined, ...eventsOf(run) };
  } catch (error) {
    if (error instanceof InvalidLogError) throw error;
    const fault = error instanceof ReportFault ? `: ${error.message}` : '';
    throw new InvalidLogError(name, undefined, `is a damaged report${fault}`, { cause: error });
  }
}

function unzip(compressed: Buffer, budget: ReadingBudget): Buffer {
  const most = Math.min(constants.MAX_LENGTH, budget.affordable(Cost.unpackedByte));
  try {
    const bytes = gunzipSync(compressed, { maxOutputLength: most });
    budget.spend(bytes.length * Cost.unpackedByte, 'gzip data');
    return bytes;
  } catch (error) {
    throw (error as NodeJS.ErrnoException).code === 'ERR_BUFFER_TOO_LARGE' ? budget.excess('gzip data', undefined, error) : error;
  }
}

function unpack(bytes: Buffer, budget: ReadingBudget): ReportRun {
  const json = jsonOf(bytes);
  budget.spend(json.length * Cost.jsonByte, 'texts');
  const head: unknown = JSON.parse(decoder.decode(json));
  const columns = bytes.subarray(4 + json.length);
  checkHead(head, columns.length, budget);
  return unpackColumns(head, columns);
}

function descriptionOf(run: ReportRun): Omit<RunDescription, 'source'> {
  const { startedAt, utcOffsetMinutes, layers, streams, threads, phases, stacks, labels, accounts, notes, damage, skippedRecordCount } =
    run;
  return { startedAt, utcOffsetMinutes, layers, streams, threads, phases, stacks, labels, accounts, notes, damage, skippedRecordCount };
}

/** The events of a run, in order of time. */
function eventsOf(run: ReportRun): EventColumns {
  const { changes, times, failures, phaseMarks } = run;
  const sink = new CheckedEvents(run);
  let [failure, mark] = [0, 0];
  /**
   * Appends the events before a change. Of events with the same time, beginnings of phases come
   * before it, and all others after it.
   */
  const catchUp = (time: number) => {
    for (;;) {
      const failed = failures.times[failure] ?? Number.POSITIVE_INFINITY;
      const marked = phaseMarks.times[mark] ?? Number.POSITIVE_INFINITY;
      const isBegin = phaseMarks.isEnd[mark] === 0;
      const isMark = isBegin ? marked <= failed : marked < failed;
      const at = isMark ? marked : failed;
      if (at > time || (at === time && !(isMark && isBegin))) return;
      sink.append(isMark ? phaseMarkOf(run, mark++) : failureOf(run, failure++));
    }
  };
  for (let change = 0; change < changes.length; change++) {
    const time = times[change] as number;
    catchUp(time);
    const span = changes[change] as number;
    sink.append(span < 0 ? endOf(run, ~span, time) : startOf(run, span, time));
    const label = span < 0 ? 0 : (run.spans.labelOf[span] as number);
    if (label > 0) sink.append({ ...startOf(run, span, time), kind: EventKind.label, second: label });
  }
  catchUp(Number.POSITIVE_INFINITY);
  return sink.finish();
}

function startOf({ spans, addresses }: ReportRun, span: number, time: number): LoggedEvent {
  return {
    kind: spans.isBlock[span] === 1 ? EventKind.growth : EventKind.allocate,
    layer: spans.layerOf[span] as number,
    stream: spans.streamOf[span] as number,
    thread: spans.threadOf[span] as number,
    phase: spans.phaseOf[span] as number,
    stack: spans.stackOf[span] as number,
    account: spans.accountOf[span] as number,
    time,
    first: addresses[spans.addressOf[span] as number] as number,
    second: spans.bytes[span] as number,
  };
}

function endOf(run: ReportRun, span: number, time: number): LoggedEvent {
  const start = startOf(run, span, time);
  const kind = start.kind === EventKind.growth ? EventKind.release : EventKind.free;
  return { ...start, kind, stream: run.spans.endStreamOf[span] as number, phase: 0, stack: 0 };
}

function failureOf({ failures }: ReportRun, failure: number): LoggedEvent {
  return {
    ...emptyEvent(),
    kind: EventKind.failure,
    layer: failures.layerOf[failure] as number,
    stream: failures.streamOf[failure] as number,
    phase: failures.phaseOf[failure] as number,
    account: failures.accountOf[failure] as number,
    time: failures.times[failure] as number,
    second: failures.bytes[failure] as number,
  };
}

function phaseMarkOf({ phaseMarks }: ReportRun, mark: number): LoggedEvent {
  const end = phaseMarks.isEnd[mark] as number;
  return {
    ...emptyEvent(),
    kind: end === 0 ? EventKind.phaseBegin : EventKind.phaseEnd,
    time: phaseMarks.times[mark] as number,
    first: phaseMarks.phaseOf[mark] as number,
    second: Math.max(0, end - 1),
  };
}

/** Checks that the names of events exist, because a report is untrusted input. */
class CheckedEvents extends EventColumnsBuilder {
  readonly #run: RunDescription;

  constructor(run: RunDescription) {
    super();
    this.#run = run;
  }

  override append(event: Readonly<LoggedEvent>): void {
    const { layers, streams, threads, phases, stacks, accounts, labels } = this.#run;
    const { kind, layer, stream, thread, phase, stack, account, time, first, second } = event;
    const isPhase = kind === EventKind.phaseBegin || kind === EventKind.phaseEnd;
    const exists =
      layer < layers.length &&
      (stream < streams.length || isPhase) &&
      (thread < threads.length || isPhase || kind === EventKind.failure) &&
      (isPhase ? first : phase) < phases.length &&
      stack < stacks.length &&
      account < accounts.length &&
      (kind !== EventKind.label || second < labels.length) &&
      Number.isSafeInteger(first) &&
      first >= 0;
    if (!exists) throw new ReportFault('an event names something that is not there');
    const isAmount = Number.isInteger(second) && second >= 0 && (second <= Number.MAX_SAFE_INTEGER || kind === EventKind.failure);
    if (!isAmount) throw new ReportFault(`an event has ${second} bytes`);
    if (!(time >= 0 && time <= Number.MAX_SAFE_INTEGER)) throw new ReportFault(`an event has the time ${time}`);
    super.append(event);
  }
}
