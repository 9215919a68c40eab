import { describe, expect, test, vi } from 'vitest';
import {
  CudaMemoryResource,
  Device,
  FallbackResourceAdaptor,
  LimitingResourceAdaptor,
  ManagedMemoryResource,
  type MemoryResource,
  OutOfMemoryError,
  pointerInfo,
} from '../../src/index.js';
import { caught } from '../support/errors.js';
import { SpyResource } from '../support/spy-resource.js';
import { stream } from '../support/stream.js';

/** 1 KiB of device memory, with 4 KiB of managed memory behind it. */
function make() {
  const device = new CudaMemoryResource();
  const managed = new ManagedMemoryResource();
  const upstream = new LimitingResourceAdaptor(device, { limitBytes: 1024 });
  const fallback = new LimitingResourceAdaptor(managed, { limitBytes: 4096 });
  return { upstream, fallback, resource: new FallbackResourceAdaptor(upstream, fallback) };
}

describe('FallbackResourceAdaptor', () => {
  test('takes memory from the fallback if the upstream has none, and frees it there', () => {
    const { upstream, fallback, resource } = make();
    const first = resource.allocate(1024, stream);
    const second = resource.allocate(1024, stream);
    const third = resource.allocate(1024, stream);
    expect([first, second, third].map((pointer) => pointerInfo(pointer).memoryKind)).toEqual(['device', 'managed', 'managed']);
    expect([upstream.allocatedBytes, fallback.allocatedBytes]).toEqual([1024, 2048]);
    resource.deallocate(second, 1024, stream);
    expect([upstream.allocatedBytes, fallback.allocatedBytes]).toEqual([1024, 1024]);
    resource.deallocate(first, 1024, stream);
    resource.deallocate(third, 1024, stream);
    expect([upstream.allocatedBytes, fallback.allocatedBytes]).toEqual([0, 0]);
  });

  test('takes memory from the upstream again when it has some', () => {
    const { upstream, resource } = make();
    const first = resource.allocate(1024, stream);
    const second = resource.allocate(1024, stream);
    resource.deallocate(first, 1024, stream);
    const third = resource.allocate(1024, stream);
    expect(upstream.allocatedBytes).toBe(1024);
    for (const pointer of [second, third]) resource.deallocate(pointer, 1024, stream);
  });

  test('counts what the fallback serves', () => {
    const { resource } = make();
    const pointers = [1000, 1000, 500].map((bytes) => resource.allocate(bytes, stream));
    expect([resource.fallbackAllocations, resource.fallbackBytes]).toEqual([2, 1500]);
    resource.deallocate(pointers[1] as number, 1000, stream);
    resource.deallocate(pointers[0] as number, 1000, stream);
    expect([resource.fallbackAllocations, resource.fallbackBytes]).toEqual([2, 500]);
    resource.deallocate(pointers[2] as number, 500, stream);
  });

  test('has the memory kind of its upstream, and lists the fallback among its layers', () => {
    const { upstream, fallback, resource } = make();
    expect([resource.memoryKind, resource.upstream, resource.fallback]).toEqual(['device', upstream, fallback]);
    expect(resource.alternates).toEqual([fallback]);
  });

  test('passes alignment, fence and policy to the fallback as well', () => {
    const upstream = new SpyResource();
    const fallback = new SpyResource();
    const resource = new FallbackResourceAdaptor(upstream, fallback, { deallocationEvents: 'deferred' });
    const allocate = () => {
      upstream.failure = new OutOfMemoryError('nothing is left', { requestedBytes: 5, path: ['the device'] });
      return resource.allocate(5, stream, 4096);
    };
    resource.deallocate(allocate(), 5, stream);
    resource.deallocate(allocate(), 5, stream, 'off');
    expect(fallback.alignments).toEqual([4096, 4096]);
    expect(fallback.fences).toEqual(['deferred', 'off']);
    expect(upstream.fences).toEqual([]);
  });

  test('says why both failed if the fallback throws something that is no error and has no text', () => {
    const upstream = new SpyResource();
    const fallback = new SpyResource();
    upstream.failure = new OutOfMemoryError('nothing is left', { requestedBytes: 5, path: ['the device'] });
    const thrown: unknown = Object.create(null);
    fallback.allocate = () => {
      throw thrown;
    };
    const error = caught(() => new FallbackResourceAdaptor(upstream, fallback).allocate(5, stream));
    expect(error).toBeInstanceOf(OutOfMemoryError);
    expect(error).toMatchObject({ message: 'nothing is left; and from the fallback: an instance of Object' });
  });

  test('says why both failed', () => {
    const { resource } = make();
    const error = caught(() => resource.allocate(8192, stream));
    expect(error).toBeInstanceOf(OutOfMemoryError);
    expect(error).toMatchObject({
      message:
        'the limit of 1 KiB is reached: 8 KiB (8192 bytes) were asked for, 1 KiB are left; ' +
        'and from the fallback: the limit of 4 KiB is reached: 8 KiB (8192 bytes) were asked for, 4 KiB are left',
      requestedBytes: 8192,
      availableBytes: 1024,
      limitBytes: 1024,
      path: ['FallbackResourceAdaptor', 'LimitingResourceAdaptor'],
    });
    const { errors } = (error as { cause: AggregateError }).cause;
    expect(errors.map(({ limitBytes }) => limitBytes)).toEqual([1024, 4096]);
  });

  test('does not ask the fallback if the upstream fails for another reason', () => {
    const upstream = new SpyResource();
    const fallback = new SpyResource();
    const allocate = vi.spyOn(fallback, 'allocate');
    const resource = new FallbackResourceAdaptor(upstream, fallback);
    upstream.failure = new RangeError('no such size');
    expect(() => resource.allocate(5, stream)).toThrow('no such size');
    expect(allocate).not.toHaveBeenCalled();
  });

  test('can free memory again after the fallback refused to', () => {
    const { fallback, resource } = make();
    const pointer = resource.allocate(2048, stream);
    expect(() => resource.deallocate(pointer, 2047, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_WRONG_SIZE' }));
    expect([fallback.allocatedBytes, resource.fallbackBytes]).toEqual([2048, 2048]);
    resource.deallocate(pointer, 2048, stream);
    expect([fallback.allocatedBytes, resource.fallbackBytes]).toEqual([0, 0]);
    expect(() => resource.deallocate(pointer, 2048, stream)).toThrow(expect.objectContaining({ name: 'LifetimeError' }));
  });

  test('frees an address to the resource that returned it last', () => {
    const upstream = new SpyResource();
    const fallback = new SpyResource();
    const resource = new FallbackResourceAdaptor(upstream, fallback);
    vi.spyOn(upstream, 'allocate').mockReturnValue(0x7f00_0000_0000);
    vi.spyOn(fallback, 'allocate').mockReturnValue(0x7f00_0000_0000);
    vi.mocked(upstream.allocate).mockImplementationOnce((bytes) => {
      throw new OutOfMemoryError('nothing is left', { requestedBytes: bytes, path: ['the device'] });
    });
    resource.deallocate(resource.allocate(5, stream), 5, stream);
    resource.deallocate(resource.allocate(5, stream), 5, stream);
    expect([upstream.fences.length, fallback.fences.length]).toEqual([1, 1]);
  });

  test('can get the same memory while the fallback frees it', () => {
    const upstream = new SpyResource();
    const fallback = new SpyResource();
    vi.spyOn(upstream, 'allocate').mockImplementation((bytes) => {
      throw new OutOfMemoryError('nothing is left', { requestedBytes: bytes, path: ['the device'] });
    });
    vi.spyOn(fallback, 'allocate').mockReturnValue(0x7f00_0000_0000);
    const deallocate = vi.spyOn(fallback, 'deallocate');
    const resource = new FallbackResourceAdaptor(upstream, fallback);
    const pointer = resource.allocate(5, stream);
    deallocate.mockImplementationOnce(() => {
      expect(resource.allocate(5, stream)).toBe(pointer);
    });
    resource.deallocate(pointer, 5, stream);
    resource.deallocate(pointer, 5, stream);
    expect(deallocate).toHaveBeenCalledTimes(2);
    expect(resource.fallbackBytes).toBe(0);
  });

  test('notices that it was disposed during a call of the upstream', () => {
    const upstream = new SpyResource();
    const fallback = new SpyResource();
    const resource = new FallbackResourceAdaptor(upstream, fallback);
    upstream.meanwhile = () => resource.dispose();
    upstream.failure = new OutOfMemoryError('nothing is left', { requestedBytes: 5, path: ['the device'] });
    expect(() => resource.allocate(5, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    expect(fallback.alignments).toEqual([]);
  });

  test('leaves both resources alone when it is disposed', () => {
    const upstream = new SpyResource();
    const fallback = new SpyResource();
    new FallbackResourceAdaptor(upstream, fallback).dispose();
    expect([upstream.isDisposed, fallback.isDisposed]).toEqual([false, false]);
  });

  test('refuses a fallback on another device, and an invalid one', () => {
    using upstream = new CudaMemoryResource();
    using fallback = new CudaMemoryResource({ device: Device.get(1) });
    expect(() => new FallbackResourceAdaptor(upstream, fallback)).toThrow(
      expect.objectContaining({
        code: 'ERR_INVALID_ARG_VALUE',
        message: 'fallback must belong to device 0, as the upstream does, got one of device 1',
      }),
    );
    expect(() => new FallbackResourceAdaptor(upstream, {} as MemoryResource)).toThrow(/^fallback must be a MemoryResource/);
  });
});
