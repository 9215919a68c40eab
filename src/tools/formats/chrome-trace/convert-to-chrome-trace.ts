/**
 * Writes a run in the JSON form of Chrome's trace events, which https://ui.perfetto.dev and
 * chrome://tracing show.
 *
 * A layer is a process of the trace. Its allocations are asynchronous slices from the allocation to
 * the free; its counters are the live bytes in total and per stream, and the bytes that it holds
 * from its upstream. Phases and stream events are in a process `program`. Times are in microseconds
 * since time 0.
 */
import { formatPointer } from '../../../basics/errors.js';
import { formatBytes } from '../../../basics/units.js';
import { EventKind } from '../event-columns.js';
import type { RecordedRun, WrittenEvents } from '../recorded-run.js';

const pieceCharacters = 64 * 1024;

/** The process of events without a layer; layer n is process n + 2. */
const programProcess = 1;

/** The text of a trace, in pieces. */
export function* chromeTrace(run: RecordedRun, written: WrittenEvents = { count: 0 }): Generator<string> {
  const writer = new TraceWriter(run);
  yield writer.head();
  for (let i = 0; i < run.eventCount; i++) {
    writer.event(i);
    if (writer.text.length <= pieceCharacters) continue;
    written.count = i;
    yield writer.take();
  }
  yield `${writer.take()}\n]}\n`;
}

class TraceWriter {
  readonly #run: RecordedRun;
  /** Text that was written but not yet taken. */
  text = '';
  /** For each layer: the slice number and bytes of each live allocation, by pointer. */
  readonly #live: readonly Map<number, { readonly slice: number; readonly bytes: number; readonly stream: number }>[];
  readonly #liveBytes: number[];
  readonly #liveBytesOnStream: readonly Map<number, number>[];
  readonly #reservedBytes: number[];
  /** The slices of open phases. */
  readonly #phases = new Map<number, number[]>();
  #slices = 0;

  constructor(run: RecordedRun) {
    this.#run = run;
    this.#live = run.layers.map(() => new Map());
    this.#liveBytes = run.layers.map(() => 0);
    this.#liveBytesOnStream = run.layers.map(() => new Map());
    this.#reservedBytes = run.layers.map(() => 0);
  }

  /** The start of the file, with the names of processes and threads. */
  head(): string {
    const { source, startedAt, layers, threads } = this.#run;
    const other = { source, startedAt: startedAt === undefined ? null : new Date(startedAt).toISOString() };
    const names = ['program', ...layers.map(({ name }) => name)].flatMap((name, i) => [
      { name: 'process_name', ph: 'M', pid: programProcess + i, args: { name } },
      ...threads.map((thread, tid) => ({ name: 'thread_name', ph: 'M', pid: programProcess + i, tid, args: { name: `thread ${thread}` } })),
    ]);
    const text = names.map((event) => JSON.stringify(event)).join(',\n');
    return `{"displayTimeUnit":"ns","otherData":${JSON.stringify(other)},"traceEvents":[\n${text}`;
  }

  take(): string {
    const { text } = this;
    this.text = '';
    return text;
  }

  event(i: number): void {
    const { kinds, layerOf, streamOf, firsts, seconds } = this.#run;
    const layer = layerOf[i] as number;
    const stream = streamOf[i] as number;
    const first = firsts[i] as number;
    const second = seconds[i] as number;
    switch (kinds[i]) {
      case EventKind.allocate:
        this.#allocate(i, layer, stream, first, second);
        break;
      case EventKind.free:
        this.#free(i, layer, first);
        break;
      case EventKind.failure:
        this.#instant(i, layer, `failure: ${formatBytes(second)}`, { bytes: second, ...this.#where(i) });
        break;
      case EventKind.growth:
      case EventKind.release: {
        const isGrowth = kinds[i] === EventKind.growth;
        this.#reservedBytes[layer] = Math.max(0, (this.#reservedBytes[layer] as number) + (isGrowth ? second : -second));
        const name = `${isGrowth ? 'growth' : 'release'}: ${formatBytes(second)}`;
        this.#instant(i, layer, name, { pointer: formatPointer(first), bytes: second, ...this.#where(i) });
        this.#counter(i, layer, 'reserved bytes', this.#reservedBytes[layer] as number);
        break;
      }
      case EventKind.eventRecord:
      case EventKind.eventWait: {
        const name = kinds[i] === EventKind.eventRecord ? 'event recorded' : 'event awaited';
        this.#instant(i, -1, name, { event: first, ...this.#where(i) });
        break;
      }
      case EventKind.phaseBegin:
      case EventKind.phaseEnd:
        this.#phase(i, kinds[i] === EventKind.phaseBegin, first);
        break;
      case EventKind.label:
        this.#instant(i, layer, `label: ${this.#run.labels[second]}`, { pointer: formatPointer(first) });
        break;
    }
  }

