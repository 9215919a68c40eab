import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { GiB, MiB, PoolMemoryResource, Stream, VirtualMemoryResource } from '../../src/index.js';
import { code } from '../support/errors.js';

const stream = new Stream({ nonBlocking: true });

function pools(maximumBytes = 64 * MiB) {
  const upstream = new VirtualMemoryResource({ reservationBytes: 2 * GiB });
  const pool = new PoolMemoryResource(upstream, { maximumBytes });
  const dispose = () => {
    pool.dispose();
    upstream.dispose();
  };
  return { upstream, pool, [Symbol.dispose]: dispose };
}

describe('a pool over an upstream that grows in place', () => {
  test('takes whole pages, as many as are missing', () => {
    using bed = pools();
    const { pool } = bed;
    const first = pool.allocate(MiB, stream);
    expect(pool.reservedBytes).toBe(2 * MiB);
    expect(pool.allocate(2 * MiB, stream)).toBe(first + MiB);
    expect(pool.reservedBytes).toBe(4 * MiB);
    expect(pool.allocate(MiB, stream)).toBe(first + 3 * MiB);
    expect(pool.statistics()).toMatchObject({ reservedBytes: 4 * MiB, growths: 2, upstreamBlocks: 1 });
    pool.validate();
  });

  test('coalesces across what came at different times', () => {
    using bed = pools(8 * MiB);
    const { pool } = bed;
    const pointers = [0, 1, 2, 3].map(() => pool.allocate(2 * MiB, stream));
    for (const pointer of pointers) pool.deallocate(pointer, 2 * MiB, stream);
    expect(pool.allocate(8 * MiB, stream)).toBe(pointers[0]);
    pool.validate();
  });

  test('gives back pages from anywhere, and takes them again', () => {
    using bed = pools();
    const { pool, upstream } = bed;
    const pointers = [0, 1, 2, 3, 4].map(() => pool.allocate(4 * MiB, stream)) as [number, number, number, number, number];
    pool.deallocate(pointers[1], 4 * MiB, stream);
    pool.deallocate(pointers[3], 4 * MiB, stream);
    expect(pool.trim(stream)).toBe(8 * MiB);
    expect(pool.reservedBytes).toBe(12 * MiB);
    expect(upstream.reservedBytes).toBe(12 * MiB);
    expect(pool.statistics().upstreamBlocks).toBe(3);
    pool.validate();
    expect(pool.allocate(4 * MiB, stream)).toBe(pointers[1]);
    expect(pool.statistics().upstreamBlocks).toBe(2);
    pool.validate();
  });

  test('keeps the part of a page that is in use', () => {
    using bed = pools();
    const { pool } = bed;
    const first = pool.allocate(3 * MiB, stream);
    const second = pool.allocate(5 * MiB, stream);
    pool.deallocate(second, 5 * MiB, stream);
    expect(pool.trim(stream)).toBe(4 * MiB);
    expect(pool.allocate(MiB, stream)).toBe(first + 3 * MiB);
    pool.validate();
  });

  test('moves free pages to where they are needed, if its maximum leaves no others', () => {
    using bed = pools(16 * MiB);
    const { pool } = bed;
    const pointers = Array.from({ length: 8 }, () => pool.allocate(2 * MiB, stream));
    for (const pointer of pointers.filter((_, i) => i % 2 === 0)) pool.deallocate(pointer, 2 * MiB, stream);
    // No two free pages are adjacent.
    expect(pool.allocate(8 * MiB, stream)).toBeGreaterThan(pointers[7] as number);
    expect(pool.reservedBytes).toBe(16 * MiB);
    expect(() => pool.allocate(1, stream)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
    pool.validate();
  });

  test('leaves whole pages to large requests once memory has been short: small ones share low pages, not the best fit', () => {
    using bed = pools(16 * MiB);
    const { pool } = bed;
    const allocateAll = () => Array.from({ length: 8 }, () => pool.allocate(2 * MiB, stream));
    const firsts = allocateAll();
    for (const page of firsts.filter((_, i) => i % 2 === 0)) pool.deallocate(page, 2 * MiB, stream);
    pool.deallocate(pool.allocate(8 * MiB, stream), 8 * MiB, stream); // pages are given back for it
    for (const page of firsts.filter((_, i) => i % 2 === 1)) pool.deallocate(page, 2 * MiB, stream);
    const pages = allocateAll().sort((a, b) => a - b);
    const [low, high] = [pages[0], pages[7]] as [number, number];
    for (const page of [high, low]) pool.deallocate(page, 2 * MiB, stream);
    // A hole of 1.5 MiB in the first page, and one of 0.5 MiB in the last.
    pool.allocate(MiB / 2, stream);
    const most = pool.allocate(1.5 * MiB, stream);
    const rest = pool.allocate(1.5 * MiB, stream);
    expect([most, rest]).toEqual([low + MiB / 2, high]);
    pool.deallocate(most, 1.5 * MiB, stream);
    expect(pool.allocate(MiB / 4, stream)).toBe(most);
    pool.deallocate(rest, 1.5 * MiB, stream);
    expect(pool.allocate(2 * MiB, stream)).toBe(high);
    pool.validate();
  });

  test('refuses what is too large for a block once it is rounded up to pages', () => {
    using bed = pools(Number.POSITIVE_INFINITY);
    const bytes = 2 ** 39 - 256;
    expect(() => bed.pool.allocate(bytes, stream)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
    expect(() => new PoolMemoryResource(bed.upstream, { initialBytes: bytes })).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
    bed.pool.validate();
  });

  test('takes only what is missing again, after a request that it could not serve', () => {
    using bed = pools(4 * MiB);
    const { pool } = bed;
    pool.allocate(MiB, stream);
    expect(() => pool.allocate(5 * MiB, stream)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
    pool.allocate(3 * MiB, stream);
    expect(pool.reservedBytes).toBe(4 * MiB);
  });

  test('takes its initial size in whole pages', () => {
    using upstream = new VirtualMemoryResource({ reservationBytes: 2 * GiB });
    using pool = new PoolMemoryResource(upstream, { initialBytes: MiB });
    expect(pool.reservedBytes).toBe(2 * MiB);
  });

  test('takes enough for a whole request if the page that was missing comes elsewhere', () => {
    using bed = pools();
    const { pool } = bed;
    const pointers = [2, 2, 1].map((factor) => pool.allocate(factor * MiB, stream)) as [number, number, number];
    pool.deallocate(pointers[0], 2 * MiB, stream);
    pool.trim(stream);
    expect(pool.allocate(3 * MiB, stream)).toBeGreaterThan(pointers[2]);
    pool.validate();
  });

  test('grows before it waits for a stream that memory is held for', () => {
    using upstream = new VirtualMemoryResource({ reservationBytes: 2 * GiB });
    using pool = new PoolMemoryResource(upstream, { deallocationEvents: 'off' });
    using other = new Stream({ nonBlocking: true });
    const pointer = pool.allocate(2 * MiB, other);
    using _hold = other.hold();
    pool.deallocate(pointer, 2 * MiB, other);
    expect(pool.allocate(2 * MiB, stream)).not.toBe(pointer);
    expect(pool.statistics()).toMatchObject({ growths: 2, synchronizations: 0 });
  });

  test('leaves nothing behind', () => {
    const { pool, upstream } = pools();
    const pointer = pool.allocate(5 * MiB, stream);
    pool.allocate(MiB, stream);
    pool.deallocate(pointer, 5 * MiB, stream);
    pool.trim(stream);
    pool.dispose();
    expect(upstream.reservedBytes).toBe(0);
    upstream.dispose();
  });

  test('keeps its structures and counts after any steps on several streams', () => {
    const streams = [stream, new Stream({ nonBlocking: true })];
    const step = fc.record({
      kind: fc.constantFrom('allocate', 'allocate', 'allocate', 'free', 'free', 'trim'),
      quarters: fc.integer({ min: 1, max: 24 }),
      less: fc.nat({ max: 1000 }),
      pick: fc.nat(),
      on: fc.nat({ max: 1 }),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60, size: 'max' }), (steps) => {
        using bed = pools(24 * MiB);
        const { pool, upstream } = bed;
        const live: { pointer: number; bytes: number }[] = [];
        for (const { kind, quarters, less, pick, on } of steps) {
          const chosen = streams[on] as Stream;
          if (kind === 'allocate') {
            const bytes = (quarters * MiB) / 4 - less;
            try {
              live.push({ pointer: pool.allocate(bytes, chosen), bytes });
            } catch (error) {
              expect(error).toMatchObject({ code: 'ERR_CISTERN_OUT_OF_MEMORY' });
            }
          } else if (kind === 'free' && live.length > 0) {
            const [{ pointer, bytes }] = live.splice(pick % live.length, 1) as [{ pointer: number; bytes: number }];
            pool.deallocate(pointer, bytes, chosen);
          } else if (kind === 'trim') {
            pool.trim(chosen);
          }
          pool.validate();
          expect(upstream.reservedBytes).toBe(pool.reservedBytes);
          expect(pool.reservedBytes).toBeLessThanOrEqual(24 * MiB);
          const sorted = live.toSorted((a, b) => a.pointer - b.pointer);
          for (const [i, { pointer }] of sorted.entries()) {
            const before = sorted[i - 1];
            if (before !== undefined) expect(pointer).toBeGreaterThanOrEqual(before.pointer + before.bytes);
          }
        }
        for (const { pointer, bytes } of live) pool.deallocate(pointer, bytes, stream);
        expect(pool.trim(stream) >= 0 && pool.reservedBytes).toBe(0);
      }),
      { numRuns: 150 },
    );
    streams[1]?.dispose();
  });
});
