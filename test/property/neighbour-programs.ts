/**
 * Random programs with several stacks that share the memory of one device, on several streams, some of them held, under every policy and
 * under the order checker: what one stack returns and another gets must be ordered, whoever freed it where. Half of them return what is idle.
 *
 * What is checked: no use, free or reuse without a wait; what is in memory that is in use is what was written there; the counts of
 * all resources; and if a request is refused while all streams are idle, then no trim of the other stacks would have made room.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { checkOrder } from '../../src/checking/index.js';
import {
  ArenaMemoryResource,
  CachingMemoryResource,
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  type DeallocationEvents,
  Device,
  Event,
  FixedSizeMemoryResource,
  KiB,
  LimitingResourceAdaptor,
  type MemoryResource,
  MonotonicMemoryResource,
  OutOfMemoryError,
  PoolMemoryResource,
  Stream,
  type StreamHold,
  type StreamOrderedMemoryResource,
  type StreamOrderedStatistics,
  set,
  VirtualMemoryResource,
} from '../../src/index.js';
import { type Plan, PlannedMemoryResource } from '../../src/plans/index.js';
import { planAllocations } from '../../src/tools/planning/index.js';
import { Random } from '../../src/tools/testing/random.js';
import { DeclaringResource } from './declaring-resource.js';
import { Inspector } from './inspector.js';

/** What programs did. */
export interface NeighbourCounts {
  programs: number;
  allocations: number;
  refused: number;
  /** Allocations during which another stack returned memory. */
  helped: number;
  /** Those that were served then. */
  saved: number;
  /** Refusals after which nothing more could have been returned. */
  exact: number;
  trims: number;
  endedStreams: number;
  /** Resources that returned something because nobody had needed it. */
  idleReturns: number;
}

const unit = 64 * KiB;
/** What all stacks together can take. */
const units = 64;
const steps = 80;
const policies: readonly DeallocationEvents[] = ['eager', 'deferred', 'off'];

type Keeping = StreamOrderedMemoryResource<never> & MemoryResource & { statistics(): StreamOrderedStatistics };

interface Stack {
  readonly top: DeclaringResource;
  /** From the top to the bottom. */
  readonly keepers: readonly Keeping[];
  readonly keepBytes: number;
  /** If it serves passes. */
  readonly planned: PlannedMemoryResource | undefined;
  /** Whether only the memory of the device can stop it. */
  readonly isUnlimited: boolean;
}

interface Live {
  readonly stack: Stack;
  readonly pointer: number;
  readonly bytes: number;
  readonly value: number;
  stream: Stream;
}

/** Runs programs with successive seeds. @throws the first fault, with its seed. */
export async function proveNeighbours(programs: number, seed: number): Promise<NeighbourCounts> {
  const counts = { programs: 0, allocations: 0, refused: 0, helped: 0, saved: 0, exact: 0, trims: 0, endedStreams: 0, idleReturns: 0 };
  for (let i = 0; i < programs; i++) {
    try {
      await new NeighbourProgram(new Random(seed + i), counts).run();
    } catch (error) {
      throw new Error(`seed ${seed + i}: ${error instanceof Error ? error.stack : error}`, { cause: error });
    }
    counts.programs++;
  }
  return counts;
}

class NeighbourProgram {
  readonly #leaf: MemoryResource;
  readonly #device: LimitingResourceAdaptor;
  readonly #stacks: readonly Stack[];
  readonly #streams: Stream[];
  readonly #holds = new Map<Stream, StreamHold>();
  readonly #inspector = new Inspector();
  readonly #live: Live[] = [];
  #values = 0;
  /** Under `'off'`, a resource that has no more memory waits for streams, for a held one for ever. */
  #mayHold = true;

  constructor(
    readonly random: Random,
    readonly counts: NeighbourCounts,
  ) {
    const kind = random.below(4);
    const isVirtual = kind === 0 && Device.get().attribute('virtualMemoryManagementSupported') === 1;
    this.#leaf = isVirtual ? new VirtualMemoryResource() : kind === 1 ? new CudaAsyncMemoryResource() : new CudaMemoryResource();
    // A page is as large as everything else.
    const limitBytes = isVirtual ? 8 * 2 ** 21 : units * unit;
    this.#device = new LimitingResourceAdaptor(this.#leaf, { limitBytes });
    this.#streams = [0, 1, 2].map(() => new Stream({ nonBlocking: true }));
    this.#stacks = Array.from({ length: 2 + random.below(3) }, () => this.#stack(limitBytes));
  }

