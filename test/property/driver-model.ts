/**
 * The driver calls as seen from JavaScript: an oracle of stream order that shares nothing with the
 * order checker.
 *
 * The addon's functions are wrapped below everything else in cistern, and each call is entered into
 * records in plain TypeScript:
 *
 *     stream   a vector clock: how many operations of every stream precede what is queued on it next
 *     event    the clock of its stream at the latest recording
 *     host     the clock of everything that the host knows to have run; later work comes after it
 *     memory   for each range of bytes the last write, and the reads since
 *
 * Two rules are checked. An operation that uses memory comes after every earlier operation that it
 * conflicts with, whoever owned the bytes then; memory that goes back to the driver's pool does so
 * after every use of it; plain memory goes back after the host knows of every use. And no call
 * names a stream that its owner has destroyed. The records also show what was allocated, created
 * and held, and has not been given back.
 *
 * The streams of the software device run on their own threads, so the answer of a query, and the
 * time at which a host function runs, depend on timing. Reproducible programs need rules for these,
 * which this model enforces:
 *
 *  - A query of a stream or an event is true exactly if nothing before it is stalled: by a hold, or by
 *    a host function that has not run. Queries that are not stalled are repeated until they are true.
 *  - Every blocking call releases all holds. Host functions run during it if it waits for them, and
 *    not otherwise.
 *  - The garbage collector finds what the program dropped before the collection, and nothing else.
 *
 * For the second rule, host functions are only ever pending on one stream at a time.
 */

import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { formatPointer } from '../../src/basics/errors.js';
import { interpose, mailbox, type NativeBinding, NativeMemoryKind, NativeStatus, native } from '../../src/driver/native.js';
import { Device, DeviceBuffer, type Event, type Stream, type StreamHold } from '../../src/index.js';
import { driverCallCounts } from '../../src/tools/testing/driver-call-counts.js';
import { Violation } from './violation.js';

/** By stream number: a count of its operations. */
type Clock = number[];

const isCuda = process.env['CISTERN_DEVICE'] === 'cuda';
/** Longer than any wait for work that nothing stalls. */
const longestWaitMilliseconds = 20_000;

interface StreamBooks {
  readonly id: number;
  readonly device: number;
  readonly kind: 'legacy' | 'blocking' | 'non-blocking';
  number: number;
  clock: Clock;
  /** Whether its owner has destroyed it. */
  isGone: boolean;
}

/** One operation of a stream. */
export interface Place {
  readonly stream: number;
  readonly count: number;
}

interface Use extends Place {
  readonly start: number;
  readonly end: number;
  readonly isWrite: boolean;
  readonly what: string;
  readonly streamId: number;
}

/** Something that a stream stands still for. */
interface Stall extends Place {
  readonly before: Clock;
}

/** What was taken from the driver and not given back. */
interface Holdings {
  readonly plain: Map<number, number>;
  /** By address: bytes and pool. */
  readonly pooled: Map<number, readonly [number, number]>;
  readonly pools: Set<number>;
  readonly streams: Set<number>;
  readonly events: Map<number, number>;
  readonly holds: Map<number, Stall>;
}

const patience = 2000;

