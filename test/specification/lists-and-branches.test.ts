import { describe, expect, test, vi } from 'vitest';
import '../../src/tools/every-kind.js';
import {
  ArgumentRangeError,
  CudaMemoryResource,
  createResourceStack,
  Device,
  formatSpecification,
  HostMemoryResource,
  KiB,
  type MemoryResource,
  MiB,
  OutOfMemoryError,
  PassThroughAdaptor,
  type PoolMemoryResource,
  parseSpecification,
  type ResourceKind,
  type Specification,
  SpecificationError,
  Stream,
} from '../../src/index.js';
import { defineAdaptor } from '../../src/resource-kind.js';
import { TwoWayResource } from '../support/two-way-resource.js';

/** Has sizes, and refuses those that do not ascend. */
class Sized extends PassThroughAdaptor {
  readonly sizes: readonly number[];

  constructor(upstream: MemoryResource, sizes: readonly number[]) {
    super(upstream, {});
    if (sizes.some((size, i) => size <= (sizes[i - 1] ?? 0))) throw new ArgumentRangeError(`sizes must ascend, got ${sizes.join(', ')}`);
    this.sizes = sizes;
  }

  allocate(bytes: number, stream: Stream): number {
    return this.upstream.allocate(bytes, stream);
  }

  deallocate(pointer: number, bytes: number, stream: Stream): void {
    this.upstream.deallocate(pointer, bytes, stream);
  }
}

vi.mock(import('../../src/specification/kinds-by-name.js'), async (original) => {
  const module = await original();
  const kinds = new Map<string, ResourceKind>();
  return { ...module, resourceKind: (name) => (kinds.size === 0 ? addKinds(kinds) : kinds).get(name) ?? module.resourceKind(name) };
});

function addKinds(kinds: Map<string, ResourceKind>): Map<string, ResourceKind> {
  const sized = defineAdaptor({
    name: 'sized',
    role: 'pass-through',
    summary: 'has sizes',
    options: { sizes: { type: 'sizes', summary: 'what it has', required: true } },
    example: 'sized(cuda, sizes=[1MiB])',
    create: ({ upstream, options }) => new Sized(upstream, options.sizes),
  });
  const twoWay = defineAdaptor({
    name: 'two-way',
    role: 'pass-through',
    summary: 'has two resources below',
    options: { to: { type: 'resource', summary: 'the second one', required: true } },
    example: 'two-way(cuda, to=managed)',
    create: ({ upstream, options }) => new TwoWayResource(upstream, options.to),
  });
  return kinds.set('sized', sized).set('two-way', twoWay);
}

function errorOf(specification: string | Specification): SpecificationError {
  try {
    createResourceStack(specification).dispose();
  } catch (error) {
    expect(error).toBeInstanceOf(SpecificationError);
    return error as SpecificationError;
  }
  throw new Error('it was accepted');
}

