import { channel } from 'node:diagnostics_channel';
import { PassThroughAdaptor } from '../../adaptors/pass-through/pass-through-adaptor.js';
import type { RoomGiver } from '../../adaptors/room-for-limits.js';
import {
  ArgumentRangeError,
  ArgumentTypeError,
  formatValue,
  NotAdmittedError,
  type NotAdmittedReason,
  OutOfMemoryError,
} from '../../basics/errors.js';
import { LiveInstances } from '../../basics/live-instances.js';
import { ALLOCATION_ALIGNMENT, alignUp, formatBytes } from '../../basics/units.js';
import { assertBytes, assertName, assertOptions, assertShared, optionNames } from '../../basics/validation.js';
import { runCollectionStage } from '../../collector/when-memory-is-short.js';
import type { Stream } from '../../driver/streams/stream.js';
import type { DeallocationEventsOption, DeallocationFence, DevicePointer, MemoryResource } from '../../memory-resource.js';
import { ResourcesAbove } from '../../observing/resources-above.js';
import { defineAdaptor } from '../../resource-kind.js';
import { AddressMap } from '../../suballocation/address-map.js';
import { none } from '../../suballocation/blocks.js';
import { currentAccount } from '../accounts/account.js';
import { PayerNumbers } from '../accounts/small-numbers.js';
import { collectWhileWaiting, keepAliveIfAsked, stopCollectingFor, type WaitingCalls } from '../waiting/collect-while-waiting.js';
import { assertWait, endingWait, type WaitOptions, waitOptionNames } from '../waiting/wait-options.js';
import { WaitingLine, WaitTimes } from '../waiting/waiting-line.js';
import { AdmissionQueue, type Holder, type Outcome } from './admission-queue.js';
import type { AdmissionStatistics } from './admission-statistics.js';
import { CurrentHolder, Grant, type GrantWaits, grantsInScope, promisedBytes, unexpectedEnd } from './grant.js';
import { Retry } from './retry.js';

/** Options of {@link AdmittingResourceAdaptor}. */
export interface AdmittingResourceAdaptorOptions extends DeallocationEventsOption {
  /** The most bytes that may be promised or allocated at the same time, from 0 to 2^53 - 1. */
  readonly limitBytes: number;
  /**
   * How often a waiting request may be passed by later ones that fit while it does not: an integer of at
   * least 0. With 0, requests of one priority are admitted strictly in order, and memory is unused while
   * the first does not fit.
   * @defaultValue 16
   */
  readonly maximumOvertakes?: number | undefined;
  /**
   * A name. Adaptors with the same name, in all workers of the process, share one limit and one queue, and
   * must have the same `limitBytes` and `maximumOvertakes`.
   * @defaultValue not set: the limit is this adaptor's own
   */
  readonly shared?: string | undefined;
}

/** Options of {@link AdmittingResourceAdaptor.reserve}. */
export interface ReserveOptions extends WaitOptions {
  /**
   * A finite number. Requests with a higher priority are admitted first, even if others have waited
   * longer.
   * @defaultValue 0
   */
  readonly priority?: number | undefined;
}

/** The message on the diagnostics channel `cistern:admission`, when a request begins to wait, and when its wait ends. */
export interface AdmissionEvent {
  readonly event: 'waiting' | 'admitted' | 'not-admitted';
  /** The adaptor. */
  readonly resource: MemoryResource;
  readonly bytes: number;
  readonly priority: number;
  /** How many requests wait now. */
  readonly waiting: number;
  /** How long this one has waited. */
  readonly waitedMilliseconds: number;
}

const knownOptions = optionNames<AdmittingResourceAdaptorOptions>({
  deallocationEvents: true,
  limitBytes: true,
  maximumOvertakes: true,
  shared: true,
});
const reserveOptions = optionNames<ReserveOptions>({ priority: true, signal: true, timeoutMilliseconds: true });
const events = channel('cistern:admission');

