import type { ManagedActivity } from '../../machine/managed-activity.js';
import type {
  AccountSample,
  AdmissionSample,
  LayerSample,
  LibrarySample,
  PoolSample,
  ResourceSample,
  SpillSample,
  StatisticsSample,
} from './statistics-sample.js';

/** Distinguishes the values of one metric. */
export type MetricLabels = Readonly<Record<string, string>>;

/** One quantity of a {@link StatisticsSample}, for monitoring systems. */
export interface StatisticsMetric {
  /** In OpenTelemetry's form. */
  readonly name: string;
  readonly kind: 'gauge' | 'counter';
  /** In UCUM, as OpenTelemetry requires: `By` is bytes, `1` a share, `{…}` a count. */
  readonly unit: string;
  readonly description: string;
  /** Calls `emit` with each value and its labels. */
  readonly read: (sample: StatisticsSample, emit: (value: number, labels: MetricLabels) => void) => void;
}

/** The quantities of something that a sample has several of; one that is null is not known. */
type Fields<T> = Readonly<
  Record<string, readonly [kind: StatisticsMetric['kind'], unit: string, description: string, quantityOf: (each: T) => number | null]>
>;

/** A metric for each quantity. @param allOf what a sample has of them, each with its labels */
function metricsOf<T>(
  prefix: string,
  fields: Fields<T>,
  allOf: (sample: StatisticsSample) => readonly (readonly [T, MetricLabels])[],
): StatisticsMetric[] {
  return Object.entries(fields).map(([name, [kind, unit, description, quantityOf]]) => {
    const read: StatisticsMetric['read'] = (sample, emit) => {
      for (const [each, labels] of allOf(sample)) {
        const value = quantityOf(each);
        if (value !== null) emit(value, labels);
      }
    };
    return { name: `cistern.${prefix}.${name}`, kind, unit, description, read };
  });
}

const resourceFields: Fields<ResourceSample> = {
  live: ['gauge', 'By', 'Bytes currently allocated through the resource.', ({ liveBytes }) => liveBytes],
  peak: ['gauge', 'By', 'The most bytes allocated at the same time.', ({ peakBytes }) => peakBytes],
  allocated: ['counter', 'By', 'Bytes of all allocations.', ({ totalAllocatedBytes }) => totalAllocatedBytes],
  live_allocations: ['gauge', '{allocation}', 'Allocations currently live.', ({ liveAllocations }) => liveAllocations],
  allocations: ['counter', '{allocation}', 'Allocations.', ({ allocations }) => allocations],
  frees: ['counter', '{free}', 'Frees.', ({ frees }) => frees],
  failed_allocations: ['counter', '{allocation}', 'Allocations that failed.', ({ failedAllocations }) => failedAllocations],
};

const layerFields: Fields<LayerSample> = {
  reserved: ['gauge', 'By', 'Bytes that the layer holds from its upstream or the device.', ({ reservedBytes }) => reservedBytes],
  peak_reserved: ['gauge', 'By', 'The most bytes that the layer held.', ({ peakReservedBytes }) => peakReservedBytes],
};

const accountFields: Fields<AccountSample> = {
  live: ['gauge', 'By', 'Bytes charged to the accounts of a path.', ({ liveBytes }) => liveBytes],
  peak: ['gauge', 'By', 'The most bytes charged to one of these accounts.', ({ peakBytes }) => peakBytes],
  limit: ['gauge', 'By', 'The limits of these accounts, if each has one.', ({ limitBytes }) => limitBytes],
  spilled: ['gauge', 'By', 'Bytes of their spillable buffers that have left so far.', ({ spilledBytes }) => spilledBytes],
  waited: ['gauge', 'ms', 'How long they have waited for memory so far.', ({ waitedMilliseconds }) => waitedMilliseconds],
};

