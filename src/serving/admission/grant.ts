import { ArgumentRangeError, alreadyDisposed, type CisternError } from '../../basics/errors.js';
import { ALLOCATION_ALIGNMENT, alignDown, alignUp, formatBytes } from '../../basics/units.js';
import { assertBytes, assertMadeByCistern, isThenable } from '../../basics/validation.js';
import { finalizationRegistry } from '../../driver/workers/collected-objects.js';
import { type Inspection, inspected, inspectObject, refuseCloning } from '../../driver/workers/local-object.js';
import { enterScope, innermostFrame, innermostOf, nextAround, type ScopeFrame } from '../../scopes/resource-scope.js';
import type { WaitOptions } from '../waiting/wait-options.js';
import type { AdmissionQueue, Holder, HolderOf } from './admission-queue.js';

/** The waits of the adaptor that a grant belongs to. */
export interface GrantWaits {
  grow(holder: Holder, bytes: number, options: WaitOptions): Promise<void>;
  retry<T>(holder: Holder, attempt: () => T, options: WaitOptions): Promise<Awaited<T>>;
}

/** The grants of asynchronous functions, by their promises. */
interface Running {
  readonly grant: Grant;
  readonly others: Running | undefined;
}

/** Keeps a grant from being collected while an asynchronous function runs in its scope, without a handler at its promise. */
const running = new WeakMap<object, Running>();

const unreachable = finalizationRegistry<HolderOf>('grant', 'CISTERN_UNREACHABLE_GRANT', ({ queue, holder }) => queue.end(holder));

/**
 * Memory that an {@link AdmittingResourceAdaptor} has promised. Allocations in its scope ({@link Grant.run})
 * use the promised bytes. Unused bytes are returned when you dispose the grant, or earlier by {@link
 * Grant.giveBack}; bytes that are still allocated then are returned as they are freed.
 *
 * A grant that the garbage collector finds undisposed is returned, too.
 * @example
 * ```ts
 * using upstream = new CudaMemoryResource();
 * using pool = new PoolMemoryResource(upstream);
 * using resource = new AdmittingResourceAdaptor(pool, { limitBytes: 1 * GiB });
 * using stream = new Stream();
 * using grant = await resource.reserve(64 * MiB);
 * await grant.run(async () => {
 *   using input = new DeviceBuffer(16 * MiB, { stream, resource });
 *   grant.giveBack(16 * MiB); // this will not be needed
 *   await grant.grow(8 * MiB); // and this will
 *   return input.toHost();
 * });
 * ```
 */
export class Grant implements Disposable {
  readonly #queue: AdmissionQueue;
  readonly #holder: Holder;
  readonly #waits: GrantWaits;

  /** @internal */
  constructor(queue: AdmissionQueue, holder: Holder, waits: GrantWaits) {
    assertMadeByCistern(queue, 'Grant', 'AdmittingResourceAdaptor.reserve');
    this.#queue = queue;
    this.#holder = holder;
    this.#waits = waits;
    refuseCloning(this);
    unreachable.register(this, { queue, holder }, this);
  }

  /** The promised bytes; 0 once it is disposed. */
  get bytes(): number {
    return this.#holder.isEnded ? 0 : this.#holder.promisedBytes;
  }

  /** Bytes that are allocated, each allocation rounded up to a multiple of 256. */
  get usedBytes(): number {
    return this.#holder.usedBytes;
  }

  /** The priority of its request. */
  get priority(): number {
    return this.#holder.priority;
  }

