import { AsyncLocalStorage } from 'node:async_hooks';
import { setImmediate } from 'node:timers/promises';
import { formatValue } from '../../src/basics/errors.js';
import { checkOrder, formatOrderViolation, type OrderChecker } from '../../src/checking/index.js';
import { freeUnreachableBuffers, watchedBuffers } from '../../src/collector/free-unreachable-buffers.js';
import { isNotPermitted } from '../../src/driver/status.js';
import {
  type ArenaMemoryResource,
  type CachingMemoryResource,
  CisternError,
  type DeallocationFence,
  type DevicePointer,
  declareAllocation,
  declareFree,
  Event,
  type MonotonicMark,
  type MonotonicMemoryResource,
  OutOfMemoryError,
  Stream,
  type StreamOrderedStatistics,
  set,
  type TrimmingMemoryResource,
} from '../../src/index.js';
import { driverCallCounts } from '../../src/tools/testing/index.js';
import { madeElsewhere } from '../support/stream-order.js';
import { BufferSteps } from './buffer-steps.js';
import { DeclaringResource } from './declaring-resource.js';
import { DriverModel } from './driver-model.js';
import { Inspector } from './inspector.js';
import { misuse } from './misuse.js';
import type { Command, Program, StreamKind } from './program.js';
import type { Allocation, Scope, StreamSlot, Token } from './program-parts.js';
import { Stack } from './stack.js';
import { Violation } from './violation.js';

/** What programs did, to check whether they did enough. */
export interface ProgramCounts {
  programs: number;
  steps: number;
  allocations: number;
  /** Allocations that ran out of memory. */
  refusals: number;
  /**
   * Blocks that another stream had freed, and streams synchronized because memory ran out, as the
   * pooling resources count them.
   */
  reuses: number;
  synchronizations: number;
  /** Host functions, and interruptions of upstream calls. */
  callbacks: number;
  /** Fences that were recorded some time before the free. */
  oldFences: number;
  /** Frees under `'off'` that went to no leaf, none of which called the driver. */
  freesOff: number;
  /** Buffers that were created, and steps of buffers. */
  buffers: number;
  bufferSteps: number;
  /** Wrong calls, all refused. */
  misuses: number;
}

export const noCounts: Readonly<ProgramCounts> = {
  programs: 0,
  steps: 0,
  allocations: 0,
  refusals: 0,
  reuses: 0,
  synchronizations: 0,
  callbacks: 0,
  oldFences: 0,
  freesOff: 0,
  buffers: 0,
  bufferSteps: 0,
  misuses: 0,
};

type FreeOptions = Pick<Extract<Command, { do: 'free' }>, 'fence' | 'how' | 'by'>;

interface Mark {
  readonly mark: MonotonicMark;
  readonly serial: number;
}

/**
 * Commands after which only the called resources can differ; others give memory back, move it, or
 * end a stream.
 */
const callsOnly = new Set<Command['do']>([
  'allocate',
  'use',
  'free',
  'record',
  'wait',
  'dispose-event',
  'query',
  'hold',
  'release',
  'create',
  'mark',
  'keep',
  'launch',
  'interrupt',
]);
const thrownByHostFunction = new Error('thrown by a host function');
/** A place that precedes only work that waits for the stream's last event. */
const endOfStream = { stream: 0, count: Number.POSITIVE_INFINITY };
const maximumStreams = 6;
const maximumHolds = 8;
const outsideOfScopes = AsyncLocalStorage.snapshot();

/**
 * Runs programs one after another, and checks them against the models. One per process at a time.
 */
export class ProgramRunner implements Disposable {
  readonly counts: ProgramCounts = { ...noCounts };
  readonly #model = new DriverModel();
  readonly #checker = checkOrder({ stacks: false });
  readonly #inspector = new Inspector();
  #reads: readonly Promise<void>[] = [];

  constructor() {
    this.#model.ignore(this.#inspector.start, this.#inspector.end);
  }

