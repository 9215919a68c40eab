import { crc32 } from 'node:zlib';
import type { RecordedRun } from '../recorded-run.js';
import type { WrittenEvents } from '../written-events.js';
import {
  blockMarker,
  maximumBlockBytes,
  maximumBlockNanoseconds,
  maximumTextBytes,
  paddedToUnit,
  type RecordingHeader,
  RecordKind,
  recordingMagic,
  recordingVersion,
  unitBytes,
} from './recording-format.js';

const textEncoder = new TextEncoder();

/** No layer above this can be named as an upstream: there is one byte for the index and 1. */
const lastUpstream = 254;

/**
 * The bytes of a recording that holds a run, block by block. What {@link readRecordedRun} makes of them is the run again, but for its
 * `source` and `damage`.
 * @param written is kept up to date while the blocks are taken
 * @example
 * ```ts
 * const run = await readRecordedRun('trace.csv.gz');
 * await writeWhole('trace.cistern', async (sink) => {
 *   for (const block of encodeRecording(run)) await sink.write(block);
 * });
 * ```
 */
export function* encodeRecording(run: RecordedRun, written: WrittenEvents = { count: 0 }): Generator<Uint8Array> {
  yield encodeHeader(run);
  const encoder = new RunEncoder(run);
  for (let i = 0; i < run.eventCount; i++) {
    encoder.event(i);
    if (encoder.blocks.length === 0) continue;
    written.count = i;
    yield* encoder.blocks.splice(0);
  }
  encoder.finish();
  yield* encoder.blocks;
}

function encodeHeader(run: RecordedRun): Uint8Array {
  const header: RecordingHeader = {
    startedAt: run.startedAt ?? null,
    utcOffsetMinutes: run.utcOffsetMinutes,
    process: null,
    writer: 'cistern convert',
    ...(run.csv === undefined ? {} : { csv: run.csv }),
  };
  const json = textEncoder.encode(JSON.stringify(header));
  const bytes = new Uint8Array(unitBytes + paddedToUnit(json.length)).fill(0x20, unitBytes);
  const view = new DataView(bytes.buffer);
  textEncoder.encodeInto(recordingMagic, bytes);
  view.setUint32(8, recordingVersion, true);
  view.setUint32(12, json.length, true);
  bytes.set(json, unitBytes);
  return bytes;
}

/** Encodes events of a run, and before each what it refers to. */
class RunEncoder {
  readonly #run: RecordedRun;
  readonly #blocks = new BlockEncoder();
  #layers = 0;
  #streams = 0;
  #threads = 0;
  /** Entry 0 of these is never defined. */
  #phases = 1;
  #stacks = 1;
  #labels = 1;
  #thread = 0;
  #phase = 0;

  constructor(run: RecordedRun) {
    this.#run = run;
  }

  /** The blocks that are complete and were not taken yet. */
  get blocks(): Uint8Array[] {
    return this.#blocks.complete;
  }

