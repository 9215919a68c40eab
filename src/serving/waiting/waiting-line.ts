/**
 * Where calls wait for memory: for room on the device, or for a promise that cannot be served in one piece.
 *
 *     run ─► attempt ─ served ───────────────────────────────────────────────► done
 *             ▲ └ short of memory ─► of use to wait? ─ no ─────────────────────► its error
 *             │                         │ yes
 *             └── memory was freed ◄─ waits ─► the time is over, or refused ─► one more attempt, then the error
 *
 * The line knows who is next, what ends a wait, and how long it took. What a kind of wait does besides is in its `WaitRules`.
 *
 * Invariants: whoever waits tries again after each free that follows its last attempt, if it is its turn; what an attempt frees
 * on its way wakes nobody.
 */
import { OutOfMemoryError } from '../../basics/errors.js';
import type { MemoryResource } from '../../memory-resource.js';
import { seen, TentativeScope, tentatively } from '../../observing/failed-allocations.js';
import { type Account, currentAccount } from '../accounts/account.js';
import { assertWait, endingWait, type WaitOptions } from './wait-options.js';

/** Why a wait ended without memory: `'refused'` if others wait for each other, `'ended'` if what it waits for was disposed. */
export type WaitEnd = 'timeout' | 'aborted' | 'refused' | 'ended';

/** A call that waits. */
export class MemoryWait {
  #end: WaitEnd | undefined;
  #isWoken = false;
  #resolve = () => {};

  /** Why it is to end, if it is. */
  get end(): WaitEnd | undefined {
    return this.#end;
  }

  endWith(reason: WaitEnd): void {
    this.#end = reason;
    this.wake();
  }

  wake(): void {
    this.#isWoken = true;
    this.#resolve();
  }

  /** Resolves if it was woken since this resolved last, or once it is. */
  async woken(): Promise<void> {
    if (!this.#isWoken) {
      await new Promise<void>((resolve) => {
        this.#resolve = resolve;
      });
    }
    this.#isWoken = false;
  }
}

/** What a kind of wait does of its own. */
export interface WaitRules {
  /** Where memory that ran out is reported if no attempt was made. */
  readonly resource?: MemoryResource | undefined;
  /** Whose memory an asynchronous attempt uses. */
  readonly payer?: { readonly usedBytes: number } | undefined;
  /** Whether an attempt failed for want of memory that waiting may bring. */
  isShortage(error: OutOfMemoryError): boolean;
  /** A call begins to wait. It tries once more before it does. */
  begin(wait: MemoryWait): void;
  /** Before each attempt of a call that waits. */
  beforeAttempt(): void;
  /**
   * Before it waits for others. `'try'`: it has freed something itself.
   * @param isTurn whether an attempt has just failed; if not, it must wait
   */
  beforeWaiting(wait: MemoryWait, isTurn: boolean): 'wait' | 'try' | 'give up';
  /** The error of a wait that has ended. @param shortage that of the last attempt */
  failure(end: WaitEnd, shortage: OutOfMemoryError | undefined): unknown;
  /** The error of a wait that is of no use. */
  gaveUp(shortage: OutOfMemoryError): unknown;
  /** It waits no more. */
  over(): void;
}

export class WaitingLine {
  /** How many wait. A field (V8: no private accessor). */
  length = 0;
  /** Of waits that are over. */
  readonly times: WaitTimes;
  readonly #inOrder: boolean;
  readonly #waits: MemoryWait[] = [];
  /** Attempts that are made now: how many in this call, and the payers of those that are awaited. */
  #attempts = 0;
  readonly #payers: object[] = [];

  /** @param inOrder whether only the first tries; else all do, and something else keeps them from starving each other */
  constructor(inOrder: boolean, times: WaitTimes) {
    this.#inOrder = inOrder;
    this.times = times;
  }

  /** Whether code runs within the call of an attempt. */
  get isTrying(): boolean {
    return this.#attempts > 0;
  }