  /**
   * Runs a program, except for its reads that do not block; see {@link ProgramRunner.settle}.
   * @throws Violation, or an unexpected error of a resource.
   */
  run(program: Program): void {
    this.counts.programs++;
    this.#model.begin();
    this.#checker.clear();
    this.#inspector.clear();
    if (program.isDefaultHeld) this.#model.hold(Stream.legacyDefault());
    let stack: Stack;
    try {
      stack = new Stack(program.stack);
    } catch (error) {
      this.#model.finish();
      if (error instanceof OutOfMemoryError) return;
      throw error;
    }
    const run = new Run(program, stack, this.#model, this.#inspector, this.#checker, this.counts);
    run.run();
    this.#reads = run.reads;
  }

  /** Whether the last program started reads that do not block. */
  get isReading(): boolean {
    return this.#reads.length > 0;
  }

  /**
   * Resolves when those reads have arrived.
   * @throws Violation
   */
  async settle(): Promise<void> {
    await Promise.all(this.#reads);
    this.#reads = [];
  }

  /**
   * Collects garbage, and checks whether events of earlier programs are left.
   * @throws Violation
   */
  async collect(): Promise<void> {
    for (let i = 0; i < 10 && this.#model.liveEvents.length > 0; i++) {
      this.#model.collectGarbage();
      await setImmediate();
    }
    const [program] = this.#model.liveEvents;
    if (program === undefined) return;
    throw new Violation(`${this.#model.liveEvents.length} events are left after all programs, the first made by program ${program}`);
  }

  [Symbol.dispose](): void {
    this.#inspector[Symbol.dispose]();
    this.#model[Symbol.dispose]();
    this.#checker[Symbol.dispose]();
  }
}

class Run {
  readonly #program: Program;
  readonly #stack: Stack;
  readonly #model: DriverModel;
  readonly #inspector: Inspector;
  readonly #checker: OrderChecker;
  readonly #counts: ProgramCounts;
  readonly #streams: StreamSlot[] = [];
  /** Streams that their owner destroyed, whose objects are left. */
  readonly #orphans: Stream[] = [];
  readonly #live: Allocation[] = [];
  readonly #events = Array.from({ length: 6 }, () => new Event());
  readonly #buffers: BufferSteps;
  /** Disposed streams and freed memory, for wrong calls. */
  readonly #ended: Stream[] = [];
  readonly #freed: Allocation[] = [];
  readonly #marks: Mark[] = [];
  #scopes: Scope[] = [];
  /** The scopes that have not ended, also those that an interruption is outside of. */
  #runningScopes = 0;
  #serial = 0;
  #values = 0;
  readonly #watchedBefore = watchedBuffers().count;
  /** The depth of nested interruptions. */
  #depth = 0;
  /**
   * Whether interruptions do nothing: the operation in progress would take back what they
   * allocated.
   */
  #isQuiet = false;
  #violation: unknown;

  constructor(program: Program, stack: Stack, model: DriverModel, inspector: Inspector, checker: OrderChecker, counts: ProgramCounts) {
    this.#program = program;
    this.#stack = stack;
    this.#model = model;
    this.#inspector = inspector;
    this.#checker = checker;
    this.#counts = counts;
    for (const kind of program.streams) this.#create(kind);
    this.#buffers = new BufferSteps({
      model,
      inspector,
      resource: new DeclaringResource(stack.top),
      stream: (number) => this.#stream(number),
      token: (slot) => this.#token(slot),
      order: (slot, before, by) => this.#order(slot, before, by),
      attempt: (action, mayBeRefused) =>
        this.#attempt(() => {
          action();
          return true;
        }, mayBeRefused) === true,
      innermostScope: () => this.#innermostScope(),
      serial: () => this.#serial++,
    });
  }

  /** Reads that do not block. */
  get reads(): readonly Promise<void>[] {
    return this.#buffers.reads;
  }

  run(): void {
    // Errors of host functions arrive here.
    process.setUncaughtExceptionCaptureCallback((error) => {
      if (error !== thrownByHostFunction) this.#violation ??= error;
    });
    const { emitWarning } = process;
    // No warnings are expected, except for frees that are refused in a host function and tried
    // again.
    process.emitWarning = (warning: string | Error) => {
      if (!this.#model.isInHostFunction) this.#violation ??= new Violation(`a process warning: ${warning}`);
    };
    try {
      this.#steps(this.#program.commands);
      this.#finish();
    } catch (error) {
      this.#abandon();
      throw error;
    } finally {
      process.emitWarning = emitWarning;
      process.setUncaughtExceptionCaptureCallback(null);
    }
  }

  /** Ends what can be ended after a violation. */
  #abandon(): void {
    this.#isQuiet = true;
    this.#model.finish();
    this.#buffers.abandon();
    this.#model.collect();
    freeUnreachableBuffers();
    for (const { stream, destroy } of this.#streams) {
      stream.dispose();
      destroy?.();
    }
    for (const stream of this.#orphans) stream.dispose();
    this.#stack.abandon();
  }

  #finish(): void {
    const { ending } = this.#program;
    this.#isQuiet = true;
    for (const { leaf } of this.#stack.leaves) leaf.interruption = undefined;
    if (ending === 'synchronize') {
      this.#model.finish();
      this.#stack.top.device.synchronizeSync();
    }
    // On disposal, the resource takes back what is live, and disposes the buffers in it.
    const isTaken = ending === 'synchronize' && this.#stack.ownsAllocations;
    if (isTaken) this.#buffers.beforeRewind();
    else this.#buffers.dispose();
    this.#model.collect();
    freeUnreachableBuffers();
    for (const allocation of [...this.#live]) {
      if (!(isTaken && allocation.from === this.#stack.top)) this.#free([allocation], this.#usable(allocation.stream), {});
    }
    this.#check('all');
    if (ending === 'end-streams') {
      for (const slot of [...this.#streams]) if (!isDefault(slot)) this.#end(slot, false);
      for (const stream of this.#orphans.splice(0)) stream.dispose();
    }
    for (const { resource } of this.#stack.layers) {
      if (!('statistics' in resource && 'reservedBytes' in resource)) continue;
      const { reuses = 0, synchronizations = 0 } = (resource as ArenaMemoryResource).statistics() as Partial<StreamOrderedStatistics>;
      this.#counts.reuses += reuses;
      this.#counts.synchronizations += synchronizations;
    }
    this.#stack.end();
    if (isTaken) this.#buffers.afterRewind();
    this.#buffers.dispose();
    this.#checkOrder();
    for (const slot of [...this.#streams]) if (!isDefault(slot)) this.#end(slot, false);
    for (const stream of this.#orphans) stream.dispose();
    this.#model.finish();
    for (const event of this.#events) event.dispose();
    this.#checkOrder();
    this.#inspector.verify();
    const [left] = this.#model.leftovers();
    if (left !== undefined) throw new Violation(`the program left ${left}`);
    const count = watchedBuffers().count - this.#watchedBefore;
    if (count !== 0) throw new Violation(`${count} buffers are watched after the last one was disposed`);
    if (this.#violation !== undefined) throw this.#violation;
  }

  #steps(commands: readonly Command[]): void {
    for (const command of commands) {
      this.#counts.steps++;
      this.#step(command);
      if (this.#depth > 0) continue;
      if (this.#violation !== undefined) throw this.#violation;
      this.#check(callsOnly.has(command.do) ? 'called' : 'all');
    }
  }

  #check(which: 'all' | 'called'): void {
    this.#stack.check(which);
    this.#checkOrder();
  }

  #checkOrder(): void {
    if (this.#model.violation !== undefined) throw this.#model.violation;
    const [report] = this.#checker.violations;
    if (report !== undefined) throw new Violation(formatOrderViolation(report));
  }

  #step(command: Command): void {
    switch (command.do) {
      case 'allocate':
        this.#allocate(command);
        break;
      case 'use':
        this.#withAllocation(command.allocation, (allocation) => this.#use(allocation, this.#stream(command.stream), command));
        break;
      case 'free':
        this.#freeSome(command);
        break;
      case 'record':
        this.#event(command.event).record(this.#stream(command.stream).stream);
        break;
      case 'wait':
        this.#stream(command.stream).stream.wait(this.#event(command.event));
        break;
      case 'dispose-event':
        this.#event(command.event).dispose();
        this.#events[command.event % this.#events.length] = new Event();
        break;
      case 'synchronize':
        this.#synchronize(command);
        break;
      case 'query':
        if (command.what === 'stream') this.#stream(command.which).stream.query();
        else this.#event(command.which).query();
        break;
      case 'hold':
        if (this.#model.holds < maximumHolds) this.#model.hold(this.#stream(command.stream).stream);
        break;
      case 'release':
        if (this.#model.holds > 0) this.#model.release(command.hold);
        break;
      case 'create':
        if (this.#streams.length < maximumStreams) this.#create(command.kind);
        break;
      case 'end': {
        const slot = this.#stream(command.stream);
        if (!isDefault(slot)) this.#end(slot, command.isUnannounced);
        break;
      }
      case 'buffer':
        this.#counts.buffers++;
        this.#buffers.create(command);
        break;
      case 'buffer-step':
        this.#counts.bufferSteps++;
        this.#buffers.step(command);
        break;
      case 'collect':
        this.#model.collect();
        freeUnreachableBuffers();
        break;
      case 'misuse':
        this.#misuse(command);
        break;
      case 'trim':
        this.#trim(command);
        break;
      case 'defragment':
        for (const { resource, kind } of this.#stack.layers)
          if (kind === 'arena') this.#attempt(() => (resource as ArenaMemoryResource).defragment(), isNever);
        break;
      case 'mark':
        this.#mark();
        break;
      case 'rewind':
        if (!this.#model.isInHostFunction) this.#rewind(command);
        break;
      case 'scope':
        this.#scope(command);
        break;
      case 'keep':
        this.#withAllocation(command.allocation, (allocation) => {
          allocation.scope?.cache.keep(allocation.pointer);
          allocation.scope = undefined;
        });
        break;
      case 'launch':
        this.#launch(command);
        break;
      case 'interrupt': {
        const { leaf } = pick(this.#stack.leaves, command.leaf);
        leaf.interruption ??= { call: command.call, run: () => this.#interruption(command.body) };
        break;
      }
    }
  }

  #allocate({ stream, units, less, alignment, fills, isSide }: Extract<Command, { do: 'allocate' }>): void {
    const slot = this.#stream(stream);
    const bytes = units === 0 ? 0 : Math.max(1, units * this.#program.unitBytes - less);
    const from = (isSide === true ? this.#stack.side : undefined) ?? this.#stack.top;
    const isTop = from === this.#stack.top;
    const scope = isTop ? this.#innermostScope() : undefined;
    const pointer = this.#attempt(
      () => from.allocate(bytes, slot.stream, isTop ? this.#stack.alignment(alignment) : 256),
      mayHaveEnded(slot),
    );
    if (pointer === undefined) return;
    if (bytes === 0) {
      from.deallocate(pointer, 0, this.#usable(slot).stream);
      return;
    }
    this.#counts.allocations++;
    if (slot.last === undefined) declareAllocation(pointer, bytes, slot.stream);
    const writer = this.#token(slot);
    const allocation: Allocation = {
      pointer,
      bytes,
      stream: slot,
      from,
      serial: this.#serial++,
      scope,
      writer,
      readers: [],
      isUsed: false,
      value: undefined,
    };
    this.#live.push(allocation);
    if (slot.last === undefined && fills === true) this.#fill(allocation, slot);
  }

  #use(allocation: Allocation, slot: StreamSlot, { how, by }: Extract<Command, { do: 'use' }>): void {
    const isRead = how === 'read';
    const before = isRead ? [allocation.writer] : [allocation.writer, ...allocation.readers];
    if (by === 'host' && !this.#model.isInHostFunction) {
      const { callbacks } = this.#counts;
      for (const { slot: other } of before) if (other !== slot && other.last === undefined) this.#synchronizeStream(other);
      // A host function may have freed the memory.
      if (this.#counts.callbacks !== callbacks) return;
      this.#order(
        slot,
        before.filter((token) => token.slot.last !== undefined),
      );
    } else {
      this.#order(slot, before, by === 'known' ? by : undefined);
    }
    if (isRead) this.#read(allocation, slot);
    else this.#fill(allocation, slot);
  }

  /** Writes the first and the last bytes, and declares a write of the whole. */
  #fill(allocation: Allocation, slot: StreamSlot): void {
    const { pointer, bytes } = allocation;
    allocation.isUsed = true;
    const value = 1 + (this.#values++ % 255);
    for (const [offset, count] of ends(bytes)) set(pointer + offset, value, 1, count, slot.stream);
    slot.stream.touch(pointer, bytes, 'write');
    allocation.value = value;
    allocation.writer = this.#token(slot);
    allocation.readers = [];
  }

  #read(allocation: Allocation, slot: StreamSlot): void {
    const { pointer, bytes, value } = allocation;
    allocation.isUsed = true;
    if (value !== undefined) {
      for (const [offset, count] of ends(bytes)) {
        this.#inspector.read(pointer + offset, slot.stream, `${bytes} bytes of memory`, new Uint8Array(count).fill(value));
      }
    }
    slot.stream.touch(pointer, bytes, 'read');
    allocation.readers.push(this.#token(slot));
  }

  #freeSome({ allocation, stream, count, ...options }: Extract<Command, { do: 'free' }>): void {
    if (this.#live.length === 0) return;
    const first = pick(this.#live, allocation);
    const slot = stream === undefined ? this.#usable(first.stream) : this.#stream(stream);
    this.#free(rotated(this.#live, allocation).slice(0, count), slot, options);
  }

  /**
   * With events as fences, all are recorded first, and used in reverse: the last that a resource
   * gets is the oldest. An event that was recorded earlier is used if it covers every use.
   */
  #free(allocations: readonly Allocation[], slot: StreamSlot, { fence, how, by }: FreeOptions): void {
    const frees = allocations.map((allocation, i) => {
      if (typeof fence !== 'number') {
        this.#retire(allocation, slot, by);
        return { allocation, fence };
      }
      const old = how === 'old' ? this.#oldFence(fence, allocation, slot) : undefined;
      if (old !== undefined) {
        this.#counts.oldFences++;
        this.#retire(allocation, slot, by, true);
        return { allocation, fence: old };
      }
      const event = this.#event(how === 'shared' ? fence : fence + i);
      this.#retire(allocation, slot, by);
      if (how !== 'shared') event.record(slot.stream);
      return { allocation, fence: event };
    });
    if (how === 'shared' && typeof fence === 'number') this.#event(fence).record(slot.stream);
    for (const { allocation, fence: asked } of frees.reverse()) this.#deallocate(allocation, slot, asked);
  }

  /**
   * An event that was recorded on the stream after every use of the memory, perhaps before the
   * memory was allocated.
   */
  #oldFence(number: number, { writer, readers, isUsed }: Allocation, slot: StreamSlot): Event | undefined {
    const uses = isUsed ? [writer, ...readers] : [];
    return rotated(this.#events, number).find(
      (event) => event.recordedOn === slot.stream.id && uses.every(({ place }) => this.#model.isCovered(place, event)),
    );
  }

  #deallocate(allocation: Allocation, slot: StreamSlot, fence: DeallocationFence | undefined): void {
    const { pointer, bytes, from } = allocation;
    // An interruption by the previous free may have recorded the event again.
    const isFence = !(fence instanceof Event) || (fence.handle >= 0 && fence.recordedOn === slot.stream.id);
    const free = () => {
      const callsBefore = this.#eventCalls();
      from.deallocate(pointer, bytes, slot.stream, isFence ? fence : undefined);
      if (fence === 'off' && callsBefore !== undefined) this.#expectNoEvents(callsBefore);
      return true;
    };
    if (slot.last === undefined && this.#attempt(free, mayHaveEnded(slot))) {
      this.#freed.push(allocation);
      return;
    }
    // Refused, because the stream has ended or a host function must not wait.
    const home = this.#usable(slot);
    this.#order(home, [this.#token(slot)]);
    declareAllocation(pointer, bytes, home.stream);
    this.#live.push({ ...allocation, writer: this.#token(home), readers: [], value: undefined });
  }

  /**
   * What a free under `'off'` must not change: the calls of the driver for events and waits, and those of
   * the leaves, which may wait. Undefined if a bump allocator or a plan decides about order.
   */
  #eventCalls(): readonly number[] | undefined {
    if (this.#stack.layers.some(({ kind }) => kind === 'monotonic' || kind === 'planned')) return undefined;
    const { eventRecords, eventWaits, synchronizations } = driverCallCounts();
    return [eventRecords + eventWaits + synchronizations, this.#stack.leaves.reduce((sum, { above }) => sum + above.calls, 0)];
  }

  #expectNoEvents(before: readonly number[]): void {
    const [events, calls] = this.#eventCalls() as readonly number[];
    if (calls !== before[1]) return;
    this.#counts.freesOff++;
    if (events !== before[0]) throw new Violation("a free under 'off' recorded an event, or waited");
  }

  /**
   * Memory is about to be freed in the order of a stream, or of an event recorded there earlier.
   */
  #retire(allocation: Allocation, slot: StreamSlot, by?: 'known', isBefore = false): void {
    this.#order(slot, [allocation.writer, ...allocation.readers], by);
    if (!isBefore) {
      if (allocation.value !== undefined) this.#read(allocation, slot);
      declareFree(allocation.pointer, allocation.bytes, slot.stream);
    }
    this.#live.splice(this.#live.indexOf(allocation), 1);
  }

  /** Makes a stream wait for places on others. */
  #order(slot: StreamSlot, before: readonly Token[], by?: 'known'): void {
    const done = new Set<StreamSlot>([slot]);
    for (const { slot: other, place } of before) {
      if (done.has(other) || (by === 'known' && this.#model.isOrdered(place, slot.stream))) continue;
      done.add(other);
      if (other.last !== undefined) {
        slot.stream.wait(other.last);
      } else {
        using event = new Event();
        event.record(other.stream);
        slot.stream.wait(event);
      }
    }
  }

  #misuse({ what, allocation, stream }: Extract<Command, { do: 'misuse' }>): void {
    const slot = this.#stream(stream);
    const { top, checksFrees } = this.#stack;
    const live = this.#live.length === 0 ? undefined : pick(this.#live, allocation);
    const freed = this.#freed.find(({ pointer, from }) => from === top && !isIn(top.live, pointer));
    const wrong = misuse(what, {
      resource: top.upstream,
      checksFrees,
      stream: slot.stream,
      live: live?.from === top ? live : undefined,
      freed,
      disposedStream: this.#ended.at(-1),
      otherEvent: this.#events.find(({ recordedOn }) => recordedOn !== undefined && recordedOn !== slot.stream.id),
    });
    if (wrong === undefined) return;
    const { state } = this.#model;
    this.#quietly(() => {
      try {
        this.#stack.misused(wrong.call);
      } catch (error) {
        if (error instanceof Violation || !isTyped(error)) throw error;
        return;
      }
      throw new Violation(`${wrong.name} was not refused`);
    });
    if (this.#model.state !== state) throw new Violation(`${wrong.name} was refused, but has changed what is held of the driver`);
    this.#counts.misuses++;
  }

  #synchronize({ what, which }: Extract<Command, { do: 'synchronize' }>): void {
    if (what === 'stream') this.#synchronizeStream(this.#stream(which));
    else if (what === 'event') this.#synchronizeEvent(this.#event(which));
    else this.#stack.top.device.synchronizeSync();
  }

  #synchronizeEvent(event: Event): void {
    try {
      event.synchronizeSync();
    } catch (error) {
      // A host function disposed it in the meantime.
      if (event.handle >= 0) throw error;
    }
  }

  /** A host function that runs during the wait may end the stream. */
  #synchronizeStream(slot: StreamSlot): void {
    this.#attempt(() => slot.stream.synchronizeSync(), mayHaveEnded(slot));
  }

  #create(kind: StreamKind): StreamSlot {
    let slot: StreamSlot;
    if (kind === 'announced' || kind === 'unannounced') {
      const { address, destroy } = madeElsewhere();
      slot = { stream: Stream.fromHandle(address, { announcesEnd: kind === 'announced' }), kind, destroy, last: undefined };
    } else {
      const stream = makeStream(kind);
      slot = { stream, kind, destroy: undefined, last: undefined };
    }
    if (this.#streams.every((other) => other.stream !== slot.stream)) this.#streams.push(slot);
    return slot;
  }

  #end(slot: StreamSlot, isUnannounced: boolean): void {
    const { stream, kind, destroy } = slot;
    slot.last = new Event();
    slot.last.record(stream);
    this.#streams.splice(this.#streams.indexOf(slot), 1);
    // Not during a call, which may be about to use it.
    if (kind === 'unannounced' && isUnannounced && this.#depth === 0) {
      this.#buffers.leave(slot, () => this.#stream(0));
      this.#orphans.push(stream);
    } else {
      const dispose = () => {
        stream.dispose();
        return true;
      };
      // For a stream that may be gone, the device is waited for, which a host function must not do.
      if (this.#attempt(dispose, isNever) === undefined) {
        slot.last.dispose();
        slot.last = undefined;
        this.#streams.push(slot);
        return;
      }
      this.#ended.push(stream);
    }
    destroy?.();
  }

  #trim({ layer, stream, units }: Extract<Command, { do: 'trim' }>): void {
    const resources = [...this.#stack.layers.map(({ resource }) => resource), ...this.#stack.leaves.map(({ leaf }) => leaf.upstream)];
    const trimming = resources.filter((resource): resource is TrimmingMemoryResource => 'trim' in resource);
    if (trimming.length === 0) return;
    const slot = this.#stream(stream);
    this.#attempt(() => pick(trimming, layer).trim(slot.stream, { bytesToKeep: units * this.#program.unitBytes }), mayHaveEnded(slot));
  }

  #mark(): void {
    const [monotonic] = this.#stack.reachable('monotonic');
    if (monotonic === undefined) return;
    const mark = (monotonic.layer.resource as MonotonicMemoryResource).mark();
    if (this.#marks.at(-1)?.mark !== mark) this.#marks.push({ mark, serial: this.#serial });
  }

  #rewind({ mark, to, frees }: Extract<Command, { do: 'rewind' }>): void {
    const [monotonic] = this.#stack.reachable('monotonic');
    if (monotonic === undefined || this.#isQuiet) return;
    const resource = monotonic.layer.resource as MonotonicMemoryResource;
    if (to === 'mark' && this.#marks.length === 0) return;
    const chosen = to === 'mark' ? mark % this.#marks.length : -1;
    const target = this.#marks[chosen];
    const slot = this.#stream(mark);
    this.#quietly(() => {
      if (frees || !monotonic.isTop) {
        this.#buffers.dispose(target?.serial);
        this.#model.collect();
        freeUnreachableBuffers();
      } else {
        this.#buffers.beforeRewind(target?.serial);
      }
      this.#takeBack(
        (allocation) => allocation.from === this.#stack.top && allocation.serial >= (target?.serial ?? 0),
        frees || !monotonic.isTop,
      );
      this.#marks.splice(chosen + 1);
      if (target !== undefined) resource.rewind(target.mark);
      else if (to === 'release') resource.release(slot.stream);
      else resource.reset();
      this.#buffers.afterRewind();
    });
  }

  /**
   * Handles allocations that a resource takes back next: frees them, or prepares them to be freed
   * in the order of their streams.
   */
  #takeBack(isMeant: (allocation: Allocation) => boolean, frees: boolean): void {
    for (const allocation of this.#live.filter(isMeant)) {
      if (!this.#live.includes(allocation)) continue;
      if (frees || allocation.stream.last !== undefined) {
        this.#free([allocation], this.#usable(allocation.stream), {});
      } else {
        this.#retire(allocation, allocation.stream);
        this.#stack.top.forget(allocation.pointer);
      }
    }
  }

  #scope({ cache, frees, body }: Extract<Command, { do: 'scope' }>): void {
    const caches = this.#stack.reachable('caching');
    if (caches.length === 0 || this.#model.isInHostFunction) {
      this.#steps(body);
      return;
    }
    const { layer, isTop } = pick(caches, cache);
    const resource = layer.resource as CachingMemoryResource;
    const scope: Scope = { cache: resource, isTop };
    resource.run(() => {
      this.#scopes.push(scope);
      this.#runningScopes++;
      try {
        this.#steps(body);
      } finally {
        this.#scopes.pop();
      }
      this.#quietly(() => {
        this.#takeBack((allocation) => allocation.scope === scope, frees || !isTop);
        this.#buffers.beforeScopeEnds(scope);
      });
    });
    this.#runningScopes--;
    this.#buffers.afterScopeEnded(scope);
  }

  /** The run that an allocation is made in: of the uppermost cache with a run, the innermost. */
  #innermostScope(): Scope | undefined {
    for (const { layer } of this.#stack.reachable('caching')) {
      const scope = this.#scopes.findLast(({ cache }) => cache === layer.resource);
      if (scope !== undefined) return scope;
    }
    return undefined;
  }

  #launch({ stream, body, throws }: Extract<Command, { do: 'launch' }>): void {
    if (this.#model.isInHostFunction) return;
    const target = this.#model.hostFunctionStream ?? this.#stream(stream).stream;
    if (target.isDisposed || this.#orphans.includes(target)) return;
    this.#model.launchHostFunction(target, () => {
      // It may run in an interruption, which is outside of scopes, of code that is inside.
      const isInScope = this.#runningScopes > 0;
      this.#interruption(body);
      // Node loses the scopes of the current code when an uncaught exception is caught.
      if (throws === true && !isInScope) throw thrownByHostFunction;
    });
  }

  /** During a call; nothing may be thrown here. */
  #interruption(commands: readonly Command[]): void {
    if (this.#isQuiet || this.#violation !== undefined) return;
    this.#counts.callbacks++;
    const scopes = this.#scopes;
    this.#scopes = [];
    this.#depth++;
    try {
      outsideOfScopes(() => this.#steps(commands));
    } catch (error) {
      this.#violation ??= error;
    } finally {
      this.#depth--;
      this.#scopes = scopes;
    }
  }

  #quietly(action: () => void): void {
    const wasQuiet = this.#isQuiet;
    this.#isQuiet = true;
    try {
      action();
    } finally {
      this.#isQuiet = wasQuiet;
    }
  }

  /**
   * Calls a function that may run out of memory, that must not wait here, or whose stream or memory
   * an interruption may have ended.
   */
  #attempt<T>(action: () => T, mayBeRefused: (code: string) => boolean): T | undefined {
    try {
      return action();
    } catch (error) {
      if (error instanceof OutOfMemoryError) this.#counts.refusals++;
      else if (this.#model.isInHostFunction && isNotPermitted(error)) return undefined;
      else if (error instanceof CisternError && mayBeRefused(error.code)) return undefined;
      else throw error;
      return undefined;
    }
  }

  /** The current end of a stream's queue. */
  #token(slot: StreamSlot): Token {
    return { slot, place: slot.last === undefined ? this.#model.mark(slot.stream) : endOfStream };
  }

  #withAllocation(number: number, action: (allocation: Allocation) => void): void {
    if (this.#live.length > 0) action(pick(this.#live, number));
  }

  #stream(number: number): StreamSlot {
    return this.#streams.length > 0 ? pick(this.#streams, number) : this.#create('non-blocking');
  }

  /** The stream, or another one if it has ended. */
  #usable(slot: StreamSlot): StreamSlot {
    return slot.last === undefined ? slot : this.#stream(0);
  }

  #event(number: number): Event {
    return pick(this.#events, number);
  }
}

