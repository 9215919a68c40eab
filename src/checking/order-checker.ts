/**
 * Checks that every use of memory is ordered after the uses that it conflicts with. The check is
 * native (`native/order/`), and looks at the actual driver calls. This file turns it on and off,
 * keeps the stacks of operations, and describes violations.
 */
import { channel } from 'node:diagnostics_channel';
import { captureStack } from '../basics/call-stack.js';
import { flagSetting } from '../basics/checked-settings.js';
import { ArgumentTypeError, CisternError, formatPointer, formatValue } from '../basics/errors.js';
import { assertOptions, optionNames } from '../basics/validation.js';
import { atOpening } from '../driver/backend.js';
import { interpose, mailbox, type NativeBinding, native } from '../driver/native.js';
import { type MemoryAccess, noteChecking } from '../driver/order-checks.js';
import { check } from '../driver/status.js';
import { refuseCloning } from '../driver/workers/local-object.js';
import { noteLoaded } from '../package/file.js';

/** Options of {@link checkOrder}. */
export interface CheckOrderOptions {
  /**
   * Whether both sides of a violation have the stack of the call in the program. Keeps the stacks of
   * the last 4,096 operations, which costs a few tens of microseconds per operation.
   * @defaultValue true
   */
  readonly stacks?: boolean | undefined;
  /**
   * Called with each violation, from within the call that caused it. An error that it throws is
   * reported as an uncaught exception.
   */
  readonly onViolation?: ((violation: OrderViolation) => void) | undefined;
  /**
   * Whether the copy, set, touch or declaration that causes a violation throws an {@link OrderError}.
   * It is submitted nevertheless. Violations by other calls, and by a copy to the host that must run
   * host functions first, are only reported.
   * @defaultValue false
   */
  readonly throwOnViolation?: boolean | undefined;
}

const knownOptions = optionNames<CheckOrderOptions>({ onViolation: 'function', stacks: 'boolean', throwOnViolation: 'boolean' });

/**
 * The kind of a violation.
 *
 * - `'unordered'`: two uses of the same memory, of which at least one is a write and neither is
 *   ordered after the other.
 * - `'use-after-free'`: a use submitted after the memory was freed.
 * - `'freed-while-in-use'`: memory freed in the order of a stream that does not wait for an earlier
 *   use.
 * - `'reuse-without-wait'`: memory given to a stream that does not wait for the free, or for a use,
 *   of the previous allocation there.
 * - `'use-before-allocation'`: a use or free on a stream that does not wait for the allocation on
 *   another stream.
 */
export type OrderViolationKind = 'unordered' | 'use-after-free' | 'freed-while-in-use' | 'reuse-without-wait' | 'use-before-allocation';

/** One of the two operations of an {@link OrderViolation}. */
export interface OrderViolationSide {
  /** The operation. A touch stands for a kernel ({@link Stream.touch}). */
  readonly operation: 'copy' | 'set' | 'touch' | 'allocate' | 'free';
  /** How the memory was used; `undefined` for an allocation and a free. */
  readonly access: MemoryAccess | undefined;
  /**
   * The {@link Stream.id} of its stream; `undefined` for an operation that is not in the order of a
   * stream, such as a free of plain memory.
   */
  readonly streamId: number | undefined;
  /** The memory that it used, allocated or freed. */
  readonly pointer: number;
  readonly bytes: number;
  /**
   * Operations of one thread have ascending numbers. cistern's own operations, and those of other
   * threads, have 0.
   */
  readonly number: number;
  /**
   * The stack of the call that submitted it, one frame per line; `undefined` if it was not kept, or
   * no longer is.
   */
  readonly stack: string | undefined;
}

/** Two operations that are not in order. */
export interface OrderViolation {
  readonly kind: OrderViolationKind;
  /** The memory that both sides share. */
  readonly pointer: number;
  readonly bytes: number;
  /** The operation that was submitted first. */
  readonly earlier: OrderViolationSide;
  /** The operation that caused the violation. */
  readonly later: OrderViolationSide;
  /** The missing wait, as text. */
  readonly missing: string;
}

/**
 * Two operations are not in order. The later one throws this error if {@link
 * CheckOrderOptions.throwOnViolation} is set. The message describes the violation.
 */
export class OrderError extends CisternError {
  readonly violation: OrderViolation;

