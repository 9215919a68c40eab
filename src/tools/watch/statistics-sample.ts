import type { DeviceUser } from '../../budget/device-user.js';
import type { ManagedActivity } from '../../machine/managed-activity-types.js';
import type { AdmissionStatistics } from '../../serving/admission/admission-statistics.js';
import type { SpillStatistics } from '../../serving/spilling/spill-statistics.js';

/** The counts of one `StatisticsResourceAdaptor` since it was constructed. */
export interface ResourceSample {
  /** Its name, followed by a number if several adaptors have the same name. */
  readonly name: string;
  /** The ordinal of its device. */
  readonly device: number;
  readonly memoryKind: string;
  /** Bytes allocated now, and the most at once, as requested. */
  readonly liveBytes: number;
  readonly peakBytes: number;
  /** Bytes of all allocations since it was constructed, freed or not. */
  readonly totalAllocatedBytes: number;
  readonly liveAllocations: number;
  readonly allocations: number;
  readonly frees: number;
  readonly failedAllocations: number;
  /** The names of the layers below it that hold memory, outermost first. */
  readonly layers: readonly string[];
}

/** What a resource holds of the memory below it: an upstream resource, or a pooling resource. */
export interface LayerSample {
  /** Its class, with a number that is unique in the process. */
  readonly name: string;
  readonly device: number;
  /** Bytes that it holds of the device, or of the resource below. */
  readonly reservedBytes: number;
  readonly peakReservedBytes: number;
  /** `null` if it is not a pooling resource. */
  readonly pool: PoolSample | null;
}

/**
 * How a pooling resource uses its memory: the figures of its `statistics()`, and two that follow
 * from them.
 */
export interface PoolSample {
  /** Bytes allocated now, each allocation rounded up. */
  readonly allocatedBytes: number;
  /** Bytes that are reserved and not allocated. */
  readonly freeBytes: number;
  readonly largestFreeBytes: number;
  /** `1 - largestFreeBytes / freeBytes`, and 0 if nothing is free. */
  readonly fragmentation: number;
  readonly upstreamBlocks: number;
  readonly growths: number;
  readonly releases: number;
  readonly reuses: number;
  readonly synchronizations: number;
  /** Bytes returned because nobody had needed them for `idleMilliseconds`. */
  readonly idleReturnedBytes: number;
}

/** The accounts of one path at one moment, taken together. */
export interface AccountSample {
  /** The path of the accounts, as `Account.path` gives it; `(other accounts)` for all those that have no sample of their own. */
  readonly path: string;
  /** How many accounts these are. */
  readonly accounts: number;
  /** Bytes charged to them now, those of accounts within them included. */
  readonly liveBytes: number;
  /** The most bytes charged to a single one of them at once. */
  readonly peakBytes: number;
  /** The sum of their limits; `null` if one of them has none of its own. */
  readonly limitBytes: number | null;
  /** Bytes of their spillable buffers that have left the device so far. */
  readonly spilledBytes: number;
  /** How long calls in their scopes have waited for memory so far. */
  readonly waitedMilliseconds: number;
}

/** What an `AdmittingResourceAdaptor` has promised at one moment, and who waits. */
export interface AdmissionSample extends AdmissionStatistics {
  /** Its class, with a number that is unique in the process. */
  readonly name: string;
  readonly device: number;
}

/** What a `SpillingResourceAdaptor` has moved, and where it is at one moment. */
export interface SpillSample extends SpillStatistics {
  /** Its class, with a number that is unique in the process. */
  readonly name: string;
  readonly device: number;
}

/** What one library has allocated from the driver, in a process that `cistern run` records. */
export interface LibrarySample {
  /** Its npm package, or its file; `cistern` for the memory of cistern's own resources. */
  readonly name: string;
  /** Bytes on devices now, and the most at once. */
  readonly deviceBytes: number;
  readonly peakDeviceBytes: number;
  /** Bytes of the host that devices can use: pinned, registered and managed memory. */
  readonly hostBytes: number;
  /** How often it has allocated. */
  readonly allocations: number;
}

/** A device that the process uses. */
export interface DeviceSample {
  readonly index: number;
  readonly name: string;
  readonly freeBytes: number;
  readonly totalBytes: number;
  /**
   * What happened to managed memory on it since the start of the process, or since the counts were
   * reset; `null` on a GPU, whose driver does not tell.
   */
  readonly managed: ManagedActivity | null;
  /** The processes that hold memory of it, by NVML; `null` if that does not tell, as for software devices. */
  readonly users: readonly DeviceUser[] | null;
}

/** The buffers that one line of the program created. */
export interface BufferSiteSample {
  /** The function, and the line of its call: `load (server.js:27:10)`; or `other call sites`, for all that follow. */
  readonly site: string;
  readonly buffers: number;
  /** The bytes of their memory. */
  readonly bytes: number;
}

/**
 * The statistics of one environment (the main thread or one worker) at one moment: the message on
 * the diagnostics channel `cistern:statistics`. Plain data that can be sent as JSON.
 */
export interface StatisticsSample {
  /** When it was taken: milliseconds since 1970. */
  readonly timeMilliseconds: number;
  readonly processId: number;
  /** Every `StatisticsResourceAdaptor` that is neither disposed nor collected. */
  readonly resources: readonly ResourceSample[];
  /** The layers below these, each once. */
  readonly layers: readonly LayerSample[];
  readonly devices: readonly DeviceSample[];
  /** Every library that has allocated from the driver, the one that holds most first. Empty unless `cistern run` records the process. */
  readonly libraries: readonly LibrarySample[];
  /**
   * The 20 paths of accounts that hold most, the largest first, then the others as one. Only accounts that
   * hold memory, or that the program still refers to.
   */
  readonly accounts: readonly AccountSample[];
  /** Allocations that limits of accounts have refused. */
  readonly accountRefusals: number;
  /** Every `AdmittingResourceAdaptor` that is neither disposed nor collected. */
  readonly admissions: readonly AdmissionSample[];
  /** Every `SpillingResourceAdaptor` that is neither disposed nor collected. */
  readonly spills: readonly SpillSample[];
  /**
   * Number of calls of each driver function, by CUDA's name; functions that were not called are
   * left out.
   */
  readonly driverCalls: Readonly<Record<string, number>>;
  /** Buffers that are neither disposed nor known to be unreachable. */
  readonly buffers: number;
  /**
   * The call sites of these buffers, most bytes first, the last for all beyond twenty. Empty unless leak
   * detection is on: a subscriber of `cistern:leak` turns it on, and so does `cistern watch`.
   */
  readonly bufferSites: readonly BufferSiteSample[];
  /**
   * The call sites of buffers that were dropped without being disposed, in the same form. Only in a process
   * that `cistern watch` or `CISTERN_WATCH` watches.
   */
  readonly leakSites: readonly BufferSiteSample[];
  /** Streams that have not ended, default streams and those of others that are in use among them. */
  readonly streams: number;
}
