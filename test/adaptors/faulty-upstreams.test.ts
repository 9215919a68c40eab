import { setImmediate } from 'node:timers/promises';
import { inspect } from 'node:util';
import { afterAll, afterEach, describe, expect, test, vi } from 'vitest';
import {
  ArenaMemoryResource,
  BinningMemoryResource,
  CachingMemoryResource,
  CallbackMemoryResource,
  CudaMemoryResource,
  type DeallocationFence,
  Device,
  DeviceBuffer,
  type DevicePointer,
  FailureCallbackResourceAdaptor,
  FallbackResourceAdaptor,
  FaultyResourceError,
  KiB,
  type MemoryKind,
  type MemoryResource,
  MiB,
  MonotonicMemoryResource,
  OutOfMemoryError,
  PerDeviceResourceAdaptor,
  type ResourceKind,
  Stream,
  type TrimmingMemoryResource,
} from '../../src/index.js';
import { PlannedMemoryResource } from '../../src/plans/index.js';
import { everyKind } from '../../src/tools/every-kind.js';
import { planAllocations } from '../../src/tools/planning/index.js';
import { InRunResource } from '../support/in-run-resource.js';
import { exampleOf } from '../support/kind-stacks.js';

/** What an upstream returns instead of the address of new memory. */
interface Lie {
  readonly name: string;
  /** How the memory overlaps memory that the upstream has handed out, if it does. */
  readonly overlap?: 'same' | 'part';
  tell(liar: Liar, bytes: number): unknown;
  /** How the error shows it. */
  readonly shown: RegExp;
}

const lies: readonly Lie[] = [
  { name: 'NaN', tell: () => Number.NaN, shown: /returned NaN/ },
  { name: 'nothing', tell: () => undefined, shown: /returned undefined/ },
  { name: 'null', tell: () => null, shown: /returned null/ },
  { name: 'a promise', tell: (liar, bytes) => Promise.resolve(liar.take(bytes)), shown: /an instance of Promise.* must be synchronous/ },
  { name: 'a promise that is rejected', tell: () => Promise.reject(new Error('too late')), shown: /an instance of Promise/ },
  { name: 'text', tell: () => '4096', shown: /returned "4096"/ },
  { name: 'a bigint', tell: () => 4096n, shown: /returned 4096n/ },
  { name: 'an object', tell: () => ({ valueOf: () => 4096 }), shown: /an instance of Object/ },
  { name: 'the null pointer', tell: () => 0, shown: /returned 0x0 .*must throw an OutOfMemoryError/ },
  { name: 'an odd address', tell: (liar, bytes) => liar.take(bytes, 1), shown: /not a multiple of 256; it was freed again/ },
  { name: 'an address between', tell: (liar, bytes) => liar.take(bytes, 64), shown: /not a multiple of 256; it was freed again/ },
  { name: 'a negative address', tell: () => -4096, shown: /returned -4096/ },
  { name: 'a fraction', tell: () => 4096.5, shown: /returned 4096.5/ },
  { name: 'infinity', tell: () => Number.POSITIVE_INFINITY, shown: /returned Infinity/ },
  { name: 'more than a safe integer', tell: () => 2 ** 53, shown: /returned 9007199254740992/ },
  { name: 'memory that ends above every safe integer', tell: () => 2 ** 53 - 256, shown: /cannot be the address of that many bytes/ },
  { name: 'memory that it has handed out', overlap: 'same', tell: (liar) => liar.first(), shown: /that are not freed/ },
  { name: 'the middle of such memory', overlap: 'part', tell: (liar) => liar.first() + 256, shown: /that are not freed/ },
  { name: 'memory that ends in such memory', overlap: 'part', tell: (liar) => liar.first() - 256, shown: /that are not freed/ },
];