  constructor(violation: OrderViolation) {
    super('ERR_CISTERN_ORDER', formatOrderViolation(violation));
    this.violation = violation;
  }
}

const kinds = ['unordered', 'use-after-free', 'freed-while-in-use', 'reuse-without-wait', 'use-before-allocation'] as const;
const operations = ['copy', 'set', 'touch', 'allocate', 'free'] as const;
const accesses = [undefined, 'read', 'write'] as const;
const cellsOfViolation = 15;
const cellsOfSide = 6;

interface KeptStack {
  readonly number: number;
  readonly stack: string;
}

/** Calls that use, allocate or free memory. */
const submittingCalls = [
  'allocate',
  'deallocate',
  'allocateAsync',
  'deallocateAsync',
  'destroyPool',
  'copy',
  'copyFromHost',
  'copyToHostSync',
  'copyToHost',
  'set',
  'touch',
  'declareAllocation',
  'declareFree',
] as const satisfies readonly (keyof NativeBinding)[];

/**
 * The calls above that may throw after they succeeded, because no resource's bookkeeping depends on
 * their results.
 */
const throwingCalls: ReadonlySet<string> = new Set<(typeof submittingCalls)[number]>([
  'copy',
  'copyFromHost',
  'copyToHostSync',
  'copyToHost',
  'set',
  'touch',
  'declareAllocation',
  'declareFree',
]);

const stackCount = 4096;
const stackDepth = 32;
/** How many violations a checker keeps. */
const violationLimit = 1000;

const orderChannel = channel('cistern:order');
/** See `beginOrderCheck`. */
const cells = new Float64Array(2);
const taken = new Float64Array(32 * cellsOfViolation);
const checkers = new Set<OrderChecker>();
let isThrowing = false;
let lastNumber = 0;
let seenViolations = 0;
/** The stack of operation n is at index n modulo the length. Empty if no checker wants stacks. */
let stacks: KeptStack[] = [];

/**
 * Checks stream order until the result is disposed. Every copy, set and {@link Stream.touch} is
 * checked against earlier uses, allocations and frees; one that conflicts with an earlier
 * operation, and is not ordered after it, is reported with both sides. The check depends on the
 * waits that the program submits, not on which work happens to run first, so it finds a missing
 * wait in every run.
 *
 * Everything before the check counts as ordered. The check watches the memory that this thread has
 * already allocated, and all memory allocated from now on. It sees the driver calls of all threads,
 * but touches and declarations only of threads that check, too. It treats all threads as one that
 * submits one operation after the other, so it does not find missing order between two threads.
 *
 * It does not see uses of ordinary host memory (`HostMemoryResource`, `ArrayBuffer`s), because the
 * driver does not allocate it, not even those by a device of a coherent system.
 *
 * It costs nothing while no checker exists. `CISTERN_CHECK_ORDER=1` in the environment starts the
 * check at the first use of a device and prints each violation as a process warning with the code
 * `CISTERN_ORDER`. Violations are also published on the diagnostics channel `cistern:order`.
 * @throws ArgumentTypeError for invalid options.
 * @example
 * ```ts
 * using checker = checkOrder();
 * const pointer = resource.allocate(4096, producer);
 * set(pointer, 0, 1, 4096, producer);
 * set(pointer, 1, 1, 4096, consumer); // consumer does not wait for producer
 * for (const violation of checker.violations) console.log(formatOrderViolation(violation));
 * ```
 */
export function checkOrder(options: CheckOrderOptions = {}): OrderChecker {
  assertOptions(options, knownOptions);
  const { stacks: wantsStacks, onViolation, throwOnViolation } = options;
  if (onViolation !== undefined && typeof onViolation !== 'function') {
    throw new ArgumentTypeError(`onViolation must be a function, got ${formatValue(onViolation)}`);
  }
  return new OrderChecker(wantsStacks !== false, throwOnViolation === true, onViolation);
}

/** A running check and the violations that it has found; see {@link checkOrder}. */
export class OrderChecker implements Disposable {
  /** @internal */
  readonly wantsStacks: boolean;
  /** @internal */
  readonly throwsOnViolation: boolean;
  /** Not set once this is disposed. */
  #onViolation: ((violation: OrderViolation) => void) | undefined;
  #violations: OrderViolation[] = [];
  #droppedViolations = 0;

