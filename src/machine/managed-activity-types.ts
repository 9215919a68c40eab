// This file imports nothing, because pages in a browser use these counts, too.

/**
 * What happened to managed memory at one location of the software device, a device or the host,
 * since the start of the process or since `resetManagedActivity`. Sizes are bytes. Memory
 * moves in pages of 2 MiB; the last page of an allocation may be smaller.
 */
export interface ManagedActivity {
  /** The bytes that are there now. A copy of read-mostly memory counts at each location. */
  readonly residentBytes: number;
  /** The peak of `residentBytes`. */
  readonly peakResidentBytes: number;
  /** Bytes that were copied there from the host. */
  readonly bytesFromHost: number;
  /** Bytes that were copied there from devices, by evictions too. */
  readonly bytesFromDevices: number;
  /** Bytes that were copied from this device to the host to make room. */
  readonly evictedBytes: number;
  /** Bytes that were used from there while they stayed elsewhere: mapped memory, without a move. */
  readonly remoteBytes: number;
  /** Pages that were used from there and found elsewhere, or nowhere yet, and not mapped. */
  readonly faults: number;
  /**
   * Pages that this device evicted to make room, even those that needed no copying because another
   * copy exists.
   */
  readonly evictions: number;
  /** Faults that moved a page back to the location that it left last. */
  readonly thrashes: number;
}
