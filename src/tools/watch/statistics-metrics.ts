import type { ManagedActivity } from '../../machine/managed-activity.js';
import type {
  AccountSample,
  AdmissionSample,
  DeviceSample,
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

const deviceFields: Fields<DeviceSample> = {
  free: ['gauge', 'By', 'Free memory of the device.', ({ freeBytes }) => freeBytes],
  size: ['gauge', 'By', 'All memory of the device.', ({ totalBytes }) => totalBytes],
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

const layerLabels = ({ name, device }: { readonly name: string; readonly device: number }) => ({ layer: name, device: String(device) });

/** Every metric, for both Prometheus and OpenTelemetry. */
export const statisticsMetrics: readonly StatisticsMetric[] = [
  ...metricsOf('resource', resourceFields, ({ resources }) =>
    resources.map((each) => [each, { resource: each.name, device: String(each.device), memory_kind: each.memoryKind }]),
  ),
  ...metricsOf('resource', { layer: ['gauge', '', 'Always 1: the resource is built on the layer.', () => 1] }, ({ resources }) =>
    resources.flatMap(({ name, layers }) => layers.map((layer) => [layer, { resource: name, layer }] as const)),
  ),
  ...metricsOf('layer', layerFields, ({ layers }) => layers.map((each) => [each, layerLabels(each)])),
  ...metricsOf('layer', poolFields, ({ layers }) =>
    layers.flatMap((each) => (each.pool === null ? [] : [[each.pool, layerLabels(each)] as const])),
  ),
  ...metricsOf('account', accountFields, ({ accounts }) => accounts.map((each) => [each, { account: each.path }])),
  ...metricsOf(
    'account',
    { refusals: ['counter', '{allocation}', 'Allocations that limits of accounts refused.', (count: number) => count] },
    ({ accountRefusals }) => [[accountRefusals, {}]],
  ),
  ...metricsOf('admission', admissionFields, ({ admissions }) => admissions.map((each) => [each, layerLabels(each)])),
  ...metricsOf(
    'admission',
    { not_admitted: ['counter', '{request}', 'Requests that were not admitted.', (count: number) => count] },
    ({ admissions }) =>
      admissions.flatMap((each) => {
        const { refusedTooLarge, refusedAfterTimeout: timeout, refusedInDeadlock: deadlock, aborted } = each;
        const reasons = { 'too-large': refusedTooLarge, timeout, deadlock, aborted };
        return Object.entries(reasons).map(([reason, count]) => [count, { ...layerLabels(each), reason }] as const);
      }),
  ),
  ...metricsOf('spill', spillFields, ({ spills }) => spills.map((each) => [each, layerLabels(each)])),
  ...metricsOf('library', libraryFields, ({ libraries }) => libraries.map((each) => [each, { library: each.name }])),
  ...metricsOf('device', deviceFields, ({ devices }) =>
    devices.map((each) => [each, { device: String(each.index), device_name: each.name }]),
  ),
  ...metricsOf('managed', managedFields, ({ devices }) =>
    devices.flatMap(({ index, managed }) => (managed === null ? [] : [[managed, { device: String(index) }] as const])),
  ),
  ...metricsOf('driver', { calls: ['counter', '{call}', 'Calls of the driver.', (calls: number) => calls] }, ({ driverCalls }) =>
    Object.entries(driverCalls).map(([name, calls]) => [calls, { function: name }]),
  ),
  {
    name: 'cistern.buffers',
    kind: 'gauge',
    unit: '{buffer}',
    description: 'Buffers that are neither disposed nor known to be unreachable.',
    read: ({ buffers }, emit) => emit(buffers, {}),
  },
];
