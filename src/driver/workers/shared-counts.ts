import { mailbox, NativeStatus, native } from '../native.js';
import { check } from '../status.js';
import { finalizationRegistry } from './collected-objects.js';

/** A count over all environments of the process. */
export interface SharedTally {
  readonly current: number;
  readonly peak: number;
  readonly total: number;
}

/** The counts of all environments of the process. */
export interface SharedTallies {
  readonly bytes: SharedTally;
  readonly allocations: SharedTally;
  readonly failures: number;
  /** How many environments count. */
  readonly environments: number;
}

function close(handle: number): void {
  native().closeShare(handle);
  check('close shared counts');
}

const unreachable = finalizationRegistry<number>('adaptor with shared counts', 'CISTERN_UNREACHABLE_COUNTS', close);

/**
 * Counts that environments of the process share by name. The state is native and belongs to the
 * process: see `native/addon/shared_counts.h`.
 *
 * Memory of an ended environment stays counted until it has been freed. An object that is collected
 * is closed.
 */
export class SharedCounts {
  readonly name: string;
  /** The limit that the first environment gave. */
  readonly limitBytes: number;
  readonly #handle: number;
  #isClosed = false;

  /** @param limitBytes the most bytes that may be counted, unless another environment decided already */
  constructor(name: string, limitBytes?: number) {
    this.name = name;
    native().openShare(limitBytes !== undefined, name, limitBytes ?? Number.MAX_SAFE_INTEGER);
    check(`share counts as ${JSON.stringify(name)}`);
    this.#handle = mailbox[1] as number;
    this.limitBytes = mailbox[2] as number;
    unreachable.register(this, this.#handle, this);
  }

  /** Counts an allocation. Returns false, and counts nothing, if that would exceed the limit. */
  add(bytes: number): boolean {
    mailbox[0] = this.#handle;
    mailbox[1] = bytes;
    native().countAllocation();
    if (mailbox[0] !== 0) check('count an allocation');
    return mailbox[1] === 1;
  }

  /** Ends the count of an allocation. */
  subtract(bytes: number): void {
    mailbox[0] = this.#handle;
    mailbox[1] = bytes;
    native().countFree();
    if (mailbox[0] !== 0) check('count a free');
  }

  addFailure(): void {
    native().countFailure(this.#handle);
    check('count a failure');
  }

  /** The bytes that all environments count now; 0 once this is closed and has counted every free. */
  get currentBytes(): number {
    native().readShare(this.#handle);
    if (this.#isClosed && mailbox[0] === NativeStatus.staleHandle) return 0;
    check('read shared counts');
    return mailbox[1] as number;
  }

  /**
   * The current counts. Each number is exact, but numbers that are read together may be from slightly different
   * moments.
   */
  read(): SharedTallies {
    native().readShare(this.#handle);
    check('read shared counts');
    const [, bytes, peakBytes, totalBytes, allocations, peakAllocations, totalAllocations, failures, environments] =
      mailbox as unknown as readonly [number, number, number, number, number, number, number, number, number];
    return {
      bytes: { current: bytes, peak: peakBytes, total: totalBytes },
      allocations: { current: allocations, peak: peakAllocations, total: totalAllocations },
      failures,
      environments,
    };
  }

  /** Frees memory that ended environments left, if it counts here. */
  settle(): void {
    native().settleShare(this.#handle);
    check('free what ended workers left');
  }

  /** Closes this object, which then only counts frees. A second call does nothing. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    unreachable.unregister(this);
    close(this.#handle);
  }
}
