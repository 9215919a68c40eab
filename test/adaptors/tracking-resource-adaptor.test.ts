import { afterEach, describe, expect, test, vi } from 'vitest';
import {
  CudaAsyncMemoryResource,
  KiB,
  MiB,
  Stream,
  TrackingResourceAdaptor,
  type TrackingResourceAdaptorOptions,
} from '../../src/index.js';
import { SpyResource } from '../support/spy-resource.js';
import { stream } from '../support/stream.js';

afterEach(() => vi.restoreAllMocks());

function make(options: TrackingResourceAdaptorOptions = {}) {
  const upstream = new SpyResource();
  const resource = new TrackingResourceAdaptor(upstream, options);
  const allocate = (bytes: number) => ({ pointer: resource.allocate(bytes, stream), bytes });
  const free = ({ pointer, bytes }: { pointer: number; bytes: number }) => resource.deallocate(pointer, bytes, stream);
  return { upstream, resource, allocate, free };
}

const code = (name: string) => expect.objectContaining({ name: 'LifetimeError', code: `ERR_CISTERN_${name}` });

describe('TrackingResourceAdaptor', () => {
  test('begins with nothing', () => {
    const { resource } = make();
    expect([resource.allocatedBytes, resource.outstandingAllocations(), resource.report()]).toEqual([0, [], 'no outstanding allocations']);
  });

  test('has nothing left when everything is freed', () => {
    const { resource, allocate, free } = make();
    const blocks = Array.from({ length: 1000 }, (_, i) => allocate(i + 1));
    expect(resource.allocatedBytes).toBe(500_500);
    for (const block of blocks) free(block);
    expect([resource.allocatedBytes, resource.outstandingAllocations()]).toEqual([0, []]);
  });

  test('lists what is left, largest first, without stacks unless they are requested', () => {
    using other = new Stream();
    const { resource, allocate, free } = make();
    const blocks = [10, 30, 20].map(allocate);
    const last = resource.allocate(30, other);
    free(blocks[2] as (typeof blocks)[0]);
    expect(resource.outstandingAllocations()).toEqual([
      { pointer: blocks[1]?.pointer, bytes: 30, streamId: stream.id, stack: undefined },
      { pointer: last, bytes: 30, streamId: other.id, stack: undefined },
      { pointer: blocks[0]?.pointer, bytes: 10, streamId: stream.id, stack: undefined },
    ]);
    expect(resource.allocatedBytes).toBe(70);
  });

  test('returns copies that cannot be changed and do not change', () => {
    const { resource, allocate } = make();
    allocate(5);
    const before = resource.outstandingAllocations();
    allocate(6);
    expect(before).toHaveLength(1);
    expect([Object.isFrozen(before), Object.isFrozen(before[0])]).toEqual([true, true]);
  });

  test('keeps the stack of each allocation, from its caller outwards and no deeper than requested', () => {
    const { resource, allocate } = make({ captureStacks: true, stackDepth: 2 });
    const limit = Error.stackTraceLimit;
    function outer() {
      return allocate(5);
    }
    outer();
    const lines = resource.outstandingAllocations()[0]?.stack?.split('\n');
    expect(lines).toEqual([
      expect.stringMatching(/^at allocate .*tracking-resource-adaptor\.test\.ts/),
      expect.stringMatching(/^at outer .*tracking-resource-adaptor\.test\.ts/),
    ]);
    expect(Error.stackTraceLimit).toBe(limit);
  });

  test('forgets the stack with the allocation', () => {
    const { resource, allocate, free } = make({ captureStacks: true });
    function first() {
      return allocate(5);
    }
    free(first());
    allocate(6);
    expect(resource.outstandingAllocations()[0]?.stack).not.toContain('first');
  });

  test('distinguishes the stacks of two trackers above each other', () => {
    const { resource: inner } = make();
    const outer = new TrackingResourceAdaptor(inner);
    const first = inner.allocate(100, stream);
    const second = outer.allocate(50, stream);
    expect([outer.allocatedBytes, inner.allocatedBytes]).toEqual([50, 150]);
    inner.deallocate(first, 100, stream);
    outer.deallocate(second, 50, stream);
    expect([outer.allocatedBytes, inner.allocatedBytes]).toEqual([0, 0]);
  });

  test('lists neither zero bytes nor the null pointer', () => {
    const { resource, upstream, allocate, free } = make();
    const nothing = allocate(0);
    expect(resource.outstandingAllocations()).toEqual([]);
    free(nothing);
    resource.deallocate(0, 4096, stream);
    expect([resource.allocatedBytes, resource.outstandingAllocations(), upstream.fences.length]).toEqual([0, [], 2]);
  });

  test('refuses pointers that it did not allocate, before the upstream is called', () => {
    const { upstream, resource, allocate } = make();
    const past = upstream.allocate(100, stream);
    const { pointer } = allocate(5000);
    expect(() => resource.deallocate(past, 100, stream)).toThrow(code('FOREIGN_POINTER'));
    expect(() => resource.deallocate(pointer + 256, 4744, stream)).toThrow(/it lies inside an allocation, not at its start$/);
    expect([resource.allocatedBytes, upstream.fences.length]).toEqual([5000, 0]);
  });

  test('refuses a second free, as long as it remembers the first', () => {
    const { upstream, resource, allocate, free } = make();
    const blocks = [100, 200].map(allocate);
    for (const block of blocks) free(block);
    for (const block of blocks) expect(() => free(block)).toThrow(code('DOUBLE_FREE'));
    for (const bytes of [300, 400]) allocate(bytes);
    for (const block of blocks) expect(() => free(block)).toThrow(code('FOREIGN_POINTER'));
    expect([resource.allocatedBytes, upstream.fences.length]).toEqual([700, 2]);
  });

  test('refuses another size', () => {
    const { upstream, resource, allocate, free } = make();
    const block = allocate(4096);
    expect(() => free({ ...block, bytes: 4095 })).toThrow(
      expect.objectContaining({
        code: 'ERR_CISTERN_WRONG_SIZE',
        message: `the TrackingResourceAdaptor cannot free 0x${block.pointer.toString(16)} with 4095 bytes: it was allocated with 4096 bytes`,
      }),
    );
    expect([resource.allocatedBytes, upstream.fences.length]).toEqual([4096, 0]);
    free(block);
  });

  test('still has memory that the upstream refused to free', () => {
    const { upstream, resource, allocate, free } = make();
    const block = allocate(100);
    upstream.failure = new Error('not now');
    expect(() => free(block)).toThrow('not now');
    expect(resource.outstandingAllocations()).toHaveLength(1);
    expect(resource.allocatedBytes).toBe(100);
    free(block);
    expect(resource.allocatedBytes).toBe(0);
  });

  test('has nothing of allocations that the upstream refused', () => {
    const { upstream, resource, allocate } = make();
    upstream.failure = new Error('not now');
    expect(() => allocate(100)).toThrow('not now');
    expect(resource.allocatedBytes).toBe(0);
  });

  test('can get the same memory while the upstream frees it', () => {
    const { upstream, resource, allocate, free } = make();
    const block = allocate(100);
    vi.spyOn(upstream, 'allocate').mockReturnValue(block.pointer);
    upstream.meanwhile = () => {
      expect(resource.outstandingAllocations()).toEqual([]);
      expect(() => free(block)).toThrow(code('DOUBLE_FREE'));
      allocate(300);
    };
    free(block);
    expect(resource.outstandingAllocations()).toMatchObject([{ pointer: block.pointer, bytes: 300 }]);
    expect(resource.allocatedBytes).toBe(300);
    free({ ...block, bytes: 300 });
    expect(resource.allocatedBytes).toBe(0);
  });

  test('treats an address that was freed past it and allocated again as the new allocation', () => {
    const { upstream, resource, allocate, free } = make();
    const block = allocate(100);
    vi.spyOn(upstream, 'allocate').mockReturnValue(block.pointer);
    const again = allocate(300);
    expect(resource.outstandingAllocations()).toMatchObject([{ bytes: 300 }]);
    expect(resource.allocatedBytes).toBe(300);
    free(again);
    expect([resource.allocatedBytes, resource.outstandingAllocations()]).toEqual([0, []]);
  });

  test('tracks frees in any order, with many live', () => {
    using upstream = new CudaAsyncMemoryResource();
    using resource = new TrackingResourceAdaptor(upstream);
    const blocks = Array.from({ length: 500 }, (_, i) => ({ pointer: resource.allocate(i + 1, stream), bytes: i + 1 }));
    const [odd, even] = [blocks.filter(({ bytes }) => bytes % 2 === 1), blocks.filter(({ bytes }) => bytes % 2 === 0)];
    for (const { pointer, bytes } of odd) resource.deallocate(pointer, bytes, stream);
    const seen = even.map((block) => ({ ...block, streamId: stream.id, stack: undefined })).toReversed();
    expect(resource.outstandingAllocations()).toEqual(seen);
    for (const { pointer, bytes } of even) resource.deallocate(pointer, bytes, stream);
    expect(resource.allocatedBytes).toBe(0);
  });

  test('reports what is left without stacks as one list', () => {
    const { resource, allocate } = make();
    const [small, large] = [allocate(500), allocate(3 * MiB)] as const;
    expect(resource.report()).toBe(
      [
        '2 allocations of 3.00 MiB (3146228 bytes) outstanding',
        `  0x${large.pointer.toString(16)}: 3 MiB (3145728 bytes) on stream ${stream.id}`,
        `  0x${small.pointer.toString(16)}: 500 bytes on stream ${stream.id}`,
      ].join('\n'),
    );
  });

  test('reports what is left by stack, the one with the most bytes first', () => {
    const { resource, allocate } = make({ captureStacks: true });
    const many = () => allocate(1 * KiB);
    const one = () => allocate(10 * KiB);
    for (let i = 0; i < 12; i++) many();
    one();
    const lines = resource.report().split('\n');
    expect(lines[0]).toBe('13 allocations of 22 KiB (22528 bytes) outstanding');
    const heads = lines.filter((line) => line.includes('allocated'));
    expect(heads).toEqual(['12 allocations of 12 KiB (12288 bytes), allocated', '1 allocation of 10 KiB (10240 bytes), allocated']);
    expect(lines[lines.indexOf(heads[0] as string) + 2]).toMatch(/^ {4}at many /);
    expect(lines[lines.indexOf(heads[1] as string) + 2]).toMatch(/^ {4}at one /);
    expect(lines.filter((line) => line.includes(': 1 KiB (1024 bytes) on stream'))).toHaveLength(10);
    expect(lines).toContain('  and 2 allocations of 2 KiB (2048 bytes) more');
  });

  test('sums stacks up beyond the first twenty', () => {
    const { resource, allocate } = make({ captureStacks: true });
    for (let i = 0; i < 23; i++) new Function('allocate', `${' '.repeat(i)}allocate(100)`)(allocate);
    expect(resource.report().split('\n').at(-1)).toBe('and 3 allocations of 300 bytes from 3 other stacks');
  });

  test('warns about what is left when it is disposed, once, and still lists it', () => {
    const emitWarning = vi.spyOn(process, 'emitWarning').mockReturnValue();
    const { upstream, resource, allocate } = make();
    allocate(500);
    resource.dispose();
    resource.dispose();
    expect(emitWarning.mock.calls).toEqual([[resource.report(), { code: 'CISTERN_OUTSTANDING_ALLOCATIONS' }]]);
    expect(resource.report()).toMatch(/^1 allocation of 500 bytes outstanding\n/);
    expect(upstream.fences).toEqual([]);
  });

  test('does not warn if nothing is left', () => {
    const emitWarning = vi.spyOn(process, 'emitWarning').mockReturnValue();
    const { resource, allocate, free } = make();
    free(allocate(500));
    resource.dispose();
    expect(emitWarning).not.toHaveBeenCalled();
  });

  test.each([0, 1001, 2.5, -1])('refuses the stack depth %s', (stackDepth) => {
    expect(() => make({ stackDepth })).toThrow(/^stackDepth must be/);
  });
});
