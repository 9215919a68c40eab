import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import {
  formatSanitizerViolation,
  OrderError,
  type OrderViolationSide,
  type SanitizerViolation,
  SanitizingResourceAdaptor,
  type SanitizingResourceAdaptorOptions,
} from '../../src/checking/index.js';
import {
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  copy,
  copyFromHost,
  copyToHost,
  copyToHostSync,
  DeviceBuffer,
  type DevicePointer,
  Event,
  isCheckingOrder,
  type MemoryResource,
  PoolMemoryResource,
  Stream,
  set,
} from '../../src/index.js';
import { failCall } from '../../src/tools/testing/index.js';
import { runModule } from '../support/run-module.js';
import { SpyResource } from '../support/spy-resource.js';
import { policies } from '../support/stream-order.js';

// Here the check begins and ends with each test, even if the environment asks for it.
vi.stubEnv('CISTERN_CHECK_ORDER', '');

const bytes = 4096;
let a: Stream;
let b: Stream;

beforeEach(() => {
  a = new Stream({ nonBlocking: true });
  b = new Stream({ nonBlocking: true });
});

afterEach(() => {
  vi.restoreAllMocks();
  a.dispose();
  b.dispose();
  expect(isCheckingOrder()).toBe(false);
});

/** Makes `waiting` wait for all work queued on `recorded`. */
function wait(waiting: Stream, recorded: Stream): void {
  using event = new Event();
  event.record(recorded);
  waiting.wait(event);
}

/** Gives the block that was freed last to the next request, and makes no stream wait. */
class ForgetfulPool extends CudaMemoryResource {
  #kept: DevicePointer = 0;

  override allocate(size: number, stream: Stream): DevicePointer {
    const pointer = this.#kept;
    this.#kept = 0;
    return pointer || super.allocate(size, stream);
  }

