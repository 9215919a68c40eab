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
