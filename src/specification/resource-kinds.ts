import { AlignedResourceAdaptor } from '../adaptors/aligned-resource-adaptor.js';
import { ArenaMemoryResource } from '../adaptors/arena-memory-resource.js';
import { BinningMemoryResource } from '../adaptors/binning-memory-resource.js';
import { CachingMemoryResource } from '../adaptors/caching-memory-resource.js';
import { FallbackResourceAdaptor } from '../adaptors/fallback-resource-adaptor.js';
import { FixedSizeMemoryResource } from '../adaptors/fixed-size-memory-resource.js';
import { LimitingResourceAdaptor } from '../adaptors/limiting-resource-adaptor.js';
import { LoggingResourceAdaptor } from '../adaptors/logging-resource-adaptor.js';
import { MonotonicMemoryResource } from '../adaptors/monotonic-memory-resource.js';
import { PoolMemoryResource } from '../adaptors/pool-memory-resource.js';
import { PrefetchResourceAdaptor } from '../adaptors/prefetch-resource-adaptor.js';
import { ReclaimingResourceAdaptor } from '../adaptors/reclaiming-resource-adaptor.js';
import { RecordingResourceAdaptor } from '../adaptors/recording-resource-adaptor.js';
import { RoundingResourceAdaptor, type RoundingResourceAdaptorOptions } from '../adaptors/rounding-resource-adaptor.js';
import { SanitizingResourceAdaptor } from '../adaptors/sanitizing-resource-adaptor.js';
import { StatisticsResourceAdaptor } from '../adaptors/statistics-resource-adaptor.js';
import { TrackingResourceAdaptor } from '../adaptors/tracking-resource-adaptor.js';
import { ArgumentRangeError } from '../errors.js';
import type { MemoryResource } from '../memory-resource.js';
import { CudaAsyncMemoryResource } from '../resources/cuda-async-memory-resource.js';
import { CudaMemoryResource } from '../resources/cuda-memory-resource.js';
import { HostMemoryResource } from '../resources/host-memory-resource.js';
import { ManagedMemoryResource } from '../resources/managed-memory-resource.js';
import { PinnedHostMemoryResource } from '../resources/pinned-host-memory-resource.js';
import { isPowerOfTwo } from '../units.js';
import { defineAdaptor, definedFields, defineUpstream, type ResourceKind } from './resource-kind.js';

