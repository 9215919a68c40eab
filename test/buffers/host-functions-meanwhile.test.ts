import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ReclaimingResourceAdaptor } from '../../src/adaptors/pass-through/reclaiming-resource-adaptor.js';
import { ArenaMemoryResource } from '../../src/adaptors/pooling/arena-memory-resource.js';
import { BinningMemoryResource } from '../../src/adaptors/pooling/binning-memory-resource.js';
import { CachingMemoryResource } from '../../src/adaptors/pooling/caching-memory-resource.js';
import { FixedSizeMemoryResource } from '../../src/adaptors/pooling/fixed-size-memory-resource.js';
import { MonotonicMemoryResource } from '../../src/adaptors/pooling/monotonic-memory-resource.js';
import { PoolMemoryResource } from '../../src/adaptors/pooling/pool-memory-resource.js';
import { ArgumentRangeError, ArgumentTypeError, CisternError } from '../../src/basics/errors.js';
import { KiB, MiB } from '../../src/basics/units.js';
import { DeviceBuffer } from '../../src/buffers/device-buffer.js';
import { freeUnreachableBuffers, watchedBuffers } from '../../src/collector/free-unreachable-buffers.js';
import { Device } from '../../src/driver/device.js';
import { Event } from '../../src/driver/streams/event.js';
import { Stream } from '../../src/driver/streams/stream.js';
import type { MemoryResource, ReservingMemoryResource } from '../../src/memory-resource.js';
import { CudaAsyncMemoryResource } from '../../src/resources/cuda-async-memory-resource.js';
import { CudaMemoryResource } from '../../src/resources/cuda-memory-resource.js';
import { HostMemoryResource } from '../../src/resources/host-memory-resource.js';
import { ManagedMemoryResource } from '../../src/resources/managed-memory-resource.js';
import { PinnedHostMemoryResource } from '../../src/resources/pinned-host-memory-resource.js';

/** What a cell of the table uses. The host function runs on `stream`, inside the call. */
interface Cell {
  readonly leaf: ReservingMemoryResource;
  readonly resource: MemoryResource;
  readonly stream: Stream;
  readonly event: Event;
  readonly buffer: DeviceBuffer;
  readonly array: Uint8Array<ArrayBuffer>;
  /** Buffers that were created meanwhile, with the contents that they must have. */
  readonly released: ReturnType<DeviceBuffer['release']>[];
  readonly made: { readonly buffer: DeviceBuffer; readonly value: number }[];
}

const length = 5 * KiB;

type Leaf = new () => ReservingMemoryResource;
const leaves: Record<string, Leaf> = {
  cuda: CudaMemoryResource,
  async: CudaAsyncMemoryResource,
  managed: ManagedMemoryResource,
  pinned: PinnedHostMemoryResource,
  host: HostMemoryResource,
};
const stacks: Record<string, (leaf: MemoryResource) => MemoryResource> = {
  leaf: (leaf) => leaf,
  pool: (leaf) => new PoolMemoryResource(leaf, { initialBytes: 64 * KiB, deallocationEvents: 'deferred' }),
  'small pool': (leaf) => new PoolMemoryResource(leaf, { initialBytes: 0, maximumBytes: 32 * KiB, deallocationEvents: 'off' }),
  arena: (leaf) => new ArenaMemoryResource(leaf, { arenaBytes: 2 * MiB }),
  caching: (leaf) => new CachingMemoryResource(leaf),
  monotonic: (leaf) => new MonotonicMemoryResource(leaf, { initialBytes: 16 * KiB, maximumBytes: 16 * KiB, fallback: leaf }),
  fixed: (leaf) => new FixedSizeMemoryResource(leaf, { blockBytes: 16 * KiB }),
  binning: (leaf) => new BinningMemoryResource(leaf, { bins: [16 * KiB] }),
  'reclaiming(caching)': (leaf) => new ReclaimingResourceAdaptor(new CachingMemoryResource(leaf)),
};

