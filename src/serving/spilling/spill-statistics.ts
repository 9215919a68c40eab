/** The figures of a `SpillingResourceAdaptor`, as a frozen copy. */
export interface SpillStatistics {
  /** Spillable buffers with memory, and their bytes: on the device, and, of these, pinned; on the host. */
  readonly buffers: number;
  readonly deviceBytes: number;
  readonly pinnedBytes: number;
  readonly hostBytes: number;
  /** Bytes of those that are in files. */
  readonly fileBytes: number;
  /** Bytes allocated through the adaptor, for spillable buffers and others. */
  readonly liveBytes: number;
  /** Buffers that were spilled, and those that came back, with their bytes. */
  readonly spills: number;
  readonly spilledBytes: number;
  readonly returns: number;
  readonly returnedBytes: number;
  /** How often a buffer could not be spilled because the host had no memory for it. */
  readonly refusedByHost: number;
  /** Buffers that went on from the host to files, with their bytes; and how often a file could not be made or written. */
  readonly filed: number;
  readonly filedBytes: number;
  readonly refusedByFile: number;
  /**
   * How often no buffer was spilled for an admission because the driver, or a resource, refused it.
   */
  readonly failedForAdmission: number;
  /**
   * Calls that wait for memory now, and those that had to wait; the milliseconds that they waited,
   * added up, and the longest wait.
   */
  readonly waiting: number;
  readonly waits: number;
  readonly waitedMilliseconds: number;
  readonly longestWaitMilliseconds: number;
}
