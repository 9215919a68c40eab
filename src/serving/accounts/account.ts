/**
 * Accounts, which are charged for memory. An allocation is charged to the account in whose scope it is
 * made, and to those around it. A free, anywhere and at any time, credits the same accounts.
 *
 *     tenant-a        6 MiB of 8 MiB          tenant-b   1 MiB
 *        ├── request  4 MiB
 *        └── request  1 MiB                   tenant-a itself: 1 MiB
 *
 * Invariants: bytes of an account = Σ bytes of the accounts directly within it + its own; bytes ≤
 * limit at every charge, of the account and of each one around it.
 * Cost: a charge and a credit take a step for each account around; a name in an error, and a sample,
 * one for each live account of the environment.
 */

import { ArgumentTypeError, formatValue, invalidValue, type MemoryHolder, OutOfMemoryError } from '../../basics/errors.js';
import { LiveInstances } from '../../basics/live-instances.js';
import { formatBytes } from '../../basics/units.js';
import { assertBytes, assertFunction, assertName, assertOptions, optionNames } from '../../basics/validation.js';
import { type Inspection, inspected, inspectObject, refuseCloning } from '../../driver/workers/local-object.js';
import { enterScope, innermostFrame, innermostOf, type ScopeFrame } from '../../scopes/resource-scope.js';
import { PayerNumbers } from './small-numbers.js';

/** Options of {@link Account} and {@link withQuota}. */
export interface AccountOptions {
  /**
   * The name in errors, samples and metrics, where accounts of the same name within the same account
   * count as one. So use few names: `'request'`, not `'request 17'`; use `labels` for that. It must not contain a `/`, which
   * separates the names of a {@link Account.path}.
   */
  readonly name: string;
  /**
   * The most bytes that may be charged at the same time, from 0 to 2^53 - 1.
   * @defaultValue not set: only the limits of the accounts around it apply
   */
  readonly limitBytes?: number | undefined;
  /**
   * Above this many bytes, `onSoftLimit` is called, from 0 to 2^53 - 1.
   * @defaultValue not set
   */
  readonly softBytes?: number | undefined;
  /**
   * Called when a charge brings the account above `softBytes`, and again only after it was at or below
   * it. It runs before the memory is allocated, so you can free memory in it, such as caches or data
   * that you can load again. If it throws, the allocation fails with that error, and nothing is
   * charged.
   * @defaultValue not set
   */
  readonly onSoftLimit?: ((account: Account) => void) | undefined;
  /**
   * The account around it, which is charged as well.
   * @defaultValue the current account, see {@link currentAccount}
   */
  readonly parent?: Account | undefined;
  /**
   * Other information of your program, such as the user or the number of the request. It is kept with
   * the account, and is never part of metrics.
   * @defaultValue none
   */
  readonly labels?: Readonly<Record<string, string>> | undefined;
}

const knownOptions = optionNames<AccountOptions>({
  labels: true,
  limitBytes: true,
  name: true,
  onSoftLimit: 'function',
  parent: true,
  softBytes: true,
});

/**
 * @internal The result of a charge: `'crossed'` if it was made, and brought an account above its soft
 * limit.
 */
export type Charge = 'made' | 'crossed' | 'refused';

/** The places of an account's numbers. */
const live = 0;
/** Charges up to this need no further check: the smaller one of `limit` and `soft`. */
const plain = 1;
const limit = 2;
const soft = 3;
/** The largest value before any credit, because bytes only rise between credits. */
const peak = 4;
const paid = 5;
const spilled = 6;
const waited = 7;

/** How many holders an error names. */
const namedHolders = 3;

