/**
 * The part of a log that a replay needs: the allocations and frees of one layer, matched with each
 * other, with a small number (a slot) for each live allocation.
 *
 *     each event ──► LayerProjection of its layer: address ──► slot ──► chunks of an AllocationLog
 *
 * Events are projected as the log is read, so its other columns are never completely in memory. It
 * takes 20 bytes per event, in chunks, so that growing copies nothing, and 24 bytes for each CUDA
 * event that was recorded, and for each wait.
 */
import { formatPointer, formatValue, InvalidLogError } from '../../basics/errors.js';
import { doubled } from '../../recording/typed-arrays.js';
import { AddressMap } from '../../suballocation/address-map.js';
import { EventKind, type EventSink, type LoggedEvent } from '../formats/event-columns.js';
import { nearestLayer } from '../formats/layers.js';
import type { RecordedRun, RunDescription } from '../formats/recorded-run.js';
import { streamHandle } from '../formats/stream-handle.js';
import { AllocationLog, chunkCapacity, type EventChunk, headerLines } from './allocation-log.js';

/** RMM's stream handles with a special meaning. */
const legacyDefaultStream = 0;
const legacyDefaultStreamAlias = 1;
const perThreadDefaultStream = 2;

/** A capture of a graph is looked for in so many phases around an event. */
const deepestPhase = 4096;

/** Replaces the index of a stream that differs from thread to thread. */
const dependsOnThread = -1;

/** The names that a projection uses; they may still grow. */
type Names = Pick<RecordedRun, 'layers' | 'streams' | 'threads' | 'phases'>;

/** By layer: what a capture of a graph has allocated and freed there. */
type GraphCapture = (LayerProjection | undefined)[];

/** What is known of a log once it is read. */
export type LogEnd = Pick<RunDescription, 'damage' | 'skippedRecordCount'>;

/**
 * Builds an {@link AllocationLog} from one layer of a log. Which layer may be unknown until the
 * end.
 */
export class AllocationProjection implements EventSink {
  readonly #source: string;
  readonly #names: Names;
  /** The name of the layer, or `undefined` for the one nearest to the program. */
  readonly #wanted: string | undefined;
  readonly #hasLines: boolean;
  readonly #layers: (LayerProjection | undefined)[] = [];
  /** The layers in the order of their first events. */
  readonly #order: number[] = [];
  /** By phase: the captures of graphs that are open, and the last of each graph that has given one. */
  readonly #open = new Map<number, GraphCapture>();
  readonly #graphs = new Map<number, GraphCapture>();
  #eventCount = 0;

  /**
   * @param wanted the name of the layer, or `undefined` for the one nearest to the program
   * @param hasLines whether each event is a line, so that a fault is thrown at once and names the
   * line
   */
  constructor(source: string, names: Names, wanted: string | undefined, hasLines = false) {
    this.#source = source;
    this.#names = names;
    this.#wanted = wanted;
    this.#hasLines = hasLines;
  }

