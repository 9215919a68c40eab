import { describe, expect, test } from 'vitest';
import { CisternError, CudaMemoryResource, OutOfMemoryError, StatisticsResourceAdaptor, Stream } from '../../src/index.js';
import { SpyResource } from '../support/spy-resource.js';
import { stream } from '../support/stream.js';

function make() {
  const upstream = new SpyResource();
  const resource = new StatisticsResourceAdaptor(upstream);
  const allocate = (bytes: number) => ({ pointer: resource.allocate(bytes, stream), bytes });
  const free = ({ pointer, bytes }: { pointer: number; bytes: number }) => resource.deallocate(pointer, bytes, stream);
  return { upstream, resource, allocate, free };
}

const zero = { current: 0, peak: 0, total: 0 };

describe('StatisticsResourceAdaptor', () => {
  test('gives back what it cannot count any more, though a host function ended the stream as well', () => {
    const upstream = new CudaMemoryResource();
    const ending = new Stream();
    const resource = new StatisticsResourceAdaptor(upstream, { shared: 'given back' });
    const allocate = upstream.allocate.bind(upstream);
    upstream.allocate = (...call) => {
      const pointer = allocate(...call);
      resource.dispose();
      ending.dispose();
      return pointer;
    };
    expect(() => resource.allocate(1000, ending)).toThrow('the StatisticsResourceAdaptor is already disposed');
    expect(upstream.reservedBytes).toBe(0);
  });

  test('begins at zero', () => {
    expect(make().resource.statistics()).toEqual({ bytes: zero, allocations: zero, failedAllocations: 0 });
  });

  test('counts bytes as requested, and allocations', () => {
    const { resource, allocate, free } = make();
    const first = allocate(1000);
    const second = allocate(24);
    free(first);
    allocate(100);
    expect(resource.statistics()).toEqual({
      bytes: { current: 124, peak: 1024, total: 1124 },
      allocations: { current: 2, peak: 2, total: 3 },
      failedAllocations: 0,
    });
    free(second);
    expect(resource.statistics().allocations).toEqual({ current: 1, peak: 2, total: 3 });
  });

  test('returns copies that cannot be changed and do not change', () => {
    const { resource, allocate } = make();
    const before = resource.statistics();
    allocate(5);
    expect(before.bytes.current).toBe(0);
    for (const part of [before, before.bytes, before.allocations]) expect(Object.isFrozen(part)).toBe(true);
  });

  test('counts neither zero bytes nor the null pointer', () => {
    const { resource, free } = make();
    free({ pointer: resource.allocate(0, stream), bytes: 0 });
    free({ pointer: 0, bytes: 4096 });
    expect(resource.statistics()).toEqual({ bytes: zero, allocations: zero, failedAllocations: 0 });
  });

  test('counts allocations that fail, but no invalid arguments and no failed frees', () => {
    const { upstream, resource, allocate, free } = make();
    const block = allocate(8);
    upstream.failure = new OutOfMemoryError('nothing is left', { requestedBytes: 7, path: ['device'] });
    expect(() => allocate(7)).toThrow(OutOfMemoryError);
    upstream.failure = new RangeError('no such size');
    expect(() => allocate(7)).toThrow(RangeError);
    upstream.failure = new Error('not allocated here');
    expect(() => free(block)).toThrow();
    expect(resource.statistics()).toEqual({
      bytes: { current: 8, peak: 8, total: 8 },
      allocations: { current: 1, peak: 1, total: 1 },
      failedAllocations: 1,
    });
  });

  test('nests counters: a push returns the counts and begins from zero', () => {
    const { resource, allocate } = make();
    allocate(100);
    expect(resource.pushCounters().bytes).toEqual({ current: 100, peak: 100, total: 100 });
    expect(resource.statistics().bytes).toEqual(zero);
    allocate(7);
    expect(resource.statistics().bytes).toEqual({ current: 7, peak: 7, total: 7 });
  });

  test('nests counters: a pop returns the inner ones and adds them to the outer ones', () => {
    const { resource, allocate, free } = make();
    const outer = allocate(100);
    allocate(50);
    free(outer);
    resource.pushCounters();
    const inner = allocate(80);
    allocate(10);
    free(inner);
    expect(resource.popCounters()).toEqual({
      bytes: { current: 10, peak: 90, total: 90 },
      allocations: { current: 1, peak: 2, total: 2 },
      failedAllocations: 0,
    });
    // The outer peak was 150; 50 were live at the push, and the inner peak makes that 140.
    expect(resource.statistics()).toEqual({
      bytes: { current: 60, peak: 150, total: 240 },
      allocations: { current: 2, peak: 3, total: 4 },
      failedAllocations: 0,
    });
  });

  test('nests counters: an inner peak on top of live memory raises the outer one', () => {
    const { resource, allocate, free } = make();
    allocate(100);
    resource.pushCounters();
    resource.pushCounters();
    free(allocate(500));
    expect(resource.popCounters().bytes).toEqual({ current: 0, peak: 500, total: 500 });
    expect(resource.popCounters().bytes).toEqual({ current: 0, peak: 500, total: 500 });
    expect(resource.statistics().bytes).toEqual({ current: 100, peak: 600, total: 600 });
  });

  test('nests counters: inner failures count in the outer ones too', () => {
    const { upstream, resource, allocate } = make();
    resource.pushCounters();
    upstream.failure = new OutOfMemoryError('nothing is left', { requestedBytes: 7, path: ['device'] });
    expect(() => allocate(7)).toThrow(OutOfMemoryError);
    expect(resource.popCounters().failedAllocations).toBe(1);
    expect(resource.statistics().failedAllocations).toBe(1);
  });

  test('nests counters: inner ones go below zero if older memory is freed', () => {
    const { resource, allocate, free } = make();
    const block = allocate(100);
    resource.pushCounters();
    free(block);
    expect(resource.statistics().bytes).toEqual({ current: -100, peak: 0, total: 0 });
    allocate(30);
    expect(resource.popCounters().bytes).toEqual({ current: -70, peak: 0, total: 30 });
    expect(resource.statistics().bytes).toEqual({ current: 30, peak: 100, total: 130 });
  });

  test('refuses to pop the last counters', () => {
    const { resource } = make();
    resource.pushCounters();
    resource.popCounters();
    expect(() => resource.popCounters()).toThrow(CisternError);
    expect(() => resource.popCounters()).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_INVALID_STATE' }));
    expect(resource.statistics().bytes).toEqual(zero);
  });

  test('counts beyond 2^32 bytes exactly', () => {
    const { resource, allocate, free } = make();
    free(allocate(2 ** 50 + 1));
    allocate(2 ** 40 + 1);
    expect(resource.statistics().bytes).toEqual({ current: 2 ** 40 + 1, peak: 2 ** 50 + 1, total: 2 ** 50 + 2 ** 40 + 2 });
  });
});
