/**
 * Random programs in which several features hold, move or count the same memory: buffers that spill, pins, captured graphs, tensors of
 * other libraries, foreign views, exports, hand-overs, accounts, grants, runs of a cache, planned passes, sleep.
 *
 * The model knows one thing: the byte that each buffer is filled with. A step changes it only in the buffer that it names, or fails
 * with an error of cistern and changes nothing. Contents are compared as programs go on and at their ends, and the order
 * checker watches all of them. What the documentation leaves to programs, these do: they launch no graph of memory that is asleep or freed,
 * and end views before their memory.
 */

import { setImmediate as nextTurn } from 'node:timers/promises';
import { checkOrder } from '../../src/checking/index.js';
import {
  CachingMemoryResource,
  CisternError,
  CudaMemoryResource,
  DeviceBuffer,
  type GraphExec,
  KiB,
  type MemoryResource,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  Stream,
  set,
  VirtualMemoryResource,
} from '../../src/index.js';
import { fromDLPack, toDLPack, wrapMemory } from '../../src/interchange/index.js';
import { PlannedMemoryResource } from '../../src/plans/index.js';
import { exportBuffer } from '../../src/processes/index.js';
import {
  Account,
  AccountingResourceAdaptor,
  AdmittingResourceAdaptor,
  type Grant,
  SpillableBuffer,
  SpillingResourceAdaptor,
  type SpillPin,
  sleepResource,
  wakeResource,
} from '../../src/serving/index.js';
import { planAllocations } from '../../src/tools/planning/index.js';
import { Random } from '../../src/tools/testing/random.js';
import { attachBuffer, detachBuffer } from '../../src/workers/index.js';

const unit = 4 * KiB;
const memoryUnits = 24;
const steps = 40;
/** Milliseconds, for what other threads tell. */
const patience = 30_000;

/** How often each step was taken with success, and how often one was refused. */
export type CrossingCounts = Record<string, number>;

export async function proveCrossings(programs: number, seed: number): Promise<CrossingCounts> {
  const counts: CrossingCounts = { programs: 0 };
  for (let i = 0; i < programs; i++) {
    using checker = checkOrder({ stacks: false });
    try {
      await new CrossingProgram(new Random(seed + i), counts).run();
      const [violation] = checker.violations;
      if (violation !== undefined) throw new Error(`${violation.kind} of stream order`);
    } catch (error) {
      throw new Error(`seed ${seed + i}: ${error instanceof Error ? error.message : error}`, { cause: error });
    }
    counts['programs'] = i + 1;
  }
  return counts;
}

/** A buffer, with what refers to its memory. */
interface Piece {
  buffer: DeviceBuffer | SpillableBuffer;
  readonly bytes: number;
  value: number;
  pin: SpillPin | undefined;
  /** Graphs that fill it with a value. */
  readonly graphs: { readonly exec: GraphExec; readonly value: number }[];
  /** Other buffers over the same memory. */
  readonly views: DeviceBuffer[];
}

class CrossingProgram {
  readonly #leaf: CudaMemoryResource | VirtualMemoryResource;
  readonly #pool: PoolMemoryResource;
  readonly #planned: PlannedMemoryResource | undefined;
  readonly #admitting: AdmittingResourceAdaptor;
  readonly #pinned = new PinnedHostMemoryResource();
  readonly #host = new PoolMemoryResource(this.#pinned);
  readonly #spilling: SpillingResourceAdaptor;
  readonly #top: AccountingResourceAdaptor;
  readonly #cache: CachingMemoryResource;
  readonly #stream = new Stream({ nonBlocking: true });
  readonly #account: Account;
  readonly #pieces: Piece[] = [];
  readonly #grants: Grant[] = [];
  #isAsleep = false;