  /**
   * Runs a function whose allocations use this grant. This includes everything that the function calls,
   * and its asynchronous continuations. Once the grant is disposed, they count as outside it.
   * @param fn a function, asynchronous or not
   * @returns what `fn` returns; for an asynchronous function its promise
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if this object is disposed; ArgumentTypeError if `fn` is not a
   * function; any error that `fn` throws.
   */
  run<T>(fn: () => T): T {
    this.#assertLive('run a function');
    const result = enterScope({ kind: 'grant', queue: this.#queue, holder: this.#holder }, fn);
    if (isThenable(result)) running.set(result, { grant: this, others: running.get(result) });
    return result;
  }

  /**
   * Waits until this many more bytes are promised. This request comes before new ones of any priority,
   * because this grant's memory is returned only when its work goes on.
   * @param bytes an integer from 0 to 2^53 - 1; rounded up to a multiple of 256
   * @throws NotAdmittedError: `'too-large'` if the grant would exceed the limit; `'timeout'`; `'deadlock'` if
   * all holders of promised memory wait, as described at {@link AdmittingResourceAdaptor}, and this request is the youngest of the
   * lowest priority. The grant keeps the bytes that it has.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if this object or the resource is disposed, even during
   * the wait; ArgumentTypeError, ArgumentRangeError for invalid arguments; the reason of the signal.
   */
  async grow(bytes: number, options: WaitOptions = {}): Promise<void> {
    this.#assertLive('grow');
    await this.#waits.grow(this.#holder, bytes, options);
  }

  /**
   * Runs a function as `run` does. If the upstream has no memory for an allocation in it although the bytes are promised,
   * because they are free only in pieces, waits until others have freed memory, and runs the function again. So the
   * function must leave nothing allocated when it throws.
   *
   * While it waits, at most `maximumOvertakes` new requests are admitted. It does not wait if nobody else holds promised memory, or
   * if all who do wait, and this grant is the youngest of the lowest priority. A grant that is never returned, such as one for
   * weights, can keep it waiting for ever: then set `timeoutMilliseconds`. While an asynchronous function runs again, its grant still
   * counts as one that waits: so let it only allocate, and work after it.
   * @param fn a function, asynchronous or not, that allocates
   * @returns what `fn` returns
   * @throws OutOfMemoryError of the last attempt, if waiting is of no use or the time is over; the errors of `run`; LifetimeError
   * (`ERR_CISTERN_DISPOSED`) if this object or the resource is disposed, even during the wait; ArgumentTypeError,
   * ArgumentRangeError for invalid options; the reason of the signal.
   * @example
   * ```ts
   * using upstream = new VirtualMemoryResource();
   * using pool = new PoolMemoryResource(upstream, { maximumBytes: 1 * GiB });
   * using resource = new AdmittingResourceAdaptor(pool, { limitBytes: 1 * GiB });
   * using stream = new Stream();
   * using grant = await resource.reserve(64 * MiB);
   * using buffer = await grant.retry(() => new DeviceBuffer(64 * MiB, { stream, resource }));
   * ```
   */
  async retry<T>(fn: () => T, options: WaitOptions = {}): Promise<Awaited<T>> {
    this.#assertLive('run a function');
    return await this.#waits.retry(this.#holder, () => this.run(fn), options);
  }

  /**
   * Returns promised bytes that are not used.
   * @param bytes an integer from 0 to the bytes that are not used; rounded down to a multiple of 256
   * @throws ArgumentRangeError if fewer are left; LifetimeError (`ERR_CISTERN_DISPOSED`) if this object is disposed.
   */
  giveBack(bytes: number): void {
    this.#assertLive('give back');
    assertBytes(bytes);
    const { promisedBytes, usedBytes } = this.#holder;
    const left = promisedBytes - usedBytes;
    if (bytes > left) throw new ArgumentRangeError(`bytes must be at most the ${left} unused ones, got ${bytes}`);
    this.#queue.shrink(this.#holder, alignDown(bytes, ALLOCATION_ALIGNMENT));
  }

  /** Returns the unused bytes, and ends its waits. A second call does nothing. */
  [Symbol.dispose](): void {
    unreachable.unregister(this);
    this.#queue.end(this.#holder);
  }

  /** The same as `[Symbol.dispose]()`. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  /** @internal What `console.log` shows. */
  [inspected](...inspection: Inspection): string {
    const { bytes, usedBytes, priority } = this;
    return inspectObject(this, { bytes, usedBytes, priority }, inspection);
  }

  #assertLive(operation: string): void {
    if (this.#holder.isEnded) throw alreadyDisposed(operation, 'the grant');
  }
}

interface GrantFrame extends ScopeFrame, HolderOf {
  readonly kind: 'grant';
}

function innermostGrant(frame: ScopeFrame | undefined): GrantFrame | undefined {
  return innermostOf<GrantFrame>('grant', frame);
}

/** The grants, of any resource, in whose scopes code runs: they are not returned before it goes on. */
export function grantsInScope(): HolderOf[] {
  const found: HolderOf[] = [];
  for (let frame = innermostGrant(innermostFrame()); frame !== undefined; frame = nextAround(frame)) {
    if (!frame.holder.isEnded) found.push(frame);
  }
  return found;
}

/** Finds the innermost grant of a queue in whose scope code runs. */
export class CurrentHolder {
  readonly #queue: AdmissionQueue;
  #lastFrame: ScopeFrame | undefined;
  #lastHolder: Holder | undefined;

  constructor(queue: AdmissionQueue) {
    this.#queue = queue;
  }

  find(): Holder | undefined {
    const frame = innermostFrame();
    if (frame !== this.#lastFrame) {
      this.#lastFrame = frame;
      let grant = innermostGrant(frame);
      while (grant !== undefined && grant.queue !== this.#queue) grant = nextAround(grant);
      this.#lastHolder = grant?.holder;
    }
    return this.#lastHolder?.isEnded === false ? this.#lastHolder : undefined;
  }
}

/** The bytes that a promise of `bytes` takes of the limit. */
export function promisedBytes(bytes: number): number {
  assertBytes(bytes);
  return alignUp(bytes, ALLOCATION_ALIGNMENT);
}

/** The error for a wait that ended because the grant or the resource was disposed. */
export function unexpectedEnd(bytes: number): CisternError {
  return alreadyDisposed(`reserve ${formatBytes(bytes)}`, 'the grant or the resource');
}
