/**
 * Every error that cistern throws has a stable `code`. Errors for invalid arguments are `TypeError`
 * and `RangeError`, as in Node itself; all others derive from {@link CisternError}.
 */

import { otherCopyHint } from '../package/copy.js';

/** Codes of {@link ArgumentTypeError} and {@link ArgumentRangeError}. */
export type ArgumentErrorCode = 'ERR_INVALID_ARG_TYPE' | 'ERR_INVALID_ARG_VALUE' | 'ERR_OUT_OF_RANGE';

/** Codes of {@link CisternError} and its subclasses. */
export type CisternErrorCode =
  | 'ERR_CISTERN_OUT_OF_MEMORY'
  | 'ERR_CISTERN_NOT_ADMITTED'
  | 'ERR_CISTERN_DRIVER'
  | 'ERR_CISTERN_DISPOSED'
  | 'ERR_CISTERN_FOREIGN_POINTER'
  | 'ERR_CISTERN_DOUBLE_FREE'
  | 'ERR_CISTERN_WRONG_SIZE'
  | 'ERR_CISTERN_STALE_MESSAGE'
  | 'ERR_CISTERN_FOREIGN_MESSAGE'
  | 'ERR_CISTERN_STALE_HANDLE'
  | 'ERR_CISTERN_FOREIGN_HANDLE'
  | 'ERR_CISTERN_NO_PEER_ACCESS'
  | 'ERR_CISTERN_DEVICE_UNAVAILABLE'
  | 'ERR_CISTERN_ADDON_MISSING'
  | 'ERR_CISTERN_FAULTY_RESOURCE'
  | 'ERR_CISTERN_INVALID_STATE'
  | 'ERR_CISTERN_NOT_SUPPORTED'
  | 'ERR_CISTERN_INVALID_SPECIFICATION'
  | 'ERR_CISTERN_INVALID_LOG'
  | 'ERR_CISTERN_INVALID_PLAN'
  | 'ERR_CISTERN_PLAN_DEVIATION'
  | 'ERR_CISTERN_REPLAY'
  | 'ERR_CISTERN_LOG_WRITE'
  | 'ERR_CISTERN_ORDER'
  | 'ERR_CISTERN_CAPTURING'
  | 'ERR_CISTERN_ASLEEP'
  | 'ERR_CISTERN_PROCESS_SLEEP'
  | 'ERR_CISTERN_READ_ONLY'
  | 'ERR_CISTERN_KEEP_UNAVAILABLE'
  | 'ERR_CISTERN_REGION_IN_USE'
  | 'ERR_CISTERN_REGION_MISMATCH'
  | 'ERR_CISTERN_SPILL_FILE';

/** An argument of the wrong type. `code` is `ERR_INVALID_ARG_TYPE`. */
export class ArgumentTypeError extends TypeError {
  readonly code: ArgumentErrorCode = 'ERR_INVALID_ARG_TYPE';
}

/**
 * An argument of the right type with a value that is not allowed. `code` is `ERR_OUT_OF_RANGE` or
 * `ERR_INVALID_ARG_VALUE`.
 */
export class ArgumentRangeError extends RangeError {
  readonly code: ArgumentErrorCode;

  constructor(message: string, code: ArgumentErrorCode = 'ERR_OUT_OF_RANGE') {
    super(message);
    this.code = code;
  }
}

/** Of the right type and within the range, but nothing that is known there, or not beside the other arguments. */
export function invalidValue(message: string): ArgumentRangeError {
  return new ArgumentRangeError(message, 'ERR_INVALID_ARG_VALUE');
}

/** The base class of every error except those for invalid arguments. */
export class CisternError extends Error {
  /** A stable identifier; compare this, not the message. */
  readonly code: CisternErrorCode;

  constructor(code: CisternErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.code = code;
    this.name = new.target.name;
  }
}

