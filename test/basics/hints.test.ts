import { describe, expect, test } from 'vitest';
import { CallbackMemoryResource, CudaMemoryResource, createResource, type Device, PoolMemoryResource, Stream } from '../../src/index.js';
import { everyKind } from '../../src/tools/every-kind.js';

describe('what a wrong value should have been', () => {
  test.each([
    ['64MiB', 'initialBytes must be a number, got "64MiB"; write 64 * MiB'],
    [' 2 GiB', 'initialBytes must be a number, got " 2 GiB"; write 2 * GiB'],
    ['64 MB', 'initialBytes must be a number, got "64 MB"; write parseBytes("64 MB")'],
    ['1.5GiB', 'initialBytes must be a number, got "1.5GiB"; write parseBytes("1.5GiB")'],
    ['much', 'initialBytes must be a number, got "much"'],
    [null, 'initialBytes must be a number, got null'],
  ])('a size: %j', (initialBytes, message) => {
    using upstream = new CudaMemoryResource();
    expect(() => new PoolMemoryResource(upstream, { initialBytes: initialBytes as never })).toThrow(new RegExp(`^${escaped(message)}$`));
  });

  test('a device', () => {
    expect(() => new Stream({ device: 7 as unknown as Device })).toThrow(/^device must be a Device, got 7; write Device\.get\(7\)$/);
    expect(() => new Stream({ device: '7' as unknown as Device })).toThrow(/^device must be a Device, got "7"$/);
  });
});

describe('a resource as text', () => {
  test('is its stack, without options', () => {
    using upstream = new CudaMemoryResource();
    using pool = new PoolMemoryResource(upstream);
    expect([String(pool), `${upstream}`]).toEqual(['pool(cuda)', 'cuda']);
    expect(
      String(
        new CallbackMemoryResource(
          () => 256,
          () => {},
        ),
      ),
    ).toBe('callback');
    using stack = createResource('limiting(arena(virtual), limitBytes=1GiB)');
    expect(String(stack)).toBe('limiting(arena(virtual))');
  });

  test.each(everyKind.map(({ name, example }) => [name, example]))('begins with the name of its kind: %s', (name, example) => {
    if (/file=|dumpFile=|plan=/i.test(example)) return;
    using resource = createResource(example);
    expect(String(resource)).toMatch(new RegExp(`^${name}(\\(|$)`));
  });
});

function escaped(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
}