/**
 * A tenant, a model or a request that is charged for memory. Allocations through an {@link
 * AccountingResourceAdaptor} are charged to the current account, which is the innermost one whose {@link
 * Account.run} or {@link withQuota} surrounds the call, and to every account around it. They are credited when the
 * memory is freed, even if that is in another scope, by the garbage collector, when a pool is disposed, or after
 * another worker has returned it.
 *
 * Bytes count rounded up to a multiple of 256. An account counts the allocations of all accounting
 * adaptors of its thread, on any device. You need not dispose an account: it lives as long as the
 * program or live memory refers to it.
 *
 * Stream order: freed memory is credited immediately, even if its stream still uses it.
 *
 * RMM has no counterpart; Linux's control groups do this for processes.
 * @example
 * ```ts
 * using upstream = new CudaMemoryResource();
 * using pool = new PoolMemoryResource(upstream);
 * using resource = new AccountingResourceAdaptor(pool);
 * using stream = new Stream();
 * const tenant = new Account({ name: 'tenant-a', limitBytes: 2 * GiB });
 * using weights = tenant.run(() => new DeviceBuffer(64 * MiB, { stream, resource }));
 * console.log(tenant.liveBytes === weights.byteLength); // true
 * ```
 */
export class Account {
  readonly name: string;
  /** The account around it, which is charged as well. */
  readonly parent: Account | undefined;
  /** As given, frozen. */
  readonly labels: Readonly<Record<string, string>>;
  /** `onSoftLimit` is called above this many bytes; `undefined` if not set. */
  readonly softBytes: number | undefined;
  readonly #onSoftLimit: ((account: Account) => void) | undefined;
  /** V8: boxed numbers. */
  readonly #numbers = new Float64Array(8);
  #refusals = 0;
  /** @internal Live allocations that are charged to this account itself, and its place among those who pay. */
  allocations = 0;
  /** @internal */
  place = 0;

  /** @throws ArgumentTypeError, ArgumentRangeError for an invalid option. */
  constructor(options: AccountOptions) {
    assertOptions(options, knownOptions);
    const { name, limitBytes, softBytes, onSoftLimit, parent = currentAccount(), labels = {} } = options;
    assertName(name, 'name');
    if (name.includes('/')) throw invalidValue(`name must not contain "/", which separates names in a path, got ${formatValue(name)}`);
    if (limitBytes !== undefined) assertBytes(limitBytes, 'limitBytes');
    if (softBytes !== undefined) assertBytes(softBytes, 'softBytes');
    if (parent !== undefined && !(parent instanceof Account))
      throw new ArgumentTypeError(`parent must be an Account, got ${formatValue(parent)}`);
    this.name = name;
    this.parent = parent;
    this.labels = checkedLabels(labels);
    this.softBytes = softBytes;
    this.#numbers[soft] = softBytes ?? Number.POSITIVE_INFINITY;
    this.#onSoftLimit = onSoftLimit;
    this.#setLimit(limitBytes);
    refuseCloning(this);
    instances.add(this);
  }

  /** Its name after the names of the accounts around it: `tenant-a/request`. */
  get path(): string {
    let path = this.name;
    for (let { parent } = this as Account; parent !== undefined; { parent } = parent) path = `${parent.name}/${path}`;
    return path;
  }

  /**
   * The most bytes that may be charged at the same time; `undefined` if the account itself has no
   * limit.
   */
  get limitBytes(): number | undefined {
    const bytes = this.#numbers[limit] as number;
    return bytes === Number.POSITIVE_INFINITY ? undefined : bytes;
  }

  /**
   * Sets another limit. Bytes that are already charged stay charged, even if they exceed it.
   * @throws ArgumentTypeError, ArgumentRangeError unless it is `undefined` or an integer from 0 to
   * 2^53 - 1.
   */
  set limitBytes(bytes: number | undefined) {
    if (bytes !== undefined) assertBytes(bytes, 'limitBytes');
    this.#setLimit(bytes);
  }

  /** Bytes charged and not credited: its own, and those of the accounts within it. */
  get liveBytes(): number {
    return this.#numbers[live] as number;
  }

