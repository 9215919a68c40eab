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
 * The entries of traces, nearly all of a large file, are taken out of the pickle one by one while its bytes
 * come, and are kept in columns.
 *
 * What only decorates an event (a stack, a stream, a time, a pool, a label) never makes a snapshot
 * unreadable: what cannot be understood is unknown. Addresses and sizes must be right.
 */
import { formatValue, InvalidLogError } from '../../../basics/errors.js';
import { type Extent, Extents } from '../../../plans/extents.js';
import { EventColumnsBuilder, EventKind, maximumNames } from '../event-columns.js';
import { Cost, type ReadingBudget } from '../reading-budget.js';
import { finishRun, RecordedNames, type RecordedRun } from '../recorded-run.js';
import { isTraceAction, TraceEntries } from './trace-entries.js';
import { type ItemTaker, type PickledDict, type PickledValue, Unpickler, UnpicklingError } from './unpickle.js';

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
/** For each entry of a map that doubles, and the block that it holds. */
const bytesOfLargerMap = 128;
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

/** What was live before a trace, and the layer of the pool of each entry of it, or 0, and one more. */
interface StateBeforeTrace {
  readonly blocks: Map<number, Piece>;
  readonly extents: Extents<Piece>;
  readonly pools: Uint16Array;
}

const sharedObjects = 'references to the same objects';

/** Numbers of the ids of pools: an entry has none, or one that is no pool's. */
const noPoolId = 0;
const invalidPoolId = 1;

/** Reads the run that a snapshot holds, from bytes in pieces. */
export class SnapshotParser {
  readonly #source: string;
  readonly #reader: SnapshotReader;
  readonly #unpickler: Unpickler;

  constructor(source: string, budget: ReadingBudget) {
    this.#source = source;
    this.#reader = new SnapshotReader(source, budget);
    this.#unpickler = new Unpickler(budget, this.#reader);
  }

  /**
   * Reads another piece. Returns whether the snapshot goes on.
   * @throws InvalidLogError if the bytes are not a snapshot.
   */
  push(piece: Uint8Array): boolean {
    return this.#named(() => this.#unpickler.push(piece));
  }

  /** @throws InvalidLogError if the bytes are not a snapshot. */
  finish(): RecordedRun {
    return this.#reader.read(this.#named(() => this.#unpickler.finish()));
  }

  #named<T>(read: () => T): T {
    try {
      return read();
    } catch (error) {
      if (!(error instanceof UnpicklingError)) throw error;
      const fault = `is damaged at byte ${error.offset}, or not a PyTorch snapshot: ${error.message}`;
      throw new InvalidLogError(this.#source, undefined, fault, { cause: error });
    }
  }
}

class SnapshotReader implements ItemTaker {
  readonly #source: string;
  readonly #names = new RecordedNames();
  readonly #streams = new Map<number | bigint | string, number>();
  /** By the list itself, because entries share lists: the first list of each stack, and those met since entries were last taken. */
  readonly #stacksOfLists = new Map<PickledValue, number>();
  readonly #stacksOfOtherLists = new Map<PickledValue, number>();
  readonly #listsOfStacks: PickledValue[] = [];
  readonly #stacks = new Map<string, number>();
  readonly #labels = new Map<string, number>();
  /** The layers of private pools, by their names. */
  readonly #pools = new Map<string, number>();
  /** The lists that traces are, with the entries that were taken out of them. */
  readonly #traces = new Map<readonly PickledValue[], TraceEntries>();
  /** Different ids of pools, by their texts. */
  readonly #poolNumbers = new Map<string, number>();
  readonly #poolIds: PickledValue[] = [null, null];
  /** What all entries that were taken are remembered as. */
  readonly #takenEntry: PickledDict = {};
  /** Texts that are remembered once. */
  readonly #texts = new Map<string, string>();
  readonly #budget: ReadingBudget;
  /** Characters of all stacks. */
  #stackText = 0;

