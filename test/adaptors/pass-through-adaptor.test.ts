import { inspect } from 'node:util';
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import { layersOf } from '../../src/adaptors/layers.js';
import {
  AlignedResourceAdaptor,
  BinningMemoryResource,
  CachingMemoryResource,
  CudaMemoryResource,
  type DeallocationEvents,
  Device,
  DeviceBuffer,
  Event,
  FailureCallbackResourceAdaptor,
  FallbackResourceAdaptor,
  LimitingResourceAdaptor,
  ManagedMemoryResource,
  type MemoryKind,
  type MemoryResource,
  type MemoryResourceAdaptor,
  OutOfMemoryError,
  PoolMemoryResource,
  PrefetchResourceAdaptor,
  ReclaimingResourceAdaptor,
  type ResourceKind,
  type Specification,
  StatisticsResourceAdaptor,
  Stream,
  TrackingResourceAdaptor,
} from '../../src/index.js';
import { everyKind } from '../../src/tools/every-kind.js';
import { exampleOf, leafOf } from '../support/kind-stacks.js';
import { skipTest } from '../support/skip-test.js';
import { SpyResource } from '../support/spy-resource.js';

/** Has no memory, of the kind that a specification names. */
class EmptyResource extends SpyResource {
  override readonly memoryKind: MemoryKind;

  constructor(example: Specification) {
    super();
    this.memoryKind = leafOf(example).kind === 'pinned-host' ? 'pinned-host' : 'device';
  }

  override allocate(bytes: number): number {
    throw new OutOfMemoryError('nothing is left here either', { requestedBytes: bytes, path: ['the fallback'] });
  }
}

interface Adaptor {
  readonly name: string;
  wrap(upstream: MemoryResource, deallocationEvents?: DeallocationEvents): MemoryResourceAdaptor;
}

const adaptors: readonly Adaptor[] = [
  ...everyKind.filter(({ role, name }) => role === 'pass-through' && name !== 'reclaiming').map(adaptorOf),
  // An adaptor that responds to an out-of-memory error with nothing.
  {
    name: 'ReclaimingResourceAdaptor',
    wrap: (upstream, deallocationEvents) =>
      new ReclaimingResourceAdaptor(upstream, { stages: [], ...(deallocationEvents && { deallocationEvents }) }),
  },
  {
    name: 'FailureCallbackResourceAdaptor',
    wrap: (upstream, deallocationEvents) =>
      new FailureCallbackResourceAdaptor(upstream, () => false, { ...(deallocationEvents && { deallocationEvents }) }),
  },
];

/**
 * A kind with the options of its example, on any upstream. A second resource that it takes memory
 * from has no memory.
 */
function adaptorOf(kind: ResourceKind): Adaptor {
  const { options: inExample = {} } = exampleOf(kind);
  const values = Object.entries(inExample).map(([name, value]) => [
    name,
    kind.options[name]?.type === 'resource' ? new EmptyResource(value as Specification) : value,
  ]);
  const wrap: Adaptor['wrap'] = (upstream, deallocationEvents) => {
    const options = { ...Object.fromEntries(values), ...(deallocationEvents && { deallocationEvents }) };
    return kind.create({
      upstream,
      device: Device.get(),
      upstreamOf: (of: Device) => new CudaMemoryResource({ device: of }),
      options: options as never,
    }) as MemoryResourceAdaptor;
  };
  return { name: wrap(new SpyResource()).constructor.name, wrap };
}

let stream: Stream;
beforeAll(() => {
  stream = new Stream();
});
afterAll(() => {
  stream.dispose();
});
afterEach(() => {
  vi.restoreAllMocks();
});