const spillFields: Fields<SpillSample> = {
  on_device: ['gauge', 'By', 'Bytes of spillable buffers on the device.', ({ deviceBytes }) => deviceBytes],
  pinned: ['gauge', 'By', 'Of these, bytes that are pinned.', ({ pinnedBytes }) => pinnedBytes],
  on_host: ['gauge', 'By', 'Bytes of spillable buffers on the host.', ({ hostBytes }) => hostBytes],
  in_files: ['gauge', 'By', 'Bytes of spillable buffers in files.', ({ fileBytes }) => fileBytes],
  left: ['counter', 'By', 'Bytes that have left the device.', ({ spilledBytes }) => spilledBytes],
  returned: ['counter', 'By', 'Bytes that have come back.', ({ returnedBytes }) => returnedBytes],
  filed: ['counter', 'By', 'Bytes that have gone on from the host to files.', ({ filedBytes }) => filedBytes],
  refused_by_host: ['counter', '{buffer}', 'Buffers that stayed since the host had no memory.', ({ refusedByHost }) => refusedByHost],
  refused_by_file: [
    'counter',
    '{buffer}',
    'Buffers that stayed on the host since no file could be written.',
    ({ refusedByFile }) => refusedByFile,
  ],
  waiting: ['gauge', '{call}', 'Calls that wait for memory.', ({ waiting }) => waiting],
  waited: ['counter', 'ms', 'How long all calls waited together.', ({ waitedMilliseconds }) => waitedMilliseconds],
  longest_wait: ['gauge', 'ms', 'The longest wait of a call.', ({ longestWaitMilliseconds }) => longestWaitMilliseconds],
};

const admissionFields: Fields<AdmissionSample> = {
  limit: ['gauge', 'By', 'The most bytes that may be promised or allocated.', ({ limitBytes }) => limitBytes],
  committed: ['gauge', 'By', 'Bytes that are promised, or allocated outside grants.', ({ committedBytes }) => committedBytes],
  grants: ['gauge', '{grant}', 'Grants that have promised bytes.', ({ grants }) => grants],
  waiting: ['gauge', '{request}', 'Requests that wait.', ({ waiting }) => waiting],
  wanted: ['gauge', 'By', 'Bytes that they wait for.', ({ waitingBytes }) => waitingBytes],
  longest_wait: ['gauge', 'ms', 'The longest wait of a request.', ({ longestWaitMilliseconds }) => longestWaitMilliseconds],
  waited: ['counter', 'ms', 'The time that all requests have waited, added up.', ({ waitedMilliseconds }) => waitedMilliseconds],
  admitted: ['counter', '{request}', 'Requests that were admitted.', ({ admitted }) => admitted],
  admitted_after_wait: ['counter', '{request}', 'Of these, those that had to wait.', ({ admittedAfterWait }) => admittedAfterWait],
};

const managedFields: Fields<ManagedActivity> = {
  resident: ['gauge', 'By', 'Bytes of managed memory at the device.', ({ residentBytes }) => residentBytes],
  moved: [
    'counter',
    'By',
    'Bytes of managed memory that were copied to the device.',
    ({ bytesFromHost, bytesFromDevices }) => bytesFromHost + bytesFromDevices,
  ],
  evicted: ['counter', 'By', 'Bytes of managed memory that were copied to the host to make room.', ({ evictedBytes }) => evictedBytes],
  faults: ['counter', '{fault}', 'Pages that the device used and found elsewhere.', ({ faults }) => faults],
  thrashes: ['counter', '{fault}', 'Faults that moved a page back to the device that it left last.', ({ thrashes }) => thrashes],
};

const libraryFields: Fields<LibrarySample> = {
  device: [
    'gauge',
    'By',
    'Bytes of devices that the library holds, in a process that cistern run records.',
    ({ deviceBytes }) => deviceBytes,
  ],
  device_peak: ['gauge', 'By', 'The most bytes of devices that it has held.', ({ peakDeviceBytes }) => peakDeviceBytes],
  host: ['gauge', 'By', 'Bytes of pinned, registered and managed memory that it holds.', ({ hostBytes }) => hostBytes],
  allocations: ['counter', '{allocation}', 'Its allocations.', ({ allocations }) => allocations],
};

const poolFields: Fields<PoolSample> = {
  allocated: ['gauge', 'By', 'Reserved bytes that are allocated, rounded up.', ({ allocatedBytes }) => allocatedBytes],
  free: ['gauge', 'By', 'Reserved bytes that are not allocated.', ({ freeBytes }) => freeBytes],
  largest_free: ['gauge', 'By', 'Bytes of the largest free block.', ({ largestFreeBytes }) => largestFreeBytes],
  fragmentation: ['gauge', '1', 'The share of free bytes outside the largest free block.', ({ fragmentation }) => fragmentation],
  upstream_blocks: ['gauge', '{block}', 'Blocks that it holds from its upstream.', ({ upstreamBlocks }) => upstreamBlocks],
  growths: ['counter', '{block}', 'Blocks taken from its upstream.', ({ growths }) => growths],
  releases: ['counter', '{block}', 'Blocks returned to its upstream.', ({ releases }) => releases],
  reuses: ['counter', '{block}', 'Blocks that one stream freed and another reused.', ({ reuses }) => reuses],
  synchronizations: [
    'counter',
    '{synchronization}',
    'Streams that were synchronized because memory ran out.',
    ({ synchronizations }) => synchronizations,
  ],
  idle_returned: [
    'counter',
    'By',
    'Bytes returned to its upstream because nobody had needed them for some time.',
    ({ idleReturnedBytes }) => idleReturnedBytes,
  ],
};

