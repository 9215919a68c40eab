/** The promises and waiting requests of an `AdmittingResourceAdaptor`, as a frozen copy. */
export interface AdmissionStatistics {
  readonly limitBytes: number;
  /** Bytes that are promised, or still allocated, and so not available. */
  readonly committedBytes: number;
  /** Of these, bytes allocated outside of every grant. */
  readonly outsideBytes: number;
  /** Grants that have promised bytes. */
  readonly grants: number;
  /** Requests that wait now, and the bytes that they wait for. A `Grant.retry` that waits is one, for all that others hold. */
  readonly waiting: number;
  readonly waitingBytes: number;
  /** Requests that were admitted, and those of them that had to wait. */
  readonly admitted: number;
  readonly admittedAfterWait: number;
  /** Milliseconds that requests waited, whether admitted or not: the sum, and the longest wait. */
  readonly waitedMilliseconds: number;
  readonly longestWaitMilliseconds: number;
  /** How often a request was admitted before an earlier one. */
  readonly overtakes: number;
  /** Requests that ended otherwise, by the reason. */
  readonly refusedTooLarge: number;
  readonly refusedAfterTimeout: number;
  readonly refusedInDeadlock: number;
  readonly aborted: number;
}