/** One per process: it changes the functions of the addon until it is disposed. */
export class DriverModel implements Disposable {
  /** The first violation. */
  violation: Violation | undefined;
  /** The number of the program; events are recorded with it. */
  #programs = 0;
  #streams: StreamBooks[] = [];
  readonly #byId = new Map<number, StreamBooks>();
  readonly #byHandle = new Map<number, StreamBooks>();
  readonly #createdHandles = new Set<number>();
  #hasWaitedOnLegacy = false;
  readonly #events = new Map<number, Clock>();
  #host: Clock = [];
  #uses: Use[] = [];
  #ignored = { start: 0, end: 0 };
  readonly #holdings: Holdings = {
    plain: new Map(),
    pooled: new Map(),
    pools: new Set(),
    streams: new Set(),
    events: new Map(),
    holds: new Map(),
  };
  #plainBytesBefore = 0;
  /** The call that waits for host functions, and what it waits for after them. */
  #stopped: { readonly handle: number; readonly position: Clock } | undefined;
  readonly #holds: StreamHold[] = [];
  readonly #hostFunctions: Stall[] = [];
  #hostFunctionStream: Stream | undefined;
  readonly #running: Stall[] = [];
  readonly #slots = new WeakMap<object, number>();
  readonly #dropped = new Set<number>();
  readonly #collectable = new Set<number>();
  readonly #own: NativeBinding;
  readonly #addon: NativeBinding;
  readonly #gc: (options?: object) => void;
  readonly #exposed: unknown;
  #isDisposed = false;

  constructor() {
    Device.get();
    interpose();
    this.#addon = native();
    this.#own = { ...this.#addon };
    Object.assign(this.#addon, this.#wrappers(this.#own));
    this.#exposed = Reflect.get(globalThis, 'gc');
    this.#gc = realCollector();
    // Code that read it from here may still have it.
    // An options argument that is undefined makes new versions of V8 collect recent objects only.
    Reflect.set(globalThis, 'gc', (...options: [object?]) => (this.#isDisposed ? this.#gc(...options) : this.collect()));
  }

  /** Ignores a range of memory. */
  ignore(start: number, end: number): void {
    this.#ignored = { start, end };
  }

  /** Resets the records. Everything must have run. */
  begin(): void {
    this.#programs++;
    this.violation = undefined;
    this.#host = [];
    this.#uses = [];
    this.#events.clear();
    this.#stopped = undefined;
    this.#streams = this.#streams.filter((stream) => {
      const isOpen = !stream.isGone || [...this.#byHandle.values()].includes(stream);
      if (!isOpen) this.#byId.delete(stream.id);
      return isOpen;
    });
    for (const [i, stream] of this.#streams.entries()) {
      stream.number = i;
      stream.clock = [];
    }
    this.#plainBytesBefore = sum(this.#holdings.plain.values());
  }

  /**
   * What the last program did not give back, in words; empty if nothing. Events may be left to the
   * collector.
   */
  leftovers(): string[] {
    const { plain, pooled, pools, holds } = this.#holdings;
    const left = (count: number, what: string) => (count === 0 ? [] : [`${count} ${what}`]);
    return [
      ...left(sum(plain.values()) - this.#plainBytesBefore, 'bytes of the driver'),
      ...left(sum([...pooled.values()].map(([bytes]) => bytes)), "bytes of the driver's pools"),
      ...left(pools.size, 'pools of the driver'),
      ...left(holds.size, 'holds'),
      ...left(this.#hostFunctions.length, 'host functions'),
      ...left(this.#dropped.size + this.#collectable.size, 'dropped buffers'),
    ];
  }

  /**
   * The current holdings as text, for comparison: equal states give equal texts. Events may be left
   * to the collector.
   */
  get state(): string {
    const { plain, pooled, pools, streams } = this.#holdings;
    return JSON.stringify([[...plain], [...pooled], [...pools], [...streams]]);
  }

  /** Streams that were created and not destroyed. */
  get createdStreams(): number {
    return this.#holdings.streams.size;
  }

  /** Events that were created and not destroyed, each as the number of its program. */
  get liveEvents(): readonly number[] {
    return [...this.#holdings.events.values()].sort((a, b) => a - b);
  }

  /** Whether work queued on a stream from now on comes after a place. */
  isOrdered(place: Place, stream: Stream): boolean {
    return this.#comesAfter(this.#books(stream.identity.handle), place);
  }

  /** Whether work that waits for an event, as last recorded, comes after a place. */
  isCovered({ stream, count }: Place, event: Event): boolean {
    return (this.#events.get(event.handle)?.[stream] ?? 0) >= count;
  }

  /** A place on a stream after everything that is queued there. */
  mark(stream: Stream): Place {
    const books = this.#books(stream.identity.handle);
    return { stream: books.number, count: this.#count(books) };
  }

  /** Whether this is called from a host function, which must not block. */
  get isInHostFunction(): boolean {
    return this.#running.length > 0;
  }

  get holds(): number {
    return this.#holds.length;
  }

  /** The stream that host functions are pending on. */
  get hostFunctionStream(): Stream | undefined {
    return this.#hostFunctions.length > 0 ? this.#hostFunctionStream : undefined;
  }

  hold(stream: Stream): void {
    this.#holds.push(stream.hold());
  }

  /** Releases one of the holds. */
  release(which: number): void {
    this.#holds.splice(which % this.#holds.length, 1)[0]?.release();
  }

  /** Queues a function on the stream that has others pending, otherwise on the given one. */
  launchHostFunction(stream: Stream, fn: () => void): void {
    stream.launchHostFunction(fn);
    this.#hostFunctionStream = stream;
  }

  /** Lets everything run. */
  finish(): void {
    this.#releaseHolds();
    Device.get().synchronizeSync();
  }

  /** The program has dropped its reference to a buffer: the next collection finds it. */
  drop(buffer: DeviceBuffer): void {
    const standIn = DeviceBuffer.standInOf(buffer);
    if (standIn === undefined) return;
    // One that was made before this model is not known.
    const { slot } = standIn;
    if ((this.#slots.get(standIn) ?? slot) !== slot) throw new Violation('a buffer has another slot than what is watched in its place');
    if (this.#dropped.has(slot) || this.#collectable.has(slot)) throw new Violation('two buffers share what is watched in their place');
    this.#dropped.add(slot);
  }

  /** Makes V8 collect garbage. */
  collectGarbage(): void {
    this.#gc();
  }

  /** A garbage collection as a program sees it. */
  collect(): void {
    for (const slot of this.#dropped) this.#collectable.add(slot);
    this.#dropped.clear();
  }

  [Symbol.dispose](): void {
    this.finish();
    Object.assign(this.#addon, this.#own);
    this.#isDisposed = true;
    if (this.#exposed === undefined) Reflect.deleteProperty(globalThis, 'gc');
    else Reflect.set(globalThis, 'gc', this.#exposed);
  }

  #report(message: string): void {
    this.violation ??= new Violation(message);
  }

  /**
   * Called when the host is about to wait. Memory that the addon itself reads and writes is left
   * alone.
   */
  #releaseHolds(): void {
    if (this.#holds.length === 0) return;
    const before = mailbox.slice();
    for (const held of this.#holds.splice(0)) held.release();
    mailbox.set(before);
  }

  // Streams

  /**
   * The record of the stream with a native handle. An invalid handle gets a record that is never
   * used.
   */
  #books(handle: number, device = 0): StreamBooks {
    const known = this.#byHandle.get(handle);
    if (known !== undefined) return known;
    const before = mailbox.slice();
    const books = this.#open(handle, device);
    mailbox.set(before);
    return books;
  }

  #open(handle: number, device: number): StreamBooks {
    const own = this.#own;
    own.streamId(handle);
    const id = mailbox[0] === NativeStatus.success ? (mailbox[1] as number) : -1;
    let books = this.#byId.get(id);
    if (books === undefined) {
      own.streamAddress(handle);
      const isLegacy = mailbox[1] === 1;
      own.streamInfo(handle);
      const kind = isLegacy ? 'legacy' : mailbox[2] === 1 ? 'non-blocking' : 'blocking';
      books = { id, device, kind, number: this.#streams.length, clock: [], isGone: false };
      if (id < 0) return books;
      this.#streams.push(books);
      this.#byId.set(id, books);
    }
    this.#byHandle.set(handle, books);
    return books;
  }

  /** The record of a stream that a call names. */
  #named(handle: number, call: string): StreamBooks {
    const books = this.#books(handle);
    if (books.isGone) this.#report(`${call} names stream ${books.id}, which its owner has destroyed`);
    return books;
  }

  #count(books: StreamBooks): number {
    const { clock, number } = books;
    const count = (clock[number] ?? 0) + 1;
    extend(clock, number);
    clock[number] = count;
    return count;
  }

  /** An operation is queued. Returns its number. */
  #submit(books: StreamBooks): number {
    this.#joinLegacy(books, books.clock);
    return this.#count(books);
  }

  #joinLegacy(books: StreamBooks, clock: Clock): void {
    if (books.kind === 'non-blocking') return;
    for (const other of this.#streams) {
      const precedes = books.kind === 'legacy' ? other.kind === 'blocking' : other.kind === 'legacy';
      if (precedes && other.device === books.device) join(clock, other.clock);
    }
  }

  /**
   * What has run when the stream has completed: for the legacy stream, this includes the work of
   * blocking streams, but not the other way round.
   */
  #position(books: StreamBooks): Clock {
    if (books.kind !== 'legacy') return books.clock;
    const position = books.clock.slice();
    this.#joinLegacy(books, position);
    return position;
  }

  /**
   * What a call that waits for a stream waits for. If a host function stalls the stream, an event
   * is recorded there, which is an operation like any other.
   */
  #awaited(books: StreamBooks): Clock {
    if (!this.isInHostFunction && this.#isStalled(this.#position(books))) this.#joinLegacy(books, books.clock);
    return this.#position(books);
  }

  #comesAfter(books: StreamBooks, { stream, count }: Place): boolean {
    return (books.clock[stream] ?? 0) >= count || (this.#host[stream] ?? 0) >= count;
  }

  #isStalled(position: Clock): boolean {
    for (const stall of this.#holdings.holds.values()) if ((position[stall.stream] ?? 0) >= stall.count) return true;
    const isBehind = ({ stream, count }: Stall) => (position[stream] ?? 0) >= count;
    return this.#hostFunctions.some(isBehind) || this.#running.some(isBehind);
  }

  /**
   * Whether blocking streams may be behind a stall that their clocks do not show. CUDA counts a wait
   * on the legacy stream as an operation of it, which follows every blocking stream. Cistern must
   * not rely on that order, so the clocks leave it out; the software device leaves it out, too.
   */
  #mayBeStalled(): boolean {
    const stalls = this.#holdings.holds.size + this.#hostFunctions.length + this.#running.length;
    return isCuda && this.#hasWaitedOnLegacy && stalls > 0;
  }

  /** Waits for what nothing stalls. Returns whether it came true. */
  #untilTrue(ask: () => boolean): boolean {
    const end = performance.now() + patience;
    do if (ask()) return true;
    while (performance.now() < end);
    if (this.#mayBeStalled()) return false;
    throw new Error('a stream that nothing stalls does not complete');
  }

  // Memory

  /** An operation uses memory; it is already queued. */
  #use(books: StreamBooks, start: number, bytes: number, isWrite: boolean, what: string): void {
    if (start >= this.#ignored.start && start < this.#ignored.end) return;
    const end = start + bytes;
    this.#check(books, start, end, isWrite, what);
    // An operation ordered after a write is ordered after everything that the write is ordered
    // after.
    if (isWrite) this.#uses = this.#uses.filter((use) => use.start < start || use.end > end);
    const { number, id } = books;
    this.#uses.push({ start, end, isWrite, what, stream: number, streamId: id, count: books.clock[number] as number });
  }

  /** @param books `undefined` for the host */
  #check(books: StreamBooks | undefined, start: number, end: number, isWrite: boolean, what: string): void {
    for (const use of this.#uses) {
      if (use.start >= end || use.end <= start || !(isWrite || use.isWrite)) continue;
      if (books === undefined ? (this.#host[use.stream] ?? 0) >= use.count : this.#comesAfter(books, use)) continue;
      const range = `${end - start} bytes at ${formatPointer(start)}`;
      const by = books === undefined ? 'by the host' : `on stream ${books.id}`;
      this.#report(
        `the ${what} of ${range} ${by} does not come after the ${use.what} of ${use.end - use.start} bytes at ${formatPointer(use.start)} on stream ${use.streamId}`,
      );
      return;
    }
  }

  /** The driver hands out the memory, or takes it back. */
  #forget(start: number, bytes: number): void {
    const end = start + bytes;
    this.#uses = this.#uses.flatMap((use) => {
      if (use.start >= end || use.end <= start) return [use];
      const rest: Use[] = [];
      if (use.start < start) rest.push({ ...use, end: start });
      if (use.end > end) rest.push({ ...use, start: end });
      return rest;
    });
  }

  // Waits of the host

  /**
   * A call that waits for a stream or an event. It stops if a host function must run first, and is
   * then repeated as the next call: it continues to wait for its original target. A call that no
   * host function stalls completes before any host function is considered.
   * @param awaited what the call waits for
   * @param queued what it waits for once it has queued something, which is entered then; until it has, it
   * may also stop because it needs staging memory: an allocation may wait for the whole device
   */
  #block(handle: number, awaited: () => Clock, hasRun: () => boolean, call: () => void, queued?: () => Clock | undefined): void {
    let position: Clock | undefined;
    let hasQueued = true;
    // Calls from host functions are not repetitions, and none of them stops.
    if (!this.isInHostFunction) {
      if (this.#stopped?.handle === handle) position = this.#stopped.position;
      this.#stopped = undefined;
    }
    if (position === undefined) {
      if (!this.isInHostFunction) this.#releaseHolds();
      position = awaited().slice();
      if (!this.#isStalled(position)) this.#untilTrue(hasRun);
      hasQueued = queued === undefined;
    }
    const deadline = performance.now() + longestWaitMilliseconds;
    do {
      call();
      const after = hasQueued ? undefined : queued?.();
      if (after === undefined) continue;
      hasQueued = true;
      position = after.slice();
    } while (
      mailbox[0] === NativeStatus.hostFunctionReady &&
      hasQueued &&
      !this.#isStalled(position) &&
      !this.#mayBeStalled() &&
      performance.now() < deadline
    );
    if (performance.now() > deadline) this.#report('a call still waits for work that no host function and no hold stalls');
    if (mailbox[0] === NativeStatus.success) join(this.#host, position);
    else if (mailbox[0] === NativeStatus.hostFunctionReady && hasQueued) this.#stopped = { handle, position };
  }

  #isIdle(handle: number): boolean {
    // Polling would take the time that the stream needs.
    if (this.#hostFunctions.length + this.#running.length === 0) this.#own.synchronizeStream(handle);
    mailbox[0] = handle;
    this.#own.queryStream();
    return mailbox[0] !== NativeStatus.success || mailbox[1] === 1;
  }

  #hasHappened(handle: number): boolean {
    if (this.#hostFunctions.length + this.#running.length === 0) this.#own.synchronizeEvent(handle);
    mailbox[0] = handle;
    this.#own.queryEvent();
    return mailbox[0] !== NativeStatus.success || mailbox[1] === 1;
  }

  #wrappers(own: NativeBinding): Partial<NativeBinding> {
    const holdings = this.#holdings;
    const isDone = () => mailbox[0] === NativeStatus.success;
    return {
      createStream: (device, nonBlocking, priority) => {
        own.createStream(device, nonBlocking, priority);
        if (!isDone()) return;
        const handle = mailbox[1] as number;
        holdings.streams.add(handle);
        this.#createdHandles.add(handle);
        this.#books(handle, device);
      },
      releaseStream: (handle) => {
        const books = this.#byHandle.get(handle);
        own.releaseStream(handle);
        if (!isDone()) return;
        if (books !== undefined && this.#createdHandles.delete(handle)) books.isGone = true;
        holdings.streams.delete(handle);
        this.#byHandle.delete(handle);
      },
      createEvent: (device, timing) => {
        own.createEvent(device, timing);
        if (!isDone()) return;
        this.#events.delete(mailbox[1] as number);
        holdings.events.set(mailbox[1] as number, this.#programs);
      },
      destroyEvent: (event) => {
        own.destroyEvent(event);
        if (!isDone()) return;
        this.#events.delete(event);
        holdings.events.delete(event);
      },
      recordEvent: () => {
        const event = mailbox[0] as number;
        const handle = mailbox[1] as number;
        const stream = this.#named(handle, 'a record');
        own.recordEvent();
        if (!isDone()) return;
        this.#joinLegacy(stream, stream.clock);
        this.#events.set(event, stream.clock.slice());
      },
      waitEvent: () => {
        const handle = mailbox[0] as number;
        const event = mailbox[1] as number;
        const stream = this.#named(handle, 'a wait');
        own.waitEvent();
        if (isDone()) join(stream.clock, this.#events.get(event) ?? []);
        if (stream.kind === 'legacy') this.#hasWaitedOnLegacy = true;
      },
      queryStream: () => {
        const handle = mailbox[0] as number;
        const position = this.#position(this.#named(handle, 'a query'));
        if (this.#isStalled(position)) {
          own.queryStream();
          return;
        }
        if (this.#untilTrue(() => this.#isIdle(handle)) && isDone()) join(this.#host, position);
      },
      queryEvent: () => {
        const event = mailbox[0] as number;
        const position = this.#events.get(event) ?? [];
        if (this.#isStalled(position)) {
          own.queryEvent();
          return;
        }
        if (this.#untilTrue(() => this.#hasHappened(event)) && isDone()) join(this.#host, position);
      },
      synchronizeStream: (handle) => {
        this.#block(
          handle,
          () => this.#awaited(this.#named(handle, 'a synchronization')),
          () => this.#isIdle(handle),
          () => own.synchronizeStream(handle),
        );
      },
      synchronizeEvent: (event) => {
        this.#block(
          event,
          () => this.#events.get(event) ?? [],
          () => this.#hasHappened(event),
          () => own.synchronizeEvent(event),
        );
      },
      synchronizeDevice: (device) => {
        this.#releaseHolds();
        own.synchronizeDevice(device);
        if (isDone()) this.#deviceIsIdle(device);
      },
      launchHostFunction: (handle, callback) => {
        const books = this.#named(handle, 'a launch');
        const stall = this.#stall(books);
        own.launchHostFunction(handle, (status) => {
          this.#hostFunctions.splice(this.#hostFunctions.indexOf(stall), 1);
          join(this.#host, stall.before);
          // Its stream stands still until it has returned.
          this.#running.push(stall);
          try {
            callback(status);
          } finally {
            this.#running.pop();
          }
        });
        if (isDone()) this.#hostFunctions.push(stall);
      },
      holdStream: (handle) => {
        const books = this.#named(handle, 'a hold');
        own.holdStream(handle);
        if (isDone()) holdings.holds.set(mailbox[1] as number, this.#stall(books));
      },
      releaseHold: (hold) => {
        own.releaseHold(hold);
        if (isDone()) holdings.holds.delete(hold);
      },
      allocate: () => {
        const bytes = mailbox[0] as number;
        own.allocate();
        if (!isDone()) return;
        const address = mailbox[1] as number;
        this.#forget(address, bytes);
        holdings.plain.set(address, bytes);
      },
      deallocate: () => {
        const address = mailbox[0] as number;
        const bytes = mailbox[1] as number;
        const isDriverMemory = (mailbox[2] as number) !== NativeMemoryKind.host;
        const handle = mailbox[4] as number;
        if (isDriverMemory) this.#releaseHolds();
        // The resource waits before a free of host memory.
        const books = isDriverMemory ? this.#named(handle, 'a free') : undefined;
        const position = books === undefined ? [] : this.#awaited(books);
        const freesBefore = driverCallCounts().frees;
        own.deallocate();
        if (!isDone()) return;
        // While another thread stalls a stream, the driver is not called: the memory is an orphan.
        if (driverCallCounts().frees > freesBefore) {
          // Whatever else the driver may wait for is not promised.
          join(this.#host, position);
          // A host function has ended the stream since the free was called: all devices are waited for.
          if (books !== undefined && books.id < 0) for (let device = 0; device < Device.count(); device++) this.#deviceIsIdle(device);
          this.#check(undefined, address, address + bytes, true, 'free');
        }
        this.#forget(address, bytes);
        holdings.plain.delete(address);
      },
      allocateAsync: () => {
        const bytes = mailbox[0] as number;
        const pool = mailbox[1] as number;
        const handle = mailbox[2] as number;
        const books = this.#named(handle, 'an allocation');
        own.allocateAsync();
        if (!isDone()) return;
        const address = mailbox[1] as number;
        // The driver decides in which order it hands ranges out again.
        this.#forget(address, bytes);
        this.#count(books);
        this.#use(books, address, bytes, true, 'allocation');
        holdings.pooled.set(address, [bytes, pool]);
      },
      deallocateAsync: () => {
        const address = mailbox[0] as number;
        const bytes = mailbox[1] as number;
        const handle = mailbox[3] as number;
        const books = this.#named(handle, 'a free');
        own.deallocateAsync();
        if (!isDone()) return;
        this.#submit(books);
        this.#check(books, address, address + bytes, true, 'free');
        this.#forget(address, bytes);
        holdings.pooled.delete(address);
      },
      createPool: (...options) => {
        own.createPool(...options);
        if (isDone()) holdings.pools.add(mailbox[1] as number);
      },
      destroyPool: (pool) => {
        own.destroyPool(pool);
        if (!isDone()) return;
        holdings.pools.delete(pool);
        for (const [address, [, owner]] of holdings.pooled) if (owner === pool) holdings.pooled.delete(address);
      },
      copy: (destination, source, bytes, handle) => {
        const books = this.#named(handle, 'a copy');
        own.copy(destination, source, bytes, handle);
        if (!isDone() || bytes === 0) return;
        this.#submit(books);
        this.#use(books, source, bytes, false, 'copy from');
        this.#use(books, destination, bytes, true, 'copy to');
      },
      copyFromHost: (destination, source, bytes, handle) => {
        const books = this.#named(handle, 'a copy');
        own.copyFromHost(destination, source, bytes, handle);
        if (!isDone() || bytes === 0) return;
        this.#submit(books);
        this.#use(books, destination, bytes, true, 'copy to');
      },
      copyToHostSync: (destination, source, bytes, handle) => {
        const copiesBefore = queuedCopies();
        this.#block(
          handle,
          () => this.#awaited(this.#named(handle, 'a copy')),
          () => this.#isIdle(handle),
          () => own.copyToHostSync(destination, source, bytes, handle),
          () => {
            if (queuedCopies() === copiesBefore) return;
            const books = this.#books(handle);
            this.#submit(books);
            this.#use(books, source, bytes, false, 'copy from');
            return this.#position(books);
          },
        );
      },
      copyToHost: (source, bytes, handle, destination) => {
        const books = this.#named(handle, 'a copy');
        const result = own.copyToHost(source, bytes, handle, destination);
        if (!isDone() || bytes === 0) return result;
        this.#submit(books);
        this.#use(books, source, bytes, false, 'copy from');
        return result;
      },
      set: (destination, value, elementBytes, count, handle) => {
        const books = this.#named(handle, 'a set');
        own.set(destination, value, elementBytes, count, handle);
        if (!isDone() || count === 0) return;
        this.#submit(books);
        this.#use(books, destination, elementBytes * count, true, 'set');
      },
      touch: (address, bytes, handle, isWrite) => {
        const books = this.#named(handle, 'a touch');
        own.touch(address, bytes, handle, isWrite);
        if (!isDone()) return;
        // It declares a use and queues nothing, so the legacy default stream orders nothing by it.
        this.#count(books);
        this.#use(books, address, bytes, isWrite, 'touch');
      },
      watch: (object) => {
        own.watch(object);
        if (isDone()) this.#slots.set(object, mailbox[1] as number);
      },
      unwatch: (slot) => {
        own.unwatch(slot);
        if (this.#dropped.has(slot)) throw new Violation('a buffer is no longer watched, although it was dropped and not yet collected');
        this.#collectable.delete(slot);
      },
      collectedSlots: (slots) => {
        let count = 0;
        for (const slot of this.#collectable) slots[count++] = slot;
        mailbox[0] = NativeStatus.success;
        mailbox[1] = count;
      },
    };
  }

  #stall(books: StreamBooks): Stall {
    this.#joinLegacy(books, books.clock);
    const before = books.clock.slice();
    return { stream: books.number, count: this.#submit(books), before };
  }

  #deviceIsIdle(device: number): void {
    for (const stream of this.#streams) if (stream.device === device) join(this.#host, stream.clock);
  }
}

function realCollector(): (options?: object) => void {
  setFlagsFromString('--expose-gc');
  return runInNewContext('gc');
}

/** How many copies were queued, also those that the addon makes in a host function. */
function queuedCopies(): number {
  const { byFunction } = driverCallCounts();
  return ['cuMemcpyAsync', 'cuMemcpyPeerAsync', 'cuLaunchHostFunc'].reduce((total, name) => total + (byFunction[name] as number), 0);
}

function extend(clock: Clock, length: number): void {
  while (clock.length < length) clock.push(0);
}

function join(clock: Clock, other: Clock): void {
  for (let i = 0; i < other.length; i++) {
    const count = other[i] as number;
    if (i >= clock.length) clock.push(count);
    else if (count > (clock[i] as number)) clock[i] = count;
  }
}

function sum(values: Iterable<number>): number {
  let total = 0;
  for (const value of values) total += value;
  return total;
}
