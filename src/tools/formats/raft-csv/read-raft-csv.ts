/**
 * Reads the CSV of RAFT's `memory_tracking_resources` into a {@link RecordedRun}. Each source (`device`, `workspace`, …) is a layer.
 *
 *     timestamp_us,device_current,device_peak,device_total_alloc,device_total_freed,nvtx_depth,nvtx_range[,event_source,event_bytes,alloc_range]
 *
 * With the last columns, each row is an allocation or a free of `event_bytes`, which has no address: a free ends the latest live
 * allocation of its size. Without them, rows are samples: what was live is one allocation, made anew whenever it changes, and a peak between
 * two samples is one that is freed at once. So what is live and the peaks are right, but not how many allocations there were.
 */
import { formatValue, InvalidLogError } from '../../../basics/errors.js';
import { EventKind } from '../event-columns.js';
import { linesOf } from '../lines.js';
import type { ReadingBudget } from '../reading-budget.js';
import type { RecordedRun } from '../recorded-run.js';
import { RunWriter } from '../run-writer.js';

export const raftBeginning = /^(?:\ufeff)?timestamp_us,\w+_current,/;

const mostSources = 64;
/** Addresses are made up, far enough apart. */
const firstAddress = 2 ** 40;

export function readRaftCsv(source: string, bytes: Buffer, budget: ReadingBudget): RecordedRun {
  const lines = linesOf(source, bytes);
  const header = fieldsOf(lines.next().value?.[0] ?? '');
  const sources = header.flatMap((title, column) => {
    const name = /^(\w+)_current$/.exec(title)?.[1];
    return name === undefined ? [] : [{ name, column }];
  });
  if (sources.length === 0 || sources.length > mostSources) throw new InvalidLogError(source, 1, 'names no sources of RAFT');
  const eventColumn = header.indexOf('event_source');
  const rangeColumn = header.indexOf('nvtx_range');
  const writer = new RunWriter(source, budget);
  const ledger = new Ledger(writer);
  for (const [line, number] of lines) {
    const fields = fieldsOf(line);
    const numberAt = (column: number) => {
      const value = Number(fields[column]);
      if (fields[column] !== undefined && fields[column] !== '' && Number.isSafeInteger(value)) return value;
      throw new InvalidLogError(
        source,
        number,
        `the column ${header[column] ?? column} must be an integer, got ${formatValue(fields[column])}`,
      );
    };
    const time = numberAt(0) * 1000;
    const range = fields[rangeColumn] ?? '';
    if (eventColumn >= 0) {
      const layer = fields[eventColumn] ?? '';
      ledger.change(layer, numberAt(eventColumn + 1), fields[eventColumn + 2] || range, time);
    } else {
      for (const { name, column } of sources) ledger.sample(name, numberAt(column), numberAt(column + 1), range, time);
    }
  }
  return writer.finish();
}

/** Which made-up allocations are live. */
class Ledger {
  readonly #writer: RunWriter;
  /** By layer and bytes, the addresses, the latest last. */
  readonly #live = new Map<string, number[]>();
  readonly #sampled = new Map<string, { readonly address: number; readonly bytes: number }>();
  #next = firstAddress;

  constructor(writer: RunWriter) {
    this.#writer = writer;
  }

  /** An allocation of these bytes, or a free if they are negative. */
  change(layer: string, bytes: number, label: string, time: number): void {
    const size = Math.abs(bytes);
    const key = `${layer} ${size}`;
    const live = this.#live.get(key) ?? [];
    this.#live.set(key, live);
    if (bytes > 0) live.push(this.#allocate(layer, size, label, time));
    else if (bytes < 0) this.#free(layer, live.pop() ?? 0, size, time);
  }

  /** What is live at a time, and the most since the last sample. */
  sample(layer: string, current: number, peak: number, label: string, time: number): void {
    const before = this.#sampled.get(layer);
    if (before?.bytes === current && peak <= current) return;
    if (before !== undefined) this.#free(layer, before.address, before.bytes, time);
    if (peak > Math.max(current, before?.bytes ?? 0)) this.#free(layer, this.#allocate(layer, peak, label, time), peak, time);
    if (current > 0) this.#sampled.set(layer, { address: this.#allocate(layer, current, label, time), bytes: current });
    else this.#sampled.delete(layer);
  }

  #allocate(layer: string, bytes: number, label: string, time: number): number {
    const address = this.#next;
    this.#next += Math.min(Math.ceil(bytes / 256) * 256, 2 ** 32);
    this.#writer.add({ kind: EventKind.allocate, layer, first: address, second: bytes, time });
    if (label !== '') this.#writer.label(layer, address, label, time);
    return address;
  }

  #free(layer: string, address: number, bytes: number, time: number): void {
    this.#writer.add({ kind: EventKind.free, layer, first: address, second: bytes, time });
  }
}

/** The fields of a row; a quoted one may hold commas. */
function fieldsOf(line: string): string[] {
  return [...line.matchAll(/(?:^|,)(?:"([^"]*)"|([^",]*))/g)].map(([, quoted, plain]) => quoted ?? plain ?? '');
}