  constructor(
    readonly random: Random,
    readonly counts: CrossingCounts,
  ) {
    const sleeps = random.below(3) === 0;
    this.#leaf = sleeps ? new VirtualMemoryResource() : new CudaMemoryResource();
    const deallocationEvents = (['eager', 'deferred', 'off'] as const)[random.below(3)] as 'eager';
    // Pages of virtual memory are far larger than the buffers: then the admission is the limit.
    const bound = sleeps ? {} : { initialBytes: memoryUnits * unit, maximumBytes: memoryUnits * unit };
    this.#pool = new PoolMemoryResource(this.#leaf, { ...bound, deallocationEvents });
    this.#planned =
      random.below(4) === 0
        ? new PlannedMemoryResource(this.#pool, undefined, { planner: planAllocations, planningMilliseconds: 0 })
        : undefined;
    this.#admitting = new AdmittingResourceAdaptor(this.#planned ?? this.#pool, { limitBytes: memoryUnits * unit });
    this.#spilling = new SpillingResourceAdaptor(this.#admitting, this.#host);
    this.#top = new AccountingResourceAdaptor(this.#spilling);
    this.#cache = new CachingMemoryResource(this.#top);
    this.#account = new Account({ name: 'tenant', limitBytes: (memoryUnits / 2) * unit });
  }

  async run(): Promise<void> {
    for (let step = 0; step < steps; step++) {
      await this.#step();
      if (this.random.below(4) === 0) await this.#check();
    }
    await this.#wake();
    await this.#check();
    while (this.#pieces.length > 0) this.#dispose(this.#pieces.length - 1);
    for (const grant of this.#grants) grant.dispose();
    await this.#stream.synchronize();
    // Views are released, and graphs end, some time later.
    for (const end = performance.now() + patience; this.#leftBytes() > 0; await nextTurn()) {
      if (performance.now() > end) throw new Error(`${this.#leftBytes()} bytes are left`);
    }
    this.#admitting.validate();
    this.#pool.validate();
    for (const each of [
      this.#cache,
      this.#top,
      this.#spilling,
      this.#admitting,
      this.#planned,
      this.#pool,
      this.#leaf,
      this.#host,
      this.#pinned,
    ]) {
      each?.[Symbol.dispose]();
    }
    this.#stream.dispose();
  }

  /** Without what the cache keeps of its runs. */
  #leftBytes(): number {
    return this.#spilling.statistics().liveBytes - this.#cache.reservedBytes;
  }

  async #step(): Promise<void> {
    const often = ['make', 'makeSpillable', 'write', 'capture', 'launch', 'spill'];
    const seldom = [
      'endGraph',
      'pin',
      'unpin',
      'tensor',
      'view',
      'writeView',
      'endView',
      'export',
      'handOver',
      'inAccount',
      'inCache',
      'inPass',
    ];
    const all = [...often, ...often, ...often, ...seldom, 'reserve', 'inGrant', 'endGrant', 'trim', 'sleep', 'wake', 'wake', 'dispose'];
    const name = all[this.random.below(all.length)] as string;
    try {
      const isDone = await this.#do(name);
      if (isDone !== false) this.counts[name] = (this.counts[name] ?? 0) + 1;
    } catch (error) {
      const isRefusal = error instanceof CisternError || (error as { code?: string }).code?.startsWith('ERR_CISTERN');
      if (!isRefusal || (error as { code: string }).code === 'ERR_CISTERN_DRIVER') throw error;
      this.counts['refused'] = (this.counts['refused'] ?? 0) + 1;
    }
  }

  /** Returns false if there is nothing to do it with. */
  #do(name: string): unknown {
    const piece = this.#pieces[this.random.below(Math.max(this.#pieces.length, 1))];
    switch (name) {
      case 'make':
        return this.#make(this.#top, false);
      case 'makeSpillable':
        return this.#make(this.#top, true);
      case 'inAccount':
        return this.#account.run(() => this.#make(this.#top, this.random.below(2) === 0));
      case 'inGrant': {
        const grant = this.#grants[this.random.below(Math.max(this.#grants.length, 1))];
        return grant?.run(() => this.#make(this.#top, this.random.below(2) === 0)) ?? false;
      }
      case 'inPass':
        return this.#planned?.run(() => this.#make(this.#top, false)) ?? false;
      case 'inCache':
        return this.#inCache();
      case 'reserve':
        return this.#reserve();
      case 'endGrant':
        return this.#grants.shift()?.dispose();
      case 'spill':
        return this.#spilling.spill(this.#bytes());
      case 'trim':
        return this.#isAsleep ? false : this.#pool.trim(this.#stream);
      case 'sleep':
        return this.#sleep();
      case 'wake':
        return this.#wake();
      case 'dispose':
        return this.#pieces.length > 0 && this.#dispose(this.random.below(this.#pieces.length));
      default:
        return piece === undefined ? false : this.#withPiece(name, piece);
    }
  }

  #withPiece(name: string, piece: Piece): unknown {
    switch (name) {
      case 'write':
        return this.#using(piece, (memory) => this.#fill(piece, memory));
      case 'capture':
        return this.#capture(piece);
      case 'launch':
        return this.#launch(piece);
      case 'endGraph':
        return piece.graphs.length > 0 && piece.graphs.shift()?.exec.dispose();
      case 'pin':
        return this.#pin(piece);
      case 'unpin':
        return this.#unpin(piece);
      case 'tensor':
        return this.#using(piece, (memory) => {
          const capsule = toDLPack(memory, { shape: [piece.bytes], dtype: 'uint8', stream: this.#stream });
          piece.views.push(fromDLPack(capsule, { stream: this.#stream }).buffer);
        });
      case 'view':
        // Only while it cannot leave: a view of foreign memory does not hold it.
        if (piece.buffer instanceof SpillableBuffer) return false;
        piece.views.push(wrapMemory({ ptr: piece.buffer.ptr, byteLength: piece.bytes, stream: this.#stream }));
        return true;
      case 'writeView': {
        const view = piece.views[0];
        return view !== undefined && !this.#isAsleep && this.#fill(piece, view);
      }
      case 'endView':
        return piece.views.length > 0 && piece.views.shift()?.dispose();
      case 'export':
        return this.#using(piece, (memory) => exportBuffer(memory));
      case 'handOver':
        return this.#handOver(piece);
      default:
        throw new Error(`there is no step ${name}`);
    }
  }

  #bytes(): number {
    return (1 + this.random.below(6)) * unit - this.random.below(2) * this.random.below(unit);
  }

  #make(resource: MemoryResource, isSpillable: boolean): boolean {
    const bytes = this.#bytes();
    const value = this.random.below(256);
    const options = { stream: this.#stream, resource };
    const contents = new Uint8Array(bytes).fill(value);
    const buffer = isSpillable ? new SpillableBuffer(contents, options) : new DeviceBuffer(contents, options);
    this.#pieces.push({ buffer, bytes, value, pin: undefined, graphs: [], views: [] });
    return true;
  }

  /** Calls a function with a buffer, or a pin of it. */
  async #using<T>(piece: Piece, use: (memory: DeviceBuffer | SpillPin) => T): Promise<T> {
    if (piece.buffer instanceof DeviceBuffer) return use(piece.buffer);
    if (piece.pin !== undefined) return use(piece.pin);
    using pin = await piece.buffer.pin(this.#stream, { timeoutMilliseconds: 0 });
    return use(pin);
  }

  #fill(piece: Piece, memory: DeviceBuffer | SpillPin): void {
    const value = this.random.below(256);
    memory.fill(value);
    piece.value = value;
  }

  async #capture(piece: Piece): Promise<void> {
    const value = this.random.below(256);
    const ways = [
      (memory: DeviceBuffer | SpillPin) => this.#stream.capture(() => memory.fill(value)),
      (memory: DeviceBuffer | SpillPin) => this.#stream.capture(() => set(memory.ptr, value, 1, piece.bytes, this.#stream)),
      (memory: DeviceBuffer | SpillPin) => {
        const { ptr } = memory;
        return this.#stream.capture(() => set(ptr, value, 1, piece.bytes, this.#stream));
      },
    ];
    using graph = await this.#using(piece, ways[this.random.below(ways.length)] as (typeof ways)[0]);
    if (this.random.below(4) > 0) piece.graphs.push({ exec: graph.instantiate(), value });
  }

  #launch({ graphs, ...piece }: Piece): boolean {
    const graph = graphs[0];
    if (graph === undefined || this.#isAsleep) return false;
    graph.exec.launch(this.#stream);
    const found = this.#pieces.find((each) => each.graphs === graphs) as Piece;
    found.value = graph.value;
    return piece.bytes > 0;
  }

  async #pin(piece: Piece): Promise<boolean> {
    if (piece.buffer instanceof DeviceBuffer || piece.pin !== undefined) return false;
    piece.pin = await piece.buffer.pin(this.#stream, { timeoutMilliseconds: 0 });
    return true;
  }

  #unpin(piece: Piece): boolean {
    piece.pin?.dispose();
    const hadOne = piece.pin !== undefined;
    piece.pin = undefined;
    return hadOne;
  }

  /** As if another worker had attached it, and passed it on. */
  #handOver(piece: Piece): boolean {
    if (piece.buffer instanceof SpillableBuffer || piece.views.length > 0 || this.#isAsleep) return false;
    piece.buffer = attachBuffer(detachBuffer(piece.buffer), { stream: this.#stream });
    return true;
  }

  /** A run, some of whose buffers outlive it. */
  #inCache(): void {
    this.#cache.run(() => {
      const before = this.#pieces.length;
      try {
        for (let count = 1 + this.random.below(3); count > 0; count--) this.#make(this.#cache, this.random.below(4) === 0);
      } finally {
        for (let i = this.#pieces.length - 1; i >= before; i--) {
          const { buffer } = this.#pieces[i] as Piece;
          if (buffer instanceof DeviceBuffer && this.random.below(2) === 0) this.#cache.keep(buffer);
          else this.#dispose(i);
        }
      }
    });
  }

  async #reserve(): Promise<void> {
    this.#grants.push(await this.#admitting.reserve(this.#bytes(), { timeoutMilliseconds: 0 }));
  }

  async #sleep(): Promise<boolean> {
    if (this.#isAsleep || this.#leaf instanceof CudaMemoryResource) return false;
    await sleepResource(this.#top, { keep: 'host' });
    this.#isAsleep = true;
    return true;
  }

  async #wake(): Promise<boolean> {
    if (!this.#isAsleep) return false;
    await wakeResource(this.#top);
    this.#isAsleep = false;
    return true;
  }

  /** Ends what refers to its memory, then frees it. */
  #dispose(index: number): void {
    const [piece] = this.#pieces.splice(index, 1) as [Piece];
    for (const { exec } of piece.graphs) exec.dispose();
    for (const view of piece.views) view.dispose();
    piece.pin?.dispose();
    piece.buffer.dispose();
  }

  async #check(): Promise<void> {
    if (this.#isAsleep) return;
    for (const [i, piece] of this.#pieces.entries()) {
      if (piece.buffer.isDisposed) throw new Error(`buffer ${i} has lost its memory`);
      let found: Uint8Array;
      try {
        found = await await this.#using(piece, (memory) => memory.toHost());
      } catch (error) {
        if ((error as { code?: string }).code === 'ERR_CISTERN_OUT_OF_MEMORY') continue;
        throw error;
      }
      const wrong = found.findIndex((byte) => byte !== piece.value);
      if (found.byteLength !== piece.bytes || wrong >= 0) {
        throw new Error(`buffer ${i} of ${piece.bytes} bytes has ${found[wrong]} at ${wrong}, and should have ${piece.value}`);
      }
    }
  }
}