/** Calls that wait for a stream on the host, or may do so. */
const calls: Record<string, (cell: Cell) => void> = {
  'wait for the stream': ({ stream }) => stream.synchronizeSync(),
  'wait for the event': ({ event }) => event.synchronizeSync(),
  'wait for the device': () => Device.get().synchronizeSync(),
  'copy to the host': ({ buffer, array }) => {
    buffer.toHostSync(array);
    // Whatever happened meanwhile, the copy was queued first.
    if (array.byteLength > 0) expect(isFilledWith(array, 7), 'the bytes that were there').toBe(true);
  },
  'copy from the host': ({ buffer }) => buffer.copyFromSync(new Uint8Array(length).fill(7)),
  'free the buffer': ({ buffer }) => buffer.dispose(),
  'free the buffer of a stream that has ended': ({ stream, buffer }) => {
    stream.dispose();
    buffer.dispose();
  },
  'grow the buffer': ({ buffer }) => buffer.resize(2 * length),
  'shrink the buffer': ({ buffer }) => {
    buffer.resize(100);
    buffer.shrinkToFit();
  },
  'make a buffer': (cell) => make(cell, cell.stream),
  'make a buffer that does not fit': (cell) => new DeviceBuffer(2 ** 42, cell),
  'allocate and free': ({ resource, stream }) => {
    const pointer = resource.allocate(length, stream);
    resource.deallocate(pointer, length, stream.isDisposed ? Stream.legacyDefault() : stream);
  },
  'trim the resource': ({ resource, stream }) => (resource as Partial<PoolMemoryResource>).trim?.(stream),
  'dispose the resource': ({ resource, leaf }) => {
    if (resource !== leaf) resource[Symbol.dispose]();
  },
};

/** What a host function does meanwhile. */
const acts: Record<string, (cell: Cell) => void> = {
  nothing: () => {},
  'ends the stream': ({ stream }) => stream.dispose(),
  'ends the event': ({ event }) => event.dispose(),
  'frees the buffer': ({ buffer }) => buffer.dispose(),
  'frees the buffer and ends the stream': ({ buffer, stream }) => {
    attempt(() => buffer.dispose());
    stream.dispose();
  },
  'frees the buffer and makes another': (cell) => {
    attempt(() => cell.buffer.dispose());
    make(cell, Stream.legacyDefault());
  },
  'grows the buffer': ({ buffer }) => buffer.resize(3 * length),
  'shrinks the buffer': ({ buffer }) => {
    buffer.resize(50);
    buffer.shrinkToFit();
  },
  'releases the buffer': (cell) => cell.released.push(cell.buffer.release()),
  'sets another stream': ({ buffer }) => buffer.setStream(Stream.legacyDefault()),
  'fills the buffer': ({ buffer }) => buffer.fill(7),
  'copies to the host': ({ buffer }) => buffer.toHostSync(),
  'transfers the array': ({ array }) => structuredClone(array.buffer, { transfer: [array.buffer] }),
  'waits for the stream': ({ stream }) => stream.synchronizeSync(),
  'waits for the device': () => Device.get().synchronizeSync(),
  'makes a buffer': (cell) => make(cell, cell.stream),
  'runs a cache': ({ resource, stream }) => {
    if (resource instanceof CachingMemoryResource) resource.run(() => new DeviceBuffer(length, { stream })).dispose();
  },
  'trims the resource': ({ resource, stream }) => (resource as Partial<PoolMemoryResource>).trim?.(stream),
  'disposes the resource': ({ resource, leaf }) => {
    if (resource !== leaf) resource[Symbol.dispose]();
  },
  'queues another and ends the stream': ({ stream, buffer }) => {
    stream.launchHostFunction(() => attempt(() => buffer.dispose()));
    stream.dispose();
  },
  throws: () => {
    throw new Error('thrown by a host function');
  },
};

function isFilledWith(bytes: Uint8Array, value: number): boolean {
  return bytes.every((byte) => byte === value);
}

function make(cell: Cell, stream: Stream): void {
  const value = 100 + cell.made.length;
  cell.made.push({ value, buffer: new DeviceBuffer(new Uint8Array(length).fill(value), { resource: cell.resource, stream }) });
}

function isGone(resource: MemoryResource): boolean {
  try {
    resource.deallocate(0, 0, Stream.legacyDefault());
    return false;
  } catch {
    return true;
  }
}

/** Any refusal with a type and a code is acceptable. */
function attempt(fn: () => void): void {
  try {
    fn();
  } catch (error) {
    if (error instanceof CisternError || error instanceof ArgumentTypeError || error instanceof ArgumentRangeError) return;
    throw error;
  }
}