/** Every metric, for both Prometheus and OpenTelemetry. */
export const statisticsMetrics: readonly StatisticsMetric[] = [
  ...metricsOf('resource', resourceFields, ({ resources }) =>
    resources.map((each) => [each, { resource: each.name, device: String(each.device), memory_kind: each.memoryKind }]),
  ),
  {
    name: 'cistern.resource.layer',
    kind: 'gauge',
    unit: '',
    description: 'Always 1: the resource is built on the layer.',
    read: ({ resources }, emit) => {
      for (const { name, layers } of resources) for (const layer of layers) emit(1, { resource: name, layer });
    },
  },
  ...metricsOf('layer', layerFields, ({ layers }) => layers.map((each) => [each, { layer: each.name, device: String(each.device) }])),
  ...metricsOf('layer', poolFields, ({ layers }) =>
    layers.flatMap(({ pool, name: layer, device }) => (pool === null ? [] : [[pool, { layer, device: String(device) }] as const])),
  ),
  ...metricsOf('account', accountFields, ({ accounts }) => accounts.map((each) => [each, { account: each.path }])),
  {
    name: 'cistern.account.refusals',
    kind: 'counter',
    unit: '{allocation}',
    description: 'Allocations that limits of accounts refused.',
    read: ({ accountRefusals }, emit) => emit(accountRefusals, {}),
  },
  ...metricsOf('admission', admissionFields, ({ admissions }) =>
    admissions.map((each) => [each, { layer: each.name, device: String(each.device) }]),
  ),
  {
    name: 'cistern.admission.not_admitted',
    kind: 'counter',
    unit: '{request}',
    description: 'Requests that were not admitted.',
    read: ({ admissions }, emit) => {
      for (const { name: layer, device, refusedTooLarge, refusedAfterTimeout, refusedInDeadlock, aborted } of admissions) {
        const reasons = { 'too-large': refusedTooLarge, timeout: refusedAfterTimeout, deadlock: refusedInDeadlock, aborted };
        for (const [reason, count] of Object.entries(reasons)) emit(count, { layer, device: String(device), reason });
      }
    },
  },
  ...metricsOf('spill', spillFields, ({ spills }) => spills.map((each) => [each, { layer: each.name, device: String(each.device) }])),
  ...metricsOf('library', libraryFields, ({ libraries }) => libraries.map((each) => [each, { library: each.name }])),
  {
    name: 'cistern.device.free',
    kind: 'gauge',
    unit: 'By',
    description: 'Free memory of the device.',
    read: ({ devices }, emit) => {
      for (const { index, name, freeBytes } of devices) emit(freeBytes, { device: String(index), device_name: name });
    },
  },
  {
    name: 'cistern.device.size',
    kind: 'gauge',
    unit: 'By',
    description: 'All memory of the device.',
    read: ({ devices }, emit) => {
      for (const { index, name, totalBytes } of devices) emit(totalBytes, { device: String(index), device_name: name });
    },
  },
  ...metricsOf('managed', managedFields, ({ devices }) =>
    devices.flatMap(({ index, managed }) => (managed === null ? [] : [[managed, { device: String(index) }] as const])),
  ),
  {
    name: 'cistern.driver.calls',
    kind: 'counter',
    unit: '{call}',
    description: 'Calls of the driver.',
    read: ({ driverCalls }, emit) => {
      for (const [name, calls] of Object.entries(driverCalls)) emit(calls, { function: name });
    },
  },
  {
    name: 'cistern.buffers',
    kind: 'gauge',
    unit: '{buffer}',
    description: 'Buffers that are neither disposed nor known to be unreachable.',
    read: ({ buffers }, emit) => emit(buffers, {}),
  },
];