  /** The largest value of `liveBytes` after an allocation. */
  get peakBytes(): number {
    return Math.max(this.#numbers[peak] as number, this.liveBytes);
  }

  /** Bytes of all allocations, freed or not. */
  get totalBytes(): number {
    return (this.#numbers[paid] as number) + this.liveBytes;
  }

  /**
   * Bytes of its {@link SpillableBuffer}s, and of those of the accounts within it, that have been spilled to
   * host memory.
   */
  get spilledBytes(): number {
    return this.#numbers[spilled] as number;
  }

  /**
   * Milliseconds that calls in its scope, or within, waited for memory: {@link AdmittingResourceAdaptor.reserve} for a promise, and pins for room on the
   * device. Calls that wait at the same time count each.
   */
  get waitedMilliseconds(): number {
    return this.#numbers[waited] as number;
  }

  /** Allocations that the limit of this account refused. */
  get refusals(): number {
    return this.#refusals;
  }

  /**
   * Runs a function with this account as the current one, so that its allocations are charged to this
   * account. This includes everything that the function calls, and its asynchronous continuations, as
   * with {@link withResource}.
   * @param fn a function, asynchronous or not
   * @returns what `fn` returns; for an asynchronous function its promise
   * @throws ArgumentTypeError if `fn` is not a function; any error that `fn` throws.
   */
  run<T>(fn: () => T): T {
    const result = enterScope({ kind: 'account', account: this }, fn);
    if (!isAnythingCharged) this.#warnOfNoCharges();
    return result;
  }

  #warnOfNoCharges(): void {
    if (!Number.isFinite(this.#numbers[plain] as number)) return;
    isAnythingCharged = true;
    process.emitWarning(
      `the limit of the account ${formatValue(this.path)} has no effect: memory is charged to accounts by an AccountingResourceAdaptor, and ` +
        'this thread has none; put one above the resource that its buffers use',
      { code: 'CISTERN_NO_ACCOUNTING' },
    );
  }

  /** @internal What `console.log` shows. */
  [inspected](...inspection: Inspection): string {
    const { path, limitBytes, liveBytes, peakBytes, labels } = this;
    return inspectObject(this, { path, limitBytes, liveBytes, peakBytes, labels }, inspection);
  }

  /** @internal Charges this account and those around it, or none of them. */
  charge(bytes: number): Charge {
    let account: Account | undefined = this;
    do {
      const numbers: Float64Array = account.#numbers;
      const after = (numbers[live] as number) + bytes;
      if (after > (numbers[plain] as number)) return this.#chargeFrom(account, bytes);
      numbers[live] = after;
      account = account.parent;
    } while (account !== undefined);
    return 'made';
  }

  /** The rest of a charge, from an account whose limit or soft limit it may exceed. */
  #chargeFrom(first: Account, bytes: number): Charge {
    let result: Charge = 'made';
    for (let account: Account | undefined = first; account !== undefined; account = account.parent) {
      const numbers = account.#numbers;
      const before = numbers[live] as number;
      const after = before + bytes;
      if (after > (numbers[limit] as number)) {
        this.undo(bytes, account);
        return 'refused';
      }
      if (after > (numbers[soft] as number) && before <= (numbers[soft] as number)) result = 'crossed';
      numbers[live] = after;
    }
    return result;
  }

  #setLimit(bytes: number | undefined): void {
    const numbers = this.#numbers;
    numbers[limit] = bytes ?? Number.POSITIVE_INFINITY;
    numbers[plain] = Math.min(numbers[limit], numbers[soft] as number);
  }

  /** @internal Counts a charge whose memory was allocated. Returns the number to end it with. */
  confirm(): number {
    return payers.add(this);
  }

  /** @internal Ends a charge that was confirmed. */
  end(bytes: number): void {
    let account: Account | undefined = this;
    do {
      const numbers: Float64Array = account.#numbers;
      const before = numbers[live] as number;
      if (before > (numbers[peak] as number)) numbers[peak] = before;
      numbers[live] = before - bytes;
      numbers[paid] = (numbers[paid] as number) + bytes;
      account = account.parent;
    } while (account !== undefined);
  }

  /**
   * @internal Undoes a charge whose memory was not allocated.
   * @param refusing the account from which on nothing was charged
   */
  undo(bytes: number, refusing?: Account): void {
    for (let account: Account | undefined = this; account !== refusing && account !== undefined; account = account.parent) {
      const numbers = account.#numbers;
      numbers[live] = (numbers[live] as number) - bytes;
    }
  }

  /** @internal */
  noteSpill(bytes: number): void {
    this.#note(spilled, bytes);
  }

  /** @internal */
  noteWait(milliseconds: number): void {
    this.#note(waited, milliseconds);
  }

  /** @internal Calls the functions of the accounts that a charge brought above their soft limits. */
  notifySoftLimits(bytes: number): void {
    const crossed: Account[] = [];
    for (let account: Account | undefined = this; account !== undefined; account = account.parent) {
      const { softBytes = Number.POSITIVE_INFINITY, liveBytes } = account;
      if (liveBytes > softBytes && liveBytes - bytes <= softBytes) crossed.push(account);
    }
    for (const account of crossed) account.#onSoftLimit?.(account);
  }

  /** @internal The innermost account whose limit refuses a charge, and how many bytes must be credited to it before. */
  refusing(bytes: number): { readonly account: Account; readonly missingBytes: number } {
    let account: Account = this;
    while (account.liveBytes + bytes <= (account.#numbers[limit] as number) && account.parent !== undefined) account = account.parent;
    return { account, missingBytes: account.liveBytes + bytes - (account.#numbers[limit] as number) };
  }

  /** @internal Whether this is the account, or within it; without one, true. */
  isWithin(account: Account | undefined): boolean {
    for (let each: Account | undefined = this; each !== undefined; each = each.parent) if (each === account) return true;
    return account === undefined;
  }

  /** @internal The error for a refused charge, which counts from now on. */
  refusal(requestedBytes: number, bytes: number, resource: string): OutOfMemoryError {
    const { account } = this.refusing(bytes);
    account.#refusals++;
    refusals++;
    const limitBytes = account.#numbers[limit] as number;
    const availableBytes = Math.max(0, limitBytes - account.liveBytes);
    const holders = holdersWithin(account);
    const within = account === this ? '' : ` by ${formatValue(this.path)}`;
    return new OutOfMemoryError(
      `${account.limitName()} of ${formatBytes(limitBytes)} is reached: ${formatBytes(requestedBytes)} (${requestedBytes} bytes) were asked for${within}, ` +
        `${formatBytes(availableBytes)} are left${formatHolders(holders)}`,
      { requestedBytes, availableBytes, limitBytes, path: [resource], account: account.path, holders },
    );
  }

  #note(counter: number, amount: number): void {
    for (let account: Account | undefined = this; account !== undefined; account = account.parent) {
      const numbers = account.#numbers;
      numbers[counter] = (numbers[counter] as number) + amount;
    }
  }

  /** @internal How an error names the limit that was reached. */
  limitName(): string {
    return `the limit of the account ${formatValue(this.path)}`;
  }
}

function checkedLabels(labels: unknown): Readonly<Record<string, string>> {
  if (typeof labels !== 'object' || labels === null) throw new ArgumentTypeError(`labels must be an object, got ${formatValue(labels)}`);
  for (const [name, label] of Object.entries(labels)) {
    if (typeof label !== 'string')
      throw new ArgumentTypeError(`labels must have strings, got ${formatValue(label)} for ${formatValue(name)}`);
  }
  return Object.freeze({ ...labels }) as Readonly<Record<string, string>>;
}

/** Of all accounts, collected ones included. */
let refusals = 0;

/** @internal Allocations that limits of accounts have refused in this environment. */
export function accountRefusals(): number {
  return refusals;
}

/** The accounts that live allocations are charged to, by the number that is kept with each allocation. */
const payers = new PayerNumbers<Account>();

/** @internal The account of a number. */
export function payerOf(number: number): Account {
  return payers.get(number);
}

/** @internal Credits the account of a number. */
export function endCharge(number: number, bytes: number): void {
  payers.remove(number).end(bytes);
}

interface AccountFrame extends ScopeFrame {
  readonly kind: 'account';
  readonly account: Account;
}

/** The frame that was looked at last, and its account. */
let lastFrame: ScopeFrame | undefined;
let lastAccount: Account | undefined;

/** Whether anything charges accounts, or a warning has said that nothing does. */
let isAnythingCharged = false;

/** @internal To be called for each adaptor that charges accounts. */
export function noteCharging(): void {
  isAnythingCharged = true;
}

/** The account that allocations are charged to here; `undefined` outside the scope of an account. */
export function currentAccount(): Account | undefined {
  const frame = innermostFrame();
  return frame === lastFrame ? lastAccount : findAccount(frame);
}

function findAccount(frame: ScopeFrame | undefined): Account | undefined {
  lastFrame = frame;
  lastAccount = innermostOf<AccountFrame>('account', frame)?.account;
  return lastAccount;
}

/**
 * Runs a function with a new account as the current one, within the current account unless you set
 * `parent`. Nested calls make a tree: tenant, request, step. If several calls share an account, create an
 * {@link Account}, and call its `run`.
 * @param fn a function, asynchronous or not, which gets the account as its argument
 * @returns what `fn` returns; for an asynchronous function its promise
 * @throws ArgumentTypeError, ArgumentRangeError for invalid arguments; any error that `fn` throws.
 * @example
 * ```ts
 * using upstream = new CudaMemoryResource();
 * using resource = new AccountingResourceAdaptor(upstream);
 * using stream = new Stream();
 * const answer = await withQuota({ name: 'request', limitBytes: 256 * MiB, labels: { user: 'ada' } }, async () => {
 *   using input = new DeviceBuffer(16 * MiB, { stream, resource });
 *   return withQuota({ name: 'decode' }, () => input.toHost()); // charged to request/decode, and to request
 * });
 * ```
 */
export function withQuota<T>(options: AccountOptions, fn: (account: Account) => T): T {
  assertFunction(fn, 'fn');
  const account = new Account(options);
  return account.run(() => fn(account));
}

const instances = new LiveInstances<Account>();

/** @internal The accounts of this environment that are not collected, in the order of construction. */
export function liveAccounts(): Account[] {
  return instances.all();
}

/** @internal The paths that hold most bytes of their own, among an account and those within it, or among all; the largest first. */
export function holdersWithin(outermost?: Account): readonly MemoryHolder[] {
  const own = new Map<Account, number>();
  // Those around an account were made before it.
  for (const account of liveAccounts()) {
    own.set(account, account.liveBytes);
    if (account.parent !== undefined) own.set(account.parent, (own.get(account.parent) as number) - account.liveBytes);
  }
  const byPath = new Map<string, number>();
  for (const [account, bytes] of own) {
    if (bytes > 0 && account.isWithin(outermost)) byPath.set(account.path, (byPath.get(account.path) ?? 0) + bytes);
  }
  return [...byPath].map(([account, bytes]) => Object.freeze({ account, bytes })).sort((a, b) => b.bytes - a.bytes);
}

/** @internal The end of a message about memory that ran out. */
export function formatHolders(holders: readonly MemoryHolder[]): string {
  if (holders.length === 0) return '';
  const named = holders.slice(0, namedHolders).map(({ account, bytes }) => `${formatValue(account)} ${formatBytes(bytes)}`);
  const others = holders.length > namedHolders ? ` and ${holders.length - namedHolders} more` : '';
  return `; the largest holders are ${named.join(', ')}${others}`;
}
