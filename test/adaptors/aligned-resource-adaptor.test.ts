import { describe, expect, test, vi } from 'vitest';
import {
  AlignedResourceAdaptor,
  type AlignedResourceAdaptorOptions,
  CudaMemoryResource,
  GiB,
  LimitingResourceAdaptor,
  OutOfMemoryError,
  PoolMemoryResource,
} from '../../src/index.js';
import { SpyResource } from '../support/spy-resource.js';
import { stream } from '../support/stream.js';

/**
 * An adaptor over an upstream with an alignment of at most 256, and a list of the upstream's calls.
 */
function overCuda(options: AlignedResourceAdaptorOptions) {
  const upstream = new CudaMemoryResource();
  const allocate = vi.spyOn(upstream, 'allocate');
  const deallocate = vi.spyOn(upstream, 'deallocate');
  return { upstream, allocate, deallocate, resource: new AlignedResourceAdaptor(upstream, options) };
}

/** An upstream whose next allocation lies `offset` bytes past a multiple of 4096. */
function at(offset: number) {
  const upstream = new SpyResource();
  const allocate = vi.spyOn(upstream, 'allocate').mockImplementation((_bytes, _stream, alignment = 256) => {
    if (alignment > 256) throw new RangeError('no such alignment');
    return 0x7f00_0000_0000 + offset;
  });
  return { allocate, deallocate: vi.spyOn(upstream, 'deallocate'), resource: new AlignedResourceAdaptor(upstream, { alignment: 4096 }) };
}

