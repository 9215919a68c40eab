/**
 * Writes a layer of a run as a snapshot of PyTorch's allocator: the trace, and the segments and
 * blocks at its end. The output keeps what PyTorch's own tools rely on:
 *
 *     blocks tile their segment in order of address, Σ block.size = total_size, Σ requested_size of active blocks = requested_size
 *     undoing the trace, from the last entry to the first, never removes a block or segment that does not exist
 *     a segment is allocated before the first block in it, and freed after the last
 *
 * If the run records which blocks the pool took from its upstream and returned, those are the
 * segments. If it does not, or if allocations lie outside of them, segments are made up around all
 * addresses ever used; they exist from beginning to end.
 */
import { formatPointer, InvalidLogError } from '../../../basics/errors.js';
import { type Extent, lastAtOrBelow } from '../../../plans/extents.js';
import { EventKind } from '../event-columns.js';
import { sharesLabels } from '../layers.js';
import type { RecordedRun, WrittenEvents } from '../recorded-run.js';
import { streamHandle } from '../stream-handle.js';
import { PickleWriter } from './pickle-writer.js';

/**
 * Addresses further apart than this are in separate made-up segments, which begin and end at
 * multiples of it. It is the size of PyTorch's small segment.
 */
const segmentBytes = 2 * 1024 * 1024;

const pieceBytes = 64 * 1024;

/** Counts of events that the trace cannot hold. */
export interface SnapshotOmissions {
  /** Allocations of zero bytes, and their frees. */
  readonly empty: number;
  /** Frees of memory that was not allocated in the run. */
  readonly foreignFrees: number;
  /** Allocations at an address that was live. */
  readonly doubles: number;
  /** Releases of segments that still held allocations; these segments stay. */
  readonly abandoned: number;
}

interface Segment extends Extent {
  readonly stream: number;
}

/** The allocations live at the end: the event of each, by pointer. */
type LiveBlocks = ReadonlyMap<number, number>;

/** The properties of a run that are needed before it is written. */
export class SnapshotPlan {
  readonly run: RecordedRun;
  readonly layer: number;
  readonly omissions: SnapshotOmissions;
  /** The layer whose growth makes the segments, or `undefined` if they are made up. */
  readonly pool: number | undefined;
  /** Releases by that layer that are left out because the segment still held allocations. */
  readonly skippedReleases: ReadonlySet<number>;
  /** The segments at the end, in order of address. */
  readonly segments: readonly Segment[];
  readonly live: LiveBlocks;
  /** Labels of allocations, by the event of the allocation. */
  readonly labels: ReadonlyMap<number, number>;

  /** @throws InvalidLogError if allocations overlap. */
  constructor(run: RecordedRun, layer: number) {
    this.run = run;
    this.layer = layer;
    const live = new Map<number, number>();
    const labels = new Map<number, number>();
    let [empty, foreignFrees, doubles] = [0, 0, 0];
    for (let i = 0; i < run.eventCount; i++) {
      const kind = run.kinds[i] as number;
      const pointer = run.firsts[i] as number;
      if (kind === EventKind.label && sharesLabels(run.layers, run.layerOf[i] as number, layer)) {
        const allocation = live.get(pointer);
        if (allocation !== undefined) labels.set(allocation, run.seconds[i] as number);
      }
      if (kind > EventKind.free || run.layerOf[i] !== layer) continue;
      if (isEmpty(run, i)) empty++;
      else if (kind === EventKind.allocate) {
        if (live.has(pointer)) doubles++;
        else live.set(pointer, i);
      } else if (!live.delete(pointer)) foreignFrees++;
    }
    this.live = live;
    this.labels = labels;
    assertApart(run, live);
    const recorded = recordedSegments(run, layer);
    this.pool = recorded?.pool;
    this.skippedReleases = recorded?.skippedReleases ?? new Set();
    this.segments = recorded?.segments ?? madeUpSegments(run, layer);
    this.omissions = { empty, foreignFrees, doubles, abandoned: this.skippedReleases.size };
  }
}

/** The pickled bytes of a snapshot, in pieces. */
export function snapshotPickle(plan: SnapshotPlan, written: WrittenEvents = { count: 0 }): Generator<Uint8Array> {
  return new SnapshotWriter(plan, written).write();
}

class SnapshotWriter {
  readonly #plan: SnapshotPlan;
  readonly #written: WrittenEvents;
  readonly #pickle = new PickleWriter();
  readonly #streams: readonly number[];
  /** The memo numbers of the stacks already written. */
  readonly #stacks: number[] = [];
  /** Microseconds since 1970 at time 0. */
  readonly #start: number;

