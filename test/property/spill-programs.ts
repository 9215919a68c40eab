/**
 * Random programs that pin, write, read, spill, prefetch, drop and dispose buffers, on several streams, some of them held, with
 * memory for only a part of them; memory sleeps and wakes, streams end, and calls of the driver fail. In every other program, buffers go on to
 * files. The model knows what each buffer contains, who has pinned it, and what may leave: it does not know how.
 */

import { mkdtempSync, readdirSync, rmdirSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { checkOrder } from '../../src/checking/index.js';
import {
  type CisternError,
  CudaMemoryResource,
  currentBackend,
  Device,
  KiB,
  LimitingResourceAdaptor,
  type MemoryResource,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  reclaimUnreachableBuffers,
  Stream,
  type StreamHold,
  set,
  VirtualMemoryResource,
} from '../../src/index.js';
import { SpillableBuffer, SpillingResourceAdaptor, type SpillPin, sleepResource, wakeResource } from '../../src/serving/index.js';
import { failCall } from '../../src/tools/testing/index.js';
import { Random } from '../../src/tools/testing/random.js';

/** What programs did. */
export type SpillCounts = Record<
  | 'programs'
  | 'spills'
  | 'returns'
  | 'waits'
  | 'refusedByHost'
  | 'writes'
  | 'reads'
  | 'pins'
  | 'outOfMemory'
  | 'aborted'
  | 'dropped'
  | 'sleeps'
  | 'failures'
  | 'endedStreams'
  | 'filed',
  number
>;

const unit = 4 * KiB;
const units = 16;
const steps = 60;
const functions = [
  'cuMemcpyAsync',
  'cuMemcpyBatchAsync',
  'cuEventCreate',
  'cuEventRecord',
  'cuStreamWaitEvent',
  'cuMemHostAlloc',
  'cuStreamCreateWithPriority',
  'cuMemsetD8Async',
];

interface Owned {
  readonly name: number;
  readonly units: number;
  value: number;
  readonly pins: Held[];
  /** Not set once the program has dropped it. */
  buffer: SpillableBuffer | undefined;
  isOnDevice: boolean;
  lastUse: number;
  /** The step of that use. */
  lastStep: number;
  /** The stream of the last use by a pin, or one of its methods. */
  lastStream: Stream;
}

interface Held {
  readonly owned: Owned;
  readonly pin: SpillPin;
  readonly stream: Stream;
}

interface Pending {
  readonly number: number;
  readonly controller: AbortController;
  /** Whether it was pending at the end of the step that began it. */
  hasWaited: boolean;
  outcome: 'done' | 'failed' | undefined;
  error?: unknown;
}

interface Plain {
  readonly pointer: number;
  readonly bytes: number;
  readonly stream: Stream;
}

/** Runs programs with successive seeds. @throws the first fault, with its seed. */
export async function proveSpill(programs: number, seed: number): Promise<SpillCounts> {
  const counts = Object.fromEntries(
    [
      'programs',
      'spills',
      'returns',
      'waits',
      'refusedByHost',
      'writes',
      'reads',
      'pins',
      'outOfMemory',
      'aborted',
      'dropped',
      'sleeps',
      'failures',
      'endedStreams',
      'filed',
    ].map((name) => [name, 0]),
  ) as SpillCounts;
  for (let i = 0; i < programs; i++) {
    try {
      await new SpillProgram(new Random(seed + i), counts).run();
    } catch (error) {
      throw new Error(`seed ${seed + i}: ${error instanceof Error ? error.message : error}`, { cause: error });
    }
    counts.programs++;
  }
  return counts;
}

class SpillProgram {
  readonly #random: Random;
  readonly #counts: SpillCounts;
  readonly #pool: MemoryResource;
  readonly #below: MemoryResource[];
  readonly #resource: SpillingResourceAdaptor;
  readonly #host: PoolMemoryResource;
  readonly #hostIsLarge: boolean;
  readonly #canSleep: boolean;
  /** Not set if buffers stay on the host. */
  readonly #folder: string | undefined;
  #isAsleep = false;
  /** Whether a call may fail: then nothing is expected to succeed. */
  #failing: string | undefined;
  #streams: Stream[];
  #holds: StreamHold[] = [];
  #owned: Owned[] = [];
  #plain: Plain[] = [];
  #pending: Pending[] = [];
  #reads: Promise<void>[] = [];
  #hasEndedStream = false;
  #hasFailed = false;
  /** In this step. */
  #hasPinnedTwo = false;
  #created = 0;
  #uses = 0;
  #steps = 0;
  readonly #fault: { error?: Error } = {};

  constructor(random: Random, counts: SpillCounts) {
    this.#random = random;
    this.#counts = counts;
    const bytes = units * unit;
    const kind = random.below(3);
    this.#canSleep = kind === 0 && Device.get().attribute('virtualMemoryManagementSupported') === 1;
    const leaf = this.#canSleep ? new VirtualMemoryResource() : new CudaMemoryResource();
    // A pool over virtual memory has a block as large as a page, and only a limit makes it short.
    const pool = new PoolMemoryResource(leaf, this.#canSleep ? {} : { initialBytes: bytes, maximumBytes: bytes });
    this.#pool = this.#canSleep ? new LimitingResourceAdaptor(pool, { limitBytes: bytes }) : pool;
    this.#hostIsLarge = random.below(3) > 0;
    const pinned = new PinnedHostMemoryResource();
    const hostBytes = unit * (this.#hostIsLarge ? 256 : 12);
    this.#host = new PoolMemoryResource(pinned, { initialBytes: hostBytes, maximumBytes: hostBytes });
    const softBytes = random.below(4) === 0 ? { softBytes: 10 * unit } : {};
    this.#folder = random.below(2) === 0 ? mkdtempSync(join(tmpdir(), 'cistern-spill-programs-')) : undefined;
    const files = this.#folder === undefined ? {} : { folder: this.#folder };
    this.#resource = new SpillingResourceAdaptor(this.#pool, this.#host, { ...softBytes, ...files });
    this.#below = [this.#resource, ...(this.#canSleep ? [this.#pool] : []), pool, leaf, this.#host, pinned];
    this.#streams = [0, 1, 2].map(() => new Stream({ nonBlocking: true }));
  }

  async run(): Promise<void> {
    const { violations } = await this.#checked();
    if (violations.length > 0)
      throw new Error(`${violations.length} violations of stream order, the first: ${JSON.stringify(violations[0])}`);
  }

  async #checked(): Promise<{ readonly violations: readonly unknown[] }> {
    using checker = checkOrder({ stacks: false });
    for (let step = 0; step < steps; step++) {
      const before = this.#beforeStep();
      await this.#step();
      await this.#check(before);
    }
    await this.#end();
    return checker;
  }

  /** Everything is given back, and whoever waits is served or refused. */
  async #end(): Promise<void> {
    this.#stopFailing();
    this.#releaseHolds();
    await this.#wake();
    const most = this.#folder === undefined ? 100 : 5000;
    for (let turn = 0; turn === 0 || (turn < most && this.#pending.length > 0); turn++) {
      for (const plain of this.#plain.splice(0)) this.#resource.deallocate(plain.pointer, plain.bytes, plain.stream);
      for (const { pins } of this.#owned) for (const { pin } of pins.splice(0)) pin.dispose();
      // What the program has dropped comes back after a collection, which the adaptor makes only once a second.
      if (turn % 10 === 9) reclaimUnreachableBuffers('major');
      await (turn < 100 ? nextTurn() : sleep(1));
      this.#settlePending();
    }
    if (this.#pending.length > 0) throw new Error(`${this.#pending.length} calls wait for ever`);
    await Promise.all(this.#reads);
    if (this.#fault.error !== undefined) throw this.#fault.error;
    // A host that is full has no room for those who would have to leave for others.
    const onDevice = (owned: Owned) => Number(owned.buffer?.isOnDevice);
    for (const owned of this.#owned.splice(0).sort((one, other) => onDevice(other) - onDevice(one))) {
      await this.#verify(owned);
      owned.buffer?.dispose();
    }
    for (let turn = 0; turn < 20 && this.#resource.statistics().buffers > 0; turn++) {
      await nextTurn();
      reclaimUnreachableBuffers('major');
    }
    equal('buffers at the end', this.#resource.statistics().buffers, 0);
    // A read for a buffer that was dropped may not have ended.
    for (let turn = 0; turn < 1000 && this.#folder !== undefined && this.#resource.statistics().liveBytes > 0; turn++) await sleep(1);
    const { liveBytes, spills, returns, waits, refusedByHost, filed } = this.#resource.statistics();
    equal('bytes at the end', liveBytes, 0);
    Object.assign(this.#counts, {
      spills: this.#counts.spills + spills,
      returns: this.#counts.returns + returns,
      waits: this.#counts.waits + waits,
      refusedByHost: this.#counts.refusedByHost + refusedByHost,
      filed: this.#counts.filed + filed,
    });
    equal('host bytes in use at the end', this.#host.statistics().allocatedBytes, 0);
    for (const each of this.#below) each[Symbol.dispose]();
    for (const stream of this.#streams) stream.dispose();
    if (this.#folder === undefined) return;
    equal('files at the end', `${readdirSync(this.#folder)}`, '');
    rmdirSync(this.#folder);
  }

  async #verify(owned: Owned): Promise<void> {
    using pin = await (owned.buffer as SpillableBuffer).pin(this.#stream());
    const seen = [...new Set(await pin.toHost())];
    equal(`contents of buffer ${owned.name} at the end`, `${seen}`, `${owned.value}`);
  }

  async #step(): Promise<void> {
    const actions: readonly (() => void | Promise<void>)[] = [
      () => this.#create(),
      () => this.#create(),
      () => this.#create(),
      () => this.#create(),
      () => this.#pin(),
      () => this.#pin(),
      () => this.#pin(),
      () => this.#pinTwo(),
      () => this.#pinSync(),
      () => this.#unpin(),
      () => this.#unpin(),
      () => this.#unpin(),
      () => this.#unpin(),
      () => this.#write(),
      () => this.#write(),
      () => this.#read(),
      () => this.#read(),
      () => this.#prefetch(),
      () => this.#spill(),
      () => this.#allocate(),
      () => this.#free(),
      () => this.#free(),
      () => this.#dispose(),
      () => this.#drop(),
      () => this.#abort(),
      () => this.#hold(),
      () => this.#releaseHolds(),
      () => this.#fail(),
      () => this.#sleepOrWake(),
      () => this.#endStream(),
      () => this.#spillToFiles(),
      () => this.#spillToFiles(),
    ];
    await actions[this.#random.below(actions.length)]?.();
  }

  #stream(): Stream {
    return this.#pick(this.#streams) as Stream;
  }

  #pick<T>(items: readonly T[]): T | undefined {
    return items.length === 0 ? undefined : items[this.#random.below(items.length)];
  }

  #some(isWanted: (owned: Owned) => boolean = () => true): (Owned & { buffer: SpillableBuffer }) | undefined {
    return this.#pick(this.#owned.filter((owned) => owned.buffer !== undefined && isWanted(owned))) as never;
  }

  #held(): Held | undefined {
    return this.#pick(this.#owned.flatMap(({ pins }) => pins));
  }

  /** Does something that may fail for reasons that the model knows. Returns whether it was done. */
  #attempt(action: () => void): boolean {
    try {
      action();
      return true;
    } catch (error) {
      this.#expected(error);
      return false;
    }
  }

  #expected(error: unknown): void {
    const { code } = error as CisternError;
    if (code === 'ERR_CISTERN_OUT_OF_MEMORY') this.#counts.outOfMemory++;
    else if (code === 'ERR_CISTERN_DRIVER' && this.#failing !== undefined) this.#counts.failures++;
    // A read from a file that began before may fail later.
    else if (code === 'ERR_CISTERN_ASLEEP' && (this.#isAsleep || this.#folder !== undefined)) return;
    else if (code === 'ERR_CISTERN_DRIVER' && this.#hasFailed && this.#folder !== undefined) this.#counts.failures++;
    // What is in a file cannot be pinned at once.
    else if (code === 'ERR_CISTERN_INVALID_STATE' && this.#folder !== undefined) return;
    else throw error;
  }

  #own(buffer: SpillableBuffer, size: number, stream: Stream): void {
    const owned: Owned = {
      name: ++this.#created,
      units: size,
      value: 0,
      pins: [],
      buffer,
      isOnDevice: true,
      lastUse: ++this.#uses,
      lastStep: this.#steps,
      lastStream: stream,
    };
    this.#owned.push(owned);
    // What a new buffer contains is undefined.
    this.#fillNew(owned, stream);
  }

  #use(owned: Owned): void {
    owned.lastUse = ++this.#uses;
    owned.lastStep = this.#steps;
  }

  #fillNew(owned: Owned, stream: Stream): void {
    const value = this.#random.below(256);
    const done = this.#attempt(() => {
      using pin = (owned.buffer as SpillableBuffer).pinSync(stream);
      this.#use(owned);
      pin.fill(value);
    });
    if (done) owned.value = value;
    else {
      this.#stopFailing();
      owned.buffer?.dispose();
      this.#owned.splice(this.#owned.indexOf(owned), 1);
    }
  }

  #create(): void {
    if (this.#isAsleep || this.#owned.length > 8) return;
    const size = 2 + this.#random.below(6);
    const stream = this.#stream();
    const options = { stream, resource: this.#resource, label: `${this.#created + 1}` };
    if (this.#random.below(2) === 0) {
      this.#attempt(() => this.#own(new SpillableBuffer(size * unit, options), size, stream));
    } else {
      this.#await(
        (signal) => SpillableBuffer.create(size * unit, { ...options, signal }),
        (buffer) => this.#own(buffer, size, this.#stream()),
      );
    }
  }

  #pin(): void {
    const owned = this.#some();
    if (owned === undefined) return;
    const stream = this.#stream();
    const timeout = this.#random.below(8) === 0 ? { timeoutMilliseconds: 0 } : {};
    this.#await(
      (signal) => owned.buffer.pin(stream, { signal, ...timeout }),
      (pin) => this.#hasPinned(owned, pin),
    );
  }

  #pinTwo(): void {
    const [one, other] = [this.#some(), this.#some()];
    if (one === undefined || other === undefined) return;
    const stream = this.#stream();
    this.#hasPinnedTwo = true;
    this.#await(
      (signal) => SpillableBuffer.pinAll([one.buffer, other.buffer], stream, { signal }),
      ([first, second]) => {
        this.#hasPinned(one, first as SpillPin);
        this.#hasPinned(other, second as SpillPin);
      },
    );
  }

  #pinSync(): void {
    const owned = this.#some();
    if (owned !== undefined) this.#attempt(() => this.#hasPinned(owned, owned.buffer.pinSync(this.#stream())));
  }

  #hasPinned(owned: Owned, pin: SpillPin): void {
    this.#counts.pins++;
    // Garbage, if the program has forgotten the buffer meanwhile.
    if (owned.buffer === undefined) return;
    this.#use(owned);
    owned.lastStream = pin.stream;
    owned.pins.push({ owned, pin, stream: pin.stream });
  }

  /** Begins a call that may wait. */
  #await<T>(call: (signal: AbortSignal) => Promise<T>, done: (result: T) => void): void {
    const controller = new AbortController();
    const pending: Pending = { number: this.#pending.length, controller, hasWaited: false, outcome: undefined };
    this.#pending.push(pending);
    call(controller.signal).then(
      (result) => {
        pending.outcome = 'done';
        try {
          done(result);
        } catch (error) {
          this.#fault.error ??= error as Error;
        }
      },
      (error) => {
        pending.outcome = 'failed';
        pending.error = error;
      },
    );
  }

  #unpin(): void {
    const held = this.#held();
    if (held === undefined) return;
    // A refused end leaves the pin as it is.
    if (this.#attempt(() => held.pin.dispose())) remove(held.owned.pins, held);
  }

  #write(): void {
    const held = this.#held();
    if (held === undefined) return;
    const value = this.#random.below(256);
    const { owned, pin, stream } = held;
    // By the address only if nobody else has used the memory since the pin began.
    const byAddress = owned.pins.length === 1 && owned.lastStream === stream && this.#random.below(2) === 0;
    const done = this.#attempt(() => (byAddress ? set(pin.ptr, value, 1, pin.byteLength, stream) : pin.fill(value)));
    owned.lastStream = stream;
    if (done) owned.value = value;
    if (done) this.#counts.writes++;
  }

  #read(): void {
    const held = this.#held();
    if (held === undefined) return;
    const { owned, pin, stream } = held;
    const { value, name } = owned;
    owned.lastStream = stream;
    this.#counts.reads++;
    const isAsleep = this.#isAsleep;
    const canFail = this.#failing !== undefined;
    this.#reads.push(
      pin.toHost().then(
        (bytes) => {
          const seen = [...new Set(bytes)];
          if (seen.length !== 1 || seen[0] !== value)
            this.#fault.error ??= new Error(`buffer ${name} has ${seen}, and ${value} in the model`);
        },
        (error) => {
          if (!isAsleep && !canFail) this.#fault.error ??= error as Error;
        },
      ),
    );
  }

  #prefetch(): void {
    const owned = this.#some();
    if (owned === undefined) return;
    this.#attempt(() => {
      if (owned.buffer.prefetch()) this.#use(owned);
    });
  }

  #spill(): void {
    const bytes = unit * this.#random.below(8);
    this.#attempt(() => {
      const expected = this.#owned.filter((owned) => owned.buffer?.isOnDevice === true && owned.pins.length === 0);
      const left = this.#resource.spill(bytes);
      const most = expected.reduce((sum, { units: size }) => sum + size * unit, 0);
      if (this.#isAsleep) equal('bytes that left while asleep', left, 0);
      // A pin may be there that waits for another one's file.
      else if (this.#folder === undefined && this.#hostIsLarge && left < Math.min(bytes, most))
        throw new Error(`spill(${bytes}) let ${left} bytes leave of ${most}`);
    });
  }

  #spillToFiles(): void {
    if (this.#folder === undefined) return;
    const going = this.#resource.spillToFiles(unit * this.#random.below(16));
    this.#reads.push(
      going.then(
        () => {},
        (error) => {
          if (!this.#hasFailed) this.#fault.error ??= error as Error;
        },
      ),
    );
  }

  #allocate(): void {
    const bytes = unit * (1 + this.#random.below(4));
    const stream = this.#stream();
    this.#attempt(() => {
      const pointer = this.#resource.allocate(bytes, stream);
      const value = this.#random.below(256);
      this.#plain.push({ pointer, bytes, stream });
      this.#attempt(() => set(pointer, value, 1, bytes, stream));
    });
  }

  #free(): void {
    const plain = this.#pick(this.#plain);
    if (plain === undefined) return;
    if (this.#attempt(() => this.#resource.deallocate(plain.pointer, plain.bytes, plain.stream))) remove(this.#plain, plain);
  }

  #dispose(): void {
    const owned = this.#some();
    if (owned === undefined) return;
    if (!this.#attempt(() => owned.buffer.dispose())) return;
    for (const { pin } of owned.pins) if (!pin.isDisposed) throw new Error('a pin outlives its buffer');
    remove(this.#owned, this.#owned.find(({ name }) => name === owned.name) as Owned);
  }

  /** The program forgets a buffer, and its pins. */
  #drop(): void {
    const owned = this.#owned.find(({ buffer, pins }) => buffer !== undefined && pins.length < 2);
    if (owned === undefined || this.#random.below(2) === 0) return;
    owned.buffer = undefined;
    owned.pins.splice(0);
    remove(this.#owned, owned);
    this.#counts.dropped++;
    if (this.#holds.length === 0 && this.#random.below(4) === 0) reclaimUnreachableBuffers('major');
  }

  #abort(): void {
    const pending = this.#pick(this.#pending);
    pending?.controller.abort(new Error('aborted'));
  }

  #hold(): void {
    // Memory last used on a stream that has ended is waited for on the host, for ever if a stream is held.
    if (this.#isAsleep || this.#hasEndedStream) return;
    this.#attempt(() => this.#holds.push(this.#stream().hold()));
  }

  #releaseHolds(): void {
    for (const hold of this.#holds.splice(0)) hold.release();
  }

  #fail(): void {
    if (currentBackend() !== 'software') return;
    this.#stopFailing();
    this.#failing = functions[this.#random.below(functions.length)] as string;
    this.#hasFailed = true;
    failCall(this.#failing, 1 + this.#random.below(4), 999);
  }

  #stopFailing(): void {
    if (this.#failing !== undefined) failCall(this.#failing, 0);
    this.#failing = undefined;
  }

  async #sleepOrWake(): Promise<void> {
    if (!this.#canSleep) return;
    this.#stopFailing();
    if (this.#isAsleep) return this.#wake();
    this.#releaseHolds();
    await Promise.all(this.#reads);
    await sleepResource(this.#resource, { keep: 'host' });
    this.#isAsleep = true;
    this.#counts.sleeps++;
  }

  async #wake(): Promise<void> {
    if (!this.#isAsleep) return;
    await wakeResource(this.#resource);
    this.#isAsleep = false;
  }

  /** A stream without pins ends. */
  #endStream(): void {
    if (this.#random.below(4) > 0) return;
    this.#stopFailing();
    const at = this.#random.below(this.#streams.length);
    const stream = this.#streams[at] as Stream;
    const isUsed =
      this.#owned.some(({ pins }) => pins.some((held) => held.stream === stream)) || this.#plain.some((each) => each.stream === stream);
    if (isUsed || this.#pending.length > 0) return;
    // What the stream did is waited for on the host.
    this.#releaseHolds();
    stream.dispose();
    this.#streams[at] = new Stream({ nonBlocking: true });
    this.#hasEndedStream = true;
    this.#counts.endedStreams++;
  }

  #beforeStep(): { readonly refused: number; readonly waiting: number } {
    this.#steps++;
    for (const owned of this.#owned) owned.isOnDevice = owned.buffer?.isOnDevice === true;
    this.#hasPinnedTwo = false;
    const { refusedByHost, waiting } = this.#resource.statistics();
    return { refused: refusedByHost, waiting };
  }

  #settlePending(): void {
    const oldest = this.#pending.findIndex(({ hasWaited, outcome }) => hasWaited && outcome === undefined);
    for (const [i, pending] of this.#pending.entries()) {
      // What has memory may still be on its way from a file.
      if (this.#folder === undefined && pending.outcome === 'done' && pending.hasWaited && oldest >= 0 && i > oldest)
        throw new Error('a call that waits was passed by a later one');
      if (pending.outcome === 'failed') {
        const isAborted = pending.controller.signal.aborted && (pending.error as Error).message === 'aborted';
        const { code } = pending.error as CisternError;
        // It may have failed before the last call that had to.
        const isRefused = code === 'ERR_CISTERN_DRIVER' && this.#hasFailed;
        if (isAborted) this.#counts.aborted++;
        else if (code !== 'ERR_CISTERN_DISPOSED' && !isRefused) this.#expected(pending.error);
      }
    }
    this.#pending = this.#pending.filter(({ outcome }) => outcome === undefined);
    for (const pending of this.#pending) pending.hasWaited = true;
  }

  async #check(before: { readonly refused: number; readonly waiting: number }): Promise<void> {
    const uses = this.#uses;
    await nextTurn();
    if (this.#fault.error !== undefined) throw this.#fault.error;
    this.#settlePending();
    const { deviceBytes, hostBytes, fileBytes, pinnedBytes, liveBytes, waiting, refusedByHost } = this.#resource.statistics();
    const plain = this.#plain.reduce((sum, { bytes }) => sum + bytes, 0);
    // What is being read from files is allocated already, and until the read ends, also if its buffer has gone.
    if (this.#folder === undefined || liveBytes < deviceBytes + plain) equal('live bytes', liveBytes, deviceBytes + plain);
    if (liveBytes > units * unit) throw new Error(`${liveBytes} bytes are on the device, which has ${units * unit}`);
    const live = this.#owned.filter(({ buffer }) => buffer !== undefined);
    const bytesOf = (owned: readonly Owned[]) => owned.reduce((sum, each) => sum + each.units * unit, 0);
    // Dropped buffers may not have been collected yet.
    if (deviceBytes + hostBytes + fileBytes < bytesOf(live)) throw new Error('a buffer has lost its memory');
    if (pinnedBytes < bytesOf(live.filter(({ pins }) => pins.length > 0))) throw new Error('a pinned buffer does not count as such');
    for (const { name, pins, buffer } of live) {
      if (pins.length > 0 && buffer?.isOnDevice !== true) throw new Error(`buffer ${name} is pinned, and not on the device`);
      // The end of one of several pins may be refused, and is made up for by a collection.
      // So is one whose pin waits for a file.
      if (pins.length > 0 || (!this.#hasFailed && this.#folder === undefined))
        equal(`whether buffer ${name} is pinned`, buffer?.isPinned, pins.length > 0);
    }
    // Who waits for several pins others for a moment.
    const isQuiet = before.waiting + waiting === 0 && !this.#hasPinnedTwo && !this.#hasFailed && refusedByHost === before.refused;
    if (isQuiet && uses === this.#uses && this.#folder === undefined) this.#checkOrderOfLeaving(live);
    const nobodyHolds = this.#folder === undefined && pinnedBytes === 0 && plain === 0 && this.#failing === undefined && !this.#isAsleep;
    if (nobodyHolds && waiting > 0) throw new Error(`${waiting} calls wait, and nobody has what they wait for`);
  }

  /**
   * Nobody left who was used after somebody who stayed, and could have left. A pin that waited counts as a use once it has room, before the
   * program gets it; so the order of uses in one step is not known.
   */
  #checkOrderOfLeaving(live: readonly Owned[]): void {
    const left = live.filter(({ isOnDevice, buffer }) => isOnDevice && buffer?.isOnDevice === false);
    const stayed = live.filter(({ isOnDevice, buffer, pins }) => isOnDevice && buffer?.isOnDevice === true && pins.length === 0);
    for (const gone of left) {
      const older = stayed.find(({ lastUse, lastStep }) => lastUse < gone.lastUse && lastStep < gone.lastStep);
      if (older !== undefined) throw new Error(`buffer ${gone.name} left before buffer ${older.name}, which was used earlier`);
    }
  }
}

function remove<T>(items: T[], item: T): void {
  items.splice(items.indexOf(item), 1);
}

function equal<T>(what: string, actual: T, expected: T): void {
  if (actual !== expected) throw new Error(`${what}: ${actual}, and ${expected} in the model`);
}