  constructor(source: string, budget: ReadingBudget) {
    this.#source = source;
    this.#budget = budget;
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

  read(value: PickledValue): RecordedRun {
    const series = this.#byRank(value).flatMap((each) => this.#historiesOf(each.snapshot, each.rank));
    return this.#merge(series);
  }

  #historiesOf(snapshot: PickledDict, rank: string): Iterator<SnapshotEvent>[] {
    const segments = this.#list(snapshot['segments'], 'segments').map((segment) => this.#dict(segment, 'a segment'));
    const traces = this.#list(snapshot['device_traces'] ?? [], 'device_traces').map((trace) => this.#trace(trace));
    const devices = new Set(segments.map((segment) => this.#number(segment['device'] ?? 0, 'a device')));
    for (const [device, trace] of traces.entries()) if (trace.count > 0) devices.add(device);
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
      return this.#history(layer, own, traces[device] ?? new TraceEntries(), suffix);
    });
    return [this.#annotations(snapshot).values(), ...histories];
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

  /** The number of a pool's id in an entry. */
  #poolNumber(id: PickledValue | undefined): number {
    if (!Array.isArray(id)) return noPoolId;
    if (id.length !== 2 || !isCount(id[0]) || !isCount(id[1])) return invalidPoolId;
    const text = `${id[0]},${id[1]}`;
    let number = this.#poolNumbers.get(text);
    if (number === undefined) {
      number = this.#poolIds.push(id) - 1;
      this.#poolNumbers.set(text, number);
    }
    return number;
  }

  take(list: readonly PickledValue[], item: PickledValue): boolean {
    if (!isEntry(item)) return false;
    const entry = this.#dict(item, 'an entry of a trace');
    const { action } = item;
    // The others change neither segments nor blocks.
    if (!isTraceAction(action)) return true;
    this.#budget.keepOne();
    let entries = this.#traces.get(list);
    if (entries === undefined) {
      entries = new TraceEntries();
      this.#traces.set(list, entries);
    }
    const label = entry['user_metadata'];
    entries.add({
      action,
      address: action === 'oom' ? 0 : this.#number(entry['addr'], 'an address'),
      bytes: this.#number(entry['size'], 'a size'),
      stream: this.#stream(entry['stream']),
      stack: this.#stack(entry['frames']),
      poolId: this.#poolNumber(entry['pool_id']),
      label: typeof label === 'string' && label !== '' ? indexOf(this.#labels, this.#names.labels, label) : 0,
      // The clock may go back slightly; the order is the allocator's.
      time: Math.max(this.#time(entry), entries.lastTime),
    });
    return true;
  }

  forget(memo: (PickledValue | undefined)[], from: number): void {
    for (let i = from; i < memo.length; i++) memo[i] = this.#remembered(memo[i]);
    this.#stacksOfOtherLists.clear();
  }

  /** What a value that entries refer to is remembered as: not the entry itself, and one of many that are the same. */
  #remembered(value: PickledValue | undefined): PickledValue | undefined {
    if (value === undefined) return undefined;
    if (isEntry(value)) return this.#takenEntry;
    if (typeof value === 'string') {
      const text = this.#texts.get(value) ?? value;
      if (this.#texts.size < maximumNames) this.#texts.set(value, text);
      return text;
    }
    const stack = this.#stacksOfOtherLists.get(value);
    if (stack !== undefined) return this.#listsOfStacks[stack];
    return this.#poolIds[this.#poolNumber(value)] ?? value;
  }

  /** The entries of a trace. All were taken out of its list, unless something else is in it. */
  #trace(trace: PickledValue): TraceEntries {
    const [other] = this.#list(trace, 'the trace of a device');
    if (other !== undefined) {
      if (other === this.#takenEntry) this.#fail('has the same entry of a trace in two places');
      this.#text(this.#dict(other, 'an entry of a trace')['action'], 'an action');
    }
    const entries = this.#traces.get(trace as PickledValue[]) ?? new TraceEntries();
    this.#budget.spend(entries.count * Cost.node, sharedObjects);
    return entries;
  }

  /** The events of a device, in order, starting with what was allocated before the trace. */
  #history(layer: number, segments: readonly PickledDict[], trace: TraceEntries, suffix: string): Generator<SnapshotEvent> {
    // At once, because it names pools.
    return this.#after(layer, trace, this.#before(segments, trace, suffix));
  }

  *#after(layer: number, trace: TraceEntries, { blocks, extents, pools }: StateBeforeTrace): Generator<SnapshotEvent> {
    for (const extent of extents) yield* eventsOf(layer, EventKind.growth, extent, beforeTrace);
    for (const block of blocks.values()) yield* eventsOf(layer, EventKind.allocate, block, beforeTrace);
    for (let i = 0; i < trace.count; i++) {
      this.#budget.keepOne();
      const { action, label, time, ...piece } = trace.at(i);
      const entry = { ...piece, pool: layerOf(pools, i) };
      const { address } = entry;
      const block = blocks.get(address);
      if (action === 'oom') {
        yield* eventsOf(layer, EventKind.failure, entry, time);
      } else if (action === 'alloc') {
        if (block !== undefined) yield* eventsOf(layer, EventKind.free, block, time);
        this.#keepBlock(blocks, address, entry);
        yield* eventsOf(layer, EventKind.allocate, entry, time);
        if (label !== 0) yield* eventsOf(layer, EventKind.label, { ...entry, bytes: label, stack: 0 }, time);
      } else if (action === 'free' || action === 'free_completed') {
        if (block === undefined) continue;
        blocks.delete(address);
        yield* eventsOf(layer, EventKind.free, { ...entry, bytes: block.bytes, pool: block.pool }, time);
      } else {
        // Overlapping segments are a fault in the snapshot; the later segment wins.
        for (const { whole, rest } of extents.cut(entry)) {
          yield* eventsOf(layer, EventKind.release, { ...whole, stack: entry.stack }, time);
          for (const part of rest) yield* eventsOf(layer, EventKind.growth, part, time);
        }
        if (action !== 'segment_alloc' && action !== 'segment_map') continue;
        extents.insert(entry);
        yield* eventsOf(layer, EventKind.growth, entry, time);
      }
    }
  }

  /** The state before the trace: the final state with the trace undone. */
  #before(segments: readonly PickledDict[], trace: TraceEntries, suffix: string): StateBeforeTrace {
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
          this.#keepBlock(blocks, address, { address, bytes, stream, stack: this.#stack(block['frames']), pool });
        }
        address += size;
      }
    }
    const pools = new Uint16Array(trace.count);
    for (let i = trace.count - 1; i >= 0; i--) {
      this.#budget.keepOne();
      const { action, poolId, address, bytes, stream } = trace.at(i);
      const pool = poolId === noPoolId ? extents.at(address)?.pool : this.#pool(this.#poolIds[poolId], suffix);
      if (pool !== undefined) pools[i] = pool + 1;
      const entry = { address, bytes, stream, stack: 0, pool };
      if (action === 'free' || action === 'free_completed') this.#keepBlock(blocks, address, entry);
      else if (action === 'alloc') blocks.delete(address);
      else if (action === 'segment_free' || action === 'segment_unmap') extents.insert(entry);
      else if (action !== 'oom') extents.cut(entry);
    }
    return { blocks, extents, pools };
  }

  #keepBlock(blocks: Map<number, Piece>, address: number, block: Piece): void {
    const { size } = blocks;
    // The map is about to be copied into a larger one.
    if (size >= 2 ** 12 && (size & (size - 1)) === 0) this.#budget.assertHeap(size * bytesOfLargerMap);
    blocks.set(address, block);
  }

  /** The beginnings and ends of annotated phases. */
  #annotations(snapshot: PickledDict): SnapshotEvent[] {
    const events: SnapshotEvent[] = [];
    const open: number[] = [];
    /** Those of each name, the innermost last. */
    const openOf = new Map<string, number[]>();
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
        const ofName = openOf.get(name);
        if (ofName === undefined) openOf.set(name, [phase]);
        else ofName.push(phase);
        events.push({ ...common, kind: EventKind.phaseBegin, first: phase });
      } else if (stage === 'END') {
        const phase = openOf.get(name)?.pop();
        if (phase === undefined) continue;
        const at = open.lastIndexOf(phase);
        this.#passOver(open, at);
        events.push({ ...common, kind: EventKind.phaseEnd, first: phase });
        open.splice(at, 1);
      }
    }
    return events.sort((a, b) => a.time - b.time);
  }

  /** Merges several series of events, each in order, into a run. */
  #merge(series: readonly Iterator<SnapshotEvent>[]): RecordedRun {
    /** Microseconds at which the run begins, when an event of the trace is met. */
    let start: number | undefined;
    const builder = new EventColumnsBuilder();
    const open: number[] = [];
    for (const { kind, layer, stream, stack, time, first, second } of inOrder(series)) {
      if (time !== beforeTrace) start ??= time >= leastDateMicroseconds ? Math.floor(time / 1000) * 1000 : 0;
      if (kind === EventKind.phaseEnd) {
        const at = open.lastIndexOf(first);
        this.#passOver(open, at);
        // By its time, it may end before it begins.
        if (at >= 0) open.splice(at, 1);
      }
      const nanoseconds = Math.max(0, (time - (start ?? 0)) * 1000);
      builder.append({ kind, layer, stream, thread: 0, phase: open.at(-1) ?? 0, stack, account: 0, time: nanoseconds, first, second });
      if (kind === EventKind.phaseBegin) open.push(first);
    }
    const startedAt = start === undefined || start === 0 ? undefined : start / 1000;
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
    let stack = this.#stacksOfLists.get(value) ?? this.#stacksOfOtherLists.get(value);
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
      if (this.#listsOfStacks[stack] === undefined) {
        this.#listsOfStacks[stack] = value;
        this.#stacksOfLists.set(value, stack);
      } else {
        this.#stacksOfOtherLists.set(value, stack);
      }
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
      this.#budget.spend(Cost.node, sharedObjects);
      return value;
    }
    return this.#fail(`is not a PyTorch snapshot: ${what} is not a dict`);
  }

  #list(value: PickledValue | undefined, what: string): readonly PickledValue[] {
    this.#budget.spend(Cost.node, sharedObjects);
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

