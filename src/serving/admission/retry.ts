import type { OutOfMemoryError } from '../../basics/errors.js';
import type { MemoryWait, WaitEnd, WaitRules } from '../waiting/waiting-line.js';
import type { AdmissionQueue, Holder, Outcome } from './admission-queue.js';
import { grantsInScope, unexpectedEnd } from './grant.js';

/**
 * A grant that waits until others free memory, because what is promised to it is free only in pieces.
 *
 * It asks the queue for all bytes that others hold. So it stands before new requests, and at most as many of them as
 * allowed are admitted before it; it is admitted at the latest when nobody else holds anything; and if all who hold wait, one of
 * them is refused. It tries again at each free, while its request waits. Once that is decided, only one more attempt is of use, since nobody else
 * holds memory of the limit, or since the request was refused.
 */
export class Retry implements WaitRules {
  readonly payer: Holder;
  readonly #queue: AdmissionQueue;
  readonly #begins: () => void;
  #bytes = 0;
  #unserved: number;
  #request = 0;
  #state: 'asks' | 'has all' | 'over' = 'over';

  /** @param begins called when the holder begins to wait */
  constructor(queue: AdmissionQueue, holder: Holder, begins: () => void) {
    this.#queue = queue;
    this.payer = holder;
    this.#begins = begins;
    this.#unserved = holder.unserved;
  }

  isShortage({ requestedBytes }: OutOfMemoryError): boolean {
    if (this.payer.unserved === this.#unserved) return false;
    if (this.payer.isEnded) throw unexpectedEnd(requestedBytes);
    return true;
  }

  begin(wait: MemoryWait): void {
    const settle = ({ kind }: Outcome) => {
      this.#state = kind === 'admitted' ? 'has all' : 'over';
      if (kind === 'admitted') wait.wake();
      else wait.endWith(kind);
    };
    const { payer: holder } = this;
    this.#bytes = this.#queue.limitBytes - holder.promisedBytes;
    const request = { bytes: this.#bytes, priority: holder.priority, holder, grows: true, waiters: grantsInScope, settle };
    this.#state = 'asks';
    this.#request = this.#queue.ask(request);
    this.#begins();
  }

  /** Returns what it asked for, if it has it. Whoever is admitted then goes on in a later job, after the attempt has begun. */
  beforeAttempt(): void {
    this.#unserved = this.payer.unserved;
    if (this.#state !== 'has all') return;
    this.#state = 'over';
    const { promisedBytes, usedBytes, isEnded } = this.payer;
    if (!isEnded) this.#queue.shrink(this.payer, Math.min(this.#bytes, promisedBytes - usedBytes));
  }

  beforeWaiting(): 'wait' | 'give up' {
    return this.#state === 'over' ? 'give up' : 'wait';
  }

  failure(end: WaitEnd, shortage: OutOfMemoryError): unknown {
    return end === 'ended' ? unexpectedEnd(shortage.requestedBytes) : shortage;
  }

  gaveUp(shortage: OutOfMemoryError): unknown {
    return shortage;
  }

  over(): void {
    this.#queue.withdraw(this.#request);
    this.beforeAttempt();
  }
}
