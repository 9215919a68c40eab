import { hasScopes } from '../../scopes/resource-scope.js';
import { AdmissionQueue } from '../admission/admission-queue.js';
import type { AdmittingResourceAdaptor } from '../admission/admitting-resource-adaptor.js';
import { grantsInScope } from '../admission/grant.js';

/**
 * Tells the admissions of the process who pins buffers, and who waits for memory that others pin, as far as that is work in the scope of grants. So
 * those who wait for each other by pins, by grants or by both are found, and one of them is refused.
 *
 * The waits are requests of a queue of its own, of which nothing is ever free: they end because they are withdrawn, or refused.
 */
export class PinHolds {
  readonly #admitting: readonly AdmittingResourceAdaptor[];
  #line: AdmissionQueue | undefined;
  /** Stands for all that may come back without anybody's grant. */
  #ofOthers: number | undefined;

  /** @param admitting those whose memory the buffers have */
  constructor(admitting: readonly AdmittingResourceAdaptor[]) {
    this.#admitting = admitting;
  }

  /** A pin begins. Returns what ends this, or `undefined` outside all grants. */
  begin(): (() => void) | undefined {
    const parties = hasScopes() ? grantsInScope() : [];
    if (parties.length === 0) return undefined;
    const held = [this.#queue, ...this.#admitting.map(({ queue }) => queue)].map((queue) => ({ queue, number: queue.hold(parties) }));
    return () => {
      for (const { queue, number } of held) queue.endHold(number);
    };
  }

  /**
   * A wait begins. Returns what withdraws it, or `undefined` outside all grants.
   * @param refuse called, perhaps within this call, if the wait would never end
   */
  wait(refuse: () => void): (() => void) | undefined {
    const waiters = hasScopes() ? grantsInScope() : [];
    if (waiters.length === 0) return undefined;
    const queue = this.#queue;
    const settle = () => refuse();
    const request = queue.ask({ bytes: 1, priority: 0, waiters: () => waiters, settle });
    return () => {
      queue.withdraw(request);
    };
  }

  /** Whether memory may come back that no pin within a grant's scope keeps. To be called before each wait, and as that changes. */
  noteOthers(mayComeBack: boolean): void {
    if (this.#line === undefined || mayComeBack === (this.#ofOthers !== undefined)) return;
    if (this.#ofOthers === undefined) {
      this.#ofOthers = this.#line.hold([]);
    } else {
      const hold = this.#ofOthers;
      this.#ofOthers = undefined;
      this.#line.endHold(hold);
    }
  }

  get #queue(): AdmissionQueue {
    if (this.#line === undefined) {
      this.#line = new AdmissionQueue('', 1, 0, () => {});
      this.#line.takeOutside(1);
    }
    return this.#line;
  }
}
