/**
 * Who may have how many bytes of a limit, and who waits for them. Knows only numbers: no memory, no
 * promises of JavaScript, no time.
 *
 *     limit  ├── holder 1: promised ──┤── holder 2 ──┤─ ended: still used ─┤─ outside ─┤── free ──┤
 *     queue  holder 2 wants more  ►  priority 5: request 7  ►  priority 0: request 4  ►  request 6
 *
 * Whoever holds something and wants more comes first, since what it holds comes back only when it goes on;
 * then higher priorities; then earlier requests. A later request may pass one that does not fit yet, but
 * each is passed at most `maximumOvertakes` times: then no new holder is admitted before it.
 *
 * If all who hold something wait for more, nothing can come back. Then the youngest of the lowest
 * priority is refused, and may go on with what it has, give back, or try again.
 *
 * Invariants: committed = Σ promised of the holders + Σ used of the ended ones + outside ≤ limit;
 * nobody waits who fits, unless it is new and somebody before it was passed as often as allowed; not all
 * holders wait.
 * Cost: a request and a return look at each waiting request once.
 */
import type { Payer } from '../../lifetimes/payer-numbers.js';

/** Who holds promised bytes. */
export interface Holder extends Payer {
  /** In the order of admission. */
  readonly number: number;
  readonly priority: number;
  promisedBytes: number;
  /** Bytes that are allocated. At most `promisedBytes`, until it has ended. */
  usedBytes: number;
  /** How many requests of it are waiting. */
  waits: number;
  isEnded: boolean;
}

/** How a request ended: `undefined` if it was withdrawn by whoever made it. */
export type Outcome = { readonly kind: 'admitted'; readonly holder: Holder } | { readonly kind: 'refused' | 'ended' };

/** A request that is waiting. */
export interface WaitingRequest {
  readonly bytes: number;
  readonly priority: number;
  readonly number: number;
  /** Who made it, if that holds something. */
  readonly holder: Holder | undefined;
  /** Whether the holder is to have the bytes; otherwise a new one is. */
  readonly grows: boolean;
  /** How often a later request was admitted before it. */
  overtaken: number;
  readonly settle: (outcome: Outcome) => void;
}

export interface AdmissionRequest {
  readonly bytes: number;
  readonly priority: number;
  readonly holder?: Holder | undefined;
  /** @defaultValue false */
  readonly grows?: boolean;
  /** Called once, perhaps within the call of `ask`, unless the request is withdrawn. Must not call back. */
  readonly settle: (outcome: Outcome) => void;
}

export class AdmissionQueue {
  readonly limitBytes: number;
  readonly #maximumOvertakes: number;
  readonly #stillWaiting: () => void;
  readonly #holders = new Set<Holder>();
  /** In the order in which they are looked at. */
  readonly #waiting: WaitingRequest[] = [];
  #committedBytes = 0;
  #outsideBytes = 0;
  #waitingHolders = 0;
  #requests = 0;
  #admitted = 0;
  #overtakes = 0;
  #deadlocks = 0;

  /** @param stillWaiting called when bytes were given back, and somebody waits nevertheless; it may give more back */
  constructor(limitBytes: number, maximumOvertakes: number, stillWaiting: () => void = () => {}) {
    this.limitBytes = limitBytes;
    this.#maximumOvertakes = maximumOvertakes;
    this.#stillWaiting = stillWaiting;
  }

  /** Bytes that nobody else can have: promised, used by ended holders, or outside. */
  get committedBytes(): number {
    return this.#committedBytes;
  }

  get outsideBytes(): number {
    return this.#outsideBytes;
  }

  get holders(): number {
    return this.#holders.size;
  }

  get waiting(): readonly WaitingRequest[] {
    return this.#waiting;
  }

  get admitted(): number {
    return this.#admitted;
  }

  get overtakes(): number {
    return this.#overtakes;
  }

  get deadlocks(): number {
    return this.#deadlocks;
  }

