import { native } from '../../src/driver/native.js';
import { driverCallCounts, driverFunctionNames, failCall } from '../../src/index.js';

/** Something that can be made to fail: a function of the driver, or one of the host. */
export interface FaultPoint {
  readonly name: string;
  /** What it may fail with: a `CUresult`; for a function of the host one value, which means nothing. */
  readonly statuses: readonly number[];
  /** Whether stream order can be checked meanwhile: the checker asks the driver some things by itself. */
  readonly allowsOrderCheck: boolean;
  /** Lets the nth next call fail. */
  arm(nth: number, status: number): void;
  /** Ends that. Returns whether the call has failed. */
  disarm(): boolean;
  /** How often it was called so far, as far as is counted: not what native code does for itself. */
  calls(): number;
}

const outOfMemory = 2;
const illegalAddress = 700;
const unknown = 999;

/** Calls through which CUDA tells of what went wrong in work that was queued before. */
const tellsOfEarlierWork = /Synchronize|Query|Memcpy|Memset|MemFree|Prefetch|LaunchHost/;
/** What the order checker asks. */
const askedByTheChecker = new Set(['cuStreamGetId', 'cuStreamGetFlags', 'cuCtxGetCurrent']);

/** A function of the driver. */
export class DriverFunction implements FaultPoint {
  readonly name: string;
  readonly statuses: readonly number[];
  readonly allowsOrderCheck: boolean;

  constructor(name: string) {
    this.name = name;
    this.statuses = [outOfMemory, tellsOfEarlierWork.test(name) ? illegalAddress : unknown];
    this.allowsOrderCheck = !askedByTheChecker.has(name);
  }

  arm(nth: number, status: number): void {
    failCall(this.name, nth, status);
  }

  /** Once that call has failed, lets the nth call from there on of a function fail as well. */
  armAfter(next: DriverFunction, nth: number, status: number): void {
    if (next !== this) failCall(next.name, 0);
    native().failCallAfter(this.name, next.name, nth, status);
  }

  disarm(): boolean {
    return !failCall(this.name, 0);
  }

  calls(): number {
    return driverCallCounts().byFunction[this.name] as number;
  }
}

/** What a function of the host throws when it is its turn. */
export class HostFault extends Error {}

/** A function that a scenario gives to cistern, such as a callback. */
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

  /** @throws HostFault if it is this call's turn. */
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
