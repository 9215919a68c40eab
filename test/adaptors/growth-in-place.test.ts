/** Memory that grows in place does so below every adaptor that leaves its pages as they are. */

import { describe, expect, test } from 'vitest';
import { GraphMemoryResource } from '../../src/graphs/index.js';
import {
  AlignedResourceAdaptor,
  BinningMemoryResource,
  createResourceStack,
  FailureCallbackResourceAdaptor,
  formatSpecification,
  type Graph,
  KiB,
  type MemoryResource,
  MiB,
  PassThroughAdaptor,
  PerDeviceResourceAdaptor,
  PoolMemoryResource,
  type ResourceKind,
  RoundingResourceAdaptor,
  type Specification,
  StatisticsResourceAdaptor,
  TrackingResourceAdaptor,
  VirtualMemoryResource,
} from '../../src/index.js';
import { everyKind } from '../../src/tools/every-kind.js';
import { GlobalArenaMemoryResource } from '../../src/workers/index.js';
import { exampleOf } from '../support/kind-stacks.js';
import { stream } from '../support/stream.js';

/** Kinds of one upstream that has their memory, and what else they are. */
const kinds = everyKind.filter((kind) => kind.role === 'pass-through' || kind.name === 'binning').map((kind) => [kind.name, kind] as const);

/** Those that are in the way with the options of their example, and why. */
const inTheWay: Readonly<Record<string, string>> = {
  fallback: 'the memory may be the fallback’s',
  rounding: 'a page is no multiple of 1000 bytes',
};

/** The only kind that needs memory of another kind. */
const elsewhere = ['prefetch'];

function overVirtual(kind: ResourceKind): Specification {
  return { ...exampleOf(kind), upstream: { kind: 'virtual', options: { reservationBytes: '1GiB' } } };
}

/** Captures a graph with one allocation of so many pages. */
function capture(graphs: GraphMemoryResource, pages: number, pageBytes: number): { graph: Graph; address: number } {
  let address = 0;
  const record = () => {
    address = graphs.allocate(pages * pageBytes, stream);
    graphs.deallocate(address, pages * pageBytes, stream);
  };
  return { graph: graphs.capture(stream, record), address };
}

/** Whether graphs that come smallest first share what the largest needs. Everything goes back in the end. */
function growsInPlace(upstream: MemoryResource, pageBytes: number): boolean {
  using graphs = new GraphMemoryResource(upstream);
  const captured = [1, 2, 5, 6].map((pages) => capture(graphs, pages, pageBytes));
  const { regionBytes } = graphs.statistics();
  for (const { graph } of captured) graph.dispose();
  const addresses = new Set(captured.map(({ address }) => address));
  if (regionBytes !== 6 * pageBytes) return false;
  expect(addresses.size).toBe(1);
  return true;
}

describe('an adaptor over virtual memory', () => {
  test.each(kinds.filter(([name]) => !elsewhere.includes(name)))('%s', (name, kind) => {
    using stack = createResourceStack(formatSpecification(overVirtual(kind)));
    const virtual = stack.layers.find((layer) => layer instanceof VirtualMemoryResource) as VirtualMemoryResource;
    expect(growsInPlace(stack.resource, virtual.granularityBytes)).toBe(!(name in inTheWay));
    stack.dispose();
    expect(virtual.reservedBytes).toBe(0);
  });

  test('lets memory grow in place if its options do', () => {
    using virtual = new VirtualMemoryResource();
    const { granularityBytes: page } = virtual;
    const over: [resource: MemoryResource, grows: boolean, keeps?: boolean][] = [
      [new AlignedResourceAdaptor(virtual, { alignment: page }), true],
      [new AlignedResourceAdaptor(virtual, { alignment: 2 * page }), false],
      [new RoundingResourceAdaptor(virtual, { kind: 'multiple', multipleBytes: 64 * KiB }), true],
      [new RoundingResourceAdaptor(virtual, { kind: 'multiple', multipleBytes: 2 * page }), false],
      [new RoundingResourceAdaptor(virtual, { kind: 'divisions', divisions: 1 }), false],
      [new BinningMemoryResource(virtual, { bins: [{ bytes: page, resource: virtual }] }), false],
      [new PerDeviceResourceAdaptor([virtual]), true],
      [new FailureCallbackResourceAdaptor(virtual, () => false), true],
      [new GraphMemoryResource(virtual, { fallback: new StatisticsResourceAdaptor(virtual) }), false],
      [new TrackingResourceAdaptor(new StatisticsResourceAdaptor(virtual)), true],
      [new TrackingResourceAdaptor(new RoundingResourceAdaptor(virtual, { kind: 'divisions', divisions: 1 })), false, true],
      [new PoolMemoryResource(virtual), false],
    ];
    for (const [resource, grows, keeps = grows] of over) {
      if (resource instanceof PassThroughAdaptor) expect([String(resource), resource.keepsPages(page)]).toEqual([String(resource), keeps]);
      expect([String(resource), growsInPlace(resource, page)]).toEqual([String(resource), grows]);
      resource[Symbol.dispose]();
    }
    expect(virtual.reservedBytes).toBe(0);
  });

  test('over an arena, too', () => {
    using arena = new GlobalArenaMemoryResource({ arenaBytes: 64 * MiB });
    using counted = new StatisticsResourceAdaptor(arena);
    expect(growsInPlace(counted, arena.granularityBytes)).toBe(true);
  });

  test('has whole allocations back, which it may remember', () => {
    using virtual = new VirtualMemoryResource();
    const { granularityBytes: page } = virtual;
    using tracked = new TrackingResourceAdaptor(virtual);
    const held = (upstream: MemoryResource) => {
      using graphs = new GraphMemoryResource(upstream);
      const captured = [1, 5, 3].map((pages) => capture(graphs, pages, page));
      captured[1]?.graph.dispose();
      const pages = [graphs.trim(stream), graphs.reservedBytes, virtual.reservedBytes].map((bytes) => bytes / page);
      // The rest is there for the next one.
      captured.push(capture(graphs, 6, page));
      expect(captured[3]?.address).toBe(captured[0]?.address);
      for (const { graph } of captured) graph.dispose();
      graphs.trim(stream);
      const [larger, smaller] = [capture(graphs, 3, page), capture(graphs, 1, page)];
      larger.graph.dispose();
      pages.push(graphs.trim(stream) / page);
      smaller.graph.dispose();
      return pages;
    };
    expect(held(virtual)).toEqual([2, 3, 3, 2]);
    // One page came at first, and then four at once.
    expect(held(tracked)).toEqual([0, 5, 5, 0]);
    expect(tracked.outstandingAllocations()).toEqual([]);
    expect(virtual.reservedBytes).toBe(0);
  });

  test('is no reason for a pool to free pieces through it', () => {
    using virtual = new VirtualMemoryResource();
    using tracked = new TrackingResourceAdaptor(virtual);
    using pool = new PoolMemoryResource(tracked);
    const pointers = Array.from({ length: 8 }, () => pool.allocate(virtual.granularityBytes, stream));
    for (const pointer of pointers) pool.deallocate(pointer, virtual.granularityBytes, stream);
    pool.trim(stream);
    expect(tracked.outstandingAllocations()).toEqual([]);
  });
});