  /** Takes bytes for no holder, whoever waits. Returns false if they are not free. */
  takeOutside(bytes: number): boolean {
    if (bytes > this.limitBytes - this.#committedBytes) return false;
    this.#committedBytes += bytes;
    this.#outsideBytes += bytes;
    return true;
  }

  giveOutside(bytes: number): void {
    this.#outsideBytes -= bytes;
    this.#giveBack(bytes);
  }

  /** Uses promised bytes. Returns false if so many are not left. */
  use(holder: Holder, bytes: number): boolean {
    if (bytes > holder.promisedBytes - holder.usedBytes) return false;
    holder.usedBytes += bytes;
    return true;
  }

  /** What was used is free; of an ended holder, for others. */
  unuse(holder: Holder, bytes: number): void {
    holder.usedBytes -= bytes;
    if (holder.isEnded) this.#giveBack(bytes);
  }

  /** Asks for bytes, and waits for them if need be. They must be less than the limit, with what the holder has if it grows. */
  ask({ bytes, priority, holder, grows = false, settle }: AdmissionRequest): WaitingRequest {
    const request: WaitingRequest = { bytes, priority, number: ++this.#requests, holder, grows, overtaken: 0, settle };
    let at = this.#waiting.length;
    while (at > 0 && comesBefore(request, this.#waiting[at - 1] as WaitingRequest)) at--;
    this.#waiting.splice(at, 0, request);
    if (holder !== undefined) this.#beginWait(holder);
    this.#advance();
    return request;
  }

  /** Ends the wait of a request, if it is still waiting. Returns whether it was. */
  withdraw(request: WaitingRequest): boolean {
    const at = this.#waiting.indexOf(request);
    if (at < 0) return false;
    this.#remove(at);
    this.#advance();
    return true;
  }

  /** Takes promised bytes back that are not used. */
  shrink(holder: Holder, bytes: number): void {
    holder.promisedBytes -= bytes;
    if (holder.promisedBytes === 0) this.#forget(holder);
    this.#giveBack(bytes);
  }

  /** The holder needs nothing more. What it uses stays committed until it is free. */
  end(holder: Holder): void {
    if (holder.isEnded) return;
    for (let at = this.#waiting.length - 1; at >= 0; at--) {
      const request = this.#waiting[at] as WaitingRequest;
      if (request.holder !== holder) continue;
      this.#remove(at);
      request.settle({ kind: 'ended' });
    }
    holder.isEnded = true;
    this.#forget(holder);
    this.#giveBack(holder.promisedBytes - holder.usedBytes);
  }

  /** Ends every wait. */
  endWaits(): void {
    while (this.#waiting.length > 0) this.#remove(this.#waiting.length - 1).settle({ kind: 'ended' });
  }

  /** Throws if an invariant does not hold. For tests. */
  validate(): void {
    let promised = this.#outsideBytes;
    let waitingHolders = 0;
    for (const holder of this.#holders) {
      if (holder.isEnded || holder.usedBytes < 0 || holder.usedBytes > holder.promisedBytes)
        throw new Error('admission: a holder is wrong');
      promised += holder.promisedBytes;
      if (holder.waits > 0) waitingHolders++;
    }
    if (promised > this.#committedBytes || this.#committedBytes > this.limitBytes) throw new Error('admission: the sum of bytes is wrong');
    if (waitingHolders !== this.#waitingHolders) throw new Error('admission: the waiting holders are not counted right');
    if (waitingHolders > 0 && waitingHolders === this.#holders.size) throw new Error('admission: all holders wait');
    let isClosed = false;
    for (const request of this.#waiting) {
      if (request.overtaken > this.#maximumOvertakes) throw new Error('admission: a request was passed too often');
      if (isClosed && request.holder === undefined) break;
      if (this.#fits(request)) throw new Error('admission: a request waits that fits');
      isClosed ||= request.overtaken === this.#maximumOvertakes;
    }
  }

  #giveBack(bytes: number): void {
    this.#committedBytes -= bytes;
    this.#advance();
    if (this.#waiting.length > 0) this.#stillWaiting();
  }

  #fits({ bytes }: WaitingRequest): boolean {
    return bytes <= this.limitBytes - this.#committedBytes;
  }

  /** Admits whom it can, and refuses somebody if nobody could ever go on. */
  #advance(): void {
    this.#admitFitting();
    while (this.#waitingHolders > 0 && this.#waitingHolders === this.#holders.size) {
      this.#deadlocks++;
      this.#remove(this.#waiting.indexOf(this.#victim())).settle({ kind: 'refused' });
      this.#admitFitting();
    }
  }

  #admitFitting(): void {
    for (let at = 0, isClosed = false; at < this.#waiting.length; ) {
      const request = this.#waiting[at] as WaitingRequest;
      const isNew = request.holder === undefined;
      if (isClosed && isNew) return;
      if (this.#fits(request)) {
        this.#remove(at);
        if (isNew) for (let earlier = 0; earlier < at; earlier++) this.#overtake(this.#waiting[earlier] as WaitingRequest);
        this.#admit(request);
        at = 0;
        isClosed = false;
      } else {
        isClosed ||= request.overtaken >= this.#maximumOvertakes;
        at++;
      }
    }
  }

  #overtake(request: WaitingRequest): void {
    request.overtaken++;
    this.#overtakes++;
  }

  #admit({ bytes, priority, holder, grows, settle }: WaitingRequest): void {
    this.#committedBytes += bytes;
    this.#admitted++;
    if (holder !== undefined && grows) {
      holder.promisedBytes += bytes;
      if (!this.#holders.has(holder) && bytes > 0) this.#hold(holder);
      settle({ kind: 'admitted', holder });
      return;
    }
    const admitted: Holder = {
      number: this.#admitted,
      priority,
      promisedBytes: bytes,
      usedBytes: 0,
      waits: 0,
      isEnded: false,
      allocations: 0,
      place: 0,
    };
    if (bytes > 0) this.#hold(admitted);
    settle({ kind: 'admitted', holder: admitted });
  }

  /** The request of the youngest holder of the lowest priority. */
  #victim(): WaitingRequest {
    let victim: WaitingRequest | undefined;
    for (const request of this.#waiting) {
      const { holder } = request;
      if (holder === undefined || !this.#holders.has(holder)) continue;
      if (victim === undefined || isLess(holder, victim.holder as Holder)) victim = request;
    }
    return victim as WaitingRequest;
  }

  #beginWait(holder: Holder): void {
    if (holder.waits++ === 0 && this.#holders.has(holder)) this.#waitingHolders++;
  }

  #remove(at: number): WaitingRequest {
    const [request] = this.#waiting.splice(at, 1) as [WaitingRequest];
    const { holder } = request;
    if (holder !== undefined && --holder.waits === 0 && this.#holders.has(holder)) this.#waitingHolders--;
    return request;
  }

  #hold(holder: Holder): void {
    this.#holders.add(holder);
    if (holder.waits > 0) this.#waitingHolders++;
  }

  #forget(holder: Holder): void {
    if (this.#holders.delete(holder) && holder.waits > 0) this.#waitingHolders--;
  }
}

function comesBefore(one: WaitingRequest, other: WaitingRequest): boolean {
  const holds = Number(one.holder !== undefined) - Number(other.holder !== undefined);
  return holds > 0 || (holds === 0 && one.priority > other.priority);
}

function isLess(one: Holder, other: Holder): boolean {
  return one.priority < other.priority || (one.priority === other.priority && one.number > other.number);
}