const instances = new LiveInstances<AdmittingResourceAdaptor>();

/** @internal The adaptors of this environment that are neither disposed nor collected, in the order of construction. */
export function liveAdmittingAdaptors(): AdmittingResourceAdaptor[] {
  return instances.all();
}

/** A request, with its options. */
interface Wait {
  readonly bytes: number;
  readonly priority: number;
  readonly holder: Holder | undefined;
  readonly grows: boolean;
  readonly options: WaitOptions;
}

/** How a wait ended without a holder. */
type Failure = 'refused' | 'ended' | 'timeout' | 'aborted';

/**
 * Promises memory before it is allocated, and lets requests wait for it: `await resource.reserve(bytes)`
 * resolves with a {@link Grant} once that many bytes of the limit are free. Allocations in the grant's scope,
 * up to these bytes, cannot fail because of the limit, so a request does not run out of memory halfway through
 * its work.
 *
 * - Requests of one priority are admitted in order. One that fits may pass one that does not, but each is passed
 *   at most `maximumOvertakes` times, so none starves. Higher priorities come first, without a bound.
 * - Waits never deadlock: if all holders of promised memory wait for more, the youngest request of the lowest
 *   priority is refused. After this error, it can return memory and try again. A `reserve`, {@link Grant.grow} or {@link Grant.retry}
 *   counts as a wait of every grant in whose scope it is called, and has the age and the priority of the oldest of them. This covers all
 *   adaptors of the process: two requests, or two workers, that each hold memory of one and wait for the other's are found as well.
 * - A request that exceeds the limit is refused immediately.
 * - Allocations outside all grants take free bytes, even if requests wait, and never wait
 *   themselves.
 * - With the option `shared`, this applies to all workers of the process together: their requests
 *   are in one queue. Memory that a worker held when it ended counts until it has been freed.
 *   Pending requests keep a worker alive.
 * - Without `shared`, a pending request does not keep the process alive, since only the process itself could return
 *   memory. It does while a {@link SpillingResourceAdaptor} above could free memory for it but was refused, for example
 *   because the host has none left: that is tried again every second.
 *
 * A promise concerns bytes of the limit, not whether the upstream has them in one piece. Over a pool on a {@link
 * VirtualMemoryResource}, any free pages are one piece. {@link Grant.retry} waits where they are not.
 *
 * Bytes count rounded up to a multiple of 256. Stream order and alignment are those of the upstream. Freed
 * memory counts as free immediately, even if its stream still uses it; the upstream keeps the stream order.
 *
 * RMM has no counterpart; rapidsmpf's `reserve_or_wait` and Spark's adaptor for RMM do this.
 * @example
 * ```ts
 * using upstream = new CudaMemoryResource();
 * using pool = new PoolMemoryResource(upstream);
 * using resource = new AdmittingResourceAdaptor(pool, { limitBytes: 4 * GiB });
 * using stream = new Stream();
 * async function answer(request: Uint8Array, signal: AbortSignal): Promise<Uint8Array> {
 *   using grant = await resource.reserve(2 * request.byteLength, { signal, timeoutMilliseconds: 10_000 });
 *   return await grant.run(async () => {
 *     using input = new DeviceBuffer(request, { stream, resource });
 *     using output = new DeviceBuffer(input, { stream, resource });
 *     return output.toHost();
 *   });
 * }
 * console.log((await answer(new Uint8Array(1000), new AbortController().signal)).byteLength);
 * ```
 */
