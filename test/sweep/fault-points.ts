import { native } from '../../src/driver/native.js';
import { driverFunctionNames, failCall } from '../../src/tools/testing/index.js';
import { callsOf } from '../support/driver-calls.js';

/** Something that can be made to fail: a function of the driver, or one of the host. */
export interface FaultPoint {
  readonly name: string;
  /**
   * The statuses that it may fail with: `CUresult` values; for a host function, one value without a
   * meaning.
   */
  readonly statuses: readonly number[];
  /**
   * Whether stream order can be checked in the trial: the checker itself calls some driver
   * functions.
   */
  readonly allowsOrderCheck: boolean;
  /** Makes the nth next call fail. */
  arm(nth: number, status: number): void;
  /** Disarms it. Returns whether the call has failed. */
  disarm(): boolean;
  /** How often it was called, as far as calls are counted: not the native code's own calls. */
  calls(): number;
}

const outOfMemory = 2;
const illegalAddress = 700;
const unknown = 999;

/** Calls through which CUDA reports errors of work that was queued earlier. */
const tellsOfEarlierWork = /Synchronize|Query|Memcpy|Memset|MemFree|Prefetch|LaunchHost/;
/** The driver functions that the order checker calls. */
const askedByTheChecker = new Set(['cuStreamGetId', 'cuStreamGetFlags', 'cuCtxGetCurrent', 'cuStreamGetCaptureInfo']);

/** A function of the driver. */
export class DriverFunction implements FaultPoint {
  readonly name: string;
  readonly statuses: readonly number[];
  readonly allowsOrderCheck: boolean;

  readonly #calls: () => number;

  constructor(name: string) {
    this.name = name;
    this.#calls = callsOf(name);
    this.statuses = [outOfMemory, tellsOfEarlierWork.test(name) ? illegalAddress : unknown];
    this.allowsOrderCheck = !askedByTheChecker.has(name);
  }

  arm(nth: number, status: number): void {
    failCall(this.name, nth, status);
  }

  /**
   * After that call has failed, makes the nth call of another function fail as well, counted from
   * there.
   */
  armAfter(next: DriverFunction, nth: number, status: number): void {
    if (next !== this) failCall(next.name, 0);
    native().failCallAfter(this.name, next.name, nth, status);
  }

  disarm(): boolean {
    return !failCall(this.name, 0);
  }

  calls(): number {
    return this.#calls();
  }
}

/** Thrown by a host function on its armed call. */
export class HostFault extends Error {}

/** A function that a scenario passes to cistern, such as a callback. */
export class HostFunction implements FaultPoint {
  readonly name: string;
  readonly statuses = [0];
  readonly allowsOrderCheck = true;
  #calls = 0;
  #failsAt = 0;

  constructor(name: string) {
    this.name = name;
  }

  arm(nth: number): void {
    this.#failsAt = this.#calls + nth;
  }

  disarm(): boolean {
    const hasFailed = this.#calls >= this.#failsAt;
    this.#failsAt = 0;
    return hasFailed;
  }

  calls(): number {
    return this.#calls;
  }

  /** @throws HostFault if this is the armed call. */
  pass(): void {
    this.#calls++;
    if (this.#calls === this.#failsAt) throw new HostFault(`the ${this.name} fails`);
  }
}

let driverFunctions: readonly DriverFunction[] | undefined;

/** One for each function of the driver. */
export function driverFaultPoints(): readonly DriverFunction[] {
  driverFunctions ??= driverFunctionNames().map((name) => new DriverFunction(name));
  return driverFunctions;
}