/** The details of an {@link OutOfMemoryError}. */
export interface OutOfMemoryDetails {
  /** The requested bytes, as seen by the outermost resource that failed. */
  readonly requestedBytes: number;
  /** Bytes that could still have been allocated, if the resource knows. */
  readonly availableBytes?: number | undefined;
  /** The limit that was hit, if there was one. */
  readonly limitBytes?: number | undefined;
  /** Names of the resources from the outermost to the one that failed first. */
  readonly path: readonly string[];
  /** The attempts to recover memory before giving up, in order. */
  readonly stages?: readonly RecoveryStage[] | undefined;
  /** The path of the {@link Account} whose limit was hit, if the limit was an account's. */
  readonly account?: string | undefined;
  /** The accounts that hold the most memory, the largest first. */
  readonly holders?: readonly MemoryHolder[] | undefined;
}

/** An account that holds memory. */
export interface MemoryHolder {
  /** The {@link Account.path} of one account, or of several that share it. */
  readonly account: string;
  /** The bytes charged to it, without those of accounts within it. */
  readonly bytes: number;
}

/** One attempt to recover memory. */
export interface RecoveryStage {
  /** The name of the stage, such as `'major-collection'`. */
  readonly stage: string;
  /**
   * The stage that this one follows, for a sub-stage: `'settle'` and `'trim'` run again after a
   * collection or a callback, for the memory that it freed.
   */
  readonly after?: string | undefined;
  /** The bytes that it recovered; 0 if unknown. */
  readonly recoveredBytes: number;
}

/**
 * Memory ran out. Every resource is as it was before the call, and you may repeat the call.
 *
 * Counterpart of `rmm::out_of_memory`.
 */
export class OutOfMemoryError extends CisternError {
  readonly requestedBytes: number;
  readonly availableBytes: number | undefined;
  readonly limitBytes: number | undefined;
  /** The attempts to recover memory before giving up, in order; empty if there were none. */
  readonly stages: readonly RecoveryStage[];
  /**
   * The path of the {@link Account} whose limit was hit; `undefined` if the limit was not an
   * account's.
   */
  readonly account: string | undefined;
  /**
   * The accounts that hold the most memory, the largest first: those within the account whose limit
   * was hit, or otherwise all. Empty if nothing is charged to accounts.
   */
  readonly holders: readonly MemoryHolder[];
  #path: readonly string[];

  constructor(message: string, details: OutOfMemoryDetails, options?: ErrorOptions) {
    super('ERR_CISTERN_OUT_OF_MEMORY', message, options);
    this.requestedBytes = details.requestedBytes;
    this.availableBytes = details.availableBytes;
    this.limitBytes = details.limitBytes;
    this.stages = Object.freeze([...(details.stages ?? [])]);
    this.account = details.account;
    this.holders = Object.freeze([...(details.holders ?? [])]);
    this.#path = Object.freeze([...details.path]);
  }

  /**
   * Names of the resources that the request came through, from the outermost to the one that failed
   * first.
   */
  get path(): readonly string[] {
    return this.#path;
  }

  /**
   * Adds the name of a resource that passes the error on to the front of the path. The resource
   * throws what this returns.
   */
  through(resource: string): this {
    this.#path = Object.freeze([resource, ...this.#path]);
    return this;
  }
}

/**
 * Why memory was not promised: `'too-large'` if it never can be; `'timeout'`; `'deadlock'` if all holders of
 * promised memory waited for more, so that none of it would have been returned.
 */
export type NotAdmittedReason = 'too-large' | 'timeout' | 'deadlock';

/**
 * Memory was not promised. Nothing has changed. After `'timeout'` and `'deadlock'` you may repeat the
 * request; after `'deadlock'`, first return memory that others may be waiting for.
 */
export class NotAdmittedError extends CisternError {
  readonly reason: NotAdmittedReason;
  /** The requested bytes. */
  readonly requestedBytes: number;
  /** The most bytes that can be promised at one time. */
  readonly limitBytes: number;

  constructor(
    message: string,
    details: { readonly reason: NotAdmittedReason; readonly requestedBytes: number; readonly limitBytes: number },
  ) {
    super('ERR_CISTERN_NOT_ADMITTED', message);
    this.reason = details.reason;
    this.requestedBytes = details.requestedBytes;
    this.limitBytes = details.limitBytes;
  }
}

/**
 * The driver refused a call. `driverName` and `driverStatus` are CUDA's name and number for the
 * error.
 *
 * Counterpart of `rmm::cuda_error`.
 */