describe.each(adaptors)('$name', ({ name, wrap }) => {
  test('has the device and the memory kind of its upstream', () => {
    const upstream = new SpyResource();
    const resource = wrap(upstream);
    expect(resource.upstream).toBe(upstream);
    expect(resource.device).toBe(upstream.device);
    expect(resource.memoryKind).toBe('device');
  });

  test('passes the alignment on, or none', () => {
    if (name === 'AlignedResourceAdaptor') skipTest('it serves alignments that its upstream does not');
    const upstream = new SpyResource();
    const resource = wrap(upstream);
    resource.allocate(1, stream);
    resource.allocate(1, stream, 4096);
    expect(upstream.alignments).toEqual([undefined, 4096]);
  });

  test('passes the fence of a call on, otherwise its own policy, otherwise nothing', () => {
    const upstream = new SpyResource();
    using event = new Event();
    for (const resource of [wrap(upstream), wrap(upstream, 'deferred')]) {
      for (const fence of [undefined, 'eager', 'off', event] as const) {
        resource.deallocate(resource.allocate(1, stream), 1, stream, fence);
      }
    }
    expect(upstream.fences).toEqual([undefined, 'eager', 'off', event, 'deferred', 'eager', 'off', event]);
  });

  test('lets the outermost policy win', () => {
    const upstream = new SpyResource();
    const stacks = [wrap(wrap(upstream, 'eager'), 'off'), wrap(wrap(upstream, 'eager')), wrap(wrap(upstream), 'deferred')];
    for (const resource of stacks) resource.deallocate(resource.allocate(1, stream), 1, stream);
    expect(upstream.fences).toEqual(['off', 'eager', 'deferred']);
  });

  test('is equal only to itself', () => {
    const upstream = new SpyResource();
    const resource = wrap(upstream);
    expect(resource.isEqual(resource)).toBe(true);
    expect(resource.isEqual(wrap(upstream))).toBe(false);
    expect(resource.isEqual(upstream)).toBe(false);
  });

  test('puts its name at the front of the path of an out-of-memory error, outermost first', () => {
    const upstream = new SpyResource();
    const resource = wrap(new StatisticsResourceAdaptor(upstream));
    upstream.failure = new OutOfMemoryError('nothing is left', { requestedBytes: 5, path: ['the device'] });
    expect(() => resource.allocate(5, stream)).toThrow(
      expect.objectContaining({
        code: 'ERR_CISTERN_OUT_OF_MEMORY',
        message: expect.stringMatching(/^nothing is left/),
        path: [name, 'StatisticsResourceAdaptor', 'the device'],
        requestedBytes: 5,
      }),
    );
  });

  test('passes every other error on unchanged', () => {
    const upstream = new SpyResource();
    const resource = wrap(upstream);
    const failure = new Error('something else');
    upstream.failure = failure;
    expect(() => resource.allocate(5, stream)).toThrow(failure);
    const pointer = resource.allocate(5, stream);
    upstream.failure = failure;
    expect(() => resource.deallocate(pointer, 5, stream)).toThrow(failure);
  });

  test('leaves its upstream alone when it is disposed', () => {
    const upstream = new SpyResource();
    const resource = wrap(upstream);
    resource[Symbol.dispose]();
    resource[Symbol.dispose]();
    expect(upstream.isDisposed).toBe(false);
    expect(resource.upstream).toBe(upstream);
    expect(() => resource.allocate(1, stream)).toThrow(
      expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED', message: `cannot allocate: the ${name} is already disposed` }),
    );
  });

  test('refuses a disposed stream, and anything but a stream, before it calls its upstream', () => {
    const upstream = new SpyResource();
    const resource = wrap(upstream);
    const ended = new Stream();
    resource.deallocate(resource.allocate(1, ended), 1, ended);
    const calls = upstream.alignments.length;
    const before = inspect(resource);
    ended.dispose();
    expect(() => resource.allocate(1, ended)).toThrow(
      expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED', message: `cannot allocate: stream ${ended.id} is already disposed` }),
    );
    for (const other of [undefined, null, {}, { isDisposed: true }, 7]) {
      expect(() => resource.allocate(1, other as unknown as Stream)).toThrow(
        expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE', message: expect.stringMatching(/^stream must be a Stream, got/) }),
      );
    }
    expect(upstream.alignments).toHaveLength(calls);
    expect(inspect(resource)).toBe(before);
  });

  test('frees its allocations even after it is disposed', () => {
    vi.spyOn(process, 'emitWarning').mockReturnValue();
    using upstream = new PoolMemoryResource(new CudaMemoryResource());
    const resource = wrap(upstream);
    const buffer = new DeviceBuffer(5000, { resource, stream });
    const pointer = resource.allocate(1000, stream);
    const aligned = resource.allocate(2000, stream, 4096);
    resource[Symbol.dispose]();
    buffer.dispose();
    resource.deallocate(pointer, 1000, stream);
    resource.deallocate(aligned, 2000, stream);
    expect(upstream.statistics().allocatedBytes).toBe(0);
  });

  test.each([undefined, null, {}, 'cuda', 5])('refuses the upstream %s', (upstream) => {
    expect(() => wrap(upstream as unknown as MemoryResource)).toThrow(
      expect.objectContaining({
        name: 'TypeError',
        code: 'ERR_INVALID_ARG_TYPE',
        message: expect.stringMatching(/^upstream must be a MemoryResource, got/),
      }),
    );
  });

  test('refuses an unknown policy', () => {
    expect(() => wrap(new SpyResource(), 'sometimes' as DeallocationEvents)).toThrow(
      expect.objectContaining({ code: 'ERR_INVALID_ARG_VALUE', message: expect.stringContaining('got "sometimes"') }),
    );
  });
});

test('adaptors refuse options that are not an object', () => {
  const upstream = new SpyResource();
  expect(() => new LimitingResourceAdaptor(upstream, undefined as never)).toThrow(
    expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE' }),
  );
  expect(() => new StatisticsResourceAdaptor(upstream, null as never)).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE' }));
});

test.each([
  ['a cache outside its runs', new CudaMemoryResource(), (below: MemoryResource) => new CachingMemoryResource(below)],
  [
    'a bin that was given to a binning resource',
    new CudaMemoryResource(),
    (below: MemoryResource) =>
      new BinningMemoryResource(below, { bins: [{ bytes: 8192, resource: new StatisticsResourceAdaptor(below) }] }),
  ],
  ['a prefetching adaptor', new ManagedMemoryResource(), (below: MemoryResource) => new PrefetchResourceAdaptor(below)],
  ['a leaf', new CudaMemoryResource(), (below: MemoryResource) => below],
  [
    'a stack of which every layer is disposed',
    new CudaMemoryResource(),
    (below: MemoryResource) => {
      const tracking = new TrackingResourceAdaptor(below);
      const fallback = new FallbackResourceAdaptor(new LimitingResourceAdaptor(tracking, { limitBytes: 1024 }), tracking);
      return new AlignedResourceAdaptor(fallback, { alignment: 4096 });
    },
  ],
] as const)('%s frees what was allocated through it once it is disposed', (_, leaf, wrap) => {
  vi.spyOn(process, 'emitWarning').mockReturnValue();
  const before = leaf.reservedBytes;
  const resource = wrap(leaf);
  const buffers = [600, 5000].map((bytes) => new DeviceBuffer(bytes, { resource, stream }));
  expect(leaf.reservedBytes).toBeGreaterThan(before);
  for (const layer of layersOf(resource)) layer[Symbol.dispose]();
  for (const buffer of buffers) buffer.dispose();
  expect(leaf.reservedBytes).toBe(before);
});
