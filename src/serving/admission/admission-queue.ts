import { LiveInstances } from '../../basics/live-instances.js';
import { mailbox, native } from '../../driver/native.js';
import { check } from '../../driver/status.js';
import { finalizationRegistry } from '../../driver/workers/collected-objects.js';

declare module '../../driver/native.js' {
  interface NativeBinding {
    /**
     * From now on, calls a function when requests were decided elsewhere, or when another environment waits in a
     * named queue.
     */
    onAdmissions(callback: () => void): void;
    /**
     * Joins the queue of a name, which environments share, or a new queue if the name is empty.
     * `[1]`: a handle, `[2]` the limit, and `[3]` how often a request may be passed; the environment
     * that opens the queue first decides both.
     *
     * Calls that may decide requests leave in `[1]` how many decided requests of this handle `takeAdmission` can
     * return, and in `[2]` how many requests wait in the queue.
     */
    openAdmission(name: string, limitBytes: number, maximumOvertakes: number): void;
    /** Ends the handle, its requests, and its part of the limit. */
    closeAdmission(handle: number): void;
    /**
     * Hot. In: handle, bytes. `[1]`: 1 if so many bytes of the limit were free, and are now taken.
     */
    takeUnpromised(): void;
    /** Hot. In: handle, bytes, 1 if they belonged to a promise that has ended. May decide requests. */
    giveUnpromised(): void;
    /**
     * Requests bytes, at most the limit. `[3]`: the number of the request. May decide requests.
     * @param holder the holder that asks, or 0 if the requester holds nothing
     * @param grows whether the bytes are added to the holder; otherwise a new holder gets them
     * @param others those who go on only after it was decided, too: the handle and the number of each. If undefined, nothing is requested
     * unless it is admitted within this call: the number is 0 then
     */
    askForAdmission(
      handle: number,
      bytes: number,
      priority: number,
      holder: number,
      grows: boolean,
      others: Float64Array | undefined,
    ): void;
    /**
     * Something in use keeps bytes. `[3]`: its number. May decide requests.
     * @param parties who ends the use as they go on: the handle and the number of each; none if that is unknown
     */
    holdAdmission(handle: number, parties: Float64Array): void;
    endAdmissionHold(handle: number, hold: number): void;
    /** `[3]`: 1 if the request was still waiting; it is then withdrawn. May decide others. */
    withdrawAdmission(handle: number, request: number): void;
    /** Takes back promised bytes that are not used. May decide requests. */
    shrinkAdmission(handle: number, holder: number, bytes: number): void;
    /** Ends a holder that still uses `usedBytes`, and its requests. May decide requests. */
    endAdmission(handle: number, holder: number, usedBytes: number): void;
    /** Ends the requests of the handle, which must not make new ones. May decide requests. */
    stopAdmission(handle: number): void;
    /** `[1]`: a request that was decided, or 0; `[2]` 0 if it was admitted, 1 refused, 2 ended; `[3]` the holder. */
    takeAdmission(handle: number): void;
    /**
     * `[1]` bytes that are promised or in use, `[2]` those of them outside promises, `[3]` holders of promised
     * bytes, `[4]` requests that wait, `[5]` their bytes, `[6]` those of the first, `[7]` admissions, `[8]` how
     * often one passed another, `[9]` deadlocks.
     */
    readAdmission(handle: number): void;
    /** `[1]`: 0, or the number of an invariant that does not hold. */
    validateAdmission(handle: number): void;
    /**
     * Frees memory that ended environments left, if they had part of the limit. May decide requests.
     */
    settleAdmission(handle: number): void;
  }
}

/** A holder of promised bytes. */
export interface Holder {
  /** In the order of admission, over all queues of the process. */
  readonly number: number;
  readonly priority: number;
  promisedBytes: number;
  /** Bytes that are allocated. At most `promisedBytes`, until it has ended. */
  usedBytes: number;
  isEnded: boolean;
  /** How often the upstream was out of memory for bytes that are promised. */
  unserved: number;
  /**
   * The live allocations that count against its promise, and its place among the holders that have
   * some.
   */
  allocations: number;
  place: number;
}