  /** The layer that `finish` takes; `undefined` if there is none. */
  get layer(): number | undefined {
    return nearestLayer(this.#names.layers, (index) => this.#layers[index] !== undefined, this.#wanted);
  }

  /** Number of events, of all layers and kinds. */
  get eventCount(): number {
    return this.#eventCount;
  }

  /** @throws InvalidLogError naming the line at fault, if the log has lines. */
  append(event: Readonly<LoggedEvent>): void {
    const { kind, layer, stream, thread, first } = event;
    this.#eventCount++;
    if (kind === EventKind.eventRecord || kind === EventKind.eventWait) {
      for (const layers of [this.#layers, ...this.#open.values()]) for (const each of layers) each?.order(kind, thread, first, stream);
      return;
    }
    if (kind === EventKind.phaseBegin || kind === EventKind.phaseEnd) this.#followCapture(event);
    if (kind > EventKind.failure) return;
    const projection = this.#layers[layer] ?? this.#addLayer(layer);
    if (projection === undefined) return;
    this.#note(projection, projection.append(event));
    if (this.#open.size > 0) this.#appendToCapture(event);
  }

  /**
   * The log of the layer.
   * @throws InvalidLogError if there is no such layer, the layer has a fault, or the log is damaged
   * and does not merely end early.
   */
  finish(end: LogEnd): AllocationLog {
    this.#assertWhole(end);
    const { layers } = this.#names;
    const { layer } = this;
    if (layer === undefined && this.#wanted !== undefined) {
      const known = [...new Set(layers.map(({ name }) => name))].join(', ');
      throw new InvalidLogError(this.#source, undefined, `has no layer ${formatValue(this.#wanted)}; there are: ${known || 'none'}`);
    }
    return this.#finish(layer === undefined ? undefined : this.#layers[layer], this.#source, end);
  }

  /**
   * The logs of graphs: of the layers that are the memory of graphs, in the order of their first events, unless a
   * layer was asked for; and of the phases that captured graphs, in the order of their last captures.
   * @throws InvalidLogError as `finish` does.
   */
  finishGraphs(end: LogEnd): AllocationLog[] {
    this.#assertWhole(end);
    const { layers, phases } = this.#names;
    const isOfGraph = (layer: number) => this.#wanted === undefined && layers[layer]?.isGraph === true;
    const logs = this.#order
      .filter(isOfGraph)
      .map((layer) => this.#finish(this.#layers[layer], `${this.#source}: ${layers[layer]?.name}`, end));
    for (const [phase, capture] of this.#graphs) {
      const layer = nearestLayer(layers, (index) => capture[index] !== undefined, this.#wanted);
      const projection = layer === undefined ? undefined : capture[layer];
      if (projection !== undefined) logs.push(this.#finish(projection, `${this.#source}: ${phases[phase]?.name}`, end));
    }
    return logs;
  }

  #assertWhole({ damage }: LogEnd): void {
    if (damage !== undefined && !damage.isTruncation) {
      throw new InvalidLogError(this.#source, undefined, `is damaged at byte ${damage.offset}: ${damage.fault}`);
    }
  }

  #finish(projection: LayerProjection | undefined, source: string, end: LogEnd): AllocationLog {
    if (projection?.fault !== undefined) throw new InvalidLogError(this.#source, undefined, projection.fault);
    return (projection ?? new LayerProjection(this.#names)).finish(source, end);
  }

  #addLayer(layer: number): LayerProjection | undefined {
    if (this.#wanted !== undefined && this.#names.layers[layer]?.name !== this.#wanted) return undefined;
    const projection = new LayerProjection(this.#names);
    this.#layers[layer] = projection;
    this.#order.push(layer);
    return projection;
  }

  /** A capture of a graph begins or ends, if that is what the phase is. */
  #followCapture({ kind, first: phase, second: hasFailed }: Readonly<LoggedEvent>): void {
    if (!this.#names.phases[phase]?.isGraph) return;
    const ended = this.#open.get(phase);
    this.#open.delete(phase);
    if (kind === EventKind.phaseBegin) {
      this.#open.set(phase, []);
    } else if (ended !== undefined && hasFailed === 0) {
      // Last in the order of captures.
      this.#graphs.delete(phase);
      this.#graphs.set(phase, ended);
    }
  }

  /** Adds an event to the capture whose phase it is in. What it frees may be of others. */
  #appendToCapture(event: Readonly<LoggedEvent>): void {
    const { kind, layer } = event;
    const capture = this.#captureOf(event.phase);
    if (capture === undefined) return;
    if (kind === EventKind.allocate) capture[layer] ??= new LayerProjection(this.#names);
    const projection = capture[layer];
    const fault = projection?.append(event);
    if (projection !== undefined && kind === EventKind.allocate) this.#note(projection, fault);
  }

  /** The innermost capture that a phase is part of. */
  #captureOf(phase: number): GraphCapture | undefined {
    const { phases } = this.#names;
    // A damaged recording may contain a cycle of phases, and a hostile one 65,535 within each other.
    for (let each = phase, depth = 0; each !== 0 && depth < deepestPhase; each = phases[each]?.outer ?? 0, depth++) {
      const capture = this.#open.get(each);
      if (capture !== undefined) return capture;
    }
    return undefined;
  }

  #note(projection: LayerProjection, fault: string | undefined): void {
    if (fault === undefined) return;
    const event = this.#eventCount - 1;
    if (this.#hasLines) throw new InvalidLogError(this.#source, headerLines + 1 + event, fault);
    projection.fault ??= `event ${event} ${fault}`;
  }
}

/** Matches the allocations and frees of a layer with each other. */
class LayerProjection {
  readonly #names: Names;
  readonly #full: EventChunk[] = [];
  #operations = new Int32Array(chunkCapacity);
  #sizes = new Float64Array(chunkCapacity);
  #threadColumn = new Uint32Array(chunkCapacity);
  #streamColumn = new Uint32Array(chunkCapacity);
  #count = 0;

  readonly #slots = new AddressMap();
  #slotSizes = new Float64Array(1024);
  #vacantSlots = new Int32Array(1024);
  #vacantCount = 0;
  #slotCount = 0;
  /**
   * The slot shared by all allocations of zero bytes: they have no memory, and may have the same
   * pointer.
   */
  #emptySlot = -1;

  /** The names in the result, in order of their indexes. */
  readonly #threads = new Map<string, number>();
  readonly #streams = new Map<string, number>();
  /** The index in the result, by index in the log. */
  readonly #threadIndexes: number[] = [];
  readonly #streamIndexes: number[] = [];
  /** The index in the result of a thread's default stream, by the thread's index in the log. */
  readonly #threadStreams: number[] = [];

  #allocationCount = 0;
  #liveBytes = 0;
  #peakLiveBytes = 0;
  readonly #skippedRows: number[] = [];
  readonly #orders = { positions: [] as number[], streams: [] as string[], recordings: [] as number[] };
  /** The name in the result, by index in the log; `undefined` for the per-thread default stream. */
  readonly #streamNames: (string | undefined)[] = [];

  /** The first fault, if any. It matters only if the projection is used. */
  fault: string | undefined;

  constructor(names: Names) {
    this.#names = names;
  }

  /** Adds an allocation, a free or a failure. Returns its fault, if any, in which case nothing was added. */
  append({ kind, stream, thread, first, second }: Readonly<LoggedEvent>): string | undefined {
    if (kind === EventKind.allocate) return this.#allocate(thread, first, second, stream);
    if (kind === EventKind.free) return this.#free(thread, first, second, stream);
    // It is counted, and is no operation.
    this.#skippedRows.push(this.#operationCount);
    return undefined;
  }

  #allocate(thread: number, pointer: number, bytes: number, stream: number): string | undefined {
    let slot: number;
    if (bytes === 0) {
      if (this.#emptySlot < 0) this.#emptySlot = this.#takeSlot();
      slot = this.#emptySlot;
    } else {
      if (pointer === 0) return `allocates ${bytes} bytes at the null pointer`;
      const live = this.#slots.get(pointer);
      if (live >= 0) return `allocates ${formatPointer(pointer)}, which is live with ${this.#slotSizes[live]} bytes`;
      slot = this.#takeSlot();
      this.#slots.insert(pointer, slot);
      this.#slotSizes[slot] = bytes;
      this.#liveBytes += bytes;
      if (this.#liveBytes > this.#peakLiveBytes) this.#peakLiveBytes = this.#liveBytes;
    }
    this.#allocationCount++;
    this.#append(slot, thread, bytes, stream);
    return undefined;
  }

  #free(thread: number, pointer: number, bytes: number, stream: number): string | undefined {
    const slot = pointer === 0 ? -1 : this.#slots.get(pointer);
    if (slot < 0) {
      if (bytes !== 0 || this.#emptySlot < 0) return `frees ${formatPointer(pointer)}, which is not live`;
      this.#append(~this.#emptySlot, thread, 0, stream);
      return undefined;
    }
    if (this.#slotSizes[slot] !== bytes) {
      return `frees ${formatPointer(pointer)} with ${bytes} bytes, which was allocated with ${this.#slotSizes[slot]}`;
    }
    this.#slots.remove(pointer);
    this.#liveBytes -= bytes;
    if (this.#vacantCount === this.#vacantSlots.length) this.#vacantSlots = doubled(this.#vacantSlots);
    this.#vacantSlots[this.#vacantCount++] = slot;
    this.#append(~slot, thread, bytes, stream);
    return undefined;
  }

  /** Adds a CUDA event that was recorded, or a wait for one. */
  order(kind: EventKind, thread: number, recording: number, stream: number): void {
    const { positions, streams, recordings } = this.#orders;
    positions.push(this.#operationCount);
    streams.push(this.#streamName(stream) ?? this.#threadStreamName(thread));
    recordings.push(kind === EventKind.eventWait ? -recording : recording);
  }

  /**
   * The finished log. Nothing may be added afterwards.
   */
  finish(source: string, { damage, skippedRecordCount }: LogEnd): AllocationLog {
    const eventCount = this.#operationCount;
    if (this.#count > 0) this.#closeChunk();
    return new AllocationLog({
      source,
      chunks: this.#full,
      eventCount,
      allocationCount: this.#allocationCount,
      failureCount: this.#skippedRows.length,
      slotCount: this.#slotCount,
      threads: [...this.#threads.keys()],
      streams: [...this.#streams.keys()],
      peakLiveBytes: this.#peakLiveBytes,
      unfreedBytes: this.#liveBytes,
      unfreedCount: this.#slots.count,
      skippedRows: this.#skippedRows,
      truncation: damage,
      skippedRecordCount,
      orders: this.#orders,
    });
  }

  get #operationCount(): number {
    return this.#full.length * chunkCapacity + this.#count;
  }

  #append(operation: number, thread: number, bytes: number, stream: number): void {
    if (this.#count === chunkCapacity) this.#closeChunk();
    const row = this.#count++;
    let streamIndex = this.#streamIndexes[stream] ?? this.#addStream(stream);
    if (streamIndex === dependsOnThread) streamIndex = this.#threadStreams[thread] ?? this.#addThreadStream(thread);
    this.#operations[row] = operation;
    this.#sizes[row] = bytes;
    this.#threadColumn[row] = this.#threadIndexes[thread] ?? this.#addThread(thread);
    this.#streamColumn[row] = streamIndex;
  }

  #closeChunk(): void {
    this.#full.push({
      count: this.#count,
      operations: this.#operations,
      sizes: this.#sizes,
      threads: this.#threadColumn,
      streams: this.#streamColumn,
    });
    this.#operations = new Int32Array(chunkCapacity);
    this.#sizes = new Float64Array(chunkCapacity);
    this.#threadColumn = new Uint32Array(chunkCapacity);
    this.#streamColumn = new Uint32Array(chunkCapacity);
    this.#count = 0;
  }

  #takeSlot(): number {
    if (this.#vacantCount > 0) return this.#vacantSlots[--this.#vacantCount] as number;
    if (this.#slotCount === this.#slotSizes.length) this.#slotSizes = doubled(this.#slotSizes);
    return this.#slotCount++;
  }

  #addThread(thread: number): number {
    const index = indexOf(this.#threads, this.#names.threads[thread] as string);
    this.#threadIndexes[thread] = index;
    return index;
  }

  #addStream(stream: number): number {
    const name = this.#streamName(stream);
    const index = name === undefined ? dependsOnThread : indexOf(this.#streams, name);
    this.#streamIndexes[stream] = index;
    return index;
  }

  #addThreadStream(thread: number): number {
    const index = indexOf(this.#streams, this.#threadStreamName(thread));
    this.#threadStreams[thread] = index;
    return index;
  }

  #streamName(stream: number): string | undefined {
    if (!(stream in this.#streamNames)) this.#streamNames[stream] = writtenName(this.#names.streams[stream] as string);
    return this.#streamNames[stream];
  }

  #threadStreamName(thread: number): string {
    return `0x2 of thread ${this.#names.threads[thread]}`;
  }
}

/** How the result names a stream; `undefined` for the per-thread default stream. */
function writtenName(name: string): string | undefined {
  const handle = streamHandle(name);
  if (handle === perThreadDefaultStream) return undefined;
  if (handle === legacyDefaultStream || handle === legacyDefaultStreamAlias) return '0x0';
  return handle === undefined ? name : `0x${handle.toString(16)}`;
}

/** The index of a name; a new name gets the next index. */
function indexOf(indexes: Map<string, number>, name: string): number {
  const known = indexes.get(name);
  if (known !== undefined) return known;
  indexes.set(name, indexes.size);
  return indexes.size - 1;
}