function isEntry(value: PickledValue): value is PickledDict & { action: string } {
  return typeof value === 'object' && value !== null && !Array.isArray(value) && typeof value['action'] === 'string';
}

function layerOf(pools: Uint16Array, entry: number): number | undefined {
  const pool = pools[entry] as number;
  return pool === 0 ? undefined : pool - 1;
}

/** The events of several series in order of their times; of the same time, those of an earlier series first. */
function* inOrder(series: readonly Iterator<SnapshotEvent>[]): Generator<SnapshotEvent> {
  const rest = series.flatMap((each) => {
    const { value, done } = each.next();
    return done === true ? [] : [{ each, event: value }];
  });
  while (rest.length > 0) {
    let at = 0;
    for (let i = 1; i < rest.length; i++) if ((rest[i] as Head).event.time < (rest[at] as Head).event.time) at = i;
    const head = rest[at] as Head;
    yield head.event;
    const { value, done } = head.each.next();
    if (done === true) rest.splice(at, 1);
    else head.event = value;
  }
}

interface Head {
  readonly each: Iterator<SnapshotEvent>;
  event: SnapshotEvent;
}

/** An event of the layer of a device, and the same of the layer of its pool. */
function* eventsOf(layer: number, kind: EventKind, { address, bytes, stream, stack, pool }: Piece, time: number): Generator<SnapshotEvent> {
  const event = { kind, layer, stream, stack, time, first: kind === EventKind.failure ? 0 : address, second: bytes };
  yield event;
  if (pool !== undefined) yield { ...event, layer: pool };
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