  #allocate(i: number, layer: number, stream: number, pointer: number, bytes: number): void {
    if (pointer === 0 || bytes === 0) return;
    // If the address is still live, its free was not recorded.
    if (this.#live[layer]?.has(pointer)) this.#free(i, layer, pointer);
    const slice = this.#slices++;
    this.#live[layer]?.set(pointer, { slice, bytes, stream });
    const args = { pointer: formatPointer(pointer), bytes, ...this.#where(i) };
    this.#write(i, layer, `"ph":"b","cat":"allocation","id":${slice},"name":"${formatBytes(bytes)}","args":${JSON.stringify(args)}`);
    this.#count(i, layer, stream, bytes);
  }

  #free(i: number, layer: number, pointer: number): void {
    const allocation = this.#live[layer]?.get(pointer);
    if (allocation === undefined) return;
    const { slice, bytes, stream } = allocation;
    this.#live[layer]?.delete(pointer);
    this.#write(i, layer, `"ph":"e","cat":"allocation","id":${slice},"name":"${formatBytes(bytes)}"`);
    this.#count(i, layer, stream, -bytes);
  }

  #count(i: number, layer: number, stream: number, bytes: number): void {
    const live = (this.#liveBytes[layer] as number) + bytes;
    const onStream = (this.#liveBytesOnStream[layer]?.get(stream) ?? 0) + bytes;
    this.#liveBytes[layer] = live;
    this.#liveBytesOnStream[layer]?.set(stream, onStream);
    this.#counter(i, layer, 'live bytes', live);
    if (this.#run.streams.length > 1) this.#counter(i, layer, `live bytes on stream ${this.#run.streams[stream]}`, onStream);
  }

  /** Phases may overlap in asynchronous code, hence asynchronous slices. */
  #phase(i: number, isBegin: boolean, phase: number): void {
    const name = JSON.stringify(this.#run.phases[phase]?.name ?? '');
    const open = this.#phases.get(phase) ?? [];
    this.#phases.set(phase, open);
    if (isBegin) open.push(this.#slices++);
    const slice = isBegin ? open.at(-1) : open.pop();
    if (slice !== undefined) this.#write(i, -1, `"ph":"${isBegin ? 'b' : 'e'}","cat":"phase","id":${slice},"name":${name}`);
  }

  #instant(i: number, layer: number, name: string, args: object): void {
    this.#write(i, layer, `"ph":"i","s":"t","name":${JSON.stringify(name)},"args":${JSON.stringify(args)}`);
  }

  #counter(i: number, layer: number, name: string, bytes: number): void {
    this.#write(i, layer, `"ph":"C","name":${JSON.stringify(name)},"args":{"bytes":${bytes}}`);
  }

  #write(i: number, layer: number, fields: string): void {
    const { threadOf, times } = this.#run;
    const process = layer < 0 ? programProcess : programProcess + 1 + layer;
    this.text += `,\n{"pid":${process},"tid":${threadOf[i]},"ts":${((times[i] as number) / 1000).toFixed(3)},${fields}}`;
  }

  /** The known details of an event. */
  #where(i: number): object {
    const { streams, streamOf, phases, phaseOf, stacks, stackOf } = this.#run;
    const phase = phaseOf[i] as number;
    const stack = stackOf[i] as number;
    return {
      stream: streams[streamOf[i] as number],
      ...(phase === 0 ? {} : { phase: phases[phase]?.name }),
      ...(stack === 0 ? {} : { stack: stacks[stack] }),
    };
  }
}