/** How a request ended: `undefined` if its maker withdrew it. */
export type Outcome = { readonly kind: 'admitted'; readonly holder: Holder } | { readonly kind: 'refused' | 'ended' };

/** A holder of some queue. */
export interface HolderOf {
  readonly queue: AdmissionQueue;
  readonly holder: Holder;
}

export interface AdmissionRequest {
  readonly bytes: number;
  readonly priority: number;
  readonly holder?: Holder | undefined;
  /** @defaultValue false */
  readonly grows?: boolean | undefined;
  /** Finds those who go on only after it was decided, besides `holder`. Called only if it has to wait: there may be thousands. */
  readonly waiters?: (() => readonly HolderOf[]) | undefined;
  /** Called once, perhaps within the call of `ask`, unless the request is withdrawn. Must not call back. */
  readonly settle: (outcome: Outcome) => void;
}

/** The promises of a queue, to all environments that share it. */
export interface QueueState {
  /** Bytes that are promised, or still allocated, and so not available. */
  readonly committedBytes: number;
  readonly outsideBytes: number;
  readonly holders: number;
  readonly waiting: number;
  readonly waitingBytes: number;
  /** The bytes that the first waiting request needs. */
  readonly firstBytes: number;
  readonly admitted: number;
  readonly overtakes: number;
  readonly deadlocks: number;
}

const nobody = new Float64Array(0);
const outcomes = ['admitted', 'refused', 'ended'] as const;

function close(handle: number): void {
  native().closeAdmission(handle);
  check('leave a queue for memory');
}

const unreachable = finalizationRegistry<number>('admission queue', 'CISTERN_UNREACHABLE_ADMISSION', close);
const queues = new LiveInstances<AdmissionQueue>();

/**
 * Shares the bytes of a limit among holders and waiting requests, in the order that `native/addon/admission.h`
 * describes. Adaptors of several environments share a queue by its name. It deals only with numbers.
 *
 * The bytes that a holder uses of its promise are counted here, and everything else in native code, so
 * that an allocation in the scope of a grant makes no native call. Neither does one outside of grants,
 * as long as nobody shares the queue and nobody waits: nothing else can then change it, and nobody can be
 * admitted. The native queue is told of those before the next call that reads or changes it.
 */
export class AdmissionQueue {
  readonly limitBytes: number;
  readonly maximumOvertakes: number;
  readonly #handle: number;
  readonly #stillWaiting: () => void;
  readonly #requests = new Map<number, AdmissionRequest>();
  readonly #isShared: boolean;
  /** The free bytes, while nobody shares the queue and nobody waits; else -1. */
  #freeBytes = -1;
  /** Those that were taken outside of grants, and that the native queue has not been told of. */
  #untoldBytes = 0;

