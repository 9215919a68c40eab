/**
 * Reads snapshots of PyTorch's allocator, as `torch.cuda.memory._dump_snapshot` writes them, into a
 * {@link RecordedRun}.
 *
 * A snapshot holds the final state (segments and their blocks) and the trace before it, from which
 * older entries may have been dropped. Undoing the trace from the final state gives the state
 * before the trace, which becomes allocations at time 0. Each device is a layer, whose growth is
 * its segments. A free counts only when it completes: the memory is not reused before that.
 *
 * Each private pool is an additional layer, with the events of its segments, which the layer of the
 * device has, too. Newer entries name their pool. Older ones do not: addresses in a segment of the final
 * state belong to the pool of that segment, and segments that were freed before count as not belonging
 * to a private pool. The first number of a pool is that of a graph; a pool that the program made has none.
 *
 * What only decorates an event (a stack, a stream, a time, a pool, a label) never makes a snapshot
 * unreadable: what cannot be understood is unknown. Addresses and sizes must be right.
 */
import { formatValue, InvalidLogError } from '../../../basics/errors.js';
import { type Extent, Extents } from '../../../plans/extents.js';
import { EventColumnsBuilder, EventKind, maximumNames } from '../event-columns.js';
import { Cost, type ReadingBudget } from '../reading-budget.js';
import { finishRun, RecordedNames, type RecordedRun } from '../recorded-run.js';
import { type PickledDict, type PickledValue, UnpicklingError, unpickle } from './unpickle.js';

/** Times below this are not dates: they count from a midnight. */
const leastDateMicroseconds = 366 * 86_400e6;

/** The time of allocations made before the trace. */
const beforeTrace = -1;

const maximumLayers = 2 ** 8;

/**
 * A frame is written once, and then referred to by two or more bytes, so the text of a stack is
 * longer than its bytes in the file: about a hundred times in snapshots of real programs. No call
 * stack is nearly as long as the first number, and all different ones together must fit into memory.
 */
const longestStack = 2 ** 24;
const mostStackText = 2 ** 30;
/** What putting a line together costs besides its characters. */
const lineCharacters = 64;

/** An event before it is added to the run; `time` is in microseconds, as in the snapshot. */
interface SnapshotEvent {
  readonly kind: EventKind;
  readonly layer: number;
  readonly stream: number;
  readonly stack: number;
  readonly time: number;
  readonly first: number;
  readonly second: number;
}

/** A block, or a part of a segment. */
interface Piece extends Extent {
  readonly stream: number;
  readonly stack: number;
  /** The layer of the private pool that it belongs to, or `undefined`. */
  readonly pool: number | undefined;
}

/** An entry of a trace that changes segments or blocks, or an `oom`. */
interface TraceEntry extends Piece {
  readonly action: string;
  readonly label: number;
  readonly time: number;
  readonly poolId: PickledValue | undefined;
  /** By its id, or else found while the trace is undone. */
  pool: number | undefined;
}

/**
 * The run that a snapshot holds.
 * @throws InvalidLogError if the bytes are not a snapshot.
 */
export function readSnapshot(source: string, bytes: Buffer, budget: ReadingBudget): RecordedRun {
  try {
    return new SnapshotReader(source, unpickle(bytes, budget), budget).read();
  } catch (error) {
    if (!(error instanceof UnpicklingError)) throw error;
    const fault = `is damaged at byte ${error.offset}, or not a PyTorch snapshot: ${error.message}`;
    throw new InvalidLogError(source, undefined, fault, { cause: error });
  }
}

class SnapshotReader {
  readonly #source: string;
  /** One, unless the file has the snapshots of several ranks; each with the end of its layers' names. */
  readonly #snapshots: readonly { readonly rank: string; readonly snapshot: PickledDict }[];
  readonly #names = new RecordedNames();
  readonly #streams = new Map<number | bigint | string, number>();
  /** By the list itself, because entries share lists, and by its text. */
  readonly #stacksOfLists = new Map<PickledValue, number>();
  readonly #stacks = new Map<string, number>();
  readonly #labels = new Map<string, number>();
  /** The layers of private pools, by their names. */
  readonly #pools = new Map<string, number>();
  readonly #budget: ReadingBudget;
  /** Characters of all stacks. */
  #stackText = 0;