  constructor(plan: SnapshotPlan, written: WrittenEvents) {
    this.#plan = plan;
    this.#written = written;
    this.#streams = plan.run.streams.map((name) => streamHandle(name) ?? 0);
    this.#start = (plan.run.startedAt ?? 0) * 1000;
  }

  *write(): Generator<Uint8Array> {
    const pickle = this.#pickle;
    pickle.beginDict();
    pickle.text('segments');
    yield* this.#writeSegments();
    pickle.text('device_traces');
    pickle.beginList();
    pickle.item(0);
    yield* this.#writeTrace();
    pickle.endList(1);
    pickle.text('allocator_settings');
    pickle.beginDict();
    pickle.endDict();
    pickle.text('external_annotations');
    this.#writeAnnotations();
    pickle.endDict();
    pickle.end();
    yield pickle.take();
  }

  *#writeSegments(): Generator<Uint8Array> {
    const { run, live, segments } = this.#plan;
    const pickle = this.#pickle;
    const blocks = [...live].sort(([a], [b]) => a - b);
    let next = 0;
    pickle.beginList();
    for (const [i, { address, bytes, stream }] of segments.entries()) {
      const end = address + bytes;
      const first = next;
      let active = 0;
      while (next < blocks.length && (blocks[next]?.[0] as number) < end) active += run.seconds[blocks[next++]?.[1] as number] as number;
      pickle.item(i);
      pickle.beginDict();
      this.#number('device', 0);
      this.#number('address', address);
      this.#number('total_size', bytes);
      this.#number('allocated_size', active);
      this.#number('active_size', active);
      this.#number('requested_size', active);
      this.#number('stream', stream);
      pickle.text('segment_type');
      pickle.text(bytes > segmentBytes ? 'large' : 'small');
      pickle.text('segment_pool_id');
      pickle.integer(0);
      pickle.integer(0);
      pickle.pair();
      pickle.text('is_expandable');
      pickle.boolean(false);
      this.#frames(0);
      pickle.text('blocks');
      this.#writeBlocks(address, end, blocks.slice(first, next));
      pickle.endDict();
      if (pickle.length > pieceBytes) yield pickle.take();
    }
    pickle.endList(segments.length);
  }

  /** Writes the blocks of a segment: the live ones, and the free ranges between them. */
  #writeBlocks(start: number, end: number, live: readonly (readonly [number, number])[]): void {
    const { run } = this.#plan;
    const pickle = this.#pickle;
    let at = start;
    let count = 0;
    const write = (bytes: number, requested: number, state: string, stack: number) => {
      if (bytes === 0) return;
      pickle.item(count++);
      pickle.beginDict();
      this.#number('address', at);
      this.#number('size', bytes);
      this.#number('requested_size', requested);
      pickle.text('state');
      pickle.text(state);
      this.#frames(stack);
      pickle.endDict();
      at += bytes;
    };
    pickle.beginList();
    for (const [pointer, allocation] of live) {
      const bytes = run.seconds[allocation] as number;
      write(pointer - at, 0, 'inactive', 0);
      write(bytes, bytes, 'active_allocated', run.stackOf[allocation] as number);
    }
    write(end - at, 0, 'inactive', 0);
    pickle.endList(count);
  }

  *#writeTrace(): Generator<Uint8Array> {
    const { run, layer, pool, skippedReleases, labels } = this.#plan;
    const { kinds, layerOf, firsts, seconds } = run;
    const pickle = this.#pickle;
    const live = new Set<number>();
    let entries = 0;
    const add = (action: string, event: number, label = 0) => {
      pickle.item(entries++);
      this.#writeEntry(action, event, label);
    };
    pickle.beginList();
    for (let i = 0; i < run.eventCount; i++) {
      const kind = kinds[i] as number;
      const pointer = firsts[i] as number;
      if (kind === EventKind.growth || kind === EventKind.release) {
        if (layerOf[i] === pool && seconds[i] !== 0 && !skippedReleases.has(i))
          add(kind === EventKind.growth ? 'segment_alloc' : 'segment_free', i);
      }
      if (kind > EventKind.failure || layerOf[i] !== layer) continue;
      if (kind === EventKind.failure) add('oom', i);
      if (kind === EventKind.failure || isEmpty(run, i)) continue;
      if (kind === EventKind.allocate) {
        if (live.has(pointer)) continue;
        live.add(pointer);
        add('alloc', i, labels.get(i));
      } else if (live.delete(pointer)) {
        add('free_requested', i);
        add('free_completed', i);
      }
      if (pickle.length <= pieceBytes) continue;
      this.#written.count = i;
      yield pickle.take();
    }
    pickle.endList(entries);
  }

  #writeEntry(action: string, event: number, label: number): void {
    const { run } = this.#plan;
    const pickle = this.#pickle;
    pickle.beginDict();
    pickle.text('action');
    pickle.text(action);
    if (action === 'oom') {
      this.#number('device_free', 0);
      pickle.text('size');
      pickle.integer(BigInt(run.seconds[event] as number) + BigInt(run.firsts[event] as number));
    } else {
      this.#number('addr', run.firsts[event] as number);
      this.#number('size', run.seconds[event] as number);
    }
    this.#number('stream', this.#streams[run.streamOf[event] as number] ?? 0);
    this.#number('time_us', this.#microseconds(event));
    this.#frames(run.stackOf[event] as number);
    if (label !== 0) {
      pickle.text('user_metadata');
      pickle.text(run.labels[label] ?? '');
    }
    pickle.endDict();
  }

  #writeAnnotations(): void {
    const { run } = this.#plan;
    const pickle = this.#pickle;
    let count = 0;
    pickle.beginList();
    for (let i = 0; i < run.eventCount; i++) {
      const kind = run.kinds[i] as number;
      if (kind !== EventKind.phaseBegin && kind !== EventKind.phaseEnd) continue;
      pickle.item(count++);
      pickle.beginDict();
      this.#number('device', 0);
      this.#number('time_us', this.#microseconds(i));
      pickle.text('name');
      pickle.text(run.phases[run.firsts[i] as number]?.name ?? '');
      pickle.text('stage');
      pickle.text(kind === EventKind.phaseBegin ? 'START' : 'END');
      pickle.endDict();
    }
    pickle.endList(count);
  }

  /** Writes `frames` and the calls of a stack. */
  #frames(stack: number): void {
    const pickle = this.#pickle;
    pickle.text('frames');
    const known = this.#stacks[stack];
    if (known !== undefined) {
      pickle.recall(known);
      return;
    }
    const lines = stack === 0 ? [] : (this.#plan.run.stacks[stack] ?? '').split('\n');
    pickle.beginList();
    for (const [i, line] of lines.entries()) {
      const { name, filename, number } = parseFrame(line);
      pickle.item(i);
      pickle.beginDict();
      pickle.text('name');
      pickle.text(name);
      pickle.text('filename');
      pickle.text(filename);
      this.#number('line', number);
      pickle.endDict();
    }
    pickle.endList(lines.length);
    this.#stacks[stack] = pickle.memoize();
  }

  #number(key: string, value: number): void {
    this.#pickle.text(key);
    this.#pickle.integer(value);
  }

  #microseconds(event: number): number {
    return Math.floor(this.#start + (this.#plan.run.times[event] as number) / 1000);
  }
}

