import { layersOf } from '../adaptors/layers.js';
import { isKeeping } from '../adaptors/pooling/keeper.js';
import { memoryBudget } from '../budget/memory-budget.js';
import { mailbox, NativeMemoryKind, native } from '../driver/native.js';
import { allNeighbours } from '../kept-memory/neighbours.js';
import { assertMemoryResource, type MemoryResource, type MemoryResourceAdaptor } from '../memory-resource.js';
import { kindOf } from '../resource-kind.js';

/** What the next request could get, if all memory that is in use stays in use. */
export interface AllocatableBytes {
  /** A request of this many bytes is served, unless someone else takes memory first. */
  readonly atLeastBytes: number;
  /** A larger request is refused. */
  readonly atMostBytes: number;
  /** Whether both are the same. */
  readonly isExact: boolean;
}

interface Range {
  readonly least: number;
  readonly most: number;
}

/** A layer with a limit of its own. */
interface LimitedLayer {
  roomBytes(): number;
}

/** Adaptors that ask their upstream for what they are asked for. */
const transparent = [
  'accounting',
  'failure-callback',
  'limiting',
  'logging',
  'prefetch',
  'reclaiming',
  'recording',
  'sanitizing',
  'statistics',
  'tracking',
];

/**
 * The bytes that the next request could get through a whole stack, with everything that its layers would do for it: within two bounds, which are the
 * same where that can be known. Limits are exact; the largest free block of a pool is certain, and what its blocks would give if they were
 * returned and taken again is not; a driver promises nothing about its free memory. Memory that is in use does not count, although a collection of garbage may
 * free it, or a buffer leave for the host.
 *
 * RMM has no counterpart (rapidsai/rmm#533).
 * @param resource any resource: usually the outermost one
 * @throws ArgumentTypeError if it is not a resource; DriverError if the driver does not answer.
 * @example
 * ```ts
 * using pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 64 * MiB });
 * const { atLeastBytes, atMostBytes } = allocatableBytes(pool); // 64 MiB, and what else the device has
 * ```
 */
export function allocatableBytes(resource: MemoryResource): AllocatableBytes {
  assertMemoryResource(resource, 'resource');
  const { least, most } = rangeOf(resource);
  return Object.freeze({ atLeastBytes: least, atMostBytes: most, isExact: least === most });
}

function rangeOf(resource: MemoryResource): Range {
  const { upstream, alternates = [] } = resource as Partial<MemoryResourceAdaptor>;
  if (upstream === undefined) return leafRange(resource);
  const below = [upstream, ...alternates].map(rangeOf);
  const least = Math.max(...below.map((range) => range.least));
  const most = Math.max(...below.map((range) => range.most));
  if (isKeeping(resource)) return keepingRange(resource, most);
  if (isLimited(resource)) return { least: Math.min(least, resource.roomBytes()), most: Math.min(most, resource.roomBytes()) };
  // Others may ask for more than they are asked for, or choose by size.
  return { least: transparent.includes(kindOf(resource)) || kindOf(resource) === 'fallback' ? least : 0, most };
}

/** Free blocks may coalesce once streams are waited for, and go back for a larger one. */
function keepingRange(resource: MemoryResource, mostBelow: number): Range {
  const { statistics } = resource as { statistics?: () => { reservedBytes: number; allocatedBytes: number; largestFreeBytes: number } };
  if (statistics === undefined) return { least: 0, most: mostBelow };
  const { reservedBytes, allocatedBytes, largestFreeBytes } = statistics.call(resource);
  return { least: largestFreeBytes, most: reservedBytes - allocatedBytes + mostBelow };
}

/** The driver may have its free memory in pieces; others on the device may return theirs, also those of other workers. */
function leafRange(leaf: MemoryResource): Range {
  const budget = memoryBudget(leaf.memoryKind, leaf.device);
  const availableBytes = Math.min(budget.bytes, budget.availableBytes + bytesKeptElsewhere(leaf));
  const others = allNeighbours().filter(({ resource }) => resource.memoryKind === leaf.memoryKind && !layersOf(resource).includes(leaf));
  return { least: 0, most: others.reduce((sum, neighbour) => sum + neighbour.freeBytes(), availableBytes + ownFreeBytes(leaf)) };
}

/** What resources of other workers hold, free or not; infinite if only the driver knows. */
function bytesKeptElsewhere({ memoryKind, device }: MemoryResource): number {
  native().keptElsewhere(NativeMemoryKind[memoryKind], device.index);
  return mailbox[1] as number;
}

/** What a pool of the driver keeps. */
function ownFreeBytes(leaf: MemoryResource): number {
  const own = allNeighbours().find(({ resource }) => resource === leaf);
  return own?.freeBytes() ?? 0;
}

function isLimited(resource: MemoryResource): resource is MemoryResource & LimitedLayer {
  return typeof (resource as Partial<LimitedLayer>).roomBytes === 'function';
}
