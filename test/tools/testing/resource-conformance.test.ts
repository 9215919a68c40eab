import { describe, expect, test } from 'vitest';
import { type MemoryResource, MiB } from '../../../src/index.js';
import { resourceConformance } from '../../../src/tools/testing/index.js';
import { correctResource, faultyResources } from './faulty-resources.js';

function conformance(type: new () => MemoryResource) {
  return resourceConformance({
    name: 'subject',
    create: () => ({ resource: new type() }),
    supports: { maximumAlignment: Infinity, streamOrdered: true, reusesAcrossStreams: true, capacityBytes: 16 * MiB },
    seed: 1,
  });
}

describe('the conformance suite', () => {
  for (const { name, run } of conformance(correctResource)) test(`passes a correct resource: ${name}`, run);

  for (const [type, caseName, message] of faultyResources) {
    test(`notices in "${caseName} …" what ${type.name}`, () => {
      const found = conformance(type).find(({ name }) => name.startsWith(`subject ${caseName}`));
      expect(() => found?.run()).toThrow(message);
    });
  }

  test('gives each case a name of its own', () => {
    const names = conformance(correctResource).map(({ name }) => name);
    expect(new Set(names).size).toBe(names.length);
    expect(names.length).toBeGreaterThan(25);
  });

  test('names what an incomplete resource lacks, once', () => {
    const incomplete = { allocate: () => 256, memoryKind: 'gpu', device: 0 } as unknown as MemoryResource;
    const cases = resourceConformance({
      name: 'subject',
      create: () => ({ resource: incomplete }),
      supports: { maximumAlignment: 256, streamOrdered: true },
    });
    const errors = cases.flatMap(({ run }) => {
      try {
        run();
        return [];
      } catch (error) {
        return [(error as Error).message];
      }
    });
    expect(errors).toEqual([
      'subject lacks members of MemoryResource: deallocate(), isEqual(), [Symbol.dispose](), device, a Device, memoryKind, one of device, managed, pinned-host, host',
    ]);
  });

  test('leaves out what a resource does not claim', () => {
    const names = resourceConformance({
      name: 'subject',
      create: () => ({ resource: new correctResource() }),
      supports: { maximumAlignment: 256, streamOrdered: false },
    }).map(({ name }) => name);
    expect(names.filter((name) => /order|capacity/.test(name))).toEqual([]);
  });

  test('notices that the claimed maximum alignment is too small', () => {
    const cases = resourceConformance({
      name: 'subject',
      create: () => ({ resource: new correctResource() }),
      supports: { maximumAlignment: 256, streamOrdered: true },
    });
    expect(() => cases.find(({ name }) => name.includes('every alignment'))?.run()).toThrow(/alignment 512 must be refused/);
  });

  test('notices that a resource does more than it claims', () => {
    const cases = resourceConformance({
      name: 'subject',
      create: () => ({ resource: new correctResource() }),
      supports: { maximumAlignment: Infinity, streamOrdered: true, capacityBytes: 16 * MiB, reusesFreedMemory: false, checksFrees: false },
    });
    const run = (part: string) => () => cases.find(({ name }) => name.includes(part))?.run();
    expect(run('does not reuse freed memory')).toThrow(/must be refused, but was accepted/);
    expect(run('accepts a second free')).toThrow(/this one refused one: .*it is already freed/);
    expect(cases.filter(({ name }) => /has memory again|refuses to free twice/.test(name))).toEqual([]);
  });

  test('names the seed of a random case that fails', () => {
    const [type] = faultyResources.find(([, name]) => name.startsWith('keeps live')) ?? [correctResource];
    const found = conformance(type).find(({ name }) => name.includes('keeps live'));
    expect(() => found?.run()).toThrow(/^with seed 1: /);
  });
});