const uncaught: unknown[] = [];
const note = (error: unknown) => uncaught.push(error);
let listeners: NodeJS.UncaughtExceptionListener[] = [];

beforeAll(() => {
  listeners = process.listeners('uncaughtException');
  process.removeAllListeners('uncaughtException');
  process.on('uncaughtException', note);
});

afterAll(() => {
  process.removeListener('uncaughtException', note);
  for (const listener of listeners) process.on('uncaughtException', listener);
});

function run(leafName: string, stackName: string, call: (cell: Cell) => void, act: (cell: Cell) => void): void {
  const leaf = new (leaves[leafName] as Leaf)();
  const stack = stacks[stackName] as (leaf: MemoryResource) => MemoryResource;
  const before = leafName === 'async' ? 0 : leaf.reservedBytes;
  const watched = watchedBuffers().count;
  const resource = stack(leaf);
  const stream = new Stream();
  const event = new Event();
  const own = Stream.legacyDefault();
  const bystander = new DeviceBuffer(new Uint8Array(length).fill(1), { resource, stream: own });
  const buffer = new DeviceBuffer(new Uint8Array(length).fill(7), { resource, stream });
  const cell: Cell = { leaf, resource, stream, event, buffer, array: new Uint8Array(length), made: [], released: [] };
  let actError: unknown;
  uncaught.length = 0;
  stream.launchHostFunction(() => {
    try {
      attempt(() => act(cell));
    } catch (error) {
      if ((error as Error).message === 'thrown by a host function') throw error;
      actError = error;
    }
  });
  event.record(stream);

  attempt(() => call(cell));
  // Work that it did not wait for runs now.
  Device.get().synchronizeSync();
  if (actError !== undefined) throw actError;
  if (uncaught.length > 0 && (uncaught[0] as Error).message !== 'thrown by a host function') throw uncaught[0];

  for (const { buffer: each, value } of [{ buffer: bystander, value: 1 }, ...cell.made]) {
    attempt(() => expect(isFilledWith(each.toHostSync(), value), `bytes of ${value}`).toBe(true));
  }
  for (const memory of cell.released) {
    const { ptr, capacityBytes } = memory;
    if (memory.resource !== leaf && isGone(memory.resource)) continue;
    memory.resource.deallocate(ptr, capacityBytes, own);
  }
  if (!buffer.isDisposed) expect(buffer.capacityBytes).toBeGreaterThanOrEqual(buffer.byteLength);
  for (const each of [buffer, bystander, ...cell.made.map((made) => made.buffer)]) {
    attempt(() => each.dispose());
    expect(each.isDisposed).toBe(true);
    each.dispose();
  }
  freeUnreachableBuffers();
  stream.dispose();
  event.dispose();
  if (resource !== leaf) resource[Symbol.dispose]();
  const below = (resource as Partial<ReclaimingResourceAdaptor>).upstream;
  if (below !== undefined && below !== leaf) below[Symbol.dispose]();
  expect(watchedBuffers().count, 'buffers that are still watched').toBe(watched);
  if (leaf instanceof CudaAsyncMemoryResource) {
    Device.get().synchronizeSync();
    expect(leaf.usage().usedBytes, 'bytes that are still allocated').toBe(0);
    leaf.dispose();
  } else {
    expect(leaf.reservedBytes, 'bytes that are still allocated').toBe(before);
  }
}

const combinations = [
  ...Object.keys(leaves).map((leafName) => [leafName, 'leaf']),
  ...Object.keys(stacks).flatMap((stackName) => ['cuda', 'pinned'].map((leafName) => [leafName, stackName])),
] as [string, string][];

describe.each(combinations)('over a %s resource, %s', (leafName, stackName) => {
  it.each(Object.keys(calls))('a host function may do anything to: %s', (callName) => {
    const failures: string[] = [];
    for (const [actName, act] of Object.entries(acts)) {
      try {
        run(leafName, stackName, calls[callName] as (cell: Cell) => void, act);
      } catch (error) {
        failures.push(`${actName}: ${error}`);
      }
    }
    expect(failures).toEqual([]);
  });
});
