import { AsyncLocalStorage } from 'node:async_hooks';
import { formatValue } from '../../src/errors.js';
import {
  type ArenaMemoryResource,
  type CachingMemoryResource,
  checkOrder,
  type DeallocationFence,
  type DevicePointer,
  DriverError,
  declareAllocation,
  declareFree,
  Event,
  formatOrderReport,
  LifetimeError,
  type MonotonicMark,
  type MonotonicMemoryResource,
  type OrderChecker,
  OutOfMemoryError,
  Stream,
  set,
  type TrimmingMemoryResource,
} from '../../src/index.js';
import { madeElsewhere } from '../support/stream-order.js';
import type { Command, Program, StreamKind } from './program.js';
import { Stack } from './stack.js';
import { Stalls } from './stalls.js';
import { Violation } from './violation.js';

/** What programs did, for those who want to know whether they did enough. */
export interface ProgramCounts {
  programs: number;
  steps: number;
  allocations: number;
  /** Allocations that there was no memory for. */
  refusals: number;
  /** Blocks that another stream had freed, and streams waited for because memory ran out, as the keepers count them. */
  reuses: number;
  synchronizations: number;
  /** Host functions, and interruptions of upstream calls. */
  callbacks: number;
}

/** A stream of a program. */
interface StreamSlot {
  readonly stream: Stream;
  readonly kind: StreamKind;
  /** Destroys a stream that was made elsewhere. */
  readonly destroy: (() => void) | undefined;
  /** What was recorded last on it, once it has ended. */
  last: Event | undefined;
}

interface Allocation {
  readonly pointer: DevicePointer;
  readonly bytes: number;
  readonly stream: StreamSlot;
  /** How many there were before. */
  readonly serial: number;
  /** The run of a cache that takes it back. */
  scope: Scope | undefined;
  /** Where it was allocated, or written last. */
  writer: StreamSlot;
  /** Where it was read since. */
  readers: StreamSlot[];
}

interface Scope {
  readonly cache: CachingMemoryResource;
}

interface Mark {
  readonly mark: MonotonicMark;
  readonly serial: number;
}

/** CUDA_ERROR_NOT_PERMITTED. */
const notPermitted = 800;
/** Commands after which only those resources differ that were called; others give memory back, move it, or end a stream. */
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
const maximumStreams = 6;
const maximumHolds = 8;
const outsideOfScopes = AsyncLocalStorage.snapshot();

/** Runs programs, one after another, and holds them against the models. One for a process at a time. */
export class ProgramRunner implements Disposable {
  readonly counts: ProgramCounts = {
    programs: 0,
    steps: 0,
    allocations: 0,
    refusals: 0,
    reuses: 0,
    synchronizations: 0,
    callbacks: 0,
  };
  readonly #stalls = new Stalls();
  readonly #checker = checkOrder({ stacks: false });

