import { OutOfMemoryError } from '../../basics/errors.js';
import { seen, TentativeScope } from '../../observing/failed-allocations.js';
import type { AdmissionQueue, Holder, Outcome } from './admission-queue.js';
import { grantsInScope, unexpectedEnd } from './grant.js';
import { assertWait, endingWait, type WaitOptions } from './waits.js';

/**
 * Why a wait ended; `'last'`: it would be of no use from now on, since nobody else holds memory of the limit, or since the
 * request was refused. Then there is one more attempt, because memory may have been freed just before, also by other workers.
 */
type End = 'freed' | 'last' | 'refused' | 'ended' | 'timeout' | 'aborted';

/**
 * Grants that wait until others free memory, because what is promised to them is free only in pieces.
 *
 * Such a grant asks the queue for all bytes that others hold. So it stands before new requests, and at most as many of them as
 * allowed are admitted before it; it is admitted at the latest when nobody else holds anything; and if all who hold wait, one of
 * them is refused. It tries again at each free, while its request waits.
 */
export class Retries {
  /** How many grants wait. */
  waiting = 0;
  readonly #waits = new Set<FreeWait>();

  /**
   * Runs a function until it does not fail for want of memory that is promised to the holder.
   * @param begins called when the holder begins to wait; returns what is called when it no longer does
   */
  async run<T>(
    queue: AdmissionQueue,
    holder: Holder,
    attempt: () => T,
    options: WaitOptions,
    begins: () => () => void,
  ): Promise<Awaited<T>> {
    assertWait(options);
    let wait: FreeWait | undefined;
    let ends = () => {};
    const tries = new TentativeScope();
    try {
      for (;;) {
        const { unserved } = holder;
        try {
          return await tries.run(attempt);
        } catch (error) {
          if (!(error instanceof OutOfMemoryError) || holder.unserved === unserved) throw error;
          if (holder.isEnded) throw unexpectedEnd(error.requestedBytes);
          if (wait === undefined) {
            wait = new FreeWait(queue, holder, options);
            this.#waits.add(wait);
            this.waiting = this.#waits.size;
            ends = begins();
          }
          const end = await wait.next();
          if (end === 'aborted') throw options.signal?.reason;
          if (end === 'ended') throw unexpectedEnd(error.requestedBytes);
          if (end === 'refused' || end === 'timeout') throw error;
          wait.giveBack();
        }
      }
    } catch (error) {
      tries.end();
      throw seen(error);
    } finally {
      tries.end();
      if (wait !== undefined) {
        this.#waits.delete(wait);
        this.waiting = this.#waits.size;
        wait.stop();
        ends();
      }
    }
  }

  /** Lets all who wait try again, since memory was freed. */
  wake(): void {
    for (const wait of this.#waits) wait.wake('freed');
  }
}

class FreeWait {
  readonly #queue: AdmissionQueue;
  readonly #holder: Holder;
  readonly #bytes: number;
  readonly #request: number;
  readonly #stopTimer: () => void;
  #state: 'asks' | 'has all' | 'over' = 'asks';
  /** What has happened since the last call of `next`. Memory may have been freed before this wait began. */
  #end: End | undefined = 'freed';
  #resolve = () => {};

  constructor(queue: AdmissionQueue, holder: Holder, options: WaitOptions) {
    this.#queue = queue;
    this.#holder = holder;
    this.#bytes = queue.limitBytes - holder.promisedBytes;
    const settle = ({ kind }: Outcome) => {
      this.#state = kind === 'admitted' ? 'has all' : 'over';
      this.wake(kind === 'ended' ? kind : 'last');
    };
    this.#request = queue.ask({ bytes: this.#bytes, priority: holder.priority, holder, grows: true, waiters: grantsInScope(), settle });
    this.#stopTimer = endingWait(options, (failure) => this.wake(failure));
    if (options.signal?.aborted === true) this.wake('aborted');
  }

  /** Notes what happened: a free only if nothing else has. */
  wake(end: End): void {
    if (end !== 'freed' || this.#end === undefined) this.#end = end;
    this.#resolve();
  }

  /** Waits until something happens, or has happened since the last call. */
  async next(): Promise<End> {
    // After the last attempt.
    if (this.#state === 'over' && (this.#end === undefined || this.#end === 'freed')) return 'refused';
    while (this.#end === undefined) {
      await new Promise<void>((resolve) => {
        this.#resolve = resolve;
      });
    }
    const end = this.#end;
    this.#end = undefined;
    return end;
  }

  /** Returns what it asked for, if it has it. Whoever is admitted then goes on in a later job, after the next attempt has begun. */
  giveBack(): void {
    if (this.#state !== 'has all') return;
    this.#state = 'over';
    const { promisedBytes, usedBytes, isEnded } = this.#holder;
    if (!isEnded) this.#queue.shrink(this.#holder, Math.min(this.#bytes, promisedBytes - usedBytes));
  }

  stop(): void {
    this.#stopTimer();
    if (this.#state === 'asks') this.#queue.withdraw(this.#request);
    this.giveBack();
  }
}