/** Every kind of resource that a specification can name. The parser and `cistern resources` know no other source. */
export const resourceKinds: readonly ResourceKind[] = [
  defineUpstream('cuda', 'device memory, one driver call for each allocation', {}, ({ device }) => new CudaMemoryResource({ device })),
  defineUpstream(
    'managed',
    'managed memory, which the host and devices reach under one address',
    {},
    ({ device }) => new ManagedMemoryResource({ device }),
  ),
  defineUpstream(
    'cuda-async',
    "device memory from a stream-ordered pool of the driver's own",
    {
      initial: { type: 'size', summary: 'reserved at once', default: '0' },
      'release-threshold': { type: 'size', summary: 'kept when a stream is synchronized', default: 'everything' },
    },
    ({ device, options }) =>
      new CudaAsyncMemoryResource({
        device,
        ...definedFields({ initialBytes: options.initial, releaseThresholdBytes: options['release-threshold'] }),
      }),
  ),
  defineUpstream(
    'pinned-host',
    'page-locked host memory, which devices reach directly',
    {},
    ({ device }) => new PinnedHostMemoryResource({ device }),
  ),
  defineUpstream('host', 'ordinary host memory', {}, ({ device }) => new HostMemoryResource({ device })),
  defineAdaptor(
    'pool',
    'keeper',
    'carves allocations out of large blocks and keeps what is freed',
    {
      initial: { type: 'size', summary: 'taken from the upstream at once', default: '0' },
      max: { type: 'size', summary: 'the most it takes from the upstream', default: 'no limit' },
    },
    ({ upstream, options }) =>
      new PoolMemoryResource(
        upstream,
        definedFields({ initialBytes: options.initial, maximumBytes: options.max, deallocationEvents: options.events }),
      ),
  ),
  defineAdaptor(
    'reclaiming',
    'pass-through',
    'gets memory back in stages where there is none, and tries again',
    {
      'soft-limit': { type: 'size', summary: 'live bytes at which garbage is collected early', default: 'none' },
      'soft-limit-share': { type: 'number', summary: "the same as a share of the device's memory, up to 1", default: 'none' },
    },
    ({ upstream, options }) =>
      new ReclaimingResourceAdaptor(
        upstream,
        definedFields({
          softLimitBytes: options['soft-limit'],
          softLimitFraction: options['soft-limit-share'],
          deallocationEvents: options.events,
        }),
      ),
  ),
  defineAdaptor(
    'arena',
    'keeper',
    'gives every stream an arena of its own, fed from one block of the upstream',
    {
      size: { type: 'size', summary: 'taken from the upstream at once', default: "half of the device's free memory" },
      'dump-file': { type: 'text', summary: 'what its state is appended to when memory runs out', default: 'none' },
    },
    ({ upstream, options }) =>
      new ArenaMemoryResource(
        upstream,
        definedFields({ arenaBytes: options.size, dumpFile: options['dump-file'], deallocationEvents: options.events }),
      ),
    'off',
  ),
  defineAdaptor(
    'fixed-size',
    'keeper',
    'hands out blocks of one size',
    {
      block: { type: 'size', summary: 'the size of a block, and the most that is allocated in one piece', default: '1MiB' },
      count: { type: 'integer', summary: 'blocks taken from the upstream at a time; 0: one by one, and none at once', default: '128' },
      max: { type: 'size', summary: 'the most it takes from the upstream', default: 'no limit' },
    },
    ({ upstream, options }) =>
      new FixedSizeMemoryResource(
        upstream,
        definedFields({
          blockBytes: options.block,
          blocksToPreallocate: options.count,
          maximumBytes: options.max,
          deallocationEvents: options.events,
        }),
      ),
  ),
  defineAdaptor(
    'binning',
    'keeper',
    'serves each size from a bin of blocks of its own, what is larger from the upstream',
    {
      min: { type: 'size', summary: 'the smallest of bins by powers of two; together with max', default: 'none' },
      max: { type: 'size', summary: 'the largest of them', default: 'none' },
      bins: { type: 'sizes', summary: 'further bins', default: 'none' },
      count: { type: 'integer', summary: 'blocks that a bin takes at a time; 0: one by one, and none at once', default: '0' },
    },
    ({ upstream, options }) => {
      const { min, max, bins } = options;
      // A program can add bins; what a specification describes would have none for ever.
      if (min === undefined && max === undefined && bins === undefined) {
        throw new ArgumentRangeError('there must be at least one bin: give min and max, or bins');
      }
      return new BinningMemoryResource(
        upstream,
        definedFields({
          minimumExponent: exponentOf(min, 'min'),
          maximumExponent: exponentOf(max, 'max'),
          bins,
          blocksToPreallocate: options.count,
          deallocationEvents: options.events,
        }),
      );
    },
  ),
  defineAdaptor(
    'monotonic',
    'keeper',
    'hands out large blocks from one end to the other; single frees give nothing back',
    {
      initial: { type: 'size', summary: 'the first block of each stream, taken when it is needed', default: '2MiB' },
      max: { type: 'size', summary: 'the most it takes from the upstream', default: 'no limit' },
      growth: { type: 'number', summary: "how much larger a stream's next block is than its last, from 1 to 64", default: '2' },
      fallback: { type: 'resource', summary: 'serves what there is no room for', default: 'none' },
    },
    ({ upstream, options }) =>
      new MonotonicMemoryResource(
        upstream,
        definedFields({
          initialBytes: options.initial,
          maximumBytes: options.max,
          growthFactor: options.growth,
          fallback: options.fallback,
          deallocationEvents: options.events,
        }),
      ),
  ),
  defineAdaptor(
    'caching',
    'keeper',
    'gives what one pass of a loop allocated to the next; outside of its runs, as in a replay, calls pass through',
    {
      name: { type: 'text', summary: 'what errors and statistics call it', default: 'cache' },
      max: { type: 'size', summary: 'the most it takes from the upstream', default: 'no limit' },
    },
    ({ upstream, options }) =>
      new CachingMemoryResource(
        upstream,
        definedFields({ name: options.name, maximumBytes: options.max, deallocationEvents: options.events }),
      ),
  ),
  defineAdaptor(
    'limiting',
    'pass-through',
    'refuses what would bring the live bytes above a limit',
    { limit: { type: 'size', summary: 'the most bytes that may be live', required: true } },
    ({ upstream, options }) =>
      new LimitingResourceAdaptor(upstream, {
        limitBytes: options.limit as number,
        ...definedFields({ deallocationEvents: options.events }),
      }),
  ),
  defineAdaptor(
    'statistics',
    'pass-through',
    'counts bytes and allocations',
    { name: { type: 'text', summary: 'what samples and metrics call it', default: 'statistics' } },
    ({ upstream, options }) =>
      new StatisticsResourceAdaptor(upstream, definedFields({ name: options.name, deallocationEvents: options.events })),
  ),
  defineAdaptor(
    'tracking',
    'pass-through',
    'knows what was not freed, and refuses wrong frees',
    { stacks: { type: 'boolean', summary: 'whether it keeps the stack of each allocation', default: 'false' } },
    ({ upstream, options }) =>
      new TrackingResourceAdaptor(upstream, definedFields({ captureStacks: options.stacks, deallocationEvents: options.events })),
  ),
  defineAdaptor(
    'sanitizing',
    'pass-through',
    'checks stream order, and reports what is used or freed wrongly or not freed',
    { stacks: { type: 'boolean', summary: 'whether reports say where both sides come from', default: 'true' } },
    ({ upstream, options }) =>
      new SanitizingResourceAdaptor(upstream, definedFields({ stacks: options.stacks, deallocationEvents: options.events })),
  ),
  defineAdaptor(
    'aligned',
    'pass-through',
    'gives pointers that are multiples of an alignment',
    {
      alignment: { type: 'size', summary: 'what pointers are multiples of: a power of two', default: '256' },
      threshold: { type: 'size', summary: 'smaller allocations have no alignment but what is asked for', default: '0' },
    },
    ({ upstream, options }) =>
      new AlignedResourceAdaptor(
        upstream,
        definedFields({
          alignment: options.alignment,
          alignmentThresholdBytes: options.threshold,
          deallocationEvents: options.events,
        }),
      ),
  ),
  defineAdaptor(
    'rounding',
    'pass-through',
    'rounds sizes up, so that those which nearly match become equal; takes one of multiple, divisions and top-bits',
    {
      multiple: { type: 'size', summary: 'rounds up to a multiple', default: 'none' },
      divisions: { type: 'integer', summary: 'rounds up to so many steps between powers of two: a power of two', default: 'none' },
      'top-bits': { type: 'integer', summary: 'rounds up to so many significant bits', default: 'none' },
    },
    ({ upstream, options }) =>
      new RoundingResourceAdaptor(upstream, { ...roundingOf(options), ...definedFields({ deallocationEvents: options.events }) }),
  ),
  defineAdaptor(
    'prefetch',
    'pass-through',
    'moves managed memory to the device when it is allocated',
    {},
    ({ upstream, options }) => new PrefetchResourceAdaptor(upstream, definedFields({ deallocationEvents: options.events })),
  ),
  defineAdaptor(
    'fallback',
    'pass-through',
    'takes memory from a second resource where the first has none',
    { to: { type: 'resource', summary: 'the second resource', required: true } },
    ({ upstream, options }) =>
      new FallbackResourceAdaptor(upstream, options.to as MemoryResource, definedFields({ deallocationEvents: options.events })),
  ),
  defineAdaptor(
    'logging',
    'pass-through',
    'writes every allocation and free to a file that replay reads',
    { file: { type: 'text', summary: 'the path of the log, which is overwritten', required: true } },
    ({ upstream, options }) =>
      new LoggingResourceAdaptor(upstream, { file: options.file as string, ...definedFields({ deallocationEvents: options.events }) }),
  ),
  defineAdaptor(
    'recording',
    'pass-through',
    'records allocations, frees, growth, events and phases in a file that report and replay read',
    {
      file: { type: 'text', summary: 'the path of the recording, which is overwritten', default: 'what CISTERN_LOG_FILE says' },
      layer: { type: 'text', summary: 'what reports call the layer', default: 'the kind of the upstream' },
      'stack-sample': { type: 'size', summary: 'bytes between two recorded stacks; 0: a stack for every allocation', default: 'none' },
    },
    ({ upstream, options }) =>
      new RecordingResourceAdaptor(
        upstream,
        definedFields({
          file: options.file,
          layer: options.layer,
          stackSampleBytes: options['stack-sample'],
          deallocationEvents: options.events,
        }),
      ),
  ),
];