  /**
   * @param name of a queue for all environments; empty: for this object
   * @param stillWaiting called if requests still wait after bytes were returned, or after another
   * environment asked; it may return more, and must not throw
   */
  constructor(name: string, limitBytes: number, maximumOvertakes: number, stillWaiting: () => void) {
    this.#stillWaiting = stillWaiting;
    native().openAdmission(name, limitBytes, maximumOvertakes);
    check('make a queue for memory');
    this.#handle = mailbox[1] as number;
    this.limitBytes = mailbox[2] as number;
    this.maximumOvertakes = mailbox[3] as number;
    this.#isShared = name !== '';
    if (!this.#isShared) this.#freeBytes = this.limitBytes;
    unreachable.register(this, this.#handle);
    listen(this);
  }

  /** Reads the state of the queue, over all environments that share it. */
  read(): QueueState {
    this.#tell();
    native().readAdmission(this.#handle);
    check('read a queue for memory');
    const [, committedBytes, outsideBytes, holders, waiting, waitingBytes, firstBytes, admitted, overtakes, deadlocks] =
      mailbox as unknown as readonly number[] & readonly [number, number, number, number, number, number, number, number, number, number];
    return { committedBytes, outsideBytes, holders, waiting, waitingBytes, firstBytes, admitted, overtakes, deadlocks };
  }

  /** Takes bytes without a holder, even if requests wait. Returns false if they are not free. */
  takeOutside(bytes: number): boolean {
    if (bytes > this.#freeBytes) return this.#takeOutside(bytes);
    this.#freeBytes -= bytes;
    this.#untoldBytes += bytes;
    return true;
  }

  giveOutside(bytes: number): void {
    if (this.#freeBytes < 0) {
      this.#giveUnpromised(bytes, 0);
    } else {
      this.#freeBytes += bytes;
      this.#untoldBytes -= bytes;
    }
  }

  #takeOutside(bytes: number): boolean {
    if (this.#freeBytes >= 0) return false;
    // The mailbox holds exact numbers only.
    if (bytes > this.limitBytes) return false;
    mailbox[0] = this.#handle;
    mailbox[1] = bytes;
    native().takeUnpromised();
    if (mailbox[0] !== 0) check('take memory');
    return mailbox[1] === 1;
  }

  /** Uses promised bytes. Returns false if fewer are left. */
  use(holder: Holder, bytes: number): boolean {
    if (bytes > holder.promisedBytes - holder.usedBytes) return false;
    holder.usedBytes += bytes;
    return true;
  }

  /** Frees used bytes. If the holder has ended, they become available to others. */
  unuse(holder: Holder, bytes: number): void {
    holder.usedBytes -= bytes;
    if (holder.isEnded) this.#giveUnpromised(bytes, 1);
  }

  /**
   * Requests bytes, and waits for them if necessary. If the holder grows, they must not exceed the
   * limit together with the bytes that it already has.
   * @returns the number of the request
   */
  ask(request: AdmissionRequest): number {
    this.#tell();
    const number = this.#request(request, undefined) || this.#request(request, pairsOf(request.waiters?.() ?? []));
    this.#requests.set(number, request);
    this.#deliver(this.#noteState());
    return number;
  }

  #request({ bytes, priority, holder, grows = false }: AdmissionRequest, others: Float64Array | undefined): number {
    native().askForAdmission(this.#handle, bytes, priority, holder?.number ?? 0, grows, others);
    check('ask for memory');
    return mailbox[3] as number;
  }

  /**
   * Something in use keeps bytes of the queue until the returned number is passed to `endHold`, which these holders do as they go on; without any, it
   * may happen at any time.
   */
  hold(parties: readonly HolderOf[]): number {
    this.#tell();
    native().holdAdmission(this.#handle, pairsOf(parties));
    check('note a use of memory');
    const number = mailbox[3] as number;
    this.#deliver(this.#noteState());
    return number;
  }

  endHold(number: number): void {
    this.#tell();
    native().endAdmissionHold(this.#handle, number);
    check('end a use of memory');
    this.#deliver(this.#noteState());
  }

  /** @internal Its handle, and the number of one of its holders. */
  pairOf({ number }: Holder): [number, number] {
    return [this.#handle, number];
  }

  /** Ends the wait of a request, if it is still waiting. Returns whether it was. */
  withdraw(number: number): boolean {
    this.#tell();
    native().withdrawAdmission(this.#handle, number);
    check('withdraw a request for memory');
    const wasWaiting = mailbox[3] === 1;
    if (wasWaiting) this.#requests.delete(number);
    this.#deliver(this.#noteState());
    return wasWaiting;
  }

  /** Takes back promised bytes that are not used. */
  shrink(holder: Holder, bytes: number): void {
    this.#tell();
    native().shrinkAdmission(this.#handle, holder.number, bytes);
    check('give promised memory back');
    holder.promisedBytes -= bytes;
    this.#gaveBack();
  }

  /** Ends a holder. The bytes that it uses stay committed until they are freed. */
  end(holder: Holder): void {
    if (holder.isEnded) return;
    this.#tell();
    native().endAdmission(this.#handle, holder.number, holder.usedBytes);
    check('end a grant');
    holder.isEnded = true;
    this.#gaveBack();
  }

  /** Ends every wait of this object, which must not make new requests. */
  stop(): void {
    this.#tell();
    native().stopAdmission(this.#handle);
    check('end waits for memory');
    this.#deliver(this.#noteState());
  }

  /** Frees memory that ended environments have left, if they had part of the limit. */
  settle(): void {
    this.#tell();
    native().settleAdmission(this.#handle);
    check('free what ended workers left');
    this.#gaveBack();
  }

  /** Throws if an invariant does not hold. For tests. */
  validate(): void {
    native().validateAdmission(this.#handle);
    check('validate a queue for memory');
    if (mailbox[1] !== 0) throw new Error(`admission: invariant ${mailbox[1]} does not hold`);
    const { committedBytes, waiting } = this.read();
    const free = this.#isShared || waiting > 0 ? -1 : this.limitBytes - committedBytes;
    if (free !== this.#freeBytes) throw new Error(`admission: ${free} bytes are free, not ${this.#freeBytes}`);
  }

  /** @internal Requests were decided elsewhere, or requests wait. */
  wake(): void {
    this.deliver();
    if (this.read().waiting > 0) this.#stillWaiting();
  }

  /** @internal Settles the requests that were decided elsewhere. */
  deliver(): void {
    this.#deliver(Number.POSITIVE_INFINITY);
    if (this.#isShared || this.#freeBytes >= 0) return;
    const { waiting, committedBytes } = this.read();
    // Allocations outside of grants need no native call any more.
    if (waiting === 0) this.#freeBytes = this.limitBytes - committedBytes;
  }

  /** Tells the native queue what was taken and given outside of grants, which admits and refuses nobody. */
  #tell(): void {
    const bytes = this.#untoldBytes;
    if (bytes === 0) return;
    mailbox[0] = this.#handle;
    mailbox[1] = Math.abs(bytes);
    mailbox[2] = 0;
    if (bytes > 0) native().takeUnpromised();
    else native().giveUnpromised();
    check('tell a queue what is taken');
    this.#untoldBytes = 0;
  }

  /** Keeps what a call has told of the queue. Returns how many requests of this object it has decided. */
  #noteState(): number {
    const [, decided, waiting, , free, isDecidedBeside] = mailbox as unknown as readonly [number, number, number, number, number, 0 | 1];
    this.#freeBytes = this.#isShared || waiting > 0 ? -1 : free;
    if (isDecidedBeside === 1) for (const queue of queues.all()) if (queue !== this) queue.deliver();
    return decided;
  }

  #giveUnpromised(bytes: number, ofEnded: 0 | 1): void {
    this.#tell();
    mailbox[0] = this.#handle;
    mailbox[1] = bytes;
    mailbox[2] = ofEnded;
    native().giveUnpromised();
    if (mailbox[0] !== 0) check('give memory back');
    this.#gaveBack();
  }

  /** To be called after a native call that returned bytes. */
  #gaveBack(): void {
    const waiting = mailbox[2] as number;
    this.#deliver(this.#noteState());
    if (waiting > 0) this.#stillWaiting();
  }

  /** Settles at most `most` decided requests. */
  #deliver(most: number): void {
    for (let left = most; left > 0; left--) {
      native().takeAdmission(this.#handle);
      check('take what became of a request');
      const [, number, kind, holder] = mailbox as unknown as readonly [number, number, 0 | 1 | 2, number];
      if (number === 0) return;
      const request = this.#requests.get(number) as AdmissionRequest;
      this.#requests.delete(number);
      const outcome = outcomes[kind];
      if (outcome === 'admitted') request.settle({ kind: outcome, holder: admit(request, holder) });
      else request.settle({ kind: outcome });
    }
  }
}

function pairsOf(holders: readonly HolderOf[]): Float64Array {
  return holders.length === 0 ? nobody : Float64Array.from(holders.flatMap(({ queue, holder }) => queue.pairOf(holder)));
}

function admit({ bytes, priority, holder, grows = false }: AdmissionRequest, number: number): Holder {
  if (!grows) return { number, priority, promisedBytes: bytes, usedBytes: 0, isEnded: false, unserved: 0, allocations: 0, place: 0 };
  const growing = holder as Holder;
  growing.promisedBytes += bytes;
  return growing;
}

/** From now on, a queue is notified of calls by other environments, by a function that replaces the one before. */
function listen(queue: AdmissionQueue): void {
  queues.add(queue);
  native().onAdmissions(() => {
    for (const each of queues.all()) each.wake();
  });
  check('wait for memory');
}