  constructor(source: string, value: PickledValue, budget: ReadingBudget) {
    this.#source = source;
    this.#budget = budget;
    this.#snapshots = this.#byRank(value);
    this.#names.threads.push('0');
  }

  /** A snapshot, a list of segments (`torch.cuda.memory_snapshot()`), or a dict or list of snapshots by rank. */
  #byRank(value: PickledValue): { readonly rank: string; readonly snapshot: PickledDict }[] {
    const isSnapshot = (each: PickledValue) => typeof each === 'object' && each !== null && 'segments' in each;
    const isSegment = (each: PickledValue) => typeof each === 'object' && each !== null && 'blocks' in each;
    if (Array.isArray(value) && value.some(isSegment)) return [{ rank: '', snapshot: { segments: value } }];
    if (isSnapshot(value) || typeof value !== 'object' || value === null)
      return [{ rank: '', snapshot: this.#dict(value, 'the snapshot') }];
    const ranks = Object.entries(value).filter(([, each]) => isSnapshot(each));
    if (ranks.length === 0) return [{ rank: '', snapshot: this.#dict(value, 'the snapshot') }];
    if (ranks.length > maximumLayers) this.#fail(`has snapshots of ${ranks.length} ranks`);
    const nameOf = (key: string) => (/^\d+$/.test(key) ? `rank ${key}` : key);
    return ranks.map(([key, snapshot]) => ({ rank: ` of ${nameOf(key)}`, snapshot: this.#dict(snapshot, 'a snapshot') }));
  }

  read(): RecordedRun {
    const series = this.#snapshots.flatMap((each) => this.#historiesOf(each.snapshot, each.rank));
    return this.#merge(series);
  }

  #historiesOf(snapshot: PickledDict, rank: string): (readonly SnapshotEvent[])[] {
    const segments = this.#list(snapshot['segments'], 'segments').map((segment) => this.#dict(segment, 'a segment'));
    const traces = this.#list(snapshot['device_traces'] ?? [], 'device_traces').map((trace) => this.#entries(trace));
    const devices = new Set(segments.map((segment) => this.#number(segment['device'] ?? 0, 'a device')));
    for (const [device, trace] of traces.entries()) if (trace.length > 0) devices.add(device);
    if (devices.size > maximumLayers) this.#fail(`names ${devices.size} devices`);
    const { layers } = this.#names;
    const places = [...devices]
      .sort((a, b) => a - b)
      .map((device) => ({ device, suffix: `${devices.size === 1 ? '' : ` on device ${device}`}${rank}` }));
    const first = layers.length;
    if (first + places.length > maximumLayers) this.#fail(`names more than ${maximumLayers} devices of ranks`);
    for (const { suffix } of places) layers.push({ name: `pytorch${suffix}`, upstream: undefined });
    const histories = places.map(({ device, suffix }, index) => {
      const layer = first + index;
      const own = segments.filter((segment) => (segment['device'] ?? 0) === device);
      return this.#history(layer, own, traces[device] ?? [], suffix);
    });
    return [this.#annotations(snapshot), ...histories];
  }

  /** The layer of the private pool of an id, or `undefined` for the common pool and an id that is none. */
  #pool(id: PickledValue | undefined, suffix: string): number | undefined {
    if (!Array.isArray(id) || id.length !== 2) return undefined;
    const [graph, own] = id as [PickledValue, PickledValue];
    if (!isCount(graph) || !isCount(own) || (graph === 0 && own === 0)) return undefined;
    const name = `${graph === 0 ? '' : 'private '}pool ${graph},${own}${suffix}`;
    let layer = this.#pools.get(name);
    if (layer === undefined) {
      if (this.#names.layers.length >= maximumLayers) this.#fail(`names more than ${maximumLayers} devices and pools`);
      layer = this.#names.layers.push({ name, upstream: undefined, ...(graph === 0 ? {} : { isGraph: true as const }) }) - 1;
      this.#pools.set(name, layer);
    }
    return layer;
  }

  /** The entries of a trace that change segments or blocks. */
  #entries(trace: PickledValue): TraceEntry[] {
    const entries: TraceEntry[] = [];
    const items = this.#list(trace, 'the trace of a device') as (PickledValue | undefined)[];
    for (let i = 0; i < items.length; i++) {
      const entry = this.#dict(items[i], 'an entry of a trace');
      // There may be millions, which can be collected while their events are made.
      items[i] = undefined;
      this.#budget.keepOne();
      const action = this.#text(entry['action'], 'an action');
      const isFailure = action === 'oom';
      if (!isFailure && !/^(alloc|free|free_completed|segment_(alloc|free|map|unmap))$/.test(action)) continue;
      const label = entry['user_metadata'];
      entries.push({
        action,
        address: isFailure ? 0 : this.#number(entry['addr'], 'an address'),
        bytes: this.#number(entry['size'], 'a size'),
        stream: this.#stream(entry['stream']),
        stack: this.#stack(entry['frames']),
        pool: undefined,
        poolId: entry['pool_id'],
        label: typeof label === 'string' && label !== '' ? indexOf(this.#labels, this.#names.labels, label) : 0,
        // The clock may go back slightly; the order is the allocator's.
        time: Math.max(this.#time(entry), entries.at(-1)?.time ?? 0),
      });
    }
    return entries;
  }

  /** The events of a device, in order, starting with what was allocated before the trace. */
  #history(layer: number, segments: readonly PickledDict[], trace: readonly TraceEntry[], suffix: string): SnapshotEvent[] {
    const { blocks, extents } = this.#before(segments, trace, suffix);
    const events: SnapshotEvent[] = [];
    const add = (kind: EventKind, { address, bytes, stream, stack, pool }: Piece, time: number) => {
      const event = { kind, layer, stream, stack, time, first: kind === EventKind.failure ? 0 : address, second: bytes };
      events.push(event);
      this.#budget.keepOne();
      if (pool !== undefined) events.push({ ...event, layer: pool });
    };
    for (const extent of extents) add(EventKind.growth, extent, beforeTrace);
    for (const block of blocks.values()) add(EventKind.allocate, block, beforeTrace);

    const release = (entry: TraceEntry) => {
      for (const { whole, rest } of extents.cut(entry)) {
        add(EventKind.release, { ...whole, stack: entry.stack }, entry.time);
        for (const part of rest) add(EventKind.growth, part, entry.time);
      }
    };
    for (const entry of trace) {
      const { action, address, time } = entry;
      const block = blocks.get(address);
      if (action === 'oom') {
        add(EventKind.failure, entry, time);
      } else if (action === 'alloc') {
        if (block !== undefined) add(EventKind.free, block, time);
        blocks.set(address, entry);
        add(EventKind.allocate, entry, time);
        if (entry.label !== 0) add(EventKind.label, { ...entry, bytes: entry.label, stack: 0 }, time);
      } else if (action === 'free' || action === 'free_completed') {
        if (block === undefined) continue;
        blocks.delete(address);
        add(EventKind.free, { ...entry, bytes: block.bytes, pool: block.pool }, time);
      } else {
        // Overlapping segments are a fault in the snapshot; the later segment wins.
        release(entry);
        if (action !== 'segment_alloc' && action !== 'segment_map') continue;
        extents.insert(entry);
        add(EventKind.growth, entry, time);
      }
    }
    return events;
  }

  /** The state before the trace: the final state with the trace undone. */
  #before(
    segments: readonly PickledDict[],
    trace: readonly TraceEntry[],
    suffix: string,
  ): { blocks: Map<number, Piece>; extents: Extents<Piece> } {
    const blocks = new Map<number, Piece>();
    const extents = new Extents<Piece>();
    for (const segment of segments) {
      const stream = this.#stream(segment['stream']);
      const pool = this.#pool(segment['segment_pool_id'], suffix);
      let address = this.#number(segment['address'], 'an address');
      extents.insert({
        address,
        bytes: this.#number(segment['total_size'], 'a size'),
        stream,
        stack: this.#stack(segment['frames']),
        pool,
      });
      for (const item of this.#list(segment['blocks'], 'the blocks of a segment')) {
        const block = this.#dict(item, 'a block');
        const size = this.#number(block['size'], 'a size');
        if (block['state'] === 'active_allocated' || block['state'] === 'active_pending_free') {
          const asked = block['requested_size'];
          const bytes = isCount(asked) ? asked : size;
          blocks.set(address, { address, bytes, stream, stack: this.#stack(block['frames']), pool });
        }
        address += size;
      }
    }
    for (const entry of trace.toReversed()) {
      const { action, address } = entry;
      const around = extents.at(address);
      entry.pool = Array.isArray(entry.poolId) ? this.#pool(entry.poolId, suffix) : around?.pool;
      if (action === 'free' || action === 'free_completed') blocks.set(address, { ...entry, stack: 0 });
      else if (action === 'alloc') blocks.delete(address);
      else if (action === 'segment_free' || action === 'segment_unmap') extents.insert({ ...entry, stack: 0 });
      else if (action !== 'oom') extents.cut(entry);
    }
    return { blocks, extents };
  }

  /** The beginnings and ends of annotated phases. */
  #annotations(snapshot: PickledDict): SnapshotEvent[] {
    const events: SnapshotEvent[] = [];
    const open: number[] = [];
    const { phases } = this.#names;
    const numbers = new Map<string, number>();
    for (const item of this.#list(snapshot['external_annotations'] ?? [], 'external_annotations')) {
      const annotation = this.#dict(item, 'an annotation');
      const { name, stage } = annotation;
      if (typeof name !== 'string') continue;
      const common = { layer: 0, stream: 0, stack: 0, time: this.#time(annotation), second: 0 };
      if (stage === 'START') {
        const outer = open.at(-1) ?? 0;
        const key = `${outer} ${name}`;
        const phase = numbers.get(key) ?? phases.push({ name, outer }) - 1;
        numbers.set(key, phase);
        if (phases.length > maximumNames) this.#fail(`has more than ${maximumNames} named parts`);
        open.push(phase);
        events.push({ ...common, kind: EventKind.phaseBegin, first: phase });
      } else if (stage === 'END') {
        const at = open.findLastIndex((phase) => phases[phase]?.name === name);
        this.#passOver(open, at);
        if (at < 0) continue;
        events.push({ ...common, kind: EventKind.phaseEnd, first: open[at] as number });
        open.splice(at, 1);
      }
    }
    return events;
  }

  /** Merges several series of events, each in order, into a run. */
  #merge(series: readonly (readonly SnapshotEvent[])[]): RecordedRun {
    const events = series.flat().sort((a, b) => a.time - b.time);
    const first = events.find(({ time }) => time !== beforeTrace)?.time ?? 0;
    const isDate = first >= leastDateMicroseconds;
    const startedAt = isDate ? Math.floor(first / 1000) : undefined;
    const builder = new EventColumnsBuilder();
    const open: number[] = [];
    for (const { kind, layer, stream, stack, time, first, second } of events) {
      if (kind === EventKind.phaseEnd) {
        const at = open.lastIndexOf(first);
        this.#passOver(open, at);
        // By its time, it may end before it begins.
        if (at >= 0) open.splice(at, 1);
      }
      const nanoseconds = Math.max(0, (time - (startedAt ?? 0) * 1000) * 1000);
      builder.append({ kind, layer, stream, thread: 0, phase: open.at(-1) ?? 0, stack, account: 0, time: nanoseconds, first, second });
      if (kind === EventKind.phaseBegin) open.push(first);
    }
    const origin = { source: this.#source, startedAt, utcOffsetMinutes: 0, damage: undefined, skippedRecordCount: 0, csv: undefined };
    return finishRun(origin, this.#names, builder);
  }

  /** Annotations that do not end innermost first are looked for among all that are open. */
  #passOver(open: readonly number[], found: number): void {
    this.#budget.spend((open.length - 1 - found) * Cost.step, 'annotations that are open at once');
  }

  #stream(value: PickledValue | undefined): number {
    const given = value ?? 0;
    const handle = isCount(given) || (typeof given === 'bigint' && given > 0n) ? given : 'unknown';
    let stream = this.#streams.get(handle);
    if (stream === undefined) {
      stream = this.#names.streams.push(handle === 'unknown' ? handle : `0x${handle.toString(16)}`) - 1;
      if (stream >= maximumNames) this.#fail(`names more than ${maximumNames} streams`);
      this.#streams.set(handle, stream);
    }
    return stream;
  }

  #stack(value: PickledValue | undefined): number {
    if (!Array.isArray(value) || value.length === 0) return 0;
    let stack = this.#stacksOfLists.get(value);
    if (stack === undefined) {
      let length = 0;
      const lines = value.map((item) => {
        const frame = this.#dict(item, 'a frame');
        const { name, filename, line: number } = frame;
        const called = typeof name === 'string' && name !== '' ? name : '??';
        const isPlaced = typeof filename === 'string' && filename !== '';
        const line = isPlaced ? `${called} (${filename}:${isCount(number) ? number : 0})` : called;
        this.#budget.spend((line.length + lineCharacters) * Cost.stackCharacter, 'call stacks');
        length += line.length + 1;
        if (length > longestStack) this.#fail(`has a call stack of more than ${longestStack} characters`);
        return line;
      });
      const count = this.#names.stacks.length;
      stack = indexOf(this.#stacks, this.#names.stacks, lines.join('\n'));
      if (stack === count) this.#stackText += length;
      if (this.#stackText > mostStackText) this.#fail(`has different call stacks of more than ${mostStackText} characters together`);
      this.#stacksOfLists.set(value, stack);
    }
    return stack;
  }

  /** Never converts, because a list of lists by reference could become a text of any length. */
  #text(value: PickledValue | undefined, what: string): string {
    return typeof value === 'string' ? value : this.#fail(`${what} must be a text, got ${formatValue(value)}`);
  }

  /** 0, which counts as the time of the entry before, if it is unknown. */
  #time({ time_us: time }: PickledDict): number {
    return isCount(time) ? time : 0;
  }

  #dict(value: PickledValue | undefined, what: string): PickledDict {
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) {
      // It may be one of few that are referred to again and again.
      this.#budget.spend(Cost.node, 'references to the same objects');
      return value;
    }
    return this.#fail(`is not a PyTorch snapshot: ${what} is not a dict`);
  }

  #list(value: PickledValue | undefined, what: string): readonly PickledValue[] {
    this.#budget.spend(Cost.node, 'references to the same objects');
    return Array.isArray(value) ? value : this.#fail(`is not a PyTorch snapshot: ${what} is not a list`);
  }

  #number(value: PickledValue | undefined, what: string): number {
    if (isCount(value)) return value;
    return this.#fail(`${what} must be an integer from 0 to 2^53 - 1, got ${formatValue(value)}`);
  }

  #fail(fault: string): never {
    throw new InvalidLogError(this.#source, undefined, fault);
  }
}

function isCount(value: PickledValue | undefined): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

/** The index of a text in a table; adds the text if it is missing. */
function indexOf(indexes: Map<string, number>, table: string[], text: string): number {
  let found = indexes.get(text);
  if (found === undefined) {
    found = table.push(text) - 1;
    indexes.set(text, found);
  }
  return found;
}