  event(index: number): void {
    const { kinds, layerOf, streamOf, threadOf, phaseOf, stackOf, times, firsts, seconds } = this.#run;
    const kind = kinds[index] as number;
    const layer = layerOf[index] as number;
    const stream = streamOf[index] as number;
    const thread = threadOf[index] as number;
    const phase = phaseOf[index] as number;
    const stack = stackOf[index] as number;
    const time = times[index] as number;
    const first = firsts[index] as number;
    const second = seconds[index] as number;
    const blocks = this.#blocks;
    const isOfPhase = kind === RecordKind.phaseBegin || kind === RecordKind.phaseEnd;
    if (layer >= this.#layers) this.#defineLayers(layer + 1, time);
    if (stream >= this.#streams) this.#defineStreams(stream + 1, time);
    if (thread >= this.#threads) this.#defineThreads(thread + 1, time);
    if (phase >= this.#phases || (isOfPhase && first >= this.#phases)) this.#definePhases(Math.max(phase, isOfPhase ? first : 0) + 1, time);
    if (stack >= this.#stacks) this.#defineStacks(stack + 1, time);
    if (kind === RecordKind.label && second >= this.#labels) this.#defineLabels(second + 1, time);
    if (thread !== this.#thread) blocks.record(RecordKind.thread, 0, 0, time, thread, 0);
    if (phase !== this.#phase) blocks.record(RecordKind.phase, 0, 0, time, phase, 0);
    if (stack !== 0) blocks.record(RecordKind.stack, 0, 0, time, stack, 0);
    this.#thread = thread;
    this.#phase = phase;
    blocks.record(kind, layer, stream, time, first, second);
  }

  /** Defines what no event refers to, and completes the last block. */
  finish(): void {
    const { layers, streams, threads, phases, stacks, labels, eventCount, times } = this.#run;
    const time = eventCount === 0 ? 0 : (times[eventCount - 1] as number);
    this.#defineLayers(layers.length, time);
    this.#defineStreams(streams.length, time);
    this.#defineThreads(threads.length, time);
    this.#definePhases(phases.length, time);
    this.#defineStacks(stacks.length, time);
    this.#defineLabels(labels.length, time);
    this.#blocks.close();
  }

  #defineLayers(end: number, time: number): void {
    const { layers } = this.#run;
    for (; this.#layers < Math.min(end, layers.length); this.#layers++) {
      const { name = '', upstream = -1 } = layers[this.#layers] ?? {};
      this.#blocks.define(RecordKind.defineLayer, upstream <= lastUpstream ? upstream + 1 : 0, 0, time, this.#layers, name);
    }
  }

  #defineStreams(end: number, time: number): void {
    const { streams } = this.#run;
    for (; this.#streams < Math.min(end, streams.length); this.#streams++) {
      this.#blocks.define(RecordKind.defineStream, 0, 0, time, this.#streams, streams[this.#streams] as string);
    }
  }

  #defineThreads(end: number, time: number): void {
    const { threads } = this.#run;
    for (; this.#threads < Math.min(end, threads.length); this.#threads++) {
      this.#blocks.define(RecordKind.defineThread, 0, 0, time, this.#threads, threads[this.#threads] as string);
    }
  }

  #definePhases(end: number, time: number): void {
    const { phases } = this.#run;
    for (; this.#phases < Math.min(end, phases.length); this.#phases++) {
      const { name = '', outer = 0 } = phases[this.#phases] ?? {};
      this.#blocks.define(RecordKind.definePhase, 0, outer, time, this.#phases, name);
    }
  }

  #defineStacks(end: number, time: number): void {
    const { stacks } = this.#run;
    for (; this.#stacks < Math.min(end, stacks.length); this.#stacks++) {
      this.#blocks.define(RecordKind.defineStack, 0, 0, time, this.#stacks, stacks[this.#stacks] as string);
    }
  }

  #defineLabels(end: number, time: number): void {
    const { labels } = this.#run;
    for (; this.#labels < Math.min(end, labels.length); this.#labels++) {
      this.#blocks.define(RecordKind.defineLabel, 0, 0, time, this.#labels, labels[this.#labels] as string);
    }
  }
}

/** Collects records in blocks. */
class BlockEncoder {
  /** The blocks that are complete, in order. */
  readonly complete: Uint8Array[] = [];
  #bytes = new Uint8Array(unitBytes + maximumBlockBytes);
  #words = new Uint32Array(this.#bytes.buffer);
  #doubles = new Float64Array(this.#bytes.buffer);
  /** Where the next record goes. */
  #at = unitBytes;
  #records = 0;
  #time = 0;

  record(kind: number, layer: number, stream: number, time: number, first: number, second: number): void {
    this.#makeRoom(unitBytes, time);
    const at = this.#at;
    this.#words[at / 4] = kind | (layer << 8) | (stream << 16);
    this.#words[at / 4 + 1] = time - this.#time;
    this.#doubles[at / 8 + 1] = first;
    this.#doubles[at / 8 + 2] = second;
    this.#at = at + unitBytes;
    this.#records++;
  }

  define(kind: number, layer: number, stream: number, time: number, index: number, text: string): void {
    let bytes = textEncoder.encode(text);
    if (bytes.length > maximumTextBytes) bytes = textEncoder.encode(text.slice(0, maximumTextBytes / 4));
    const padded = paddedToUnit(bytes.length);
    this.#makeRoom(unitBytes + padded, time);
    this.record(kind, layer, stream, time, index, bytes.length);
    this.#bytes.set(bytes, this.#at);
    this.#bytes.fill(0, this.#at + bytes.length, this.#at + padded);
    this.#at += padded;
    if (this.#at > maximumBlockBytes) this.close();
  }

  /** Completes the block, if it holds anything. */
  close(): void {
    if (this.#records === 0) return;
    this.#words[0] = blockMarker;
    this.#words[1] = this.#at - unitBytes;
    this.#words[3] = this.#records;
    this.#doubles[2] = this.#time;
    this.#words[2] = crc32(this.#bytes.subarray(12, this.#at));
    this.complete.push(this.#bytes.slice(0, this.#at));
    this.#at = unitBytes;
    this.#records = 0;
  }

  /** Completes the block unless it takes so many bytes more and a record of this time. */
  #makeRoom(bytes: number, time: number): void {
    const elapsed = time - this.#time;
    const isInTime = elapsed >= 0 && elapsed <= maximumBlockNanoseconds && Number.isInteger(elapsed);
    if (!isInTime || this.#at - unitBytes + bytes > maximumBlockBytes) this.close();
    if (this.#records > 0) return;
    this.#time = time;
    if (unitBytes + bytes <= this.#bytes.length) return;
    this.#bytes = new Uint8Array(unitBytes + bytes);
    this.#words = new Uint32Array(this.#bytes.buffer);
    this.#doubles = new Float64Array(this.#bytes.buffer);
  }
}