  /** @internal */
  constructor(wantsStacks: boolean, throwsOnViolation: boolean, onViolation: ((violation: OrderViolation) => void) | undefined) {
    this.wantsStacks = wantsStacks;
    this.throwsOnViolation = throwsOnViolation;
    this.#onViolation = onViolation;
    refuseCloning(this);
    if (checkers.size === 0) {
      native().beginOrderCheck(cells);
      check('check stream order');
      seenViolations = cells[1] as number;
      noteChecking(true);
    }
    checkers.add(this);
    follow();
  }

  /**
   * The first 1,000 violations since the start or the last `clear`, by calls of this thread and of
   * threads that do not check.
   */
  get violations(): readonly OrderViolation[] {
    if (checkers.has(this)) collect();
    return [...this.#violations];
  }

  /** The number of violations that were dropped after the first 1,000. */
  get droppedViolations(): number {
    if (checkers.has(this)) collect();
    return this.#droppedViolations;
  }

  /** Forgets the violations found so far, but not the earlier uses. */
  clear(): void {
    if (checkers.has(this)) collect();
    this.#violations = [];
    this.#droppedViolations = 0;
  }

  /**
   * Ends this checker, but keeps its violations. The check itself ends with the last checker. A
   * second call does nothing.
   */
  [Symbol.dispose](): void {
    if (!checkers.has(this)) return;
    collect();
    checkers.delete(this);
    this.#onViolation = undefined;
    if (checkers.size === 0) {
      noteChecking(false);
      native().endOrderCheck();
      check('end the check of stream order');
    }
    follow();
  }

  /** The same as `[Symbol.dispose]()`. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  /** @internal */
  take(violations: readonly OrderViolation[], dropped: number): void {
    this.#droppedViolations += dropped;
    for (const violation of violations) {
      if (this.#violations.length < violationLimit) this.#violations.push(violation);
      else this.#droppedViolations++;
      if (this.#onViolation !== undefined) callObserver(this.#onViolation, violation);
    }
  }
}

/** @internal Calls a callback, whose errors must not fail the reported call. */
export function callObserver<Violation>(onViolation: (violation: Violation) => void, violation: Violation): void {
  try {
    onViolation(violation);
  } catch (error) {
    process.nextTick(() => {
      throw error;
    });
  }
}

/** A violation as human-readable text of several lines. */
export function formatOrderViolation(violation: OrderViolation): string {
  const { kind, pointer, bytes, earlier, later, missing } = violation;
  return [
    `${headings[kind]}: ${bytes} bytes from ${formatPointer(pointer)}`,
    `  later:   ${formatSide(later)}`,
    `  earlier: ${formatSide(earlier)}`,
    `  missing: ${missing}`,
  ].join('\n');
}

noteLoaded('checking');

/** @internal Starts a check that never ends if `CISTERN_CHECK_ORDER` is 1, when a device is used for the first time. */
atOpening(() => {
  if (flagSetting('CISTERN_CHECK_ORDER') !== true) return;
  checkOrder({ onViolation: (violation) => process.emitWarning(formatOrderViolation(violation), { code: 'CISTERN_ORDER' }) });
});

const headings: Readonly<Record<OrderViolationKind, string>> = {
  unordered: 'two streams use memory without order',
  'use-after-free': 'memory is used after it was freed',
  'freed-while-in-use': 'memory is freed while it may be in use',
  'reuse-without-wait': 'memory is reused without a wait',
  'use-before-allocation': 'memory is used before its allocation',
};

/** @internal */
export function formatSide(side: OrderViolationSide): string {
  const how = side.access === undefined ? '' : ` (${side.access})`;
  const where = side.streamId === undefined ? 'on the host' : `on stream ${side.streamId}`;
  const number = side.number === 0 ? '' : `, operation ${side.number}`;
  const stack = side.stack === undefined ? '' : `\n${side.stack}`;
  return `${side.operation}${how} of ${side.bytes} bytes from ${formatPointer(side.pointer)} ${where}${number}${stack}`;
}

/** The noun for an operation in a sentence. */
function nounOf({ operation, access }: OrderViolationSide): string {
  return access ?? (operation === 'allocate' ? 'allocation' : 'free');
}

function missingWait(kind: OrderViolationKind, earlier: OrderViolationSide, later: OrderViolationSide): string {
  if (kind === 'use-after-free') {
    return earlier.streamId === undefined || earlier.streamId === later.streamId
      ? `the memory must be freed after the ${nounOf(later)} on stream ${later.streamId} was submitted`
      : `the free on stream ${earlier.streamId} must come after the ${nounOf(later)} on stream ${later.streamId}, and wait for it`;
  }
  const event = `an event recorded on stream ${earlier.streamId} after its ${nounOf(earlier)}`;
  if (later.streamId === undefined) return `the host must wait for ${event}`;
  const purpose = { free: ' before it frees the memory', allocate: ' before it is given the memory' };
  const before = later.operation === 'free' || later.operation === 'allocate' ? purpose[later.operation] : '';
  return `stream ${later.streamId} must wait for ${event}${before}`;
}

/** Makes `native()` number operations and look for violations while any checker exists. */
function follow(): void {
  const wantsStacks = [...checkers].some((checker) => checker.wantsStacks);
  if (!wantsStacks) stacks = [];
  else if (stacks.length === 0) stacks = Array.from({ length: stackCount }, () => ({ number: 0, stack: '' }));
  isThrowing = [...checkers].some((checker) => checker.throwsOnViolation);
  interpose(checkers.size > 0 ? followed : undefined);
}

/** @internal The number that the next operation of this thread will have. */
export function nextOperationNumber(): number {
  return lastNumber + 1;
}

type AnyCall = (...values: never[]) => unknown;

function followed(addon: NativeBinding): Partial<NativeBinding> {
  const follow = (call: AnyCall, mayThrow: boolean): AnyCall => {
    const followedCall = (...values: never[]): unknown => {
      const number = ++lastNumber;
      cells[0] = number;
      if (stacks.length > 0) keepStack(number, followedCall);
      const result = call(...values);
      cells[0] = 0;
      if (cells[1] !== seenViolations) {
        const violation = collect().find(({ later }) => later.number === number);
        if (isThrowing && mayThrow && violation !== undefined && mailbox[0] === 0) throw new OrderError(violation);
      }
      return result;
    };
    return followedCall;
  };
  return Object.fromEntries(submittingCalls.map((name) => [name, follow(addon[name], throwingCalls.has(name))]));
}

function keepStack(number: number, below: AnyCall): void {
  stacks[number % stackCount] = { number, stack: captureStack(below, stackDepth) };
}

/**
 * @internal The stack of an operation of this thread, one frame per line; `undefined` if it was not
 * kept, or no longer is.
 */
export function stackOf(number: number): string | undefined {
  const kept = number === 0 ? undefined : stacks[number % stackCount];
  if (kept?.number !== number) return undefined;
  return kept.stack;
}

/**
 * Takes new violations, reports them and returns them. Leaves the mailbox unchanged, because its
 * results may not have been read yet.
 */
function collect(): OrderViolation[] {
  seenViolations = cells[1] as number;
  const before = mailbox.slice();
  const violations: OrderViolation[] = [];
  let dropped = 0;
  let count: number;
  do {
    native().takeOrderReports(taken);
    count = mailbox[1] as number;
    dropped += mailbox[2] as number;
    for (let i = 0; i < count; i++) violations.push(violationAt(i * cellsOfViolation));
  } while (count * cellsOfViolation === taken.length);
  if (violations.length > 0 || dropped > 0) {
    for (const checker of [...checkers]) checker.take(violations, dropped);
    for (const violation of violations) orderChannel.publish(violation);
  }
  mailbox.set(before);
  return violations;
}

function violationAt(at: number): OrderViolation {
  const kind = kinds[taken[at] as number] as OrderViolationKind;
  const earlier = sideAt(at + 3);
  const later = sideAt(at + 3 + cellsOfSide);
  return Object.freeze({
    kind,
    pointer: taken[at + 1] as number,
    bytes: taken[at + 2] as number,
    earlier,
    later,
    missing: missingWait(kind, earlier, later),
  });
}

function sideAt(at: number): OrderViolationSide {
  const stream = taken[at + 2] as number;
  const number = taken[at + 5] as number;
  return Object.freeze({
    operation: operations[taken[at] as number] as OrderViolationSide['operation'],
    access: accesses[taken[at + 1] as number],
    streamId: stream < 0 ? undefined : stream,
    pointer: taken[at + 3] as number,
    bytes: taken[at + 4] as number,
    number,
    stack: stackOf(number),
  });
}
