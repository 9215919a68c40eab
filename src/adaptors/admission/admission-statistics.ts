/** What an `AdmittingResourceAdaptor` has promised, and who waits: a frozen copy. */
export interface AdmissionStatistics {
  readonly limitBytes: number;
  /** Bytes that nobody else can have: promised, or still allocated. */
  readonly committedBytes: number;
  /** Of these, bytes allocated outside of every grant. */
  readonly outsideBytes: number;
  /** Grants that have promised bytes. */
  readonly grants: number;
  /** Requests that wait now, and the bytes that they wait for. */
  readonly waiting: number;
  readonly waitingBytes: number;
  /** Requests that were admitted, of these, those that had to wait. */
  readonly admitted: number;
  readonly admittedAfterWait: number;
  /** Milliseconds that requests waited, admitted or not: the sum, and the longest. */
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
