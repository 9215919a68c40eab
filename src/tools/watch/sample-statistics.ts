import { layersOf } from '../../adaptors/layers.js';
import { liveStatisticsAdaptors, type StatisticsResourceAdaptor } from '../../adaptors/pass-through/statistics-resource-adaptor.js';
import type { StreamOrderedStatistics } from '../../adaptors/pooling/keeper.js';
import { resultOrNothing } from '../../basics/errors.js';
import { deviceUsage } from '../../budget/device-usage.js';
import { watchedBuffers } from '../../collector/free-unreachable-buffers.js';
import { usedDevices } from '../../driver/device.js';
import { StreamIdentity } from '../../driver/streams/stream-identity.js';
import { managedActivity } from '../../machine/managed-activity.js';
import type { MemoryResource, ReservingMemoryResource } from '../../memory-resource.js';
import { accountRefusals } from '../../serving/accounts/account.js';
import { liveAdmittingAdaptors } from '../../serving/admission/admitting-resource-adaptor.js';
import { liveSpillingAdaptors } from '../../serving/spilling/spilling-resource-adaptor.js';
import { setting } from '../../settings.js';
import { readOutsideLibraries } from '../outside/control-file.js';
import { driverCallCounts } from '../testing/driver-call-counts.js';
import { leakedBufferSites, liveBufferSites } from './buffer-sites.js';
import { sampleAccounts } from './sample-accounts.js';
import type { DeviceSample, LayerSample, LibrarySample, PoolSample, ResourceSample, StatisticsSample } from './statistics-sample.js';

/** Each layer's name is unique, and the same in every sample. */
const resourceNames = new WeakMap<StatisticsResourceAdaptor, string>();
const layerNames = new WeakMap<MemoryResource, string>();
let layerCount = 0;

/**
 * The statistics of every {@link StatisticsResourceAdaptor} of this environment, of the resources
 * below them that hold memory, of the devices in use and of the driver. Errors of resources are
 * never thrown: a layer that fails is left out. Opens no device.
 *
 * It takes time proportional to the number of blocks that the pools below hold.
 * @example
 * ```ts
 * for (const { name, liveBytes, peakBytes } of sampleStatistics().resources) {
 *   console.log(`${name}: ${formatBytes(liveBytes)} live, at most ${formatBytes(peakBytes)}`);
 * }
 * ```
 */
export function sampleStatistics(): StatisticsSample {
  const adaptors = liveStatisticsAdaptors();
  nameResources(adaptors);
  const layers = new Map<MemoryResource, LayerSample | undefined>();
  const resources = adaptors.map((adaptor) => sampleResource(adaptor, layers));
  const devices = usedDevices();
  return {
    timeMilliseconds: Date.now(),
    processId: process.pid,
    resources,
    layers: [...layers.values()].filter((layer) => layer !== undefined),
    devices: devices.flatMap((device): DeviceSample[] => {
      // A resource may be foreign code, and the driver may fail.
      const memory = resultOrNothing(() => device.memoryInfo());
      const managed = device.backend === 'software' ? (resultOrNothing(() => managedActivity(device)) ?? null) : null;
      const users = device.backend === 'software' ? null : (resultOrNothing(() => deviceUsage(device).users) ?? null);
      return memory === undefined ? [] : [{ index: device.index, name: device.name, ...memory, managed, users }];
    }),
    libraries: sampleLibraries(),
    accounts: sampleAccounts(),
    accountRefusals: accountRefusals(),
    admissions: liveAdmittingAdaptors().map((adaptor) => ({
      name: layerName(adaptor),
      device: adaptor.device.index,
      ...adaptor.statistics(),
    })),
    spills: liveSpillingAdaptors().map((adaptor) => ({ name: layerName(adaptor), device: adaptor.device.index, ...adaptor.statistics() })),
    driverCalls: devices.length === 0 ? {} : calledFunctions(),
    buffers: watchedBuffers().count,
    bufferSites: liveBufferSites(),
    leakSites: leakedBufferSites(),
    streams: StreamIdentity.count,
  };
}

/** Memory that nobody has allocated through cistern is there, too. */
function sampleLibraries(): LibrarySample[] {
  const file = setting('CISTERN_RUN');
  if (file === undefined) return [];
  return readOutsideLibraries(file, process.pid).sort((one, other) => other.deviceBytes - one.deviceBytes);
}

function sampleResource(adaptor: StatisticsResourceAdaptor, samples: Map<MemoryResource, LayerSample | undefined>): ResourceSample {
  const { bytes, allocations, failedAllocations } = adaptor.overallStatistics();
  const layers = layersOf(adaptor);
  for (const layer of layers) if (!samples.has(layer)) samples.set(layer, sampleLayer(layer));
  return {
    name: resourceNames.get(adaptor) as string,
    device: adaptor.device.index,
    memoryKind: adaptor.memoryKind,
    liveBytes: bytes.current,
    peakBytes: bytes.peak,
    totalAllocatedBytes: bytes.total,
    liveAllocations: allocations.current,
    allocations: allocations.total,
    frees: allocations.total - allocations.current,
    failedAllocations,
    layers: layers.flatMap((layer) => samples.get(layer)?.name ?? []),
  };
}

function sampleLayer(layer: MemoryResource): LayerSample | undefined {
  return resultOrNothing(() => {
    const { reservedBytes, peakReservedBytes } = layer as ReservingMemoryResource;
    if (typeof reservedBytes !== 'number') return undefined;
    return { name: layerName(layer), device: layer.device.index, reservedBytes, peakReservedBytes, pool: samplePool(layer) };
  });
}

function samplePool(layer: MemoryResource): PoolSample | null {
  const statistics = (layer as { statistics?: () => Partial<StreamOrderedStatistics> }).statistics?.();
  if (typeof statistics?.largestFreeBytes !== 'number') return null;
  const { reservedBytes, allocatedBytes, largestFreeBytes, ...counts } = statistics as StreamOrderedStatistics;
  const { upstreamBlocks, growths, releases, reuses, synchronizations, idleReturnedBytes = 0 } = counts;
  const freeBytes = reservedBytes - allocatedBytes;
  const fragmentation = freeBytes > 0 ? 1 - largestFreeBytes / freeBytes : 0;
  const bytes = { allocatedBytes, freeBytes, largestFreeBytes, fragmentation, idleReturnedBytes };
  return { ...bytes, upstreamBlocks, growths, releases, reuses, synchronizations };
}

/** Gives each unnamed resource the first free name: `train`, `train 2`. */
function nameResources(adaptors: readonly StatisticsResourceAdaptor[]): void {
  const taken = new Set(adaptors.map((adaptor) => resourceNames.get(adaptor)));
  for (const adaptor of adaptors) {
    if (resourceNames.has(adaptor)) continue;
    let name = adaptor.name;
    for (let number = 2; taken.has(name); number++) name = `${adaptor.name} ${number}`;
    taken.add(name);
    resourceNames.set(adaptor, name);
  }
}

function layerName(layer: MemoryResource): string {
  let name = layerNames.get(layer);
  if (name === undefined) {
    name = `${layer.constructor.name} ${++layerCount}`;
    layerNames.set(layer, name);
  }
  return name;
}

function calledFunctions(): Record<string, number> {
  return Object.fromEntries(Object.entries(driverCallCounts().byFunction).filter(([, calls]) => calls > 0));
}
