/**
 * Reads the memory events of a trace in Chrome's JSON form into a {@link RecordedRun}. Two writers are known:
 *
 * PyTorch's profiler (Kineto, with `profile_memory=True`): instants named `[memory]`, with the bytes that came or, below 0, went at an address.
 * A device is a layer.
 *
 *     {"ph":"i","name":"[memory]","ts":1,"tid":2,"args":{"Addr":4096,"Bytes":512,"Device Type":1,"Device Id":0,"Total Allocated":512}}
 *
 * cistern (`convert-to-chrome-trace.ts`): asynchronous slices, from the allocation to the free. A process is a layer.
 */
import { constants } from 'node:buffer';
import { InvalidLogError } from '../../../basics/errors.js';
import { EventKind } from '../event-columns.js';
import type { ReadingBudget } from '../reading-budget.js';
import type { RecordedRun } from '../recorded-run.js';
import { nameOf, RunWriter, wholeNumber } from '../run-writer.js';

type Json = Readonly<Record<string, unknown>>;

const objectBytes = 64;
const fieldBytes = 16;

/** Kineto's device types that have names. */
const deviceTypes: Readonly<Record<string, string>> = { 0: 'cpu', 1: 'cuda', 6: 'hip', 12: 'xpu', 13: 'mps', 18: 'hpu' };

export function readTrace(source: string, bytes: Buffer, budget: ReadingBudget): RecordedRun {
  if (bytes.length > constants.MAX_STRING_LENGTH)
    throw new InvalidLogError(source, undefined, `is a trace of ${bytes.length} bytes, and the most is ${constants.MAX_STRING_LENGTH}`);
  const estimate = bytesOfObjects(bytes);
  budget.spend(estimate, 'a text of JSON');
  budget.assertHeap(estimate);
  let trace: unknown;
  try {
    trace = JSON.parse(bytes.toString('utf8').replace(/^\ufeff/, ''));
  } catch (cause) {
    throw new InvalidLogError(source, undefined, `looks like JSON, but is none: ${(cause as Error).message}`, { cause });
  }
  const first = objectOf(Array.isArray(trace) ? trace[0] : trace);
  if ('segments' in first || 'blocks' in first)
    throw new InvalidLogError(
      source,
      undefined,
      'is a snapshot of PyTorch as JSON, and is read as a pickle: let torch.cuda.memory._dump_snapshot("snapshot.pickle") write it',
    );
  const events = Array.isArray(trace) ? trace : objectOf(trace)['traceEvents'];
  const run = Array.isArray(events) ? new TraceReader(source, budget).read(events, objectOf(objectOf(trace)['otherData'])) : undefined;
  if (run === undefined)
    throw new InvalidLogError(
      source,
      undefined,
      'is JSON, but no trace with memory events: of PyTorch\'s profiler with profile_memory=True, or of "cistern convert"',
    );
  return run;
}

/** About how much memory the objects take that a text of JSON stands for, which its parser does not ask. */
function bytesOfObjects(text: Buffer): number {
  let objects = 0;
  let fields = 0;
  for (const byte of text) {
    if (byte === 0x7b || byte === 0x5b) objects++;
    else if (byte === 0x2c) fields++;
  }
  return text.length + objects * objectBytes + fields * fieldBytes;
}

class TraceReader {
  readonly #writer: RunWriter;
  /** The names of processes and threads. */
  readonly #processes = new Map<unknown, string>();
  readonly #threads = new Map<unknown, string>();
  /** Allocations of cistern's slices, by their number. */
  readonly #live = new Map<unknown, { readonly address: number; readonly bytes: number; readonly layer: string }>();

  constructor(source: string, budget: ReadingBudget) {
    this.#writer = new RunWriter(source, budget);
  }