/** Serves memory of its own, or a lie when it is told to. Refuses to free what it did not hand out. */
class Liar implements MemoryResource {
  readonly device: Device;
  readonly memoryKind: MemoryKind = 'device';
  /** What is live, by the address that it was handed out with; and its real address. */
  readonly live = new Map<DevicePointer, { readonly base: DevicePointer; readonly bytes: number }>();
  /** Told at the next allocation. */
  lie: Lie | undefined;
  /** Thrown by every free. */
  refusal: Error | undefined;
  readonly #memory: CudaMemoryResource;
  readonly #stream = Stream.legacyDefault();

  constructor(device = Device.get()) {
    this.device = device;
    this.#memory = new CudaMemoryResource({ device });
  }

  allocate(bytes: number): DevicePointer {
    if (bytes === 0) return 0;
    if (bytes > 512 * MiB) throw new OutOfMemoryError('too large', { requestedBytes: bytes, path: ['Liar'] });
    const { lie } = this;
    this.lie = undefined;
    return lie === undefined ? this.take(bytes) : (lie.tell(this, bytes) as DevicePointer);
  }

  deallocate(pointer: DevicePointer, bytes: number, _stream?: Stream, _fence?: DeallocationFence): void {
    if (this.refusal !== undefined) throw this.refusal;
    if (pointer === 0) return;
    const block = this.live.get(pointer);
    if (block?.bytes !== bytes) throw new Error(`${pointer} is not live with ${bytes} bytes`);
    this.live.delete(pointer);
    this.#memory.deallocate(block.base, bytes, this.#stream);
  }

  /** Hands out memory, at an address that may lie behind the real one. */
  take(bytes: number, offset = 0): DevicePointer {
    const base = this.#memory.allocate(bytes, this.#stream);
    this.live.set(base + offset, { base, bytes });
    return base + offset;
  }

  /** The address of the largest memory that is live. */
  first(): DevicePointer {
    const [largest] = [...this.live].sort(([, a], [, b]) => b.bytes - a.bytes);
    return largest?.[0] ?? 0;
  }

  isEqual(other: MemoryResource): boolean {
    return other === this;
  }

  [Symbol.dispose](): void {}
}

interface Subject {
  readonly name: string;
  /** Which overlaps it notices, because it knows what it holds of the upstream. */
  readonly notices: readonly Lie['overlap'][];
  make(liar: Liar): MemoryResource;
}

const stream = new Stream();
afterAll(() => {
  stream.dispose();
});
afterEach(() => {
  vi.restoreAllMocks();
});

/** A resource that never has memory, so that the other one of two is asked. */
class Empty extends Liar {
  constructor(option = '') {
    super();
    if (option === 'host') Object.assign(this, { memoryKind: 'pinned-host' });
  }

  override allocate(bytes: number): DevicePointer {
    if (bytes === 0) return 0;
    throw new OutOfMemoryError('nothing is left', { requestedBytes: bytes, path: ['Empty'] });
  }
}

const none = [undefined] as const;
const all = [undefined, 'same', 'part'] as const;

function subjectOf(kind: ResourceKind): Subject {
  const { options = {} } = exampleOf(kind);
  const make = (liar: Liar) => {
    const values = Object.entries(options).map(([name, value]) => [
      name,
      kind.options[name]?.type === 'resource' ? new Empty(name) : value,
    ]);
    const upstreamOf = (device: Device) => new Liar(device);
    return kind.create({ upstream: liar, device: liar.device, upstreamOf, options: Object.fromEntries(values) as never });
  };
  // These pass requests on: outside of runs, outside of passes, above the largest bin.
  const passesOn = ['caching', 'planned', 'binning'].includes(kind.name);
  // An arena has one block.
  return { name: kind.name, notices: kind.role === 'pooling' && kind.name !== 'arena' && !passesOn ? all : none, make };
}