describe('a list of sizes', () => {
  test.each([
    ['sized(cuda, sizes=[64KiB, 256KiB, 1MiB])', [64 * KiB, 256 * KiB, MiB]],
    ['sized(cuda, sizes=[ 64 KiB,1.5MiB , 5000000 ] )', [64 * KiB, 1.5 * MiB, 5_000_000]],
    ['sized(sizes=[7], cuda)', [7]],
  ])('is read from %s', (text, sizes) => {
    const parsed = parseSpecification(text);
    expect(parsed.options).toEqual({ sizes });
    expect(parseSpecification(formatSpecification(parsed)).options).toEqual({ sizes });
    using stack = createResourceStack(text);
    expect((stack.resource as Sized).sizes).toEqual(sizes);
  });

  test('is an array in an object, and reads back from its text', () => {
    const specification = { kind: 'sized', upstream: { kind: 'cuda' }, options: { sizes: ['64 KiB', 262144, '1MiB'] } };
    expect(formatSpecification(specification)).toBe('sized(cuda, sizes=[64KiB, 256KiB, 1MiB])');
    expect(parseSpecification(specification).options).toEqual({ sizes: [64 * KiB, 256 * KiB, MiB] });
  });

  const list = 'sizes must be a list of sizes such as [64KiB, 1MiB]';
  const item = 'an item of sizes must be a size such as 512MiB or 50%';

  test.each([
    ['sized(cuda, sizes=64KiB)', 18, 5, `${list}, got "64KiB"`],
    ['sized(cuda, sizes=)', 18, 1, `${list}, got nothing`],
    ['sized(cuda, sizes="[1KiB]")', 18, 8, `${list}, got "[1KiB]"`],
    ['sized(cuda, sizes=[])', 19, 1, `${item}, got nothing`],
    ['sized(cuda, sizes=[1KiB, 2XB , 4KiB])', 25, 3, `${item}, got "2XB"`],
    ['sized(cuda, sizes=[1KiB,])', 24, 1, `${item}, got nothing`],
    ['sized(cuda, sizes=[1KiB)', 18, 1, 'this list is not closed'],
    ['sized(cuda, sizes=[1KiB, [2KiB]])', 18, 1, 'this list is not closed'],
    ['sized(cuda, sizes=[1KiB] 2)', 25, 1, 'a comma or a closing parenthesis is expected here'],
    ['sized(cuda)', 0, 5, 'sized needs the option sizes (a list of sizes such as [64KiB, 1MiB]): what it has'],
  ])('is pointed at in %s from %i over %i', (text, position, length, fault) => {
    const error = errorOf(text);
    expect([error.message.split('\n')[0], error.position, error.length]).toEqual([fault, position, length]);
  });

  test.each<[unknown, string, string]>([
    ['64KiB', 'options.sizes', `${list}, got "64KiB"`],
    [[], 'options.sizes', `${list}, got an instance of Array`],
    [{ 0: 1 }, 'options.sizes', `${list}, got an instance of Object`],
    [[1024, '2 parsecs'], 'options.sizes[1]', `${item}, got "2 parsecs"`],
    [[[1024]], 'options.sizes[0]', `${item}, got an instance of Array`],
  ])('is pointed at in the object %j', (sizes, path, fault) => {
    const error = errorOf({ kind: 'sized', upstream: { kind: 'cuda' }, options: { sizes } } as unknown as Specification);
    expect([error.path, error.message]).toEqual([path, `at ${path}: ${fault}`]);
  });

  test('that the resource refuses is reported at the resource', () => {
    const fault = 'sized cannot be constructed: sizes must ascend, got 2048, 1024';
    const inner = { kind: 'sized', upstream: { kind: 'cuda' }, options: { sizes: ['2KiB', '1KiB'] } };
    expect(errorOf(inner)).toMatchObject({ path: '', message: fault, cause: expect.any(ArgumentRangeError) });
    expect(errorOf({ kind: 'two-way', upstream: { kind: 'cuda' }, options: { to: inner } })).toMatchObject({
      path: 'options.to',
      message: `at options.to: ${fault}`,
    });
    expect(errorOf('two-way(cuda, to=sized(cuda, sizes=[2KiB, 1KiB]))')).toMatchObject({ position: 17, length: 31 });
  });
});

describe('a resource as an option', () => {
  test('is pointed at by the path through the option', () => {
    const faulty = { kind: 'two-way', upstream: { kind: 'cuda' }, options: { to: { kind: 'pool', upstream: { kind: 'csuda' } } } };
    expect(errorOf(faulty)).toMatchObject({ path: 'options.to.upstream.kind' });
    const missing = { kind: 'pool', upstream: { kind: 'two-way', upstream: { kind: 'cuda' } } };
    expect(errorOf(missing).message).toBe('at upstream.options.to: two-way needs the option to (a resource): the second one');
    const cycle = { kind: 'two-way', upstream: { kind: 'cuda' }, options: { to: undefined as unknown } };
    cycle.options.to = cycle;
    expect(errorOf(cycle as Specification).message).toBe('at options.to: a resource cannot contain itself');
  });

  test('is written as it is read', () => {
    const text = 'two-way(cuda, to=two-way(host, to=pool(managed, maximumBytes=1GiB), deallocationEvents=off))';
    expect(formatSpecification(parseSpecification(text))).toBe(text);
  });
});

