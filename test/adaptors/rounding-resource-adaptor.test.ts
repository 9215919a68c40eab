import fc from 'fast-check';
import { describe, expect, test, vi } from 'vitest';
import {
  CudaMemoryResource,
  LimitingResourceAdaptor,
  MiB,
  OutOfMemoryError,
  RoundingResourceAdaptor,
  type RoundingResourceAdaptorOptions,
} from '../../src/index.js';
import { SpyResource } from '../support/spy-resource.js';
import { stream } from '../support/stream.js';

const greatest = Number.MAX_SAFE_INTEGER;

function roundingBy(options: RoundingResourceAdaptorOptions) {
  const resource = new RoundingResourceAdaptor(new SpyResource(), options);
  return (bytes: number) => resource.round(bytes);
}

/**
 * PyTorch's `roundup_power2_next_division`, for sizes of at least as many bytes as there are
 * divisions.
 */
function nextDivision(bytes: bigint, divisions: bigint): bigint {
  let floor = 1n;
  while (floor * 2n <= bytes) floor *= 2n;
  const step = floor / divisions;
  return ((bytes + step - 1n) / step) * step;
}

/** Halide's `quantize_allocation_size`. */
function quantize(bytes: bigint, bits: bigint): bigint {
  const shift = BigInt(bytes.toString(2).length) - bits;
  return shift <= 0n ? bytes : (((bytes - 1n) >> shift) + 1n) << shift;
}

const sizes = fc.oneof(fc.nat(100_000), fc.maxSafeNat(), fc.integer({ min: 2 ** 31 - 9, max: 2 ** 31 + 9 }));