const subjects: readonly Subject[] = [
  ...everyKind.filter(({ role }) => role !== 'upstream').map(subjectOf),
  { name: 'failure-callback', notices: none, make: (liar) => new FailureCallbackResourceAdaptor(liar, () => false) },
  { name: 'caching in a run', notices: all, make: (liar) => new InRunResource(new CachingMemoryResource(liar)) },
  { name: 'the fallback of fallback', notices: none, make: (liar) => new FallbackResourceAdaptor(new Empty(), liar) },
  {
    name: 'the fallback of monotonic',
    notices: [undefined, 'same'],
    make: (liar) => new MonotonicMemoryResource(new Empty(), { fallback: liar }),
  },
  {
    name: 'the fallback of planned',
    notices: none,
    make: (liar) => new PlannedMemoryResource(new Empty(), undefined, { fallback: liar, planner: planAllocations }),
  },
  {
    name: 'a bin of binning',
    notices: none,
    make: (liar) => new BinningMemoryResource(new Empty(), { bins: [{ bytes: 2 * MiB, resource: liar }] }),
  },
  { name: 'the only resource of per-device', notices: none, make: (liar) => new PerDeviceResourceAdaptor([liar]) },
  {
    name: 'the functions of callback',
    notices: none,
    make: (liar) => {
      class Functions extends CallbackMemoryResource {}
      Object.defineProperty(Functions, 'name', { value: 'Liar' });
      return new Functions(liar.allocate.bind(liar), liar.deallocate.bind(liar));
    },
  },
];

/** Whether it means what it says: a function returns the null pointer if it has no memory. */
function isPromised(subject: string, lie: Lie): boolean {
  return subject === 'the functions of callback' && lie.name === 'the null pointer';
}

/** The sizes and counts that a resource shows. */
function stateOf(resource: MemoryResource): string {
  return inspect(resource, { depth: 0 });
}

function trimmed(resource: MemoryResource): MemoryResource {
  (resource as Partial<TrimmingMemoryResource>).trim?.(stream);
  return resource;
}

/** Allocates blocks until the upstream has lied. Returns them, and the error; none if it was not asked. */
function provoke(resource: MemoryResource, liar: Liar) {
  const blocks: DevicePointer[] = [];
  while (blocks.length < 70) {
    const before = stateOf(resource);
    try {
      blocks.push(resource.allocate(MiB, stream));
    } catch (error) {
      return { blocks, error, before };
    }
    if (liar.lie === undefined) throw new Error(`the lie was believed: ${String(blocks.at(-1))}`);
  }
  return { blocks, error: undefined, before: stateOf(resource) };
}