export class DriverError extends CisternError {
  /** The operation that failed, such as `copy` or `create stream`. */
  readonly operation: string;
  /** CUDA's name for the error, such as `CUDA_ERROR_INVALID_VALUE`. */
  readonly driverName: string;
  /** CUDA's number for the error, such as `1`. */
  readonly driverStatus: number;

  constructor(operation: string, driverName: string, driverStatus: number, description: string) {
    super('ERR_CISTERN_DRIVER', `cannot ${operation}: ${driverName} (${driverStatus}), ${description}`);
    this.operation = operation;
    this.driverName = driverName;
    this.driverStatus = driverStatus;
  }
}

/**
 * A stream's device has no access to memory of another device that the call would use. Nothing was
 * queued. The message says what to call.
 */
export class PeerAccessError extends CisternError {
  /** The ordinal of the stream's device. */
  readonly device: number;
  /** The ordinal of the device that the memory belongs to. */
  readonly memoryDevice: number;

  constructor(operation: string, device: number, memoryDevice: number) {
    super(
      'ERR_CISTERN_NO_PEER_ACCESS',
      `cannot ${operation}: device ${device} has no access to this memory of device ${memoryDevice}; call Device.get(${device}).enablePeerAccess(Device.get(${memoryDevice})) ` +
        `where the memory was allocated, or use a stream of device ${memoryDevice}`,
    );
    this.device = device;
    this.memoryDevice = memoryDevice;
  }
}

/**
 * An object was used after it was disposed, or memory was freed twice, with a wrong size, or by a
 * resource that did not allocate it.
 */
export class LifetimeError extends CisternError {
  constructor(
    code:
      | 'ERR_CISTERN_DISPOSED'
      | 'ERR_CISTERN_FOREIGN_POINTER'
      | 'ERR_CISTERN_DOUBLE_FREE'
      | 'ERR_CISTERN_WRONG_SIZE'
      | 'ERR_CISTERN_STALE_MESSAGE'
      | 'ERR_CISTERN_FOREIGN_MESSAGE'
      | 'ERR_CISTERN_STALE_HANDLE'
      | 'ERR_CISTERN_FOREIGN_HANDLE',
    message: string,
  ) {
    super(code, message);
  }
}

/**
 * A resource's `allocate` returned something that cannot be the requested memory: no address, an
 * address that is not aligned, or memory that is still in use. The caller's state is unchanged.
 */
export class FaultyResourceError extends CisternError {
  /** The name of the resource's class. */
  readonly resource: string;
  /** What the resource returned. */
  readonly returned: unknown;

  /** @param fault one clause, the end of a sentence that begins with the resource */
  constructor(resource: string, returned: unknown, fault: string, options?: ErrorOptions) {
    super('ERR_CISTERN_FAULTY_RESOURCE', `the ${resource} ${fault}`, options);
    this.resource = resource;
    this.returned = returned;
  }
}

/**
 * Why a process did not fall asleep or wake: `'timeout'` if what it had queued did not end in time; `'refused'` if the driver
 * refused a step; `'not-running'` if somebody else has locked it; `'unused'` if it uses no device; `'ended'` if it has ended;
 * `'failed'` if the driver cannot go on with it.
 */
export type ProcessSleepReason = 'timeout' | 'refused' | 'not-running' | 'unused' | 'ended' | 'failed';

/**
 * A process did not fall asleep, and runs on as before; or it did not wake, and sleeps on. Only after `'failed'` can it do neither:
 * end it.
 */
export class ProcessSleepError extends CisternError {
  readonly pid: number;
  readonly reason: ProcessSleepReason;

  constructor(message: string, details: { readonly pid: number; readonly reason: ProcessSleepReason }, options?: ErrorOptions) {
    super('ERR_CISTERN_PROCESS_SLEEP', message, options);
    this.pid = details.pid;
    this.reason = details.reason;
  }
}

/** There is no device of the requested kind. */
export class DeviceUnavailableError extends CisternError {
  constructor(message: string) {
    super('ERR_CISTERN_DEVICE_UNAVAILABLE', message);
  }
}