/**
 * The parts of a line `name (file:line:column)`, of which the column may be missing; of any other line
 * all is the name. Each character is looked at once, since a line may have megabytes.
 */
export function parseFrame(line: string): { readonly name: string; readonly filename: string; readonly number: number } {
  const whole = { name: line, filename: '', number: 0 };
  if (!line.endsWith(')')) return whole;
  const last = numberBefore(line, line.length - 1);
  if (last === undefined) return whole;
  const { colon, number } = numberBefore(line, last.colon) ?? last;
  const open = line.lastIndexOf(' (', colon - 2);
  return open < 0 ? whole : { name: line.slice(0, open), filename: line.slice(open + 2, colon), number };
}

/** A colon and digits that end at `end`. */
function numberBefore(line: string, end: number): { readonly colon: number; readonly number: number } | undefined {
  let start = end;
  while (start > 0 && line.charCodeAt(start - 1) >= 0x30 && line.charCodeAt(start - 1) <= 0x39) start--;
  const number = start < end && line[start - 1] === ':' ? Number(line.slice(start, end)) : Number.NaN;
  // Digits that are not a line number belong to the name.
  return Number.isSafeInteger(number) ? { colon: start - 1, number } : undefined;
}

/** Whether an allocation or a free has zero bytes. */
function isEmpty(run: RecordedRun, event: number): boolean {
  return run.firsts[event] === 0 || run.seconds[event] === 0;
}

