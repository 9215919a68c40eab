import { expect } from 'vitest';
import { type BulkMemoryResource, KiB, type Stream } from '../../src/index.js';
import { code } from './errors.js';
import { BusyBlock, expectOrdered } from './stream-order.js';

/** Frees that must be refused whole: pointers, sizes, the code, and a part of the message. */
export type RefusedFrees = readonly (readonly [readonly number[], readonly number[], string, string])[];

/** Each of the frees is refused, and changes nothing. */
export function expectRefused(resource: BulkMemoryResource, refusals: RefusedFrees, stream: Stream, state: () => object): void {
  const before = state();
  for (const [pointers, sizes, expected, text] of refusals) {
    const act = () => resource.deallocateMany(Float64Array.from(pointers), Float64Array.from(sizes), stream);
    expect(act).toThrow(code(expected));
    expect(act).toThrow(text);
    expect(state()).toEqual(before);
  }
}

/** What one bulk call frees on a stream that still writes goes to another by a bulk call, in order. Takes all of 1 MiB. */
export function expectBulkOrder(resource: BulkMemoryResource, from: Stream, to: Stream): void {
  const sizes = Float64Array.of(512 * KiB, 512 * KiB);
  const [first = 0, second = 0] = resource.allocateMany(sizes, from);
  using block = new BusyBlock(resource, second, 512 * KiB, from);
  resource.deallocateMany(Float64Array.of(first, second), sizes, from);
  const pointers = resource.allocateMany(sizes, to);
  expect([...pointers].sort()).toEqual([first, second].sort());
  expectOrdered(second, 512 * KiB, to, block.hold);
  resource.deallocateMany(pointers, sizes, to);
}

/** Allocates into arrays of the caller. */
export function checkResultArrays(resource: BulkMemoryResource, stream: Stream): void {
  for (const count of [0, 1, 64, 65, 300]) {
    const numbers = new Float64Array(2 * count);
    const sizes = numbers.subarray(0, count).fill(256);
    const pointers = numbers.subarray(count).fill(-1);
    expect(resource.allocateMany(sizes, stream, pointers)).toBe(pointers);
    expect(new Set(pointers).size).toBe(count);
    for (const pointer of pointers) expect(pointer).toBeGreaterThan(0);
    expect(sizes).toEqual(new Float64Array(count).fill(256));
    resource.deallocateMany(pointers, sizes, stream);
  }
  const three = Float64Array.of(256, 256, 256);
  expect(() => resource.allocateMany(three, stream, new Float64Array(2))).toThrow('the same number of elements, got 2 and 3');
  expect(() => resource.allocateMany(three, stream, [0, 0, 0] as never)).toThrow('pointers must be a Float64Array');
  const apart = 'pointers and sizes must not share memory';
  expect(() => resource.allocateMany(three, stream, three)).toThrow(apart);
  for (const overlapping of [three.subarray(0, 2), three.subarray(1)])
    expect(() => resource.allocateMany(three.subarray(1), stream, overlapping)).toThrow(apart);
}
