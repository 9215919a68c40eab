/**
 * Random programs that mix both worlds: pools of JavaScript, thread-safe arenas, and native threads that call these arenas, all
 * on the superblocks of one global arena that is too small for them. They write a value to each block, on several
 * streams, some of them held, read it before they free it, on whichever thread and stream, and look at what was read
 * when everything has run. No two live blocks may overlap, and nothing may be left.
 */

import { createRequire } from 'node:module';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { checkOrder } from '../../src/checking/index.js';
import {
  type CisternError,
  copy,
  DeviceBuffer,
  Event,
  KiB,
  PinnedHostMemoryResource,
  PoolMemoryResource,
  Stream,
  type StreamHold,
  set,
} from '../../src/index.js';
import { addonInterface } from '../../src/interchange/index.js';
import { Random } from '../../src/tools/testing/random.js';
import { GlobalArenaMemoryResource, ThreadSafeArenaMemoryResource } from '../../src/workers/index.js';

/** `native/test/threads`: calls on other threads, one at a time. */
export interface ThreadsAddon {
  open(cistern: typeof addonInterface): void;
  table(resource: ThreadSafeArenaMemoryResource): number;
  release(table: number): void;
  start(): number;
  end(thread: number): void;
  /** The address, or a result of `cistern_resource.h` below zero. */
  allocate(thread: number, table: number, bytes: number, alignment: number, stream: number): number;
  deallocate(thread: number, table: number, pointer: number, bytes: number, stream: number): number;
  deliver(
    resource: ThreadSafeArenaMemoryResource,
    bytes: number,
    stream: number,
    callback: (error: Error | null, buffer?: DeviceBuffer) => void,
  ): void;
}

/** @param path of threads.node */
export function loadThreads(path: string): ThreadsAddon {
  const addon = createRequire(import.meta.url)(path) as ThreadsAddon;
  addon.open(addonInterface);
  return addon;
}

/** What programs did. */
export interface ArenaCounts {
  programs: number;
  steps: number;
  ofPools: number;
  ofArenas: number;
  ofThreads: number;
  /** Blocks that were freed on a thread other than the one that had allocated them, or on another stream. */
  freedElsewhere: number;
  /** Superblocks that served another resource than the time before. */
  handedOver: number;
  outOfMemory: number;
  endedThreads: number;
}

const superblock = 64 * KiB;
const superblocks = 6;
const steps = 80;
const logBytes = 4096 * KiB;
const policies = ['eager', 'deferred', 'off'] as const;
const outOfMemory = -1;

interface Arena {
  resource: ThreadSafeArenaMemoryResource;
  table: number;
}

interface Block {
  readonly pointer: number;
  readonly bytes: number;
  readonly value: number;
  readonly home: PoolMemoryResource | Arena;
  /** The native thread that has allocated it; 0 for JavaScript's. */
  readonly thread: number;
  stream: Stream;
}

/** Runs programs with successive seeds. @throws the first fault, with its seed. */
export async function proveArenas(programs: number, seed: number, addon: ThreadsAddon): Promise<ArenaCounts> {
  const zero = { ofPools: 0, ofArenas: 0, ofThreads: 0, freedElsewhere: 0, handedOver: 0, outOfMemory: 0, endedThreads: 0 };
  const counts: ArenaCounts = { programs: 0, steps: 0, ...zero };
  for (let i = 0; i < programs; i++) {
    try {
      await new ArenaProgram(new Random(seed + i), counts, addon, `program ${seed + i}`).run();
    } catch (error) {
      throw new Error(`seed ${seed + i}: ${error instanceof Error ? error.message : error}`, { cause: error });
    }
    counts.programs++;
  }
  return counts;
}

class ArenaProgram {
  readonly #random: Random;
  readonly #counts: ArenaCounts;
  readonly #addon: ThreadsAddon;
  readonly #name: string;
  readonly #global: GlobalArenaMemoryResource;
  readonly #pools: PoolMemoryResource[];
  readonly #arenas: Arena[];
  readonly #threads: number[];
  readonly #streams: Stream[];
  #holds: StreamHold[] = [];
  #blocks: Block[] = [];
  /** What was read, in the order of the reads. */
  readonly #log: DeviceBuffer;
  #logged = 0;
  readonly #reads: { readonly at: number; readonly bytes: number; readonly value: number }[] = [];
  readonly #servedBy = new Map<number, Block['home']>();
  #value = 0;