/** The device, its driver or the runtime cannot do this. The state is unchanged. */
export class UnsupportedError extends CisternError {
  constructor(message: string) {
    super('ERR_CISTERN_NOT_SUPPORTED', message);
  }
}

/**
 * There is no addon for this platform, or it cannot be loaded. The message says what to run with
 * the package manager in use.
 */
export class AddonMissingError extends CisternError {
  constructor(reason: string, cause: unknown) {
    super('ERR_CISTERN_ADDON_MISSING', `the native addon of cistern cannot be loaded: ${reason}`, { cause });
  }
}

/** The details of a {@link SpecificationError}: a position in a text, or a path in an object. */
export type SpecificationErrorDetails = {
  /** The words that are valid at that place, if they can be listed. */
  readonly expected: readonly string[];
} & (
  | {
      /** The whole text. */
      readonly specification: string;
      /** Where the fault starts, in UTF-16 code units from 0. */
      readonly position: number;
      /** The length of the fault in the text, at least 1. */
      readonly length: number;
    }
  | {
      /**
       * The path of the fault in the object, such as `upstream.options.maximumBytes`; empty for the
       * object itself.
       */
      readonly path: string;
    }
);

/**
 * The specification of a resource stack is wrong. For a text, the message ends with the text, or
 * with 160 characters of it, and with carets under the fault; `specification`, `position` and
 * `length` are set. For an object, the message begins with the path to the fault, and `path` is
 * set.
 */
export class SpecificationError extends CisternError {
  /** The whole text; `undefined` for an object. */
  readonly specification: string | undefined;
  /** Where the fault in the text starts, in UTF-16 code units from 0; `undefined` for an object. */
  readonly position: number | undefined;
  /** The length of the fault in the text, at least 1; `undefined` for an object. */
  readonly length: number | undefined;
  /**
   * The path of the fault in the object, such as `upstream.options.maximumBytes`, empty for the
   * object itself; `undefined` for a text.
   */
  readonly path: string | undefined;
  /** The words that are valid at that place, if they can be listed. */
  readonly expected: readonly string[];

  /** @param fault one lowercase sentence */
  constructor(fault: string, details: SpecificationErrorDetails, options?: ErrorOptions) {
    super('ERR_CISTERN_INVALID_SPECIFICATION', 'path' in details ? withPath(fault, details.path) : withCarets(fault, details), options);
    this.specification = 'path' in details ? undefined : details.specification;
    this.position = 'path' in details ? undefined : details.position;
    this.length = 'path' in details ? undefined : details.length;
    this.path = 'path' in details ? details.path : undefined;
    this.expected = Object.freeze([...details.expected]);
  }
}

function withPath(fault: string, path: string): string {
  return path === '' ? fault : `at ${shortened(path, mostShown)}: ${fault}`;
}

/** How much of a specification a message shows. */
const mostShown = 160;
/** How much of that comes before the fault. */
const shownBefore = 60;

function withCarets(
  fault: string,
  { specification, position, length }: { specification: string; position: number; length: number },
): string {
  const start = specification.length <= mostShown ? 0 : Math.max(0, position - shownBefore);
  const end = Math.min(start + mostShown, specification.length);
  const before = start > 0 ? '…' : '';
  const shown = `${before}${specification.slice(start, end).replace(/\s/g, ' ')}${end < specification.length ? '…' : ''}`;
  const carets = Math.max(1, Math.min(length, end - position));
  // A caret points at the character above it only if every character of that line is one column
  // wide.
  return `${fault}\n  ${shown}\n  ${' '.repeat(before.length + position - start)}${'^'.repeat(carets)}`;
}

/** A file is not an allocation log, or one of its rows is wrong. */
export class InvalidLogError extends CisternError {
  /** The path or name of the log. */
  readonly source: string;
  /** The line at fault, from 1; `undefined` if the fault is not in a line. */
  readonly line: number | undefined;

  /** @param fault one lowercase sentence */
  constructor(source: string, line: number | undefined, fault: string, options?: ErrorOptions) {
    super('ERR_CISTERN_INVALID_LOG', `${source}${line === undefined ? '' : `, line ${line}`}: ${fault}`, options);
    this.source = source;
    this.line = line;
  }
}