describe.each(subjects)('over an upstream that lies, $name', ({ name, notices, make }) => {
  test.each(lies.filter((lie) => notices.includes(lie.overlap) && !isPromised(name, lie)))(
    'refuses $name, loses nothing, and works afterwards',
    async (lie) => {
      const liar = new Liar();
      const resource = trimmed(make(liar));
      // Something to overlap with.
      const held = lie.overlap !== undefined ? [resource.allocate(MiB, stream)] : [];
      const live = new Map(liar.live);
      liar.lie = lie;
      const { blocks, error, before } = provoke(resource, liar);
      expect(error).toBeInstanceOf(FaultyResourceError);
      expect(error).toMatchObject({ code: 'ERR_CISTERN_FAULTY_RESOURCE', resource: 'Liar', message: expect.stringMatching(lie.shown) });
      expect((error as Error).message).toMatch(/^the Liar returned .* bytes, /);
      expect(stateOf(resource)).toBe(before);
      await setImmediate();
      if (blocks.length === 0) expect([...liar.live]).toEqual([...live]);

      const all = [...held, ...blocks, resource.allocate(MiB, stream)];
      expect(new Set(all).size).toBe(all.length);
      for (const pointer of all) resource.deallocate(pointer, MiB, stream);
      (resource as { validate?(): void }).validate?.();
      resource[Symbol.dispose]();
      (resource as { upstream?: Disposable }).upstream?.[Symbol.dispose]();
      expect([...liar.live]).toEqual([]);
    },
  );

  test.each(lies.filter(({ overlap }) => overlap === undefined))('is not constructed with $name, or does not ask', async (lie) => {
    const liar = new Liar();
    liar.lie = lie;
    let resource: MemoryResource;
    try {
      resource = make(liar);
    } catch (error) {
      expect(error).toMatchObject({ code: 'ERR_CISTERN_FAULTY_RESOURCE', resource: 'Liar', message: expect.stringMatching(lie.shown) });
      await setImmediate();
      expect([...liar.live]).toEqual([]);
      return;
    }
    expect(liar.lie).toBe(lie);
    resource[Symbol.dispose]();
  });

  test('is disposed, twice, although the upstream refuses every free, and gives back later what it can', () => {
    const liar = new Liar();
    const resource = make(liar);
    resource.allocate(MiB, stream);
    liar.refusal = new Error('not now');
    for (let i = 0; i < 2; i++) {
      try {
        resource[Symbol.dispose]();
      } catch (error) {
        expect(error).toBe(liar.refusal);
      }
    }
    liar.refusal = undefined;
    resource[Symbol.dispose]();
    const givesBack = notices === all && name !== 'caching in a run';
    if (givesBack) expect([...liar.live]).toEqual([]);
  });

  test('survives a free that returns a rejected promise, with a warning', async () => {
    const liar = new Liar();
    liar.deallocate = (() => Promise.reject(new Error('too late'))) as never;
    const resource = make(liar);
    const warn = vi.spyOn(process, 'emitWarning').mockReturnValue();
    resource.deallocate(resource.allocate(MiB, stream), MiB, stream);
    (resource as Partial<TrimmingMemoryResource>).trim?.(stream);
    resource[Symbol.dispose]();
    (resource as { upstream?: Disposable }).upstream?.[Symbol.dispose]();
    await setImmediate();
    expect(warn).toHaveBeenCalledWith(expect.stringMatching(/^the Liar promised to free memory, but did not: too late/), {
      code: 'CISTERN_FAULTY_RESOURCE',
    });
  });
});

describe('a buffer from a resource that lies', () => {
  test.each(lies.filter(({ overlap }) => overlap === undefined))('is not made with $name', async (lie) => {
    const liar = new Liar();
    liar.lie = lie;
    const isFaulty = expect.objectContaining({ code: 'ERR_CISTERN_FAULTY_RESOURCE', message: expect.stringMatching(lie.shown) });
    expect(() => new DeviceBuffer(MiB, { resource: liar, stream })).toThrow(isFaulty);
    await setImmediate();
    expect([...liar.live]).toEqual([]);
    using buffer = new DeviceBuffer(Uint8Array.of(1, 2, 3), { resource: liar, stream });
    const { ptr } = buffer;
    liar.lie = lie;
    expect(() => buffer.reserve(MiB)).toThrow(isFaulty);
    await setImmediate();
    expect([buffer.ptr, buffer.byteLength, [...buffer.toHostSync()]]).toEqual([ptr, 3, [1, 2, 3]]);
    expect([...liar.live.keys()]).toEqual([ptr]);
    buffer.resize(KiB);
    buffer.dispose();
    expect([...liar.live]).toEqual([]);
  });

  test('is not made at an address with less than the requested alignment, which is given back', () => {
    const liar = new Liar();
    const between: Lie = {
      name: 'a multiple of 256 only',
      tell: (_, bytes) => liar.take(bytes, 256),
      shown: /not a multiple of 4096; it was freed again/,
    };
    liar.lie = between;
    expect(() => new DeviceBuffer(MiB, { resource: liar, stream, alignment: 4096 })).toThrow(between.shown);
    expect(liar.live.size).toBe(0);
  });
});

test('an arena refuses memory that it already has', () => {
  const liar = new Liar();
  const arena = new ArenaMemoryResource(liar, { arenaBytes: 4 * MiB });
  expect(liar.live.size).toBe(1);
  arena.dispose();
  expect(liar.live.size).toBe(0);
});