export class AdmittingResourceAdaptor extends PassThroughAdaptor {
  /** @internal */
  static override readonly name = 'AdmittingResourceAdaptor';
  readonly limitBytes: number;
  readonly #queue: AdmissionQueue;
  readonly #current: CurrentHolder;
  /** The number of the holder that each live allocation counts against. */
  readonly #taken = new AddressMap();
  readonly #users = new PayerNumbers<Holder>();
  readonly #registration = instances.add(this);
  readonly #above = new ResourcesAbove<RoomGiver>();
  readonly #waits: GrantWaits = {
    grow: (holder, bytes, options) => this.#grow(holder, bytes, options),
    retry: (holder, attempt, options) => this.#retry(holder, attempt, options),
  };
  readonly #times = new WaitTimes();
  readonly #waitingCalls: WaitingCalls = {
    // A process that only waits for a refused spill to be tried again goes on. For a grant that nobody returns, it does not: nothing can end that wait.
    keepProcessAlive: () => this.#isSpillRefused && this.#queue.read().waiting > 0,
    served: () => this.#queue.read().admitted,
    onSecond: (isStalled) => this.#onSecond(isStalled),
  };
  /** Of grants that try again; all do at each free, and the queue keeps them from starving each other. */
  readonly #retryLine = new WaitingLine(false, this.#times);
  #isSpilling = false;
  /** Whether a spill for the first waiting request was refused. */
  #isSpillRefused = false;
  #admittedAfterWait = 0;
  #refusedTooLarge = 0;
  #refusedAfterTimeout = 0;
  #aborted = 0;

  /** @throws ArgumentTypeError, ArgumentRangeError for an invalid option. */
  constructor(upstream: MemoryResource, options: AdmittingResourceAdaptorOptions) {
    super(upstream, options, knownOptions);
    const { limitBytes, maximumOvertakes = 16, shared } = options;
    assertBytes(limitBytes, 'limitBytes');
    assertBytes(maximumOvertakes, 'maximumOvertakes');
    if (shared !== undefined) assertName(shared, 'shared');
    this.limitBytes = limitBytes;
    this.#queue = new AdmissionQueue(shared ?? '', limitBytes, maximumOvertakes, () => this.admitBySpilling());
    // A refused adaptor must not keep the name in use.
    if (limitBytes !== this.#queue.limitBytes || maximumOvertakes !== this.#queue.maximumOvertakes) this.#queue.stop();
    assertShared(limitBytes, this.#queue.limitBytes, shared, 'limitBytes');
    assertShared(maximumOvertakes, this.#queue.maximumOvertakes, shared, 'maximumOvertakes');
    this.#current = new CurrentHolder(this.#queue);
  }

  /**
   * Waits until this many bytes can be promised.
   * @param bytes an integer from 0 to 2^53 - 1; rounded up to a multiple of 256
   * @throws NotAdmittedError: `'too-large'` if they exceed the limit; `'timeout'`; `'deadlock'` if
   * the call is in the scope of a grant, of this or another resource, all holders of promised memory wait for more, and this
   * request is the youngest of the lowest priority.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if this object is disposed, even during the wait;
   * ArgumentTypeError, ArgumentRangeError for invalid arguments; the reason of the signal.
   */
  async reserve(bytes: number, options: ReserveOptions = {}): Promise<Grant> {
    this.assertLive('reserve memory');
    const promised = promisedBytes(bytes);
    assertOptions(options, reserveOptions);
    const { priority = 0 } = options;
    if (typeof priority !== 'number') throw new ArgumentTypeError(`priority must be a number, got ${formatValue(priority)}`);
    if (!Number.isFinite(priority)) throw new ArgumentRangeError(`priority must be a finite number, got ${priority}`);
    const found = await this.#admitted({ bytes: promised, priority, holder: this.#current.find(), grows: false, options });
    return new Grant(this.#queue, found, this.#waits);
  }

  /** The promises and the waiting requests. */
  statistics(): AdmissionStatistics {
    const { committedBytes, outsideBytes, holders, waiting, waitingBytes, admitted, overtakes, deadlocks } = this.#queue.read();
    return Object.freeze({
      limitBytes: this.limitBytes,
      committedBytes,
      outsideBytes,
      grants: holders,
      waiting,
      waitingBytes,
      admitted,
      admittedAfterWait: this.#admittedAfterWait,
      waitedMilliseconds: this.#times.milliseconds,
      longestWaitMilliseconds: this.#times.longestMilliseconds,
      overtakes,
      refusedTooLarge: this.#refusedTooLarge,
      refusedAfterTimeout: this.#refusedAfterTimeout,
      refusedInDeadlock: deadlocks,
      aborted: this.#aborted,
    });
  }

  /** Throws if the data structures are inconsistent. For tests. */
  validate(): void {
    this.#queue.validate();
  }

  /**
   * @throws OutOfMemoryError, with `availableBytes` and `limitBytes`, if the grant in whose scope the call is has
   * fewer bytes left, or, outside all grants, if the limit has; also the upstream's error.
   */
  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    this.assertUsable(stream);
    assertBytes(bytes);
    const takenBytes = alignUp(bytes, ALLOCATION_ALIGNMENT);
    const holder = this.#current.find();
    const isTaken = holder === undefined ? this.#queue.takeOutside(takenBytes) : this.#queue.use(holder, takenBytes);
    if (!isTaken) throw this.#shortage(bytes, holder);
    try {
      const pointer = this.served(this.upstream.allocate(bytes, stream, alignment), bytes, stream);
      if (holder !== undefined && pointer !== 0) this.#taken.insert(pointer, this.#users.add(holder));
      return pointer;
    } catch (error) {
      if (holder === undefined) this.#queue.giveOutside(takenBytes);
      else this.#undo(holder, takenBytes, error);
      throw this.passOn(error);
    }
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    // Removed before the call, because a host function that runs during it may get the same memory
    // again.
    const number = typeof pointer === 'number' ? this.#taken.take(pointer) : none;
    try {
      this.freed(this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents));
    } catch (error) {
      if (number !== none) this.#taken.insert(pointer, number);
      throw error;
    }
    if (pointer === 0) return;
    const takenBytes = alignUp(bytes, ALLOCATION_ALIGNMENT);
    if (this.#retryLine.length > 0) this.#returnAwaited(number, takenBytes);
    else this.#return(number, takenBytes);
  }

  #return(number: number, takenBytes: number): void {
    if (number === none) this.#queue.giveOutside(takenBytes);
    else this.#queue.unuse(this.#users.remove(number), takenBytes);
  }

  /** Apart (V8: inlining): a grant waits until memory is freed. */
  #returnAwaited(number: number, takenBytes: number): void {
    const holder = number === none ? undefined : this.#users.get(number);
    this.#return(number, takenBytes);
    this.#retryLine.memoryFreed(holder);
  }

  #undo(holder: Holder, bytes: number, error: unknown): void {
    if (error instanceof OutOfMemoryError) holder.unserved++;
    this.#queue.unuse(holder, bytes);
  }

  /**
   * Ends allocation through this object, and all waits. Memory allocated through it can still be freed
   * through it. Does not dispose the upstream. A second call does nothing.
   */
  override [Symbol.dispose](): void {
    super[Symbol.dispose]();
    instances.delete(this.#registration);
    this.#queue.stop();
  }

  /** @internal Where uses of its memory are noted. */
  get queue(): AdmissionQueue {
    return this.#queue;
  }

  /** @internal Uses memory of a resource above for waiting requests. */
  takeFrom(resource: RoomGiver): void {
    this.#above.add(resource);
  }

  /** @internal Admits waiting requests, always the first one, as long as memory above can be freed for them. */
  admitBySpilling(): void {
    // Each free on the way calls this function again.
    if (this.#isSpilling || this.#above.isEmpty) return;
    this.#isSpilling = true;
    try {
      while (this.#admitsBySpilling());
    } finally {
      this.#isSpilling = false;
    }
    keepAliveIfAsked();
  }

  /** Frees memory above for the first waiting request. Returns whether a request was admitted. */
  #admitsBySpilling(): boolean {
    this.#isSpillRefused = false;
    const before = this.#queue.read();
    if (before.waiting === 0) return false;
    const missing = before.firstBytes - (this.limitBytes - before.committedBytes);
    // Memory that a grant has used stays promised to it.
    const helps = (pointer: DevicePointer) => {
      const number = this.#taken.get(pointer);
      return number === none || this.#users.get(number).isEnded;
    };
    const given = this.#above.fromTheTop().some((resource) => {
      const outcome = resource.giveIfEnough(missing, helps);
      if (outcome === 'refused') this.#isSpillRefused = true;
      return outcome === 'given';
    });
    return given && this.#queue.read().admitted > before.admitted;
  }

  async #grow(holder: Holder, bytes: number, options: WaitOptions): Promise<void> {
    this.assertLive('grow a grant');
    const promised = promisedBytes(bytes);
    assertOptions(options, waitOptionNames);
    await this.#admitted({ bytes: promised, priority: holder.priority, holder, grows: true, options });
  }

  async #retry<T>(holder: Holder, attempt: () => T, options: WaitOptions): Promise<Awaited<T>> {
    this.assertLive('run a function');
    assertOptions(options, waitOptionNames);
    const retry = new Retry(this.#queue, holder, () => {
      this.#collectForFirst();
      collectWhileWaiting(this.#waitingCalls);
    });
    return await this.#retryLine.run(attempt, options, retry);
  }

  /**
   * The holder for which a request was admitted. Everything is decided in the turn of this call, or
   * of the call that ends the wait.
   */
  async #admitted(wait: Wait): Promise<Holder> {
    const { bytes, holder, grows, options } = wait;
    assertWait(options);
    if (bytes > this.limitBytes - (grows ? (holder as Holder).promisedBytes : 0)) {
      this.#refusedTooLarge++;
      throw this.#refusal(wait, 'too-large');
    }
    const began = performance.now();
    const outcome = await this.#settled(wait, began);
    if (typeof outcome !== 'string') return outcome;
    this.#announce('not-admitted', wait, performance.now() - began);
    if (outcome === 'timeout') this.#refusedAfterTimeout++;
    if (outcome === 'aborted') this.#aborted++;
    if (outcome === 'aborted') throw options.signal?.reason;
    throw outcome === 'ended' ? unexpectedEnd(bytes) : this.#refusal(wait, outcome === 'timeout' ? 'timeout' : 'deadlock');
  }

  #settled(wait: Wait, began: number): Promise<Holder | Failure> | Holder | Failure {
    const { bytes, priority, holder, grows, options } = wait;
    const account = currentAccount();
    let settled: Holder | Failure | undefined;
    let wake = (_result: Holder | Failure) => {};
    const settle = (outcome: Outcome) => {
      settled = outcome.kind === 'admitted' ? outcome.holder : outcome.kind;
      wake(settled);
    };
    const request = this.#queue.ask({ bytes, priority, holder, grows, waiters: grantsInScope, settle });
    if (settled === undefined) this.#collectForFirst();
    if (settled === undefined) this.admitBySpilling();
    if (settled !== undefined) return settled;
    this.#announce('waiting', wait, 0);
    collectWhileWaiting(this.#waitingCalls);
    const withdraw = (failure: Failure) => {
      if (this.#queue.withdraw(request)) wake(failure);
    };
    return new Promise((resolve) => {
      const stop = endingWait(options, withdraw);
      wake = (result) => {
        stop();
        this.#times.note(performance.now() - began, account);
        if (typeof result !== 'string') this.#admittedAfterWait++;
        resolve(result);
      };
      if (settled !== undefined) wake(settled);
      else if (options.signal?.aborted === true) withdraw('aborted');
    }).then((result) => {
      keepAliveIfAsked();
      if (typeof result !== 'string') this.#announce('admitted', wait, performance.now() - began);
      return result as Holder | Failure;
    });
  }

  /**
   * If no grant can return memory, only the garbage collector can. It is called once for all requests
   * that wait then.
   */
  #collectForFirst(): void {
    runCollectionStage('settle');
    const { waiting, holders } = this.#queue.read();
    if (waiting === 1 && holders === 0) runCollectionStage('major-collection');
  }

  /** If no request was admitted for a second, workers that have ended may have left memory. */
  #onSecond(isStalled: boolean): void {
    if (this.#queue.read().waiting === 0) stopCollectingFor(this.#waitingCalls);
    else if (isStalled) this.#queue.settle();
    // Other workers may have freed memory.
    this.#retryLine.wakeAll();
  }

  #announce(event: AdmissionEvent['event'], { bytes, priority }: Wait, waitedMilliseconds: number): void {
    if (!events.hasSubscribers) return;
    const message: AdmissionEvent = { event, resource: this, bytes, priority, waiting: this.#queue.read().waiting, waitedMilliseconds };
    events.publish(message);
  }

  #refusal({ bytes: requestedBytes, holder, grows }: Wait, reason: NotAdmittedReason): NotAdmittedError {
    const { limitBytes } = this;
    const { committedBytes, waiting, holders } = this.#queue.read();
    const promised = holder?.promisedBytes ?? 0;
    const deadlock =
      holders === 1 && holder !== undefined
        ? `no other grant holds memory that could be returned, and ${formatBytes(committedBytes - promised)} are allocated outside grants`
        : `all grants that hold memory wait for more, here or of other resources, and this request is the youngest of the lowest priority`;
    const others = waiting === 1 ? '1 other request' : `${waiting} other requests`;
    const why = {
      'too-large': `the limit is ${formatBytes(limitBytes)}`,
      timeout: `the time is over, and ${formatBytes(limitBytes - committedBytes)} of ${formatBytes(limitBytes)} are free, with ${others} waiting`,
      deadlock: `${deadlock}; return some memory before you try again`,
    }[reason];
    const more = grows ? ` more to a grant that has ${formatBytes(promised)}` : '';
    return new NotAdmittedError(`cannot promise ${formatBytes(requestedBytes)} (${requestedBytes} bytes)${more}: ${why}`, {
      reason,
      requestedBytes,
      limitBytes,
    });
  }

  #shortage(requestedBytes: number, holder: Holder | undefined): OutOfMemoryError {
    const limitBytes = holder?.promisedBytes ?? this.limitBytes;
    const availableBytes = limitBytes - (holder?.usedBytes ?? this.#queue.read().committedBytes);
    const asked = `${formatBytes(requestedBytes)} (${requestedBytes} bytes) were asked for, ${formatBytes(availableBytes)} are left`;
    const message =
      holder === undefined
        ? `the limit of ${formatBytes(limitBytes)} is promised to others: ${asked} outside all grants; reserve the memory first`
        : `the grant of ${formatBytes(limitBytes)} is used up: ${asked}; call grow() first`;
    return new OutOfMemoryError(message, { requestedBytes, availableBytes, limitBytes, path: [this.constructor.name] });
  }
}

/** `admitting` in a specification. */
export const admittingKind = defineAdaptor({
  name: 'admitting',
  role: 'pass-through',
  summary: 'promises memory before it is allocated, and lets requests wait for it',
  options: {
    limitBytes: { type: 'size', summary: 'the most bytes that may be promised and allocated', required: true },
    maximumOvertakes: { type: 'integer', summary: 'how often a waiting request may be passed by later ones', default: '16' },
    shared: { type: 'text', summary: 'the name of one limit and one queue for all workers', default: 'none' },
  },
  maximum: 'limitBytes',
  example: 'admitting(cuda, limitBytes=64MiB)',
  create: ({ upstream, options }) => new AdmittingResourceAdaptor(upstream, options),
});