  async run(): Promise<void> {
    using checker = checkOrder({ stacks: false });
    for (let step = 0; step < steps; step++) {
      this.#step();
      if (step % 16 === 15) await this.#pause();
    }
    this.#release();
    for (const live of this.#live.splice(0)) this.#free(live);
    this.#leaf.device.synchronizeSync();
    this.#inspector.verify();
    this.#inspector[Symbol.dispose]();
    for (const { top, keepers } of this.#stacks) {
      this.counts.idleReturns += keepers.reduce((sum, keeper) => sum + Number(keeper.statistics().idleReturnedBytes > 0), 0);
      for (const keeper of keepers) keeper.validate();
      top[Symbol.dispose]();
      for (const keeper of keepers) keeper[Symbol.dispose]();
    }
    if (this.#device.allocatedBytes !== 0) throw new Error(`${this.#device.allocatedBytes} bytes are left`);
    this.#device.dispose();
    this.#leaf[Symbol.dispose]();
    for (const stream of this.#streams) stream.dispose();
    const [violation] = checker.violations;
    if (violation !== undefined) throw new Error(`${checker.violations.length} violations of stream order: ${JSON.stringify(violation)}`);
  }

  #stack(limitBytes: number): Stack {
    const { random } = this;
    const deallocationEvents = policies[random.below(3)] as DeallocationEvents;
    if (deallocationEvents === 'off') this.#mayHold = false;
    const share = limitBytes / 4;
    const keepBytes = random.below(4) === 0 ? share : 0;
    // Its timer runs as often as it can.
    const options = { deallocationEvents, keepBytes, ...(random.below(2) === 0 ? { idleMilliseconds: 0 } : {}) };
    const keepers: MemoryResource[] = [];
    const add = (keeper: MemoryResource) => {
      keepers.unshift(keeper);
      return keeper;
    };
    const kind = random.below(9);
    if (kind === 8) {
      const planned = new PlannedMemoryResource(this.#device, this.#plan(), { deallocationEvents });
      return { top: new DeclaringResource(planned), keepers: [planned as never], keepBytes: 0, planned, isUnlimited: false };
    }
    if (kind === 0) add(new ArenaMemoryResource(this.#device, { ...options, arenaBytes: 2 ** 20 }));
    else if (kind === 1) add(new FixedSizeMemoryResource(this.#device, { ...options, blockBytes: 4 * unit, blocksToPreallocate: 1 }));
    else if (kind === 2) add(new MonotonicMemoryResource(this.#device, { ...options, initialBytes: unit }));
    else if (kind === 3) add(new CachingMemoryResource(this.#device, options));
    else if (kind === 4) add(new PoolMemoryResource(add(new PoolMemoryResource(this.#device, options)), options));
    else add(new PoolMemoryResource(this.#device, kind === 5 ? { ...options, maximumBytes: limitBytes / 2 } : options));
    const top = new DeclaringResource(keepers[0] as MemoryResource);
    return {
      top,
      keepers: keepers as readonly MemoryResource[] as readonly Keeping[],
      keepBytes,
      planned: undefined,
      isUnlimited: kind === 4 || kind > 5,
    };
  }

  /** A plan of a pass on two streams. */
  #plan(): Plan {
    const count = 2 + this.random.below(6);
    const each = Array.from({ length: count }, (_, i) => i);
    return planAllocations({
      operations: [...each, ...each.map((i) => ~i)],
      sizes: each.map(() => unit * (1 + this.random.below(2))),
      streams: each.map(() => this.random.below(2)),
      freeStreams: each.map(() => this.random.below(2)),
      waits: [],
    });
  }

  #step(): void {
    const { random } = this;
    const what = random.below(20);
    if (what < 9) this.#allocate();
    else if (what < 15) this.#freeOne();
    else if (what === 15) this.#trim();
    else if (what === 16) this.#hold();
    else if (what === 17) this.#release();
    else if (what === 18) this.#synchronize();
    else this.#endStream();
  }

  #allocate(): void {
    const { random, counts } = this;
    const stack = this.#pick(this.#stacks);
    if (stack.planned !== undefined && random.below(6) === 0) stack.planned.begin();
    const stream = this.#pick(this.#streams);
    const bytes = unit * random.size(units / 2) - random.below(unit);
    const others = this.#stacks.filter((other) => other !== stack);
    const before = reservedBytes(others);
    counts.allocations++;
    let pointer: number;
    try {
      pointer = stack.top.allocate(bytes, stream);
    } catch (error) {
      if (!(error instanceof OutOfMemoryError)) throw error;
      counts.refused++;
      if (reservedBytes(others) < before) counts.helped++;
      this.#expectNoMore(stack, others, stream);
      return;
    }
    if (reservedBytes(others) < before) {
      counts.helped++;
      counts.saved++;
    }
    const value = 1 + (this.#values++ % 255);
    set(pointer, value, 1, bytes, stream);
    stream.touch(pointer, bytes, 'write');
    this.#live.push({ stack, pointer, bytes, value, stream });
  }

  /** Nothing is left that the others could have returned. */
  #expectNoMore(stack: Stack, others: readonly Stack[], stream: Stream): void {
    if (this.#holds.size > 0 || !stack.isUnlimited || !this.#streams.every((each) => each.query())) return;
    for (const { keepers, keepBytes } of others) {
      for (const keeper of keepers) {
        const returned = keeper.trim(stream, { bytesToKeep: keepBytes });
        if (returned > 0) throw new Error(`${keeper} could still return ${returned} bytes`);
      }
    }
    this.counts.exact++;
  }

  #freeOne(): void {
    if (this.#live.length === 0) return;
    const [live] = this.#live.splice(this.random.below(this.#live.length), 1) as [Live];
    if (this.random.below(3) === 0) this.#moveTo(live, this.#pick(this.#streams));
    this.#free(live);
  }

  /** From now on, another stream uses the memory. */
  #moveTo(live: Live, stream: Stream): void {
    if (stream === live.stream) return;
    using event = new Event();
    event.record(live.stream);
    stream.wait(event);
    live.stream = stream;
  }

  #free({ stack, pointer, bytes, value, stream }: Live): void {
    this.#inspector.read(pointer, stream, `${bytes} bytes of memory`, new Uint8Array(1).fill(value));
    this.#inspector.read(pointer + bytes - 1, stream, `${bytes} bytes of memory`, new Uint8Array(1).fill(value));
    stream.touch(pointer, bytes, 'read');
    stack.top.deallocate(pointer, bytes, stream);
  }

  /** Time passes, in which resources return what is idle. */
  async #pause(): Promise<void> {
    await sleep(3);
    for (const { keepers } of this.#stacks) for (const keeper of keepers) keeper.validate();
  }

  #trim(): void {
    this.counts.trims++;
    this.#pick(this.#pick(this.#stacks).keepers).trim(this.#pick(this.#streams));
  }

  #hold(): void {
    const stream = this.#pick(this.#streams);
    if (this.#mayHold && !this.#holds.has(stream)) this.#holds.set(stream, stream.hold());
  }

  #release(): void {
    for (const hold of this.#holds.values()) hold.release();
    this.#holds.clear();
  }

  #synchronize(): void {
    this.#release();
    this.#leaf.device.synchronizeSync();
    this.#inspector.verify();
  }

  #endStream(): void {
    this.#release();
    const i = this.random.below(this.#streams.length);
    const ending = this.#streams[i] as Stream;
    const next = new Stream({ nonBlocking: true });
    for (const live of this.#live) if (live.stream === ending) this.#moveTo(live, next);
    ending.dispose();
    this.#streams[i] = next;
    this.counts.endedStreams++;
  }

  #pick<T>(all: readonly T[]): T {
    return all[this.random.below(all.length)] as T;
  }
}

function reservedBytes(stacks: readonly Stack[]): number {
  return stacks.reduce((sum, { keepers }) => sum + (keepers.at(-1) as Keeping).reservedBytes, 0);
}
