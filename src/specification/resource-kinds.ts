import { LimitingResourceAdaptor } from '../adaptors/limiting-resource-adaptor.js';
import { LoggingResourceAdaptor } from '../adaptors/logging-resource-adaptor.js';
import { PoolMemoryResource } from '../adaptors/pool-memory-resource.js';
import { StatisticsResourceAdaptor } from '../adaptors/statistics-resource-adaptor.js';
import { CudaAsyncMemoryResource } from '../resources/cuda-async-memory-resource.js';
import { CudaMemoryResource } from '../resources/cuda-memory-resource.js';
import { HostMemoryResource } from '../resources/host-memory-resource.js';
import { ManagedMemoryResource } from '../resources/managed-memory-resource.js';
import { PinnedHostMemoryResource } from '../resources/pinned-host-memory-resource.js';
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
    {},
    ({ upstream, options }) => new StatisticsResourceAdaptor(upstream, definedFields({ deallocationEvents: options.events })),
  ),
  defineAdaptor(
    'logging',
    'pass-through',
    'writes every allocation and free to a file that replay reads',
    { file: { type: 'text', summary: 'the path of the log, which is overwritten', required: true } },
    ({ upstream, options }) =>
      new LoggingResourceAdaptor(upstream, { file: options.file as string, ...definedFields({ deallocationEvents: options.events }) }),
  ),
];

const kindsByName: ReadonlyMap<string, ResourceKind> = new Map(resourceKinds.map((kind) => [kind.name, kind]));

/** The names of all kinds. */
export const kindNames: readonly string[] = resourceKinds.map((kind) => kind.name);

/** The kind with a name, or `undefined`. */
export function resourceKind(name: string): ResourceKind | undefined {
  return kindsByName.get(name);
}
