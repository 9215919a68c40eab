/** What one `StatisticsResourceAdaptor` has counted since it was made. */
export interface ResourceSample {
  /** Its name, followed by a number if several have the same. */
  readonly name: string;
  /** The ordinal of its device. */
  readonly device: number;
  readonly memoryKind: string;
  /** Bytes that are allocated now, and the most there were, as they were asked for. */
  readonly liveBytes: number;
  readonly peakBytes: number;
  /** Bytes of all allocations since it was made, freed or not. */
  readonly totalAllocatedBytes: number;
  readonly liveAllocations: number;
  readonly allocations: number;
  readonly frees: number;
  readonly failedAllocations: number;
  /** The names of the layers it is built on that hold memory, the outermost first. */
  readonly layers: readonly string[];
}

/** What a resource holds of the memory below it: an upstream resource, or one that keeps memory. */
export interface LayerSample {
  /** Its class, with a number that no other layer of the process gets. */
  readonly name: string;
  readonly device: number;
  /** Bytes that it holds of the device, or of the resource below. */
  readonly reservedBytes: number;
  readonly peakReservedBytes: number;
  /** `null` if it keeps nothing that was freed. */
  readonly pool: PoolSample | null;
}

/** What a resource does with the memory that it keeps: the figures of its `statistics()`, and two that follow from them. */
export interface PoolSample {
  /** Bytes that are allocated now, each allocation with what it was rounded up to. */
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
}

/** A device that the process uses. */
export interface DeviceSample {
  readonly index: number;
  readonly name: string;
  readonly freeBytes: number;
  readonly totalBytes: number;
}

/**
 * The statistics of one environment (the main thread or one worker) at one moment: the message of the diagnostics channel
 * `cistern:statistics`. Plain data, to be sent as JSON.
 */
export interface StatisticsSample {
  /** When it was taken: milliseconds since 1970. */
  readonly timeMilliseconds: number;
  readonly processId: number;
  /** Every `StatisticsResourceAdaptor` that is neither disposed nor collected. */
  readonly resources: readonly ResourceSample[];
  /** What these are built on, each layer once. */
  readonly layers: readonly LayerSample[];
  readonly devices: readonly DeviceSample[];
  /** How often each function of the driver was called, by CUDA's name; those that were not called are left out. */
  readonly driverCalls: Readonly<Record<string, number>>;
  /** Buffers that are neither disposed nor known to be unreachable. */
  readonly buffers: number;
}