  /** The run, or `undefined` if no event is about memory. */
  read(events: readonly unknown[], { startedAt }: Json): RecordedRun | undefined {
    for (const item of events) {
      const event = objectOf(item);
      if (event['ph'] !== 'M') continue;
      const name = objectOf(event['args'])['name'];
      if (event['name'] === 'process_name' && typeof name === 'string') this.#processes.set(event['pid'], name);
      if (event['name'] === 'thread_name' && typeof name === 'string') this.#threads.set(event['tid'], name.replace(/^thread /, ''));
    }
    for (const item of events) {
      const event = objectOf(item);
      if (event['name'] === '[memory]') this.#change(event);
      else if (event['cat'] === 'allocation') this.#slice(event);
      else if (event['ph'] === 'i') this.#instant(event);
    }
    if (this.#writer.eventCount === 0) return undefined;
    const start = typeof startedAt === 'string' ? Date.parse(startedAt) : Number.NaN;
    return this.#writer.finish(Number.isNaN(start) ? undefined : start);
  }

  /** Memory that came or went, as Kineto has it. */
  #change(event: Json): void {
    const args = objectOf(event['args']);
    const bytes = numberOf(args['Bytes']);
    const first = wholeNumber(args['Addr']);
    if (first === undefined || !Number.isSafeInteger(bytes) || bytes === 0) return;
    const type = nameOf(args['Device Type'], '1');
    const layer = `${deviceTypes[type] ?? `device type ${type}`}${type === '0' ? '' : ` ${nameOf(args['Device Id'], '0')}`}`;
    const kind = bytes > 0 ? EventKind.allocate : EventKind.free;
    this.#writer.add({ kind, layer, thread: this.#threadOf(event), first, second: Math.abs(bytes), time: timeOf(event) });
  }

  /** The beginning or the end of an allocation, as cistern has it. */
  #slice(event: Json): void {
    const time = timeOf(event);
    const thread = this.#threadOf(event);
    const id = event['id'];
    if (event['ph'] === 'b') {
      const { pointer, bytes, ...where } = objectOf(event['args']);
      const first = wholeNumber(pointer);
      const second = wholeNumber(bytes);
      if (first === undefined || second === undefined) return;
      const layer = this.#layerOf(event);
      this.#live.set(id, { address: first, bytes: second, layer });
      this.#writer.add({ kind: EventKind.allocate, layer, thread, ...placeOf(where), first, second, time });
    } else if (event['ph'] === 'e') {
      const allocation = this.#live.get(id);
      this.#live.delete(id);
      if (allocation === undefined) return;
      this.#writer.add({
        kind: EventKind.free,
        layer: allocation.layer,
        thread,
        first: allocation.address,
        second: allocation.bytes,
        time,
      });
    }
  }

  /** Growth, a release, a failure or a label, as cistern has them. */
  #instant(event: Json): void {
    const [, word = '', text = ''] =
      typeof event['name'] === 'string' ? (/^(growth|release|failure|label): (.*)$/s.exec(event['name']) ?? []) : [];
    const { pointer, bytes, ...where } = objectOf(event['args']);
    const first = wholeNumber(pointer) ?? 0;
    const layer = this.#layerOf(event);
    if (word === 'label') this.#writer.label(layer, first, text, timeOf(event));
    const kind = ({ growth: EventKind.growth, release: EventKind.release, failure: EventKind.failure } as const)[word];
    const second = wholeNumber(bytes);
    if (kind === undefined || second === undefined) return;
    this.#writer.add({ kind, layer, thread: this.#threadOf(event), ...placeOf(where), first, second, time: timeOf(event) });
  }

  #layerOf({ pid }: Json): string {
    return this.#processes.get(pid) ?? `process ${nameOf(pid, 'unknown')}`;
  }

  #threadOf({ tid }: Json): string {
    return this.#threads.get(tid) ?? nameOf(tid, '0');
  }
}

function placeOf({ stream, stack }: Json): { readonly stream?: string; readonly stack?: string } {
  return { ...(typeof stream === 'string' ? { stream } : {}), ...(typeof stack === 'string' ? { stack } : {}) };
}

/** Nanoseconds, of microseconds as a number or a text. */
function timeOf({ ts }: Json): number {
  const time = numberOf(ts) * 1000;
  return Number.isFinite(time) ? Math.round(time) : 0;
}

function numberOf(value: unknown): number {
  return typeof value === 'number' || typeof value === 'string' ? Number(value) : Number.NaN;
}

function objectOf(value: unknown): Json {
  return typeof value === 'object' && value !== null ? (value as Json) : {};
}