describe('AlignedResourceAdaptor', () => {
  test.each([0, 3, 300, -256, Number.NaN, 2 * GiB])('refuses the alignment %s', (alignment) => {
    expect(() => new AlignedResourceAdaptor(new SpyResource(), { alignment })).toThrow(/^alignment must be/);
  });

  test.each([-1, 0.5, 2 ** 53])('refuses the threshold %s', (alignmentThresholdBytes) => {
    expect(() => new AlignedResourceAdaptor(new SpyResource(), { alignmentThresholdBytes })).toThrow(/^alignmentThresholdBytes must be/);
  });

  test('raises alignments below 256 to 256', () => {
    for (const alignment of [1, 2, 128, 256]) {
      const upstream = new SpyResource();
      const resource = new AlignedResourceAdaptor(upstream, { alignment });
      expect(resource.alignment).toBe(256);
      resource.allocate(5, stream);
      expect(upstream.alignments).toEqual([undefined]);
    }
  });

  test('passes calls on unchanged by default', () => {
    const { allocate, deallocate, resource } = overCuda({});
    const pointer = resource.allocate(5, stream);
    resource.deallocate(pointer, 5, stream);
    expect(allocate.mock.calls.map(([bytes]) => bytes)).toEqual([5]);
    expect(deallocate.mock.calls).toEqual([[pointer, 5, stream, undefined]]);
  });

  test('passes calls below the threshold on unchanged, and aligns from the threshold on', () => {
    const { allocate, resource } = overCuda({ alignment: 4096, alignmentThresholdBytes: 65536 });
    const small = resource.allocate(65535, stream);
    expect(allocate).toHaveBeenLastCalledWith(65535, stream);
    const large = resource.allocate(65536, stream);
    expect(large % 4096).toBe(0);
    expect(allocate).toHaveBeenLastCalledWith(65536 + 4096 - 256, stream);
    resource.deallocate(small, 65535, stream);
    resource.deallocate(large, 65536, stream);
  });

  test('uses the alignment of a call below the threshold, and the greater of both above', () => {
    const { allocate, resource } = overCuda({ alignment: 4096, alignmentThresholdBytes: 65536 });
    const blocks = [
      [65535, 1024, 1024],
      [65536, 1024, 4096],
      [65536, 16384, 16384],
    ] as const;
    for (const [bytes, alignment, given] of blocks) {
      const pointer = resource.allocate(bytes, stream, alignment);
      expect(pointer % given).toBe(0);
      expect(allocate).toHaveBeenLastCalledWith(bytes + given - 256, stream);
      resource.deallocate(pointer, bytes, stream);
    }
  });

  test('asks an upstream that supports the alignment for it, and for no extra bytes', () => {
    using upstream = new CudaMemoryResource();
    using pool = new PoolMemoryResource(upstream);
    const allocate = vi.spyOn(pool, 'allocate');
    const resource = new AlignedResourceAdaptor(pool, { alignment: 4096 });
    for (let i = 0; i < 3; i++) {
      const pointer = resource.allocate(1000, stream);
      expect(pointer % 4096).toBe(0);
      expect(allocate).toHaveBeenLastCalledWith(1000, stream, 4096);
    }
    expect(allocate).toHaveBeenCalledTimes(3);
  });

  test('asks an upstream only once for an alignment that it refuses, and never for a greater one', () => {
    const { allocate, resource } = overCuda({ alignment: 1024, alignmentThresholdBytes: 1000 });
    for (const alignment of [undefined, undefined, 512, 4096]) resource.allocate(1000, stream, alignment);
    expect(allocate.mock.calls.map(([bytes, , alignment]) => [bytes, alignment])).toEqual([
      [1000, 1024],
      [1768, undefined],
      [1768, undefined],
      [1768, undefined],
      [4840, undefined],
    ]);
  });

  test('still asks for a smaller alignment than the one that was refused', () => {
    const { allocate, resource } = overCuda({});
    resource.allocate(1000, stream, 4096);
    resource.allocate(1000, stream, 1024);
    resource.allocate(1000, stream, 2048);
    expect(allocate.mock.calls.map(([, , alignment]) => alignment)).toEqual([4096, undefined, 1024, undefined, undefined]);
  });

  test('still asks for its own alignment if only a greater one was refused', () => {
    const upstream = new SpyResource();
    const allocate = vi.spyOn(upstream, 'allocate').mockImplementation((_bytes, _stream, alignment = 256) => {
      if (alignment > 1024) throw new RangeError('no such alignment');
      return 0x7f00_0000_0000;
    });
    const resource = new AlignedResourceAdaptor(upstream, { alignment: 512 });
    resource.allocate(1000, stream, 4096);
    resource.allocate(1000, stream);
    expect(allocate).toHaveBeenLastCalledWith(1000, stream, 512);
  });

  test('notices that it was disposed during a call of the upstream', () => {
    const upstream = new SpyResource();
    const resource = new AlignedResourceAdaptor(upstream, { alignment: 4096 });
    upstream.meanwhile = () => resource.dispose();
    upstream.failure = new RangeError('no such alignment');
    expect(() => resource.allocate(1000, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    expect(upstream.alignments).toEqual([]);
  });

  test('notices an upstream that ignores the alignment, and gives the memory back', () => {
    const upstream = new SpyResource();
    const deallocate = vi.spyOn(upstream, 'deallocate');
    const resource = new AlignedResourceAdaptor(upstream, { alignment: 65536 });
    expect(resource.allocate(1000, stream) % 65536).toBe(0);
    expect(resource.allocate(1000, stream) % 65536).toBe(0);
    expect(upstream.alignments).toEqual([65536, undefined, undefined]);
    expect(deallocate).toHaveBeenCalledTimes(1);
  });

  test('learns nothing if the upstream refuses for another reason', () => {
    const upstream = new SpyResource();
    const allocate = vi.spyOn(upstream, 'allocate');
    allocate.mockImplementation(() => {
      throw new RangeError('stream of another device');
    });
    const resource = new AlignedResourceAdaptor(upstream, { alignment: 4096 });
    for (let i = 0; i < 2; i++) expect(() => resource.allocate(1000, stream)).toThrow('stream of another device');
    expect(allocate.mock.calls.map(([, , alignment]) => alignment)).toEqual([4096, undefined, 4096, undefined]);
  });

  test.each([0, 256, 2048, 3840])('frees a block that the upstream placed %s bytes past a multiple', (offset) => {
    const { resource, deallocate } = at(offset);
    const pointer = resource.allocate(1000, stream);
    expect(pointer).toBe(0x7f00_0000_0000 + (offset === 0 ? 0 : 4096));
    resource.deallocate(pointer, 1000, stream, 'off');
    expect(deallocate.mock.calls).toEqual([[0x7f00_0000_0000 + offset, 1000 + 4096 - 256, stream, 'off']]);
  });

  test('aligns to a gibibyte', () => {
    const { resource, deallocate } = at(256);
    const pointer = resource.allocate(1000, stream, GiB);
    expect(pointer).toBe(0x7f00_4000_0000);
    resource.deallocate(pointer, 1000, stream);
    expect(deallocate.mock.calls[0]?.slice(0, 2)).toEqual([0x7f00_0000_0100, 1000 + GiB - 256]);
    expect(() => resource.allocate(1000, stream, 2 * GiB)).toThrow('alignment must be at most 1073741824');
  });

  test('can free a block again after the upstream refused to', () => {
    const { resource } = overCuda({ alignment: 65536 });
    const pointer = resource.allocate(5000, stream);
    for (const bytes of [4999, 0, 5001]) {
      expect(() => resource.deallocate(pointer, bytes, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_WRONG_SIZE' }));
    }
    expect(() => resource.deallocate(pointer, -1, stream)).toThrow(expect.objectContaining({ code: 'ERR_OUT_OF_RANGE' }));
    resource.deallocate(pointer, 5000, stream);
    expect(() => resource.deallocate(pointer, 5000, stream)).toThrow(expect.objectContaining({ name: 'LifetimeError' }));
  });

  test('can get the same memory while the upstream frees it', () => {
    const { resource, deallocate } = at(256);
    const pointer = resource.allocate(1000, stream);
    deallocate.mockImplementationOnce(() => {
      expect(resource.allocate(1000, stream)).toBe(pointer);
    });
    resource.deallocate(pointer, 1000, stream);
    resource.deallocate(pointer, 1000, stream);
    // It has forgotten the pointer.
    resource.deallocate(pointer, 1000, stream);
    expect(deallocate.mock.calls.map(([address]) => address)).toEqual([0x7f00_0000_0100, 0x7f00_0000_0100, pointer]);
  });

  test('names its own size and the size asked of the upstream in an out-of-memory error', () => {
    const upstream = new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 8192 });
    const resource = new AlignedResourceAdaptor(upstream, { alignment: 4096 });
    let error: unknown;
    try {
      resource.allocate(5000, stream);
    } catch (thrown) {
      error = thrown;
    }
    expect(error).toBeInstanceOf(OutOfMemoryError);
    expect(error).toMatchObject({
      message: expect.stringMatching(/\(8840 bytes\) were asked for.*; the AlignedResourceAdaptor was asked for 5000 bytes$/),
      requestedBytes: 5000,
      availableBytes: 8192,
      limitBytes: 8192,
      path: ['AlignedResourceAdaptor', 'LimitingResourceAdaptor'],
      cause: expect.objectContaining({ requestedBytes: 8840 }),
    });
  });

  test('requests no bytes for a request of zero bytes', () => {
    const { allocate, resource } = overCuda({ alignment: 4096 });
    resource.allocate(1, stream);
    expect(resource.allocate(0, stream)).toBe(0);
    expect(allocate).toHaveBeenLastCalledWith(0, stream);
  });
});