/**
 * A replay stopped at an event for another reason than a lack of memory, which is the `cause`.
 */
export class ReplayError extends CisternError {
  /** The line of the log, from 1. */
  readonly line: number;

  constructor(message: string, line: number, cause: unknown) {
    super('ERR_CISTERN_REPLAY', message, { cause });
    this.line = line;
  }
}

/** `0x7f3e8c000000` for a pointer; any other value as `formatValue` shows it. */
export function formatPointer(pointer: unknown): string {
  return Number.isSafeInteger(pointer) && (pointer as number) >= 0 ? `0x${(pointer as number).toString(16)}` : formatValue(pointer);
}

/** @internal What was thrown, as part of a sentence. */
export function reasonOf(thrown: unknown): string {
  return thrown instanceof Error ? thrown.message : formatValue(thrown);
}

/** A received value, as error messages show it: always short. */
export function formatValue(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(shortened(value));
  // The digits of a number of n bits take n² steps.
  if (typeof value === 'bigint') return BigInt.asIntN(128, value) === value ? `${value}n` : 'a bigint of more than 128 bits';
  if (typeof value === 'function') return `function ${nameOf(value) ?? '(anonymous)'}`;
  if (typeof value === 'object' && value !== null) {
    // Data from a file may have a member `constructor`.
    const made: unknown = value.constructor;
    return `an instance of ${(typeof made === 'function' ? nameOf(made) : undefined) ?? 'Object'}${otherCopyHint(value)}`;
  }
  return shortened(String(value));
}

/** The name of a function or a class, unless it is empty or no longer a string. */
function nameOf({ name }: { readonly name: unknown }): string | undefined {
  return typeof name === 'string' && name !== '' ? shortened(name) : undefined;
}

/** The beginning of a text that is too long for a message. */
function shortened(text: string, most = 40): string {
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

/**
 * The error for using something that is disposed.
 * @param operation the operation that is refused: `allocate`
 * @param subject what is disposed: `the PoolMemoryResource`
 */
export function alreadyDisposed(operation: string, subject: string): LifetimeError {
  return new LifetimeError('ERR_CISTERN_DISPOSED', `cannot ${operation}: ${subject} is already disposed`);
}

/*
 * Errors for a free that is refused. `refusal` is the beginning of the sentence:
 * `the PoolMemoryResource cannot free 0x100`.
 */

export function alreadyFreed(refusal: string): LifetimeError {
  return new LifetimeError('ERR_CISTERN_DOUBLE_FREE', `${refusal}: it is already freed`);
}

/** For a pointer that comes twice in one call. */
export function freedTwice(resource: string, pointer: number): LifetimeError {
  return alreadyFreed(`${resource} cannot free ${formatPointer(pointer)} twice in one call`);
}

export function wrongSize(refusal: string, bytes: number, allocatedBytes: number): LifetimeError {
  return new LifetimeError('ERR_CISTERN_WRONG_SIZE', `${refusal} with ${bytes} bytes: it was allocated with ${allocatedBytes} bytes`);
}

export function insideAllocation(refusal: string): LifetimeError {
  return new LifetimeError('ERR_CISTERN_FOREIGN_POINTER', `${refusal}: it lies inside an allocation, not at its start`);
}

export function notAllocatedHere(refusal: string): LifetimeError {
  return new LifetimeError('ERR_CISTERN_FOREIGN_POINTER', `${refusal}: it was not allocated by this resource`);
}

/** Calls an action for each thing, even if some calls throw. Returns the errors. */
export function attemptEach<T>(things: Iterable<T>, action: (thing: T) => void): unknown[] {
  const errors: unknown[] = [];
  for (const thing of things) {
    try {
      action(thing);
    } catch (error) {
      errors.push(error);
    }
  }
  return errors;
}

/** The result of a call, or `undefined` if it throws. */
export function resultOrNothing<T>(call: () => T): T | undefined {
  try {
    return call();
  } catch {
    return undefined;
  }
}

/** Throws the first error, if there is one. */
export function throwFirst(errors: readonly unknown[]): void {
  if (errors.length > 0) throw errors[0];
}