/** @throws InvalidLogError if two allocations overlap at the end. */
function assertApart(run: RecordedRun, live: LiveBlocks): void {
  const blocks = [...live].sort(([a], [b]) => a - b);
  for (let i = 1; i < blocks.length; i++) {
    const [before, allocation] = blocks[i - 1] as [number, number];
    const [pointer] = blocks[i] as [number, number];
    if (before + (run.seconds[allocation] as number) <= pointer) continue;
    throw new InvalidLogError(run.source, undefined, `the allocations at ${formatPointer(before)} and ${formatPointer(pointer)} overlap`);
  }
}

/**
 * The segments left at the end, if the layer or one below it recorded what it took from its
 * upstream and every allocation of the layer lies within; `undefined` otherwise.
 */
function recordedSegments(
  run: RecordedRun,
  layer: number,
): { pool: number; segments: Segment[]; skippedReleases: Set<number> } | undefined {
  const pool = growingLayer(run, layer);
  if (pool === undefined) return undefined;
  const { kinds, layerOf, firsts, seconds } = run;
  /** In order of address, each with the number of its live allocations. */
  const segments: (Segment & { live: number })[] = [];
  const segmentOfLive = new Map<number, { live: number }>();
  const skippedReleases = new Set<number>();
  for (let i = 0; i < run.eventCount; i++) {
    const kind = kinds[i] as number;
    const pointer = firsts[i] as number;
    const bytes = seconds[i] as number;
    if (kind === EventKind.growth && layerOf[i] === pool && bytes > 0) {
      const place = lastAtOrBelow(segments, pointer);
      const before = segments[place];
      const after = segments[place + 1];
      if (before !== undefined && before.address + before.bytes > pointer) return undefined;
      if (after !== undefined && pointer + bytes > after.address) return undefined;
      segments.splice(place + 1, 0, { address: pointer, bytes, stream: streamOf(run, i), live: 0 });
    } else if (kind === EventKind.release && layerOf[i] === pool && bytes > 0) {
      const place = lastAtOrBelow(segments, pointer);
      const segment = segments[place];
      if (segment === undefined || segment.address !== pointer || segment.bytes !== bytes) return undefined;
      if (segment.live > 0) skippedReleases.add(i);
      else segments.splice(place, 1);
    } else if (kind > EventKind.free || layerOf[i] !== layer || isEmpty(run, i)) {
    } else if (kind === EventKind.allocate) {
      if (segmentOfLive.has(pointer)) continue;
      const segment = segments[lastAtOrBelow(segments, pointer)];
      if (segment === undefined || pointer + bytes > segment.address + segment.bytes) return undefined;
      segment.live++;
      segmentOfLive.set(pointer, segment);
    } else {
      const segment = segmentOfLive.get(pointer);
      if (segment === undefined) continue;
      segment.live--;
      segmentOfLive.delete(pointer);
    }
  }
  return { pool, segments, skippedReleases };
}

/** The layer itself, or the next one below it, that took memory from its upstream. */
function growingLayer(run: RecordedRun, layer: number): number | undefined {
  const growing = new Set<number>();
  for (let i = 0; i < run.eventCount; i++) if (run.kinds[i] === EventKind.growth) growing.add(run.layerOf[i] as number);
  const seen = new Set<number>();
  for (let at: number | undefined = layer; at !== undefined && !seen.has(at); at = run.layers[at]?.upstream) {
    if (growing.has(at)) return at;
    seen.add(at);
  }
  return undefined;
}

/** Segments around all addresses that the layer ever used. */
function madeUpSegments(run: RecordedRun, layer: number): Segment[] {
  const allocations: number[] = [];
  for (let i = 0; i < run.eventCount; i++) {
    if (run.kinds[i] === EventKind.allocate && run.layerOf[i] === layer && !isEmpty(run, i)) allocations.push(i);
  }
  allocations.sort((a, b) => (run.firsts[a] as number) - (run.firsts[b] as number));
  const segments: Segment[] = [];
  for (const allocation of allocations) {
    const pointer = run.firsts[allocation] as number;
    const start = Math.floor(pointer / segmentBytes) * segmentBytes;
    const end = Math.ceil((pointer + (run.seconds[allocation] as number)) / segmentBytes) * segmentBytes;
    const last = segments.at(-1);
    if (last === undefined || last.address + last.bytes < start) {
      segments.push({ address: start, bytes: end - start, stream: streamOf(run, allocation) });
    } else if (end > last.address + last.bytes) segments[segments.length - 1] = { ...last, bytes: end - last.address };
  }
  return segments;
}

function streamOf(run: RecordedRun, event: number): number {
  return streamHandle(run.streams[run.streamOf[event] as number] ?? '') ?? 0;
}
