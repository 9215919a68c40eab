import { describe, expect, test } from 'vitest';
import { CudaAsyncMemoryResource, CudaMemoryResource, LimitingResourceAdaptor, MiB, OutOfMemoryError } from '../../src/index.js';
import { caught } from '../support/errors.js';
import { SpyResource } from '../support/spy-resource.js';
import { stream } from '../support/stream.js';

describe('LimitingResourceAdaptor', () => {
  test('allows exactly its limit, and not a byte more', () => {
    const resource = new LimitingResourceAdaptor(new SpyResource(), { limitBytes: 1024 });
    const pointer = resource.allocate(1024, stream);
    expect(resource.allocatedBytes).toBe(1024);
    expect(() => resource.allocate(1, stream)).toThrow(OutOfMemoryError);
    resource.deallocate(pointer, 1024, stream);
    expect(resource.allocatedBytes).toBe(0);
    expect(() => resource.allocate(1025, stream)).toThrow(OutOfMemoryError);
    expect(resource.limitBytes).toBe(1024);
  });

  test('names the request, what is left, and the limit', () => {
    const resource = new LimitingResourceAdaptor(new SpyResource(), { limitBytes: 10 * MiB });
    resource.allocate(6 * MiB, stream);
    expect(caught(() => resource.allocate(5 * MiB, stream))).toMatchObject({
      code: 'ERR_CISTERN_OUT_OF_MEMORY',
      message: 'the limit of 10 MiB is reached: 5 MiB (5242880 bytes) were asked for, 4 MiB are left',
      requestedBytes: 5 * MiB,
      availableBytes: 4 * MiB,
      limitBytes: 10 * MiB,
      path: ['LimitingResourceAdaptor'],
    });
  });

  test('counts each allocation rounded up to 256 bytes, or to its alignment', () => {
    const usual = new LimitingResourceAdaptor(new SpyResource(), { limitBytes: 4096 });
    for (let i = 0; i < 16; i++) usual.allocate(1, stream);
    expect(usual.allocatedBytes).toBe(4096);
    expect(() => usual.allocate(1, stream)).toThrow(OutOfMemoryError);
    const odd = new LimitingResourceAdaptor(new SpyResource(), { limitBytes: 1000 });
    expect(() => odd.allocate(900, stream)).toThrow(OutOfMemoryError);

    const coarse = new LimitingResourceAdaptor(new SpyResource(), { limitBytes: 4096, alignment: 2048 });
    const pointer = coarse.allocate(1, stream);
    expect(coarse.allocatedBytes).toBe(2048);
    coarse.deallocate(pointer, 1, stream);
    expect(coarse.allocatedBytes).toBe(0);
  });

  test('counts nothing for zero bytes and the null pointer', () => {
    const resource = new LimitingResourceAdaptor(new SpyResource(), { limitBytes: 0 });
    expect(resource.allocate(0, stream)).toBe(0);
    resource.deallocate(0, 4096, stream);
    expect(resource.allocatedBytes).toBe(0);
    expect(() => resource.allocate(1, stream)).toThrow(OutOfMemoryError);
  });

  test('counts nothing that the upstream refuses', () => {
    using upstream = new CudaMemoryResource();
    const resource = new LimitingResourceAdaptor(upstream, { limitBytes: 2 ** 52 });
    const pointer = resource.allocate(1000, stream);
    expect(() => resource.allocate(2 ** 50, stream)).toThrow(OutOfMemoryError);
    expect(() => resource.allocate(1000, stream, 3)).toThrow(RangeError);
    expect(() => resource.deallocate(pointer + 256, 1000, stream)).toThrow(
      expect.objectContaining({ code: 'ERR_CISTERN_FOREIGN_POINTER' }),
    );
    expect(() => resource.deallocate(pointer, 999, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_WRONG_SIZE' }));
    expect(resource.allocatedBytes).toBe(1024);
    resource.deallocate(pointer, 1000, stream);
    expect(() => resource.deallocate(pointer, 1000, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DOUBLE_FREE' }));
    expect(resource.allocatedBytes).toBe(0);
  });

  test.each([-1, 1.5, Number.NaN, Infinity, 2 ** 53, '5', 5n, null])('counts nothing for the size %s', (bytes) => {
    using upstream = new CudaAsyncMemoryResource();
    const resource = new LimitingResourceAdaptor(upstream, { limitBytes: 4096 });
    expect(() => resource.allocate(bytes as number, stream)).toThrow(
      expect.objectContaining({ code: expect.stringMatching(/^ERR_(INVALID|OUT_OF)/) }),
    );
    expect(resource.allocatedBytes).toBe(0);
  });

  test('keeps the limit when the upstream runs a function that allocates', () => {
    const upstream = new SpyResource();
    const resource = new LimitingResourceAdaptor(upstream, { limitBytes: 4096 });
    let inner: unknown;
    upstream.meanwhile = () => {
      inner = caught(() => resource.allocate(2048, stream));
    };
    resource.allocate(2304, stream);
    expect(inner).toBeInstanceOf(OutOfMemoryError);
    expect(resource.allocatedBytes).toBe(2304);
  });

  test.each([undefined, -1, 1.5, Number.NaN, 'a lot', '101%'])('refuses the limit %s', (limitBytes) => {
    expect(() => new LimitingResourceAdaptor(new SpyResource(), { limitBytes: limitBytes as number })).toThrow(/^limitBytes must be/);
  });

  test('refuses an alignment that is not a power of two', () => {
    expect(() => new LimitingResourceAdaptor(new SpyResource(), { limitBytes: 1, alignment: 300 })).toThrow(/^alignment must be/);
  });
});