  override deallocate(pointer: DevicePointer, size: number, stream: Stream): void {
    if (this.#kept !== 0) super.deallocate(this.#kept, size, stream);
    this.#kept = pointer;
  }

  override [Symbol.dispose](): void {
    if (this.#kept !== 0) super.deallocate(this.#kept, bytes, Stream.legacyDefault());
    super[Symbol.dispose]();
  }
}

interface Program {
  readonly upstream?: () => MemoryResource;
  readonly faulty: (resource: SanitizingResourceAdaptor) => void;
  /** The same without the error. */
  readonly right: (resource: SanitizingResourceAdaptor) => void;
  readonly kind: SanitizerViolation['kind'];
  readonly earlier?: Partial<OrderViolationSide>;
  readonly later?: Partial<OrderViolationSide>;
}

const programs: Record<string, Program> = {
  'a use on a stream that does not wait for the allocation': {
    faulty: (resource) => {
      const pointer = resource.allocate(bytes, a);
      set(pointer, 1, 1, bytes, b);
      a.synchronizeSync();
      b.synchronizeSync();
      resource.deallocate(pointer, bytes, a);
    },
    right: (resource) => {
      const pointer = resource.allocate(bytes, a);
      wait(b, a);
      set(pointer, 1, 1, bytes, b);
      wait(a, b);
      resource.deallocate(pointer, bytes, a);
    },
    kind: 'use-before-allocation',
    earlier: { operation: 'allocate' },
    later: { operation: 'set', access: 'write' },
  },
  'two uses without order': {
    faulty: (resource) => {
      const pointer = resource.allocate(bytes, a);
      wait(b, a);
      a.touch(pointer, 100, 'write');
      b.touch(pointer, 100, 'read');
      wait(a, b);
      resource.deallocate(pointer, bytes, a);
    },
    right: (resource) => {
      const pointer = resource.allocate(bytes, a);
      a.touch(pointer, 100, 'write');
      wait(b, a);
      b.touch(pointer, 100, 'read');
      wait(a, b);
      resource.deallocate(pointer, bytes, a);
    },
    kind: 'unordered',
    earlier: { operation: 'touch', access: 'write' },
    later: { operation: 'touch', access: 'read' },
  },
  'a free on a stream that does not wait for a use on another': {
    faulty: (resource) => {
      const pointer = resource.allocate(bytes, a);
      set(pointer, 1, 1, bytes, a);
      resource.deallocate(pointer, bytes, b);
    },
    right: (resource) => {
      const pointer = resource.allocate(bytes, a);
      set(pointer, 1, 1, bytes, a);
      wait(b, a);
      resource.deallocate(pointer, bytes, b);
    },
    kind: 'freed-while-in-use',
    earlier: { operation: 'set' },
    later: { operation: 'free' },
  },
  'a use after the free, by a touch': {
    faulty: (resource) => {
      const pointer = resource.allocate(bytes, a);
      resource.deallocate(pointer, bytes, a);
      a.touch(pointer, bytes, 'read');
    },
    right: (resource) => {
      const pointer = resource.allocate(bytes, a);
      a.touch(pointer, bytes, 'read');
      resource.deallocate(pointer, bytes, a);
    },
    kind: 'use-after-free',
    earlier: { operation: 'free' },
    later: { operation: 'touch' },
  },
  'a use after the free, by a copy from memory that a pool keeps': {
    upstream: () => new OwningPool(new CudaMemoryResource()),
    faulty: (resource) => {
      const [from, to] = [resource.allocate(bytes, a), resource.allocate(bytes, a)];
      resource.deallocate(from, bytes, a);
      copy(to, from, bytes, a);
      resource.deallocate(to, bytes, a);
    },
    right: (resource) => {
      const [from, to] = [resource.allocate(bytes, a), resource.allocate(bytes, a)];
      copy(to, from, bytes, a);
      resource.deallocate(from, bytes, a);
      resource.deallocate(to, bytes, a);
    },
    kind: 'use-after-free',
    earlier: { operation: 'free' },
    later: { operation: 'copy', access: 'read' },
  },
  'a resource that gives memory to another stream without a wait': {
    upstream: () => new ForgetfulPool(),
    faulty: (resource) => {
      resource.deallocate(resource.allocate(bytes, a), bytes, a);
      resource.deallocate(resource.allocate(bytes, b), bytes, b);
    },
    right: (resource) => {
      resource.deallocate(resource.allocate(bytes, a), bytes, a);
      wait(b, a);
      resource.deallocate(resource.allocate(bytes, b), bytes, b);
    },
    kind: 'reuse-without-wait',
    earlier: { operation: 'free' },
    later: { operation: 'allocate' },
  },
  'a free for which an event was recorded before the last use': {
    upstream: () => new ForgetfulPool(),
    faulty: (resource) => {
      using event = new Event();
      const pointer = resource.allocate(bytes, a);
      event.record(a);
      a.touch(pointer, bytes, 'write');
      resource.deallocate(pointer, bytes, a, event);
      b.wait(event);
      resource.deallocate(resource.allocate(bytes, b), bytes, b);
    },
    right: (resource) => {
      using event = new Event();
      const pointer = resource.allocate(bytes, a);
      a.touch(pointer, bytes, 'write');
      event.record(a);
      a.touch(pointer + 1_000_000_000, bytes, 'write');
      resource.deallocate(pointer, bytes, a, event);
      b.wait(event);
      resource.deallocate(resource.allocate(bytes, b), bytes, b);
    },
    kind: 'reuse-without-wait',
    earlier: { operation: 'touch' },
    later: { operation: 'allocate' },
  },
  'a second free': {
    faulty: (resource) => {
      const pointer = resource.allocate(bytes, a);
      resource.deallocate(pointer, bytes, a);
      expect(() => resource.deallocate(pointer, bytes, b)).toThrow(refusal('DOUBLE_FREE'));
    },
    right: (resource) => resource.deallocate(resource.allocate(bytes, a), bytes, a),
    kind: 'double-free',
    earlier: { operation: 'free', bytes },
    later: { operation: 'free', bytes },
  },
  'a free with another size': {
    faulty: (resource) => {
      const pointer = resource.allocate(bytes, a);
      expect(() => resource.deallocate(pointer, bytes + 1, a)).toThrow(refusal('WRONG_SIZE'));
      resource.deallocate(pointer, bytes, a);
    },
    right: (resource) => resource.deallocate(resource.allocate(bytes, a), bytes, a),
    kind: 'wrong-size',
    earlier: { operation: 'allocate', bytes },
    later: { operation: 'free', bytes: bytes + 1 },
  },
  'a free of a pointer into an allocation': {
    faulty: (resource) => {
      const pointer = resource.allocate(bytes, a);
      expect(() => resource.deallocate(pointer + 256, bytes - 256, a)).toThrow(refusal('FOREIGN_POINTER'));
      resource.deallocate(pointer, bytes, a);
    },
    right: (resource) => resource.deallocate(resource.allocate(bytes, a), bytes, a),
    kind: 'foreign-pointer',
    earlier: { operation: 'allocate', bytes },
    later: { operation: 'free', bytes: bytes - 256 },
  },
  'a free of memory from elsewhere': {
    faulty: (resource) => {
      const past = resource.upstream.allocate(bytes, a);
      expect(() => resource.deallocate(past, bytes, a)).toThrow(refusal('FOREIGN_POINTER'));
      resource.upstream.deallocate(past, bytes, a);
    },
    right: (resource) => resource.upstream.deallocate(resource.upstream.allocate(bytes, a), bytes, a),
    kind: 'foreign-pointer',
    later: { operation: 'free' },
  },
};

/** A pool that disposes its upstream. */
class OwningPool extends PoolMemoryResource {
  override [Symbol.dispose](): void {
    super[Symbol.dispose]();
    this.upstream[Symbol.dispose]();
  }
}

const refusal = (name: string) => expect.objectContaining({ name: 'LifetimeError', code: `ERR_CISTERN_${name}` });

describe('SanitizingResourceAdaptor', () => {
  describe.each(Object.entries(programs))('finds %s', (_name, { upstream: makeUpstream, faulty, right, kind, earlier, later }) => {
    const upstreams = makeUpstream === undefined ? [() => new CudaMemoryResource(), () => new CudaAsyncMemoryResource()] : [makeUpstream];

    test.each(upstreams)('once, with both sides and their stacks', (make) => {
      using upstream = make();
      const onViolation = vi.fn<(violation: SanitizerViolation) => void>();
      using resource = new SanitizingResourceAdaptor(upstream, { onViolation });
      faulty(resource);
      expect(resource.violations.map((violation) => violation.kind)).toEqual([kind]);
      expect(onViolation.mock.calls).toEqual([[resource.violations[0]]]);
      const violation = resource.violations[0] as SanitizerViolation;
      if (earlier === undefined) expect(violation.earlier).toBeUndefined();
      else expect(violation.earlier).toMatchObject(earlier);
      expect(violation.later).toMatchObject(later as object);
      for (const side of [violation.earlier, violation.later]) {
        if (side !== undefined) expect(side.stack).toMatch(/^ {4}at .*sanitizing-resource-adaptor\.test\.ts/m);
      }
      expect(violation.earlier?.stack).not.toBe(violation.later?.stack);
    });

    test.each(upstreams)('and nothing in its correct twin', (make) => {
      using upstream = make();
      using resource = new SanitizingResourceAdaptor(upstream);
      right(resource);
      expect(resource.violations).toEqual([]);
    });
  });

  test.each(policies)('violations nothing for a pool that orders what it returns (%s)', (events) => {
    using upstream = new CudaMemoryResource();
    using pool = new PoolMemoryResource(upstream);
    using resource = new SanitizingResourceAdaptor(pool, { deallocationEvents: events });
    const live: { pointer: number; size: number; stream: Stream }[] = [];
    for (let i = 0; i < 300; i++) {
      const stream = i % 3 === 0 ? b : a;
      const size = 256 << (i % 7);
      const pointer = resource.allocate(size, stream);
      set(pointer, 1, 1, size, stream);
      live.push({ pointer, size, stream });
      const old = i % 2 === 0 ? live.shift() : undefined;
      if (old !== undefined) resource.deallocate(old.pointer, old.size, old.stream);
      if (i % 50 === 0) stream.synchronizeSync();
    }
    for (const { pointer, size, stream } of live) resource.deallocate(pointer, size, stream);
    expect(resource.violations).toEqual([]);
  });

  test('checks memory that the upstream had taken before', () => {
    using upstream = new CudaAsyncMemoryResource();
    using pool = new PoolMemoryResource(upstream, { initialBytes: 1024 * bytes, maximumBytes: 1024 * bytes });
    using resource = new SanitizingResourceAdaptor(pool);
    const pointer = resource.allocate(bytes, a);
    set(pointer, 1, 1, bytes, b);
    resource.deallocate(pointer, bytes, a);
    set(pointer, 1, 1, bytes, b);
    expect(resource.violations.map(({ kind }) => kind)).toEqual(['use-before-allocation', 'freed-while-in-use', 'use-after-free']);
  });

  test('reports nothing for frees that share an event', () => {
    using upstream = new CudaMemoryResource();
    using pool = new PoolMemoryResource(upstream, { deallocationEvents: 'off' });
    using resource = new SanitizingResourceAdaptor(pool);
    const pointers = Array.from({ length: 10 }, () => resource.allocate(bytes, a));
    for (const pointer of pointers) set(pointer, 1, 1, bytes, a);
    using event = new Event();
    event.record(a);
    for (const pointer of pointers) resource.deallocate(pointer, bytes, a, event);
    for (const pointer of pointers.map(() => resource.allocate(bytes, b))) {
      set(pointer, 1, 1, bytes, b);
      resource.deallocate(pointer, bytes, b);
    }
    expect(resource.violations).toEqual([]);
  });

  test('reports nothing for unused memory that is freed with an event from before its allocation', () => {
    using upstream = new CudaMemoryResource();
    using pool = new PoolMemoryResource(upstream, { initialBytes: bytes, maximumBytes: bytes });
    using sanitizer = new SanitizingResourceAdaptor(pool);
    const first = sanitizer.allocate(bytes, a);
    set(first, 0, 1, bytes, a);
    sanitizer.deallocate(first, bytes, a);
    using event = new Event();
    event.record(a);
    sanitizer.deallocate(sanitizer.allocate(bytes, a), bytes, a, event);
    const pointer = sanitizer.allocate(bytes, b);
    expect(pointer).toBe(first);
    set(pointer, 0, 1, bytes, b);
    sanitizer.deallocate(pointer, bytes, b);
    expect(sanitizer.violations).toEqual([]);
  });

  test('reports nothing if one is above a pool and another below', () => {
    using leaf = new CudaMemoryResource();
    using inner = new SanitizingResourceAdaptor(leaf);
    using pool = new PoolMemoryResource(inner);
    using resource = new SanitizingResourceAdaptor(new SanitizingResourceAdaptor(pool));
    for (let i = 0; i < 60; i++) {
      const stream = i % 2 === 0 ? a : b;
      const pointer = resource.allocate(bytes << (i % 3), stream);
      set(pointer, 1, 1, bytes, stream);
      resource.deallocate(pointer, bytes << (i % 3), stream);
      if (i % 10 === 9) expect(pool.trim(stream)).toBeGreaterThan(0);
    }
    (resource.upstream as SanitizingResourceAdaptor).dispose();
    resource.dispose();
    pool.dispose();
    expect([resource.violations, inner.violations]).toEqual([[], []]);
  });

  test('finds in buffers what it finds in bare memory', () => {
    using upstream = new CudaAsyncMemoryResource();
    using resource = new SanitizingResourceAdaptor(upstream);
    const buffer = new DeviceBuffer(Float32Array.of(1, 2, 3), { resource, stream: a });
    set(buffer.ptr, 0, 4, 3, b);
    expect(resource.violations[0]).toMatchObject({ kind: 'unordered', earlier: { operation: 'copy' }, later: { operation: 'set' } });
    resource.clear();
    buffer.dispose();
    expect(resource.violations.map(({ kind }) => kind)).toEqual(['freed-while-in-use']);
  });

  test('reports leaks when it is disposed, with their stacks, and warns', () => {
    const emitWarning = vi.spyOn(process, 'emitWarning').mockReturnValue();
    using upstream = new CudaMemoryResource();
    const onViolation = vi.fn();
    using resource = new SanitizingResourceAdaptor(upstream, { onViolation });
    const pointers = [resource.allocate(100, a), resource.allocate(300, b)] as const;
    expect(resource.allocatedBytes).toBe(400);
    resource.dispose();
    resource.dispose();
    expect(isCheckingOrder()).toBe(false);
    expect(resource.violations).toMatchObject([
      { kind: 'leak', pointer: pointers[1], bytes: 300, earlier: { operation: 'allocate', streamId: b.id }, later: undefined },
      { kind: 'leak', pointer: pointers[0], bytes: 100, earlier: { operation: 'allocate', streamId: a.id }, later: undefined },
    ]);
    expect(resource.violations[0]?.earlier?.stack).toContain('sanitizing-resource-adaptor.test.ts');
    expect(onViolation).toHaveBeenCalledTimes(2);
    expect(emitWarning.mock.calls).toEqual([
      [
        expect.stringMatching(/^2 allocations of 400 bytes outstanding\n[\s\S]*sanitizing-resource-adaptor\.test/),
        { code: 'CISTERN_OUTSTANDING_ALLOCATIONS' },
      ],
    ]);
    upstream.deallocate(pointers[0], 100, a);
    upstream.deallocate(pointers[1], 300, a);
  });

  test('formats its violations for people', () => {
    vi.spyOn(process, 'emitWarning').mockReturnValue();
    const upstream = new SpyResource();
    using resource = new SanitizingResourceAdaptor(upstream, { stacks: false });
    const pointer = resource.allocate(100, a);
    expect(() => resource.deallocate(pointer, 99, b)).toThrow();
    expect(() => resource.deallocate(64, 8, b)).toThrow();
    resource.dispose();
    const address = `0x${pointer.toString(16)}`;
    const earlier = expect.stringMatching(
      new RegExp(`^  earlier: allocate of 100 bytes from ${address} on stream ${a.id}, operation \\d+$`),
    );
    expect(resource.violations.map((violation) => formatSanitizerViolation(violation).split('\n'))).toEqual([
      [
        `memory is freed with a wrong size: 99 bytes from ${address}`,
        `  later:   free of 99 bytes from ${address} on stream ${b.id}`,
        earlier,
      ],
      ['the freed memory was not allocated here: 8 bytes from 0x40', `  later:   free of 8 bytes from 0x40 on stream ${b.id}`],
      [`memory was not freed: 100 bytes from ${address}`, earlier],
    ]);
  });

  test('names the latest of several frees of an address', () => {
    const upstream = new SpyResource();
    using resource = new SanitizingResourceAdaptor(upstream);
    const pointers = Array.from({ length: 4097 }, () => resource.allocate(256, a));
    for (const pointer of pointers) resource.deallocate(pointer, 256, a);
    const last = pointers.at(-1) as number;
    vi.spyOn(upstream, 'allocate').mockReturnValue(last);
    resource.deallocate(resource.allocate(256, b), 256, b);
    expect(() => resource.deallocate(last, 256, a)).toThrow(refusal('DOUBLE_FREE'));
    expect(resource.violations).toMatchObject([{ kind: 'double-free', earlier: { operation: 'free', streamId: b.id } }]);
  });

  test('remembers the last 4,096 frees', () => {
    using resource = new SanitizingResourceAdaptor(new SpyResource());
    const pointers = Array.from({ length: 4097 }, () => resource.allocate(256, a));
    for (const pointer of pointers) resource.deallocate(pointer, 256, a);
    for (let i = 0; i < 2; i++) resource.allocate(512, a);
    expect(() => resource.deallocate(pointers[0] as number, 256, a)).toThrow(refusal('FOREIGN_POINTER'));
    expect(() => resource.deallocate(pointers[1] as number, 256, a)).toThrow(refusal('DOUBLE_FREE'));
    vi.spyOn(process, 'emitWarning').mockReturnValue();
    resource.dispose();
  });

  test('keeps no stacks if none are requested', () => {
    using upstream = new CudaMemoryResource();
    using resource = new SanitizingResourceAdaptor(upstream, { stacks: false });
    const pointer = resource.allocate(bytes, a);
    using event = new Event();
    event.record(a);
    resource.deallocate(pointer, bytes, a, event);
    expect(() => resource.deallocate(pointer, bytes, a)).toThrow();
    a.touch(pointer, bytes, 'read');
    expect(resource.violations.map(({ kind }) => kind)).toEqual(['double-free', 'use-after-free']);
    for (const { earlier, later } of resource.violations) expect([earlier?.stack, later?.stack]).toEqual([undefined, undefined]);
  });

  test('keeps a bounded list of violations', () => {
    using resource = new SanitizingResourceAdaptor(new SpyResource());
    for (let i = 0; i < 1003; i++) expect(() => resource.deallocate(256, 8, a)).toThrow();
    expect([resource.violations.length, resource.droppedViolations]).toEqual([1000, 3]);
    resource.clear();
    expect([resource.violations.length, resource.droppedViolations]).toEqual([0, 0]);
  });

  test('still has memory that the upstream refused to free, which can be used and freed then', () => {
    using upstream = new CudaAsyncMemoryResource();
    using resource = new SanitizingResourceAdaptor(upstream);
    const pointer = resource.allocate(bytes, a);
    failCall('cuMemFreeAsync', 1);
    expect(() => resource.deallocate(pointer, bytes, a)).toThrow(expect.objectContaining({ name: 'DriverError' }));
    expect(resource.outstandingAllocations()).toMatchObject([{ pointer, bytes, streamId: a.id }]);
    a.touch(pointer, bytes, 'write');
    resource.deallocate(pointer, bytes, a);
    expect([resource.allocatedBytes, resource.violations]).toEqual([0, []]);
  });

  test('has nothing of allocations that the upstream refused', () => {
    const upstream = new SpyResource();
    using resource = new SanitizingResourceAdaptor(upstream);
    upstream.failure = new Error('not now');
    expect(() => resource.allocate(100, a)).toThrow('not now');
    expect([resource.allocatedBytes, resource.outstandingAllocations()]).toEqual([0, []]);
  });

  test('can get the same memory while the upstream frees it', () => {
    const upstream = new SpyResource();
    using resource = new SanitizingResourceAdaptor(upstream);
    const pointer = resource.allocate(100, a);
    vi.spyOn(upstream, 'allocate').mockReturnValue(pointer);
    upstream.meanwhile = () => {
      expect(() => resource.deallocate(pointer, 100, a)).toThrow(refusal('DOUBLE_FREE'));
      resource.allocate(300, a);
    };
    resource.deallocate(pointer, 100, a);
    expect(resource.outstandingAllocations()).toMatchObject([{ pointer, bytes: 300 }]);
    resource.deallocate(pointer, 300, a);
    expect(resource.allocatedBytes).toBe(0);
  });

  test('survives the disposal of a stream while the upstream allocates', () => {
    const upstream = new SpyResource();
    using resource = new SanitizingResourceAdaptor(upstream);
    const stream = new Stream();
    upstream.meanwhile = () => stream.dispose();
    const pointer = resource.allocate(100, stream);
    expect(resource.allocatedBytes).toBe(100);
    resource.deallocate(pointer, 100, a);
  });

  test('refuses invalid streams before it declares anything', () => {
    using upstream = new CudaMemoryResource();
    using resource = new SanitizingResourceAdaptor(upstream);
    const pointer = resource.allocate(bytes, a);
    const gone = new Stream();
    gone.dispose();
    expect(() => resource.deallocate(pointer, bytes, gone)).toThrow(refusal('DISPOSED'));
    expect(() => resource.deallocate(pointer, bytes, undefined as unknown as Stream)).toThrow(
      expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE' }),
    );
    a.touch(pointer, bytes, 'write');
    resource.deallocate(pointer, bytes, a);
    expect(resource.violations).toEqual([]);
  });

  test.each<[SanitizingResourceAdaptorOptions]>([
    [{ onViolation: 5 as never }],
    [{ deallocationEvents: 'late' as never }],
    [null as never],
  ])('refuses the options %o and checks nothing then', (options) => {
    expect(() => new SanitizingResourceAdaptor(new SpyResource(), options)).toThrow(
      expect.objectContaining({ code: expect.stringMatching(/^ERR_INVALID_ARG/) }),
    );
  });

  test('reports an error of the callback as an uncaught exception, and the call continues', () => {
    const end = runModule(
      `
      import { CudaMemoryResource, Stream } from 'cistern';
import { SanitizingResourceAdaptor } from 'cistern/checking';
      process.on('uncaughtException', (error) => console.log('caught', error.message));
      const stream = new Stream();
      const resource = new SanitizingResourceAdaptor(new CudaMemoryResource(), { onViolation: ({ kind }) => { throw new Error(kind); } });
      const pointer = resource.allocate(64, stream);
      resource.deallocate(pointer, 64, stream);
      stream.touch(pointer, 64, 'read');
      try { resource.deallocate(pointer, 64, stream); } catch ({ code }) { console.log(code); }
      resource.dispose();
    `,
    );
    expect(end).toMatchObject({ status: 0, stdout: 'ERR_CISTERN_DOUBLE_FREE\ncaught use-after-free\ncaught double-free\n' });
  });
});

describe('a SanitizingResourceAdaptor whose violations throw', () => {
  const make = (upstream: MemoryResource) => new SanitizingResourceAdaptor(upstream, { throwOnViolation: true });

  test('throws the violation from the reported use, which is submitted anyway', async () => {
    using upstream = new CudaAsyncMemoryResource();
    using resource = make(upstream);
    const pointer = resource.allocate(64, a);
    const other = resource.allocate(64, a);
    const uses: (() => unknown)[] = [
      () => b.touch(pointer, 8, 'read'),
      () => set(pointer, 7, 1, 64, b),
      () => copy(other, pointer, 64, b),
      () => copyFromHost(pointer, new Uint8Array(64), b),
      () => copyToHostSync(new Uint8Array(64), pointer, b),
    ];
    for (const use of uses) {
      a.touch(pointer, 64, 'write');
      expect(use).toThrow(OrderError);
      a.synchronizeSync();
      b.synchronizeSync();
    }
    a.touch(pointer, 64, 'write');
    await expect(copyToHost(pointer, 64, b)).rejects.toThrow(OrderError);
    await b.synchronize();
    expect(resource.violations).toHaveLength(6);
    a.touch(pointer, 64, 'write');
    try {
      set(pointer, 9, 1, 64, b);
      expect.unreachable();
    } catch (error) {
      const { code, violation, message } = error as OrderError;
      expect(code).toBe('ERR_CISTERN_ORDER');
      expect(violation).toBe(resource.violations.at(-1));
      expect(message).toBe(formatSanitizerViolation(violation));
    }
    b.synchronizeSync();
    const host = new Uint8Array(64);
    wait(a, b);
    copyToHostSync(host, pointer, a);
    expect(host.every((value) => value === 9)).toBe(true);
    resource.deallocate(pointer, 64, a);
    resource.deallocate(other, 64, a);
  });

  test('gives back memory that it must not return', () => {
    using upstream = new ForgetfulPool();
    using resource = make(upstream);
    const deallocate = vi.spyOn(upstream, 'deallocate');
    const pointer = resource.allocate(bytes, a);
    resource.deallocate(pointer, bytes, a);
    deallocate.mockClear();
    expect(() => resource.allocate(bytes, b)).toThrow(
      expect.objectContaining({ violation: expect.objectContaining({ kind: 'reuse-without-wait' }) }),
    );
    expect(deallocate.mock.calls).toEqual([[pointer, bytes, b, undefined]]);
    expect(resource.allocatedBytes).toBe(0);
    resource.deallocate(resource.allocate(bytes, b), bytes, b);
    expect(resource.violations).toHaveLength(1);
  });

  test('does not free memory that may be in use, and does when the stream waits', () => {
    using upstream = new CudaAsyncMemoryResource();
    using resource = make(upstream);
    const deallocate = vi.spyOn(upstream, 'deallocate');
    const pointer = resource.allocate(bytes, a);
    a.touch(pointer, bytes, 'write');
    expect(() => resource.deallocate(pointer, bytes, b)).toThrow(
      expect.objectContaining({ violation: expect.objectContaining({ kind: 'freed-while-in-use' }) }),
    );
    expect(deallocate).not.toHaveBeenCalled();
    expect(resource.allocatedBytes).toBe(bytes);
    wait(b, a);
    resource.deallocate(pointer, bytes, b);
    expect([resource.violations.length, resource.allocatedBytes]).toEqual([1, 0]);
  });

  test('does not throw from unchecked calls, or from a copy that has not completed', () => {
    using upstream = new CudaAsyncMemoryResource();
    using resource = make(upstream);
    const pointer = upstream.allocate(bytes, a);
    set(pointer, 7, 1, bytes, a);
    a.synchronizeSync();
    const seen = vi.fn();
    b.launchHostFunction(seen);
    const host = new Uint8Array(bytes);
    a.touch(pointer, bytes, 'write');
    copyToHostSync(host, pointer, b);
    expect(seen).toHaveBeenCalledOnce();
    expect(host.every((value) => value === 7)).toBe(true);
    a.touch(pointer, 8, 'write');
    upstream.deallocate(pointer, bytes, b);
    expect(() => upstream.deallocate(pointer, bytes, b)).toThrow(refusal('DOUBLE_FREE'));
    expect(resource.violations.map(({ kind }) => kind)).toEqual(['unordered', 'freed-while-in-use']);
  });

  test('no longer throws after it is disposed, even if others continue to check', () => {
    using upstream = new CudaMemoryResource();
    using other = new SanitizingResourceAdaptor(upstream);
    make(upstream).dispose();
    const pointer = other.allocate(bytes, a);
    b.touch(pointer, bytes, 'read');
    expect(other.violations).toHaveLength(1);
    b.synchronizeSync();
    other.deallocate(pointer, bytes, a);
  });

  test('allows a second dispose of a buffer that could not be freed', () => {
    using upstream = new CudaAsyncMemoryResource();
    using resource = make(upstream);
    const buffer = new DeviceBuffer(64, { resource, stream: a });
    wait(b, a);
    b.touch(buffer.ptr, 64, 'write');
    expect(() => buffer.dispose()).toThrow(OrderError);
    wait(a, b);
    buffer.dispose();
    expect(resource.allocatedBytes).toBe(0);
  });
});
