import { unlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { setImmediate } from 'node:timers/promises';
import {
  CachingMemoryResource,
  createResourceStack,
  type DeallocationEvents,
  DeviceBuffer,
  Event,
  GiB,
  LoggingResourceAdaptor,
  type MemoryResource,
  OutOfMemoryError,
  type ResourceStack,
  reclaimUnreachableBuffers,
  Stream,
  set,
  type TrimmingMemoryResource,
  uncached,
  withResource,
} from '../../src/index.js';
import { readAllocationLog } from '../../src/tools/replay/index.js';
import type { Random } from '../../src/tools/testing/random.js';
import { Violation } from '../property/violation.js';
import { collect } from './measures.js';

/** What the actors did. */
export interface TrafficCounts {
  operations: number;
  refusals: number;
  /** Buffers that were never disposed. */
  dropped: number;
  /** Copies to the host that were compared. */
  comparisons: number;
  hostFunctions: number;
}

/** Options of {@link runTraffic}. */
export interface TrafficOptions {
  readonly actors: number;
  /** Operations of each actor. */
  readonly steps: number;
  /** Specifications to choose from. */
  readonly stacks: readonly string[];
  readonly counts: TrafficCounts;
}

const stackCount = 3;
const mostBytes = 48 * 1024;
const fences: readonly (DeallocationEvents | undefined)[] = [undefined, undefined, 'eager', 'deferred', 'off'];
const tooMuch = 64 * GiB;
let logs = 0;

/** A stack that several actors share. It may be logged, to a file or a Node stream. */
class SharedStack {
  readonly resource: MemoryResource;
  readonly #stack: ResourceStack;
  readonly #log: LoggingResourceAdaptor | undefined;
  readonly #file: string | undefined;
  readonly #target: Writable | undefined;
  readonly #pieces: Buffer[] = [];

  constructor(specification: string, log: 'file' | 'stream' | undefined) {
    this.#stack = createResourceStack(specification);
    const { resource } = this.#stack;
    if (log === 'file') {
      this.#file = join(tmpdir(), `cistern-stress-${process.pid}-${logs++}.csv`);
      this.#log = new LoggingResourceAdaptor(resource, { file: this.#file });
    } else if (log === 'stream') {
      const write = (piece: Buffer, _encoding: string, done: () => void) => {
        this.#pieces.push(piece);
        globalThis.setImmediate(done);
      };
      this.#target = new Writable({ write });
      this.#log = new LoggingResourceAdaptor(resource, { stream: this.#target, autoFlush: true });
    }
    this.resource = this.#log ?? resource;
  }

  get name(): string {
    return this.#stack.name;
  }

  get cache(): CachingMemoryResource | undefined {
    const { resource } = this.#stack;
    return resource instanceof CachingMemoryResource ? resource : undefined;
  }

  validate(): void {
    for (const layer of this.#stack.layers) if ('validate' in layer) (layer as { validate(): void }).validate();
  }

  trim(random: Random, stream: Stream): void {
    // A stack may have layers for another device as well.
    const layers = this.#stack.layers.filter((layer) => layer.device === stream.device && ('trim' in layer || 'defragment' in layer));
    if (layers.length === 0) return;
    const layer = layers[random.below(layers.length)] as Partial<TrimmingMemoryResource> & { defragment?(): number };
    if (layer.defragment !== undefined && random.below(2) === 0) layer.defragment();
    else layer.trim?.(stream, { bytesToKeep: random.below(2) * mostBytes });
  }

  /** Disposes it, and reads its log back. */
  async end(): Promise<void> {
    this.validate();
    this.#log?.dispose();
    this.#stack[Symbol.dispose]();
    if (this.#log === undefined) return;
    await new Promise<void>((resolve) => (this.#target === undefined ? resolve() : this.#target.end(resolve)));
    const log = await readAllocationLog(this.#file ?? pieces(this.#pieces));
    if (this.#file !== undefined) unlinkSync(this.#file);
    if (log.unfreedCount > 0) throw new Violation(`the log of ${this.name} has ${log.unfreedBytes} bytes that are not freed`);
  }
}

async function* pieces(all: readonly Buffer[]): AsyncIterable<Uint8Array> {
  yield* all;
}

/** A buffer, with its expected contents. */
interface Held {
  readonly buffer: DeviceBuffer;
  readonly stack: SharedStack;
  expected: Uint8Array;
}

/** An actor that uses memory on its own streams, and knows nothing of the others. */
class Actor {
  readonly #random: Random;
  readonly #stacks: readonly SharedStack[];
  readonly #counts: TrafficCounts;
  readonly #streams: Stream[];
  #held: Held[] = [];

  constructor(random: Random, stacks: readonly SharedStack[], counts: TrafficCounts) {
    this.#random = random;
    this.#stacks = stacks;
    this.#counts = counts;
    this.#streams = [0, 1].map(() => new Stream({ nonBlocking: random.below(4) > 0 }));
  }

  async run(steps: number): Promise<void> {
    for (let step = 0; step < steps; step++) {
      this.#counts.operations++;
      try {
        await this.#step();
      } catch (error) {
        if (!(error instanceof OutOfMemoryError)) throw error;
        this.#counts.refusals++;
      }
    }
    for (const { buffer } of this.#held) buffer.dispose();
    this.#held = [];
    for (const stream of this.#streams) stream.dispose();
  }

  async #step(): Promise<void> {
    const stack = this.#pick(this.#stacks);
    const stream = this.#pick(this.#streams);
    const held = this.#held.length > 0 ? this.#pick(this.#held) : undefined;
    const choice = this.#random.below(24);
    if (held === undefined || (choice < 5 && this.#held.length < 16)) return this.#make(stack, stream);
    switch (choice) {
      case 5:
      case 6:
        return this.#copy(held, this.#pick(this.#held));
      case 7:
        return this.#compare(held, held.buffer.toHostSync());
      case 8:
        return this.#compareLater(held);
      case 9:
      case 10:
        this.#remove(held);
        return held.buffer.dispose();
      case 11:
        // The rest is left to the collector.
        this.#counts.dropped++;
        return this.#remove(held);
      case 12:
        return this.#resize(held);
      case 13:
        order(held.buffer.stream, stream);
        return held.buffer.setStream(stream);
      case 14:
      case 15:
        return this.#allocate(stack.resource, stream);
      case 16:
        return this.#endStream(stream);
      case 17:
        return this.#launch(stream);
      case 18:
        if (this.#random.below(2) === 0) return stream.synchronizeSync();
        return stream.synchronize();
      case 19:
        return stack.trim(this.#random, stream);
      case 20:
        return this.#useScopes(stack, stream);
      case 21:
        return this.#refused(stack.resource, stream);
      case 22:
        return this.#hold(held, stream);
      case 23:
        if (this.#random.below(4) === 0) reclaimUnreachableBuffers('minor');
        return setImmediate();
      default:
        return held.buffer.fill(0, { byteLength: 0 });
    }
  }

  #make(stack: SharedStack, stream: Stream): void {
    const expected = this.#bytes(this.#random.size(mostBytes));
    const isFilled = this.#random.below(3) === 0;
    const buffer = new DeviceBuffer(isFilled ? expected.length : expected, { resource: stack.resource, stream });
    if (isFilled) buffer.fill(expected.fill(this.#random.below(256))[0] as number);
    this.#held.push({ buffer, stack, expected });
  }

  #copy(to: Held, from: Held): void {
    if (to === from) return;
    const byteLength = Math.min(to.expected.length, from.expected.length);
    const byteOffset = this.#random.below(to.expected.length - byteLength + 1);
    to.buffer.copyFrom(from.buffer, { byteOffset, byteLength });
    to.expected.set(from.expected.subarray(0, byteLength), byteOffset);
  }

  #compare({ stack, expected }: Held, found: Uint8Array): void {
    this.#counts.comparisons++;
    if (Buffer.compare(found, expected) === 0) return;
    const at = expected.findIndex((byte, i) => byte !== found[i]);
    throw new Violation(
      `a buffer of ${stack.name} holds ${found[at]} at byte ${at} of ${expected.length}, where ${expected[at]} was written`,
    );
  }

  /** The buffer may be written and disposed while the copy is in progress. */
  async #compareLater(held: Held): Promise<void> {
    const then = { ...held, expected: held.expected.slice() };
    const copy = held.buffer.toHost();
    if (this.#random.below(2) === 0) {
      held.expected.fill(7);
      held.buffer.fill(7);
    }
    this.#compare(then, await copy);
  }

  #resize(held: Held): void {
    const { buffer } = held;
    const choice = this.#random.below(4);
    const byteLength = this.#random.size(mostBytes);
    if (choice === 0) {
      buffer.shrinkToFit();
    } else if (choice === 1) {
      buffer.reserve(byteLength);
    } else {
      const kept = Math.min(byteLength, held.expected.length);
      buffer.resize(byteLength);
      const expected = new Uint8Array(byteLength);
      expected.set(held.expected.subarray(0, kept));
      held.expected = expected;
      buffer.fill(0, { byteOffset: kept });
    }
  }

  /**
   * Allocates on one stream, uses the memory on two, and frees it on either, with any policy or
   * with an event.
   */
  #allocate(resource: MemoryResource, stream: Stream): void {
    const other = this.#pick(this.#streams);
    const bytes = this.#random.size(mostBytes);
    const pointer = resource.allocate(bytes, stream);
    if (resource.memoryKind === 'host') stream.touch(pointer, bytes, 'write');
    else set(pointer, 1, 1, bytes, stream);
    order(stream, other);
    other.touch(pointer, bytes, 'write');
    if (this.#random.below(4) > 0) {
      resource.deallocate(pointer, bytes, other, this.#pick(fences));
      return;
    }
    using event = new Event();
    event.record(other);
    resource.deallocate(pointer, bytes, other, event);
  }

  #endStream(stream: Stream): void {
    const next = new Stream({ nonBlocking: this.#random.below(4) > 0 });
    order(stream, next);
    for (const { buffer } of this.#held) if (buffer.stream === stream) buffer.setStream(next);
    this.#streams[this.#streams.indexOf(stream)] = next;
    stream.dispose();
  }

  #launch(stream: Stream): void {
    stream.launchHostFunction(() => {
      this.#counts.hostFunctions++;
    });
  }

  async #useScopes({ resource, cache }: SharedStack, stream: Stream): Promise<void> {
    const bytes = this.#random.size(mostBytes);
    const make = () => {
      const buffer = new DeviceBuffer(bytes, { stream });
      buffer.fill(3);
      return buffer;
    };
    const isAsynchronous = this.#random.below(2) === 0;
    if (cache === undefined) {
      const body = () => (this.#random.below(2) === 0 ? uncached(make) : make());
      withResource(resource, body).dispose();
      return;
    }
    const body = async () => {
      make();
      await setImmediate();
      return make();
    };
    const buffer = isAsynchronous ? await cache.run(body) : cache.run(make);
    if (!buffer.isDisposed) throw new Violation('a buffer outlives the run of its cache');
  }

  #refused(resource: MemoryResource, stream: Stream): void {
    const pointer = resource.allocate(tooMuch, stream);
    throw new Violation(`${resource.constructor.name} gives ${tooMuch} bytes at ${pointer}`);
  }

  /** Another stream waits for one that stands still. */
  #hold(held: Held, stream: Stream): void {
    using hold = held.buffer.stream.hold();
    const value = this.#random.below(256);
    held.buffer.fill(value);
    held.expected.fill(value);
    order(held.buffer.stream, stream);
    hold.release();
  }

  #bytes(length: number): Uint8Array {
    const first = this.#random.below(256);
    const step = 1 + this.#random.below(255);
    return Uint8Array.from({ length }, (_, i) => first + i * step);
  }

  #remove(held: Held): void {
    this.#held.splice(this.#held.indexOf(held), 1);
  }

  #pick<T>(values: readonly T[]): T {
    return values[this.#random.below(values.length)] as T;
  }
}

function order(before: Stream, after: Stream): void {
  if (before === after) return;
  using event = new Event();
  event.record(before);
  after.wait(event);
}

/**
 * Lets several actors use the same stacks at the same time, and ends the stacks. @throws Violation,
 * or an unexpected error.
 */
export async function runTraffic(randoms: () => Random, { actors, steps, stacks, counts }: TrafficOptions): Promise<void> {
  const random = randoms();
  const shared = Array.from({ length: stackCount }, () => {
    const log = (['file', 'stream', undefined] as const)[random.below(3)];
    return new SharedStack(stacks[random.below(stacks.length)] as string, log);
  });
  const made = Array.from({ length: actors }, () => new Actor(randoms(), shared, counts));
  let isOver = false;
  const watch = async () => {
    for (; !isOver; await setImmediate()) for (const stack of shared) stack.validate();
  };
  const over = Promise.all(made.map((actor) => actor.run(steps))).finally(() => {
    isOver = true;
  });
  await Promise.all([over, watch()]);
  // Dropped buffers must be freed before their resource ends.
  await collect();
  for (const stack of shared) await stack.end();
}