  /** Memory was freed, or may be by the next attempt. @param payer whose it was */
  memoryFreed(payer?: object): void {
    if (this.isTrying || (payer !== undefined && this.#payers.includes(payer))) return;
    if (this.#inOrder) this.#waits[0]?.wake();
    else this.wakeAll();
  }

  wakeAll(): void {
    for (const wait of this.#waits) wait.wake();
  }

  /** Makes attempts until one does not fail for want of memory. The first is made within this call, if nobody is before it. */
  async run<T>(attempt: () => T, options: WaitOptions, rules: WaitRules): Promise<Awaited<T>> {
    assertWait(options);
    const tries = new TentativeScope();
    try {
      if (this.#inOrder && this.#waits.length > 0) return await this.#wait(attempt, options, rules, tries, undefined);
      try {
        return await this.#attempt(attempt, tries, rules);
      } catch (error) {
        return await this.#wait(attempt, options, rules, tries, shortageOf(error, rules));
      }
    } catch (error) {
      throw seen(error, rules.resource);
    } finally {
      tries.end();
    }
  }

  async #wait<T>(
    attempt: () => T,
    options: WaitOptions,
    rules: WaitRules,
    tries: TentativeScope,
    first: OutOfMemoryError | undefined,
  ): Promise<Awaited<T>> {
    const [began, account] = [performance.now(), currentAccount()];
    const wait = new MemoryWait();
    this.length = this.#waits.push(wait);
    const stop = endingWait(options, (end) => wait.endWith(end));
    if (options.signal?.aborted === true) wait.endWith('aborted');
    let shortage = first;
    try {
      rules.begin(wait);
      // Memory may have been freed since the attempt began.
      if (this.#isTurnOf(wait)) wait.wake();
      else rules.beforeWaiting(wait, false);
      for (;;) {
        await wait.woken();
        if (wait.end === 'aborted') throw options.signal?.reason;
        if (wait.end === 'ended') throw rules.failure(wait.end, shortage);
        const isTurn = this.#isTurnOf(wait);
        if (isTurn) {
          rules.beforeAttempt();
          try {
            return await this.#attempt(attempt, tries, rules);
          } catch (error) {
            shortage = shortageOf(error, rules);
          }
        }
        if (wait.end !== undefined) throw rules.failure(wait.end, shortage);
        const next = rules.beforeWaiting(wait, isTurn);
        if (next === 'give up') throw rules.gaveUp(shortage as OutOfMemoryError);
        if (next === 'try') wait.wake();
      }
    } finally {
      stop();
      this.#waits.splice(this.#waits.indexOf(wait), 1);
      this.length = this.#waits.length;
      rules.over();
      if (this.#inOrder) this.memoryFreed();
      this.times.note(performance.now() - began, account);
    }
  }

  #isTurnOf(wait: MemoryWait): boolean {
    return !this.#inOrder || this.#waits[0] === wait;
  }

  /** What it frees on its way is no reason to try again. */
  #attempt<T>(attempt: () => T, tries: TentativeScope, { payer }: WaitRules): T | Promise<Awaited<T>> {
    const usedBefore = payer?.usedBytes ?? 0;
    let result: T;
    this.#attempts++;
    try {
      result = tentatively(() => tries.run(attempt));
    } finally {
      this.#attempts--;
    }
    return payer === undefined ? result : this.#awaited(result, payer, usedBefore);
  }

  /** What it frees while it is awaited is none either, unless all that it freed is more than it took. */
  async #awaited<T>(result: T, payer: NonNullable<WaitRules['payer']>, usedBefore: number): Promise<Awaited<T>> {
    this.#payers.push(payer);
    try {
      return await result;
    } finally {
      this.#payers.splice(this.#payers.indexOf(payer), 1);
      if (payer.usedBytes < usedBefore) this.memoryFreed(payer);
    }
  }
}

function shortageOf(error: unknown, rules: WaitRules): OutOfMemoryError {
  if (error instanceof OutOfMemoryError && rules.isShortage(error)) return error;
  throw error;
}

/** How long calls have waited. */
export class WaitTimes {
  waits = 0;
  milliseconds = 0;
  longestMilliseconds = 0;

  /** @param account whose call waited */
  note(milliseconds: number, account: Account | undefined): void {
    this.waits++;
    this.milliseconds += milliseconds;
    this.longestMilliseconds = Math.max(this.longestMilliseconds, milliseconds);
    account?.noteWait(milliseconds);
  }
}