  constructor(random: Random, counts: ArenaCounts, addon: ThreadsAddon, name: string) {
    this.#random = random;
    this.#counts = counts;
    this.#addon = addon;
    this.#name = name;
    this.#global = new GlobalArenaMemoryResource({
      name,
      arenaBytes: superblocks * superblock,
      superblockBytes: superblock,
      waitMilliseconds: 0,
    });
    const policy = () => ({ deallocationEvents: this.#pick(policies) });
    this.#pools = [0, 1].map(() => new PoolMemoryResource(this.#global, policy()));
    this.#arenas = [0, 1].map(() => this.#open());
    this.#threads = [addon.start(), addon.start()];
    this.#streams = [...[0, 1].map(() => new Stream({ nonBlocking: true })), new Stream(), Stream.legacyDefault()];
    this.#log = new DeviceBuffer(logBytes, { resource: new PinnedHostMemoryResource(), stream: this.#streams[0] as Stream });
    this.#streams[0]?.synchronizeSync();
  }

  async run(): Promise<void> {
    const { violations } = await this.#checked();
    if (violations.length > 0)
      throw new Error(`${violations.length} violations of stream order, the first: ${JSON.stringify(violations[0])}`);
  }

  async #checked(): Promise<{ readonly violations: readonly unknown[] }> {
    using checker = checkOrder({ stacks: false });
    try {
      for (let step = 0; step < steps; step++) {
        this.#counts.steps++;
        await this.#step();
      }
      this.#end();
    } finally {
      // Whoever reports a failure would wait for a held stream.
      this.#release();
    }
    return checker;
  }

  async #step(): Promise<void> {
    const choice = this.#random.below(32);
    if (choice < 12) this.#allocate();
    else if (choice < 14) this.#allocateMany();
    else if (choice < 22) this.#free();
    else if (choice < 23) this.#freeMany();
    else if (choice < 25) this.#read(this.#pick(this.#blocks));
    else if (choice < 26) this.#holds.push(this.#pick(this.#streams).hold());
    else if (choice < 28) this.#release();
    else if (choice < 29) this.#endThread();
    else if (choice < 30) this.#pick(this.#pools).trim(this.#pick(this.#streams));
    else if (choice < 31) this.#replaceArena();
    else await nextTurn(); // others may have asked for superblocks
  }

  /** Everything is freed, and has contained what was written to it; then one resource can have all memory. */
  #end(): void {
    while (this.#blocks.length > 0) this.#free();
    this.#release();
    for (const stream of this.#streams) stream.synchronizeSync();
    const bytes = this.#log.hostView(Uint8Array);
    for (const { at, bytes: count, value } of this.#reads) {
      const wrong = bytes.subarray(at, at + count).findIndex((byte) => byte !== value);
      if (wrong >= 0) throw new Error(`byte ${wrong} of a block of ${count} was ${bytes[at + wrong]} and not ${value}`);
    }
    for (const { resource } of this.#arenas) {
      const { liveBytes, liveAllocations } = resource.statistics();
      if (liveBytes + liveAllocations > 0) throw new Error(`${liveAllocations} allocations of ${liveBytes} bytes are left`);
    }
    const stream = this.#streams[0] as Stream;
    const { resource } = this.#pick(this.#arenas);
    resource.deallocate(resource.allocate(superblocks * superblock, stream), superblocks * superblock, stream);
    for (const thread of this.#threads) this.#addon.end(thread);
    for (const arena of this.#arenas) this.#close(arena);
    for (const pool of this.#pools) pool.dispose();
    stream.synchronizeSync();
    const { usedBytes } = this.#global.statistics();
    if (usedBytes > 0) throw new Error(`${usedBytes} bytes of the global arena are in use at the end`);
    this.#global.dispose();
    this.#log.dispose();
    for (const each of this.#streams.slice(0, -1)) each.dispose();
  }

  #pick<T>(items: readonly T[]): T {
    return items[this.#random.below(items.length)] as T;
  }

  /** Under `'off'` a pool that runs out waits for its streams, also for those that this thread holds. */
  #pickPool(): PoolMemoryResource {
    const pool = this.#pick(this.#pools);
    if (pool.deallocationEvents === 'off') this.#release();
    return pool;
  }

  #open(): Arena {
    const resource = new ThreadSafeArenaMemoryResource({ name: this.#name, deallocationEvents: this.#pick(policies) });
    return { resource, table: this.#addon.table(resource) };
  }

  /** The table and the object end in either order. */
  #close({ resource, table }: Arena): void {
    const isFirst = this.#random.below(2) === 0;
    if (isFirst) resource.dispose();
    this.#addon.release(table);
    if (!isFirst) resource.dispose();
  }

  #allocate(): void {
    const bytes = this.#random.below(3) === 0 ? this.#random.size(4 * superblock) : this.#random.size(8 * KiB);
    const alignment = this.#random.below(6) === 0 ? 2 ** (8 + this.#random.below(8)) : 256;
    const stream = this.#pick(this.#streams);
    const choice = this.#random.below(4);
    if (choice === 0) {
      const pool = this.#pickPool();
      this.#attempt(() => this.#note(pool.allocate(bytes, stream, alignment), bytes, stream, pool, 0, alignment));
      return;
    }
    const arena = this.#pick(this.#arenas);
    if (choice === 1) {
      this.#attempt(() => this.#note(arena.resource.allocate(bytes, stream, alignment), bytes, stream, arena, 0, alignment));
      return;
    }
    const thread = this.#pick(this.#threads);
    const pointer = this.#addon.allocate(thread, arena.table, bytes, alignment, stream.nativeHandle);
    if (pointer > 0) this.#note(pointer, bytes, stream, arena, thread, alignment);
    else if (pointer === outOfMemory) this.#counts.outOfMemory++;
    else throw new Error(`an allocation of a thread failed with ${-pointer}`);
  }

  #allocateMany(): void {
    const sizes = Float64Array.from({ length: this.#random.below(12) }, () => this.#random.size(4 * KiB));
    const stream = this.#pick(this.#streams);
    const home = this.#random.below(2) === 0 ? this.#pickPool() : this.#pick(this.#arenas);
    this.#attempt(() => {
      const pointers = ('table' in home ? home.resource : home).allocateMany(sizes, stream);
      pointers.forEach((pointer, i) => {
        this.#note(pointer, sizes[i] as number, stream, home, 0, 256);
      });
    });
  }

  #attempt(action: () => void): void {
    try {
      action();
    } catch (error) {
      if ((error as CisternError).code !== 'ERR_CISTERN_OUT_OF_MEMORY') throw error;
      this.#counts.outOfMemory++;
    }
  }

  #note(pointer: number, bytes: number, stream: Stream, home: Block['home'], thread: number, alignment: number): void {
    if (pointer % alignment !== 0) throw new Error(`${pointer} is no multiple of ${alignment}`);
    const other = this.#blocks.find((block) => block.pointer < pointer + bytes && pointer < block.pointer + block.bytes);
    if (other !== undefined) throw new Error(`${bytes} bytes at ${pointer} overlap ${other.bytes} at ${other.pointer}`);
    for (let at = Math.floor(pointer / superblock); at * superblock < pointer + bytes; at++) {
      const before = this.#servedBy.get(at);
      if (before !== undefined && before !== home) this.#counts.handedOver++;
      this.#servedBy.set(at, home);
    }
    if (thread > 0) this.#counts.ofThreads++;
    else if ('table' in home) this.#counts.ofArenas++;
    else this.#counts.ofPools++;
    this.#value = (this.#value % 255) + 1;
    set(pointer, this.#value, 1, bytes, stream);
    this.#blocks.push({ pointer, bytes, value: this.#value, home, thread, stream });
  }

  #read(block: Block | undefined): void {
    if (block === undefined || this.#logged + block.bytes > logBytes) return;
    copy(this.#log.ptr + this.#logged, block.pointer, block.bytes, block.stream);
    this.#reads.push({ at: this.#logged, bytes: block.bytes, value: block.value });
    this.#logged += block.bytes;
  }

  /** Goes on with a block on another stream, after the work of the one before. */
  #move(block: Block, stream: Stream): void {
    if (block.stream === stream) return;
    using event = new Event();
    event.record(block.stream);
    stream.wait(event);
    block.stream = stream;
    this.#counts.freedElsewhere++;
  }

  #take(): Block | undefined {
    return this.#blocks.splice(this.#random.below(this.#blocks.length), 1)[0];
  }

  #free(): void {
    const block = this.#take();
    if (block === undefined) return;
    if (this.#random.below(3) === 0) this.#move(block, this.#pick(this.#streams));
    this.#read(block);
    const { pointer, bytes, stream, home } = block;
    if (!('table' in home)) {
      home.deallocate(pointer, bytes, stream);
      return;
    }
    const thread = this.#random.below(2) === 0 ? 0 : this.#pick(this.#threads);
    if (thread !== block.thread) this.#counts.freedElsewhere++;
    if (thread === 0) {
      home.resource.deallocate(pointer, bytes, stream);
      return;
    }
    const result = this.#addon.deallocate(thread, home.table, pointer, bytes, stream.nativeHandle);
    if (result !== 0) throw new Error(`a free of a thread failed with ${result}`);
  }

  /** Of one resource, whichever threads have allocated them. */
  #freeMany(): void {
    const first = this.#take();
    if (first === undefined) return;
    const { home, stream } = first;
    const chosen = [first, ...this.#blocks.filter((block) => block.home === home && this.#random.below(2) === 0)];
    this.#blocks = this.#blocks.filter((block) => !chosen.includes(block));
    for (const block of chosen) {
      this.#move(block, stream);
      this.#read(block);
    }
    const pointers = Float64Array.from(chosen, ({ pointer }) => pointer);
    const sizes = Float64Array.from(chosen, ({ bytes }) => bytes);
    ('table' in home ? home.resource : home).deallocateMany(pointers, sizes, stream);
  }

  #release(): void {
    for (const hold of this.#holds.splice(0)) hold.release();
  }

  /** What it has allocated stays. */
  #endThread(): void {
    const place = this.#random.below(this.#threads.length);
    this.#addon.end(this.#threads[place] as number);
    this.#threads[place] = this.#addon.start();
    this.#counts.endedThreads++;
  }

  /** An arena ends with nothing allocated, while its frees may still run. */
  #replaceArena(): void {
    const place = this.#random.below(this.#arenas.length);
    const arena = this.#arenas[place] as Arena;
    if (this.#blocks.some(({ home }) => home === arena)) return;
    this.#close(arena);
    this.#arenas[place] = this.#open();
  }
}