/** The binary logarithm of a size that must be a power of two. */
function exponentOf(bytes: number | undefined, name: string): number | undefined {
  if (bytes === undefined) return undefined;
  if (isPowerOfTwo(bytes)) return Math.log2(bytes);
  throw new ArgumentRangeError(`${name} must be a power of two, got ${bytes}`);
}

function roundingOf(options: { multiple?: number; divisions?: number; 'top-bits'?: number }): RoundingResourceAdaptorOptions {
  const { multiple, divisions, 'top-bits': bits } = options;
  if ([multiple, divisions, bits].filter((option) => option !== undefined).length !== 1) {
    throw new ArgumentRangeError('exactly one of the options multiple, divisions and top-bits must be given', 'ERR_INVALID_ARG_VALUE');
  }
  if (multiple !== undefined) return { kind: 'multiple', multipleBytes: multiple };
  if (divisions !== undefined) return { kind: 'divisions', divisions };
  return { kind: 'top-bits', bits: bits as number };
}

const kindsByName: ReadonlyMap<string, ResourceKind> = new Map(resourceKinds.map((kind) => [kind.name, kind]));

/** The names of all kinds. */
export const kindNames: readonly string[] = resourceKinds.map((kind) => kind.name);

/** The kind with a name, or `undefined`. */
export function resourceKind(name: string): ResourceKind | undefined {
  return kindsByName.get(name);
}
