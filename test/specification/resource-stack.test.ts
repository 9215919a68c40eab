import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import {
  ArgumentRangeError,
  type BinningMemoryResource,
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  createResource,
  createResourceStack,
  Device,
  DriverError,
  type FallbackResourceAdaptor,
  HostMemoryResource,
  LimitingResourceAdaptor,
  LoggingResourceAdaptor,
  ManagedMemoryResource,
  type MemoryResource,
  MiB,
  OutOfMemoryError,
  PoolMemoryResource,
  parseSpecification,
  ResourceStack,
  type RoundingResourceAdaptor,
  SpecificationError,
  StatisticsResourceAdaptor,
  Stream,
  type TrackingResourceAdaptor,
} from '../../src/index.js';
import { failCall } from '../../src/tools/testing/index.js';
import { settledFreeBytes } from '../support/device-memory.js';
import { TwoWayResource } from '../support/two-way-resource.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-'));
afterAll(() => rmSync(folder, { recursive: true }));

describe('a stack created from a specification', () => {
  test.each([
    ['rounding(cuda, kind=multiple, multipleBytes=2MiB)', 2 * MiB],
    ['rounding(cuda, kind=divisions, divisions=2)', 1536],
    ['rounding(cuda, kind=top-bits, bits=2)', 1536],
    ['rounding(cuda, kind=top-bits, bits=4)', 1152],
  ])('%s rounds 1100 bytes to %d', (specification, rounded) => {
    using stack = createResourceStack(specification);
    expect((stack.resource as RoundingResourceAdaptor).round(1100)).toBe(rounded);
  });

  test.each([
    ['rounding(cuda, kind=divisions, divisions=2, bits=4)', 'options must not have "bits"'],
    ['rounding(cuda, kind=multiple)', 'multipleBytes must be a number, got undefined'],
  ])('%s is refused: %s', (specification, fault) => {
    expect(() => createResourceStack(specification)).toThrow(`rounding cannot be constructed: ${fault}`);
  });

  test.each([
    ['binning(cuda, minimumExponent=10, maximumExponent=12)', [1024, 2048, 4096]],
    ['binning(cuda, bins=[5120, 512])', [512, 5120]],
    ['binning(cuda, minimumExponent=10, maximumExponent=10, bins=[512])', [512, 1024]],
  ])('%s has bins of %j bytes', (specification, sizes) => {
    using stack = createResourceStack(specification);
    expect((stack.resource as BinningMemoryResource).bins.map(({ bytes }) => bytes)).toEqual(sizes);
  });

  test.each([
    ['binning(cuda, minimumExponent=7, maximumExponent=12)', 'minimumExponent must be an integer from 8 to 30, got 7'],
    ['binning(cuda, minimumExponent=10)', 'minimumExponent and maximumExponent, the smallest and the largest bin, must be given together'],
    ['binning(cuda)', 'there must be at least one bin: give minimumExponent and maximumExponent, or bins'],
  ])('%s is refused: %s', (specification, fault) => {
    expect(() => createResourceStack(specification)).toThrow(`binning cannot be constructed: ${fault}`);
  });

  test('passes options on to adaptors', () => {
    using aligned = createResourceStack('aligned(cuda, alignment=4KiB, alignmentThresholdBytes=1MiB, deallocationEvents=off)');
    expect(aligned.resource).toMatchObject({ alignment: 4096, alignmentThresholdBytes: MiB, deallocationEvents: 'off' });
    using tracking = createResourceStack('tracking(host, captureStacks=true)');
    using stream = new Stream();
    const pointer = tracking.resource.allocate(5, stream);
    expect((tracking.resource as TrackingResourceAdaptor).outstandingAllocations()[0]?.stack).toContain('resource-stack.test.ts');
    tracking.resource.deallocate(pointer, 5, stream);
    using fallback = createResourceStack('fallback(cuda, fallback=managed)');
    expect((fallback.resource as FallbackResourceAdaptor).fallback).toBeInstanceOf(ManagedMemoryResource);
  });

  test('has its layers from the outermost to the leaf, with their options', () => {
    using stack = createResourceStack('limiting(statistics(pool(cuda-async, initialBytes=2MiB)), limitBytes=8MiB)');
    expect(stack.layers.map((layer) => layer.constructor.name)).toEqual([
      'LimitingResourceAdaptor',
      'StatisticsResourceAdaptor',
      'PoolMemoryResource',
      'CudaAsyncMemoryResource',
    ]);
    expect((stack.resource as LimitingResourceAdaptor).limitBytes).toBe(8 * MiB);
    expect((stack.layers[2] as PoolMemoryResource).reservedBytes).toBe(2 * MiB);
    expect(stack.leaves).toEqual([stack.layers[3]]);
    expect(stack.leaves[0]).toBeInstanceOf(CudaAsyncMemoryResource);
  });

  test('is on the given device', () => {
    using stack = createResourceStack('pool(cuda)', { device: Device.get(1) });
    expect(stack.resource.device.index).toBe(1);
  });

  test('writes its log to the given file', () => {
    const file = join(folder, 'a (1), b.csv');
    using stream = new Stream();
    using stack = createResourceStack({ kind: 'logging', upstream: { kind: 'host' }, options: { file } });
    expect(stack.resource).toBeInstanceOf(LoggingResourceAdaptor);
    stack.resource.deallocate(stack.resource.allocate(100, stream), 100, stream);
    stack.dispose();
    expect(readFileSync(file, 'utf8').split('\n')).toHaveLength(4);
  });

  test('ends with all of its layers, once', () => {
    const stack = createResourceStack('statistics(pool(host))');
    using stream = new Stream();
    stack.dispose();
    stack.dispose();
    for (const layer of stack.layers) {
      expect(() => layer.allocate(1, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    }
  });

  test('can end without its leaves first', () => {
    using stack = createResourceStack('pool(host)');
    using stream = new Stream();
    stack.disposeAdaptors();
    expect(() => stack.resource.allocate(1, stream)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
    const leaf = stack.leaves[0] as MemoryResource;
    leaf.deallocate(leaf.allocate(1, stream), 1, stream);
  });

  test.each([
    ['cuda', null],
    ['limiting(cuda, limitBytes=1MiB, deallocationEvents=off)', null],
    ['pool(cuda)', 'eager'],
    ['arena(cuda, arenaBytes=16MiB)', 'off'],
    ['pool(cuda, deallocationEvents=deferred)', 'deferred'],
    ['limiting(pool(cuda, deallocationEvents=deferred), limitBytes=1MiB)', 'deferred'],
    ['limiting(pool(cuda, deallocationEvents=deferred), limitBytes=1MiB, deallocationEvents=off)', 'off'],
    ['statistics(limiting(pool(cuda), limitBytes=1MiB, deallocationEvents=off), deallocationEvents=deferred)', 'deferred'],
  ] as const)('%s has the policy %s in force', (specification, policy) => {
    using stack = createResourceStack(specification);
    expect(stack.deallocationEvents).toBe(policy);
  });

  test('leaves nothing behind if a layer cannot be created', () => {
    const before = settledFreeBytes();
    expect(() => createResourceStack('pool(pool(cuda, initialBytes=16MiB), initialBytes=1TiB)')).toThrow(OutOfMemoryError);
    expect(settledFreeBytes()).toBe(before);
  });

  test('points at the layer that refuses its values', () => {
    expect(() => createResourceStack('statistics(pool(cuda, initialBytes=2MiB, maximumBytes=1MiB))')).toThrow(
      [
        'pool cannot be constructed: maximumBytes must be at least initialBytes (2097152), got 1048576',
        '  statistics(pool(cuda, initialBytes=2MiB, maximumBytes=1MiB))',
        '             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^',
      ].join('\n'),
    );
  });

  test('created from an object is named by its text, and is what that describes', () => {
    const json = '{ "kind": "limiting", "upstream": { "kind": "cuda" }, "options": { "limitBytes": "1.5 MiB" } }';
    using stack = createResourceStack(JSON.parse(json));
    expect(stack.name).toBe('limiting(cuda, limitBytes=1536KiB)');
    expect((stack.resource as LimitingResourceAdaptor).limitBytes).toBe(1.5 * MiB);
  });

  test('created from an object reports errors by their path, including those that a layer finds', () => {
    const pool = { kind: 'pool', upstream: { kind: 'cuda' }, options: { initialBytes: '2MiB', maximumBytes: '1MiB' } };
    expect(() => createResource({ kind: 'statistics', upstream: pool })).toThrow(
      expect.objectContaining({
        name: 'SpecificationError',
        message: 'at upstream: pool cannot be constructed: maximumBytes must be at least initialBytes (2097152), got 1048576',
        path: 'upstream',
        cause: expect.any(ArgumentRangeError),
      }),
    );
    expect(() => createResource({ ...pool, options: { inital: 5 } })).toThrow(SpecificationError);
    expect(() => createResource(parseSpecification('pool(cuda, initialBytes=2MiB, maximumBytes=1MiB)'))).toThrow(
      expect.objectContaining({ path: '' }),
    );
  });
});

describe('a resource created from a specification', () => {
  test('is the outermost one', () => {
    using resource = createResource('limiting(host, limitBytes=1MiB)');
    expect(resource).toBeInstanceOf(LimitingResourceAdaptor);
  });
});

describe('a stack of existing resources', () => {
  test('finds its layers by their upstreams', () => {
    const leaf = new HostMemoryResource();
    const pool = new PoolMemoryResource(leaf);
    using stack = ResourceStack.of(new StatisticsResourceAdaptor(pool));
    expect(stack.layers.slice(1)).toEqual([pool, leaf]);
    expect([stack.name, stack.deallocationEvents]).toEqual(['StatisticsResourceAdaptor', null]);
  });

  test('disposes them from the outermost down, and one that two are built on after both', () => {
    const disposed: string[] = [];
    class Leaf extends HostMemoryResource {
      override [Symbol.dispose](): void {
        disposed.push('leaf');
        super[Symbol.dispose]();
      }
    }
    class Layer extends TwoWayResource {
      readonly name: string;

      constructor(name: string, upstream: MemoryResource, alternate: MemoryResource) {
        super(upstream, alternate);
        this.name = name;
      }

      override [Symbol.dispose](): void {
        disposed.push(this.name);
        super[Symbol.dispose]();
      }
    }
    const leaf = new Leaf();
    const bin = new Layer('bin', leaf, leaf);
    const stack = ResourceStack.of(new Layer('outer', bin, new Layer('alternate', bin, leaf)), { name: 'mine' });
    expect([stack.name, stack.leaves]).toEqual(['mine', [leaf]]);
    stack.disposeAdaptors();
    expect(disposed).toEqual(['outer', 'alternate', 'bin']);
    disposed.length = 0;
    stack.dispose();
    expect(disposed).toEqual(['outer', 'alternate', 'bin', 'leaf']);
  });

  test.each([1, 2])('gives back what the driver refuses %i times to free, after as many disposals', (times) => {
    const used = () => new CudaMemoryResource().reservedBytes;
    const before = used();
    const stack = createResourceStack('limiting(pool(limiting(cuda,limitBytes=2MiB),initialBytes=1MiB),limitBytes=1MiB)');
    failCall('cuMemFree', 1, 700);
    if (times === 2) {
      // The immediate retry is refused, too.
      const pool = stack.layers.find((layer) => layer instanceof PoolMemoryResource) as PoolMemoryResource;
      expect(() => pool.dispose()).toThrow(DriverError);
      failCall('cuMemFree', 1, 700);
    }
    expect(() => stack.dispose()).toThrow(DriverError);
    stack.dispose();
    expect(used()).toBe(before);
  });

  test('must begin with a resource', () => {
    expect(() => ResourceStack.of({} as MemoryResource)).toThrow('resource must be a MemoryResource, got an instance of Object');
  });
});