describe('a stack with branches', () => {
  test('has every layer of each branch, the outermost first, and its leaves', () => {
    using stack = createResourceStack('statistics(two-way(pool(cuda), to=pool(managed)))');
    expect(stack.layers.map((layer) => layer.constructor.name)).toEqual([
      'StatisticsResourceAdaptor',
      'TwoWayResource',
      'PoolMemoryResource',
      'CudaMemoryResource',
      'PoolMemoryResource',
      'ManagedMemoryResource',
    ]);
    expect(stack.leaves).toEqual([stack.layers[3], stack.layers[5]]);
  });

  test('ends with all of them, or with the leaves last if they are to be asked first', () => {
    using stream = new Stream();
    using stack = createResourceStack('two-way(pool(cuda), to=pool(host))');
    const isDisposed = (layer: MemoryResource) => {
      try {
        layer.deallocate(layer.allocate(1, stream), 1, stream);
        return false;
      } catch (error) {
        expect(error).toMatchObject({ code: 'ERR_CISTERN_DISPOSED' });
        return true;
      }
    };
    const [outer, one, cuda, two, host] = stack.layers as [MemoryResource, MemoryResource, MemoryResource, MemoryResource, MemoryResource];
    expect([outer, one, cuda, two, host].map(isDisposed)).toEqual(Array(5).fill(false));
    stack.disposeAdaptors();
    expect([outer, one, two, cuda, host].map(isDisposed)).toEqual([true, true, true, false, false]);
    stack.dispose();
    expect([outer, one, cuda, two, host].map(isDisposed)).toEqual(Array(5).fill(true));
  });

  test('leaves nothing of any branch behind if one cannot be created', () => {
    const cuda = new CudaMemoryResource();
    const reserved = cuda.reservedBytes;
    expect(() => createResourceStack('two-way(pool(cuda, initialBytes=16MiB), to=pool(cuda, initialBytes=1TiB))')).toThrow(
      OutOfMemoryError,
    );
    expect(cuda.reservedBytes).toBe(reserved);
  });

  test.each([
    ['two-way(cuda, to=host)', null],
    ['two-way(pool(cuda), to=pool(host, deallocationEvents=off))', 'eager'],
    ['two-way(cuda, to=pool(host, deallocationEvents=off))', 'off'],
    ['two-way(cuda, to=pool(host, deallocationEvents=off), deallocationEvents=deferred)', 'deferred'],
  ] as const)('%s has the policy %s in force', (specification, policy) => {
    using stack = createResourceStack(specification);
    expect(stack.deallocationEvents).toBe(policy);
  });

  test('counts for others what its leaves held before, once for leaves that share their count', () => {
    using stream = new Stream();
    const device = Device.get(1);
    const other = new CudaMemoryResource({ device });
    const host = new HostMemoryResource({ device });
    const [pointer, hostPointer] = [other.allocate(3 * MiB, stream), host.allocate(MiB, stream)];
    {
      using same = createResourceStack('two-way(pool(cuda, initialBytes=16MiB), to=cuda)', { device });
      expect(same.foreignReservedBytes).toBe(3 * MiB);
      expect((same.layers[1] as PoolMemoryResource).reservedBytes).toBe(16 * MiB);
      using different = createResourceStack('two-way(host, to=pool(cuda))', { device });
      expect(different.foreignReservedBytes).toBe(MiB + 19 * MiB);
    }
    other.deallocate(pointer, 3 * MiB, stream);
    host.deallocate(hostPointer, MiB, stream);
  });
});