describe('RoundingResourceAdaptor', () => {
  test.each([
    [0, 0],
    [1, 1000],
    [1000, 1000],
    [1001, 2000],
    [2 ** 40, 1_099_511_628_000],
    [greatest, greatest],
  ])('rounds %d bytes to %d as a multiple of 1000', (bytes, rounded) => {
    expect(roundingBy({ kind: 'multiple', multipleBytes: 1000 })(bytes)).toBe(rounded);
  });

  test.each([
    [0, 0],
    [3, 3],
    [1200, 1280],
    [1024, 1024],
    [1025, 1280],
    [2000, 2048],
    [2 ** 32 + 1, 2 ** 32 + 2 ** 30],
    [greatest, greatest],
  ])('rounds %d bytes to %d with 4 divisions', (bytes, rounded) => {
    expect(roundingBy({ kind: 'divisions', divisions: 4 })(bytes)).toBe(rounded);
  });

  test.each([
    [0, 0],
    [15, 15],
    [17, 18],
    [1000, 1024],
    [2 ** 31 - 1, 2 ** 31],
    [2 ** 31 + 1, 2 ** 31 + 2 ** 28],
    [2 ** 52 + 1, 2 ** 52 + 2 ** 49],
    [greatest, greatest],
  ])('rounds %d bytes to %d with the top 4 bits', (bytes, rounded) => {
    expect(roundingBy({ kind: 'top-bits' })(bytes)).toBe(rounded);
  });

  test('rounds up to powers of two with one division, and with one bit', () => {
    for (const options of [{ kind: 'divisions', divisions: 1 } as const, { kind: 'top-bits', bits: 1 } as const]) {
      expect([1, 2, 3, 1000, 2 ** 40 + 1].map(roundingBy(options))).toEqual([1, 2, 4, 1024, 2 ** 41]);
    }
  });

  test('is exact for multiples of any size', () => {
    fc.assert(
      fc.property(sizes, fc.integer({ min: 1, max: 2 ** 40 }), (bytes, multipleBytes) => {
        const exact = ((BigInt(bytes) + BigInt(multipleBytes) - 1n) / BigInt(multipleBytes)) * BigInt(multipleBytes);
        expect(roundingBy({ kind: 'multiple', multipleBytes })(bytes)).toBe(exact > greatest ? bytes : Number(exact));
      }),
    );
  });

  test('rounds as PyTorch does', () => {
    fc.assert(
      fc.property(sizes, fc.integer({ min: 0, max: 12 }), (bytes, exponent) => {
        const divisions = 2 ** exponent;
        fc.pre(bytes >= divisions);
        const exact = nextDivision(BigInt(bytes), BigInt(divisions));
        expect(roundingBy({ kind: 'divisions', divisions })(bytes)).toBe(exact > greatest ? bytes : Number(exact));
      }),
    );
  });

  test('rounds as Halide does, and adds no more than an eighth', () => {
    fc.assert(
      fc.property(sizes, fc.integer({ min: 1, max: 53 }), (bytes, bits) => {
        const exact = quantize(BigInt(bytes), BigInt(bits));
        const rounded = roundingBy({ kind: 'top-bits', bits })(bytes);
        expect(rounded).toBe(exact > greatest ? bytes : Number(exact));
        if (bits === 4) expect(rounded - bytes).toBeLessThanOrEqual(bytes / 8);
      }),
    );
  });

  test('requests and frees rounded sizes', () => {
    const upstream = new SpyResource();
    const allocate = vi.spyOn(upstream, 'allocate');
    const deallocate = vi.spyOn(upstream, 'deallocate');
    const resource = new RoundingResourceAdaptor(upstream, { kind: 'multiple', multipleBytes: 2 * MiB });
    const pointer = resource.allocate(MiB, stream, 4096);
    expect(allocate).toHaveBeenCalledWith(2 * MiB, stream, 4096);
    resource.deallocate(pointer, MiB, stream, 'off');
    expect(deallocate).toHaveBeenCalledWith(pointer, 2 * MiB, stream, 'off');
    resource.allocate(0, stream);
    expect(allocate).toHaveBeenLastCalledWith(0, stream, undefined);
  });

  test('reports the cost of rounding', () => {
    const upstream = new SpyResource();
    const resource = new RoundingResourceAdaptor(upstream, { kind: 'divisions', divisions: 4 });
    const first = resource.allocate(1200, stream);
    const second = resource.allocate(2000, stream);
    expect([resource.askedBytes, resource.roundedBytes]).toEqual([3200, 1280 + 2048]);
    resource.deallocate(first, 1200, stream);
    expect([resource.askedBytes, resource.roundedBytes]).toEqual([2000, 2048]);
    upstream.failure = new Error('not now');
    expect(() => resource.allocate(100, stream)).toThrow('not now');
    upstream.failure = new Error('not now');
    expect(() => resource.deallocate(second, 2000, stream)).toThrow('not now');
    resource.deallocate(0, 5000, stream);
    expect([resource.askedBytes, resource.roundedBytes]).toEqual([2000, 2048]);
  });

  test.each([-1, 1.5, Number.NaN, 2 ** 53, '5', 5n, null, undefined])('refuses the size %s, whatever it would be rounded to', (bytes) => {
    const resource = new RoundingResourceAdaptor(new SpyResource(), { kind: 'multiple', multipleBytes: 1000 });
    const refusal = expect.objectContaining({ code: expect.stringMatching(/^ERR_(INVALID|OUT_OF)/) });
    expect(() => resource.allocate(bytes as number, stream)).toThrow(refusal);
    expect(() => resource.deallocate(256, bytes as number, stream)).toThrow(refusal);
    expect(() => resource.round(bytes as number)).toThrow(refusal);
  });

  test('names its own requested size in an out-of-memory error', () => {
    using leaf = new CudaMemoryResource();
    const upstream = new LimitingResourceAdaptor(leaf, { limitBytes: MiB });
    const resource = new RoundingResourceAdaptor(upstream, { kind: 'multiple', multipleBytes: 2 * MiB });
    expect(() => resource.allocate(1000, stream)).toThrow(
      expect.objectContaining({
        requestedBytes: 1000,
        path: ['RoundingResourceAdaptor', 'LimitingResourceAdaptor'],
        cause: expect.objectContaining({ requestedBytes: 2 * MiB }),
      }),
    );
    const exact = new RoundingResourceAdaptor(leaf, { kind: 'divisions', divisions: 1 });
    expect(() => exact.allocate(greatest, stream)).toThrow(OutOfMemoryError);
  });

  test.each([
    [{ kind: 'multiple', multipleBytes: 0 }, 'multipleBytes must be at least 1, got 0'],
    [{ kind: 'multiple' }, 'multipleBytes must be a number, got undefined'],
    [{ kind: 'divisions', divisions: 0 }, 'divisions must be at least 1, got 0'],
    [{ kind: 'divisions', divisions: 6 }, 'divisions must be a power of two, got 6'],
    [{ kind: 'top-bits', bits: 0 }, 'bits must be at least 1, got 0'],
    [{ kind: 'top-bits', bits: 54 }, 'bits must be an integer from 1 to 53, got 54'],
    [{ kind: 'up' }, "kind must be 'multiple', 'divisions', 'top-bits', got \"up\""],
  ])('refuses the options %o', (options, message) => {
    expect(() => new RoundingResourceAdaptor(new SpyResource(), options as RoundingResourceAdaptorOptions)).toThrow(message);
  });
});