  /** @throws Violation, or what a resource throws that it must not. */
  run(program: Program): void {
    this.counts.programs++;
    this.#checker.clear();
    if (program.isDefaultHeld) this.#stalls.hold(Stream.legacyDefault());
    let stack: Stack;
    try {
      stack = new Stack(program.stack, this.#stalls);
    } catch (error) {
      this.#stalls.finish();
      if (error instanceof OutOfMemoryError) return;
      throw error;
    }
    const run = new Run(program, stack, this.#stalls, this.#checker, this.counts);
    try {
      run.run();
    } catch (error) {
      run.abandon();
      throw error;
    }
  }

  [Symbol.dispose](): void {
    this.#stalls[Symbol.dispose]();
    this.#checker[Symbol.dispose]();
  }
}

class Run {
  readonly #program: Program;
  readonly #stack: Stack;
  readonly #stalls: Stalls;
  readonly #checker: OrderChecker;
  readonly #counts: ProgramCounts;
  readonly #streams: StreamSlot[] = [];
  /** Streams that their owner destroyed, whose objects are left. */
  readonly #orphans: Stream[] = [];
  readonly #live: Allocation[] = [];
  readonly #events = [new Event(), new Event(), new Event()];
  readonly #marks: Mark[] = [];
  #scopes: Scope[] = [];
  #serial = 0;
  /** How many interruptions this is in. */
  #depth = 0;
  /** Whether interruptions do nothing: what they allocated would be taken back by what is going on. */
  #isQuiet = false;
  #violation: unknown;

  constructor(program: Program, stack: Stack, stalls: Stalls, checker: OrderChecker, counts: ProgramCounts) {
    this.#program = program;
    this.#stack = stack;
    this.#stalls = stalls;
    this.#checker = checker;
    this.#counts = counts;
    for (const kind of program.streams) this.#create(kind);
  }

  run(): void {
    this.#steps(this.#program.commands);
    this.#finish();
  }

  /** Ends what can be ended after a violation. */
  abandon(): void {
    this.#isQuiet = true;
    this.#stalls.finish();
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
      this.#stalls.finish();
      this.#stack.top.device.synchronizeSync();
    }
    if (ending !== 'synchronize' || !this.#stack.ownsAllocations) {
      for (const allocation of [...this.#live]) this.#free([allocation], this.#usable(allocation.stream), undefined);
    }
    this.#check('all');
    if (ending === 'end-streams') {
      for (const slot of [...this.#streams]) if (slot.kind !== 'legacy-default') this.#end(slot, false);
      for (const stream of this.#orphans.splice(0)) stream.dispose();
    }
    for (const { resource } of this.#stack.layers) {
      if (!('statistics' in resource && 'reservedBytes' in resource)) continue;
      const { reuses, synchronizations } = (resource as ArenaMemoryResource).statistics();
      this.#counts.reuses += reuses;
      this.#counts.synchronizations += synchronizations;
    }
    this.#stack.end();
    this.#checkOrder();
    for (const slot of [...this.#streams]) if (slot.kind !== 'legacy-default') this.#end(slot, false);
    for (const stream of this.#orphans) stream.dispose();
    this.#stalls.finish();
    for (const event of this.#events) event.dispose();
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
    const [report] = this.#checker.reports;
    if (report !== undefined) throw new Violation(formatOrderReport(report));
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
        if (this.#stalls.holds < maximumHolds) this.#stalls.hold(this.#stream(command.stream).stream);
        break;
      case 'release':
        if (this.#stalls.holds > 0) this.#stalls.release(command.hold);
        break;
      case 'create':
        if (this.#streams.length < maximumStreams) this.#create(command.kind);
        break;
      case 'end': {
        const slot = this.#stream(command.stream);
        if (slot.kind !== 'legacy-default' && !this.#stalls.isAwaited(slot.stream)) this.#end(slot, command.isUnannounced);
        break;
      }
      case 'trim':
        this.#trim(command);
        break;
      case 'defragment':
        for (const { resource, kind } of this.#stack.layers)
          if (kind === 'arena') this.#attempt(() => (resource as ArenaMemoryResource).defragment());
        break;
      case 'mark':
        this.#mark();
        break;
      case 'rewind':
        if (!this.#stalls.isInHostFunction) this.#rewind(command);
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

  #allocate({ stream, units, less, alignment }: Extract<Command, { do: 'allocate' }>): void {
    const slot = this.#stream(stream);
    const bytes = units === 0 ? 0 : Math.max(1, units * this.#program.unitBytes - less);
    const scope = this.#innermostScope();
    const pointer = this.#attempt(() => this.#stack.top.allocate(bytes, slot.stream, this.#stack.alignment(alignment)), slot);
    if (pointer === undefined) return;
    if (bytes === 0) {
      this.#stack.top.deallocate(pointer, 0, this.#usable(slot).stream);
      return;
    }
    this.#counts.allocations++;
    if (slot.last === undefined) declareAllocation(pointer, bytes, slot.stream);
    this.#live.push({ pointer, bytes, stream: slot, serial: this.#serial++, scope, writer: slot, readers: [] });
  }

  #use(allocation: Allocation, slot: StreamSlot, { how, by }: Extract<Command, { do: 'use' }>): void {
    const { pointer, bytes } = allocation;
    const isRead = how === 'read';
    const before = isRead ? [allocation.writer] : [allocation.writer, ...allocation.readers];
    if (by === 'host' && !this.#stalls.isInHostFunction) {
      const { callbacks } = this.#counts;
      for (const other of before) if (other !== slot && other.last === undefined) this.#synchronizeStream(other);
      // A host function may have freed the memory.
      if (this.#counts.callbacks !== callbacks) return;
      this.#order(
        slot,
        before.filter((other) => other.last !== undefined),
      );
    } else {
      this.#order(slot, before);
    }
    if (isRead) {
      slot.stream.touch(pointer, bytes, 'read');
      allocation.readers.push(slot);
      return;
    }
    if (how === 'set') {
      this.#stalls.submitted(slot.stream);
      set(pointer, 1, 1, bytes, slot.stream);
    } else {
      slot.stream.touch(pointer, bytes, 'write');
    }
    allocation.writer = slot;
    allocation.readers = [];
  }

  #freeSome({ allocation, stream, fence, count }: Extract<Command, { do: 'free' }>): void {
    if (this.#live.length === 0) return;
    const first = pick(this.#live, allocation);
    const slot = stream === undefined ? this.#usable(first.stream) : this.#stream(stream);
    this.#free(rotated(this.#live, allocation).slice(0, count), slot, fence);
  }

  /** With an event as the fence, all are recorded first, and freed in reverse: the recording that a resource hears of last is the oldest. */
  #free(allocations: readonly Allocation[], slot: StreamSlot, fence: Extract<Command, { do: 'free' }>['fence']): void {
    const frees = allocations.map((allocation, i) => {
      this.#retire(allocation, slot);
      if (typeof fence !== 'number') return { allocation, fence };
      const event = this.#event(fence + i);
      event.record(slot.stream);
      return { allocation, fence: event };
    });
    for (const { allocation, fence: asked } of frees.reverse()) this.#deallocate(allocation, slot, asked);
  }

  #deallocate(allocation: Allocation, slot: StreamSlot, fence: DeallocationFence | undefined): void {
    const { pointer, bytes } = allocation;
    // An interruption by the free before may have recorded the event again.
    const isFence = !(fence instanceof Event) || (fence.handle >= 0 && fence.recordedOn === slot.stream.id);
    const free = () => {
      this.#stack.top.deallocate(pointer, bytes, slot.stream, isFence ? fence : undefined);
      return true;
    };
    if (slot.last === undefined && this.#attempt(free, slot)) return;
    // Refused, because the stream has ended or a host function must not wait.
    const home = this.#usable(slot);
    this.#order(home, [slot]);
    declareAllocation(pointer, bytes, home.stream);
    this.#live.push({ ...allocation, writer: home, readers: [] });
  }

  /** Memory is about to be freed in the order of a stream. */
  #retire(allocation: Allocation, slot: StreamSlot): void {
    this.#order(slot, [allocation.writer, ...allocation.readers]);
    declareFree(allocation.pointer, allocation.bytes, slot.stream);
    this.#live.splice(this.#live.indexOf(allocation), 1);
  }

  /** Makes a stream wait for others. */
  #order(slot: StreamSlot, before: readonly StreamSlot[]): void {
    for (const other of new Set(before)) {
      if (other === slot) continue;
      if (other.last !== undefined) {
        slot.stream.wait(other.last);
      } else {
        using event = new Event();
        event.record(other.stream);
        slot.stream.wait(event);
      }
    }
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
      // A host function that ran meanwhile has disposed it.
      if (event.handle >= 0) throw error;
    }
  }

  /** A host function that runs meanwhile may end the stream. */
  #synchronizeStream(slot: StreamSlot): void {
    this.#attempt(() => slot.stream.synchronizeSync(), slot);
  }

  #create(kind: StreamKind): StreamSlot {
    let slot: StreamSlot;
    if (kind === 'announced' || kind === 'unannounced') {
      const { address, destroy } = madeElsewhere();
      slot = { stream: Stream.fromHandle(address, { announcesEnd: kind === 'announced' }), kind, destroy, last: undefined };
    } else {
      const stream = kind === 'legacy-default' ? Stream.legacyDefault() : new Stream({ nonBlocking: kind === 'non-blocking' });
      slot = { stream, kind, destroy: undefined, last: undefined };
    }
    // Those made elsewhere are not non-blocking.
    if (kind !== 'legacy-default' && kind !== 'non-blocking') this.#stalls.addBlocking(slot.stream);
    if (kind !== 'legacy-default' || this.#streams.every((other) => other.kind !== kind)) this.#streams.push(slot);
    return slot;
  }

  #end(slot: StreamSlot, isUnannounced: boolean): void {
    const { stream, kind, destroy } = slot;
    slot.last = new Event();
    slot.last.record(stream);
    this.#streams.splice(this.#streams.indexOf(slot), 1);
    // Not in the middle of a call, which may be about to use it.
    if (kind === 'unannounced' && isUnannounced && this.#depth === 0) this.#orphans.push(stream);
    else stream.dispose();
    destroy?.();
  }

  #trim({ layer, stream, units }: Extract<Command, { do: 'trim' }>): void {
    const resources = [...this.#stack.layers.map(({ resource }) => resource), ...this.#stack.leaves.map(({ leaf }) => leaf.upstream)];
    const trimming = resources.filter((resource): resource is TrimmingMemoryResource => 'trim' in resource);
    if (trimming.length === 0) return;
    const slot = this.#stream(stream);
    this.#attempt(() => pick(trimming, layer).trim(slot.stream, { bytesToKeep: units * this.#program.unitBytes }), slot);
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
      this.#takeBack((allocation) => allocation.serial >= (target?.serial ?? 0), frees || !monotonic.isTop);
      this.#marks.splice(chosen + 1);
      if (target !== undefined) resource.rewind(target.mark);
      else if (to === 'release') resource.release(slot.stream);
      else resource.reset();
    });
  }

  /** Lets go of allocations that a resource takes back next: frees them, or prepares them to be freed in the order of their streams. */
  #takeBack(isMeant: (allocation: Allocation) => boolean, frees: boolean): void {
    for (const allocation of this.#live.filter(isMeant)) {
      if (!this.#live.includes(allocation)) continue;
      if (frees || allocation.stream.last !== undefined) {
        this.#free([allocation], this.#usable(allocation.stream), undefined);
      } else {
        this.#retire(allocation, allocation.stream);
        this.#stack.top.forget(allocation.pointer);
      }
    }
  }

  #scope({ cache, frees, body }: Extract<Command, { do: 'scope' }>): void {
    const caches = this.#stack.reachable('caching');
    if (caches.length === 0 || this.#stalls.isInHostFunction) {
      this.#steps(body);
      return;
    }
    const { layer, isTop } = pick(caches, cache);
    const resource = layer.resource as CachingMemoryResource;
    const scope: Scope = { cache: resource };
    resource.run(() => {
      this.#scopes.push(scope);
      try {
        this.#steps(body);
      } finally {
        this.#scopes.pop();
      }
      this.#quietly(() => this.#takeBack((allocation) => allocation.scope === scope, frees || !isTop));
    });
  }

  /** The run that an allocation is made in: of the uppermost cache that has one, the innermost. */
  #innermostScope(): Scope | undefined {
    for (const { layer } of this.#stack.reachable('caching')) {
      const scope = this.#scopes.findLast(({ cache }) => cache === layer.resource);
      if (scope !== undefined) return scope;
    }
    return undefined;
  }

  #launch({ stream, body }: Extract<Command, { do: 'launch' }>): void {
    if (this.#stalls.isInHostFunction) return;
    const target = this.#stalls.hostFunctionStream ?? this.#stream(stream).stream;
    if (!target.isDisposed && !this.#orphans.includes(target)) this.#stalls.launchHostFunction(target, () => this.#interruption(body));
  }

  /** In the middle of a call; nothing may be thrown here. */
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

  /** Calls a function that may find no memory, a stream that an interruption has ended, or that it must not wait. */
  #attempt<T>(action: () => T, slot?: StreamSlot): T | undefined {
    try {
      return action();
    } catch (error) {
      if (error instanceof OutOfMemoryError) this.#counts.refusals++;
      else if (error instanceof DriverError && error.driverStatus === notPermitted && this.#stalls.isInHostFunction) return undefined;
      else if (error instanceof LifetimeError && error.code === 'ERR_CISTERN_DISPOSED' && slot?.last !== undefined) return undefined;
      else throw error;
      return undefined;
    }
  }

  #withAllocation(number: number, action: (allocation: Allocation) => void): void {
    if (this.#live.length > 0) action(pick(this.#live, number));
  }

  #stream(number: number): StreamSlot {
    return this.#streams.length > 0 ? pick(this.#streams, number) : this.#create('non-blocking');
  }

  /** The stream, or another one where it has ended. */
  #usable(slot: StreamSlot): StreamSlot {
    return slot.last === undefined ? slot : this.#stream(0);
  }

  #event(number: number): Event {
    return pick(this.#events, number);
  }
}

function pick<T>(values: readonly T[], number: number): T {
  return values[number % values.length] as T;
}

function rotated<T>(values: readonly T[], number: number): T[] {
  const start = number % values.length;
  return [...values.slice(start), ...values.slice(0, start)];
}

/** What went wrong. An error of a resource says where it comes from; a violation was found only after the call. */
export function describeViolation(error: unknown): string {
  if (error instanceof Violation) return error.message;
  return error instanceof Error ? (error.stack ?? error.message) : formatValue(error);
}