function isDefault({ kind }: StreamSlot): boolean {
  return kind === 'legacy-default' || kind === 'per-thread-default';
}

function makeStream(kind: StreamKind): Stream {
  if (kind === 'legacy-default') return Stream.legacyDefault();
  return kind === 'per-thread-default' ? Stream.perThreadDefault() : new Stream({ nonBlocking: kind === 'non-blocking' });
}

function mayHaveEnded(slot: StreamSlot): (code: string) => boolean {
  return (code) => code === 'ERR_CISTERN_DISPOSED' && slot.last !== undefined;
}

function isNever(): boolean {
  return false;
}

function isTyped(error: unknown): boolean {
  const code: unknown = error instanceof Object ? Reflect.get(error, 'code') : undefined;
  const isOurs = error instanceof CisternError || error instanceof TypeError || error instanceof RangeError;
  return isOurs && typeof code === 'string' && code.startsWith('ERR_');
}

/** Whether an address lies in one of the ranges. */
function isIn(ranges: ReadonlyMap<DevicePointer, number>, address: DevicePointer): boolean {
  for (const [pointer, bytes] of ranges) if (pointer <= address && address < pointer + bytes) return true;
  return false;
}

/** The first and the last bytes of memory, as offset and count. */
function ends(bytes: number): [number, number][] {
  if (bytes <= 256) return [[0, bytes]];
  return [
    [0, 192],
    [bytes - 64, 64],
  ];
}

function pick<T>(values: readonly T[], number: number): T {
  return values.at(number % values.length) as T;
}

function rotated<T>(values: readonly T[], number: number): T[] {
  const start = (number % values.length) + (number < 0 ? values.length : 0);
  return [...values.slice(start), ...values.slice(0, start)];
}

/**
 * A description of what went wrong. An error of a resource includes its origin; a violation is
 * found only after the call.
 */
export function describeViolation(error: unknown): string {
  if (error instanceof Violation) return error.message;
  return error instanceof Error ? (error.stack ?? error.message) : formatValue(error);
}
