/**
 * Every error that cistern throws has a stable `code`. Mistakes in an argument are `TypeError` and `RangeError`, as Node's own are;
 * everything else derives from {@link CisternError}.
 */

/** Codes of {@link ArgumentTypeError} and {@link ArgumentRangeError}. */
export type ArgumentErrorCode = 'ERR_INVALID_ARG_TYPE' | 'ERR_INVALID_ARG_VALUE' | 'ERR_OUT_OF_RANGE';

/** Codes of {@link CisternError} and its subclasses. */
export type CisternErrorCode =
  | 'ERR_CISTERN_OUT_OF_MEMORY'
  | 'ERR_CISTERN_DRIVER'
  | 'ERR_CISTERN_DISPOSED'
  | 'ERR_CISTERN_FOREIGN_POINTER'
  | 'ERR_CISTERN_DOUBLE_FREE'
  | 'ERR_CISTERN_WRONG_SIZE'
  | 'ERR_CISTERN_DEVICE_UNAVAILABLE'
  | 'ERR_CISTERN_ADDON_MISSING'
  | 'ERR_CISTERN_INVALID_STATE'
  | 'ERR_CISTERN_INVALID_SPECIFICATION'
  | 'ERR_CISTERN_INVALID_LOG'
  | 'ERR_CISTERN_REPLAY'
  | 'ERR_CISTERN_LOG_WRITE'
  | 'ERR_CISTERN_ORDER';

/** An argument of the wrong type. `code` is `ERR_INVALID_ARG_TYPE`. */
export class ArgumentTypeError extends TypeError {
  readonly code: ArgumentErrorCode = 'ERR_INVALID_ARG_TYPE';
}

/** An argument of the right type, but not one of the values that are allowed. `code` is `ERR_OUT_OF_RANGE` or `ERR_INVALID_ARG_VALUE`. */
export class ArgumentRangeError extends RangeError {
  readonly code: ArgumentErrorCode;

  constructor(message: string, code: ArgumentErrorCode = 'ERR_OUT_OF_RANGE') {
    super(message);
    this.code = code;
  }
}

/** The root of every error that is not a plain argument mistake. */
export class CisternError extends Error {
  /** A stable identifier; compare this, not the message. */
  readonly code: CisternErrorCode;

  constructor(code: CisternErrorCode, message: string, options?: ErrorOptions) {
    super(message, options);
    this.code = code;
    this.name = new.target.name;
  }
}

/** What an {@link OutOfMemoryError} knows. */
export interface OutOfMemoryDetails {
  /** Bytes that were asked for, as the outermost resource that failed saw them. */
  readonly requestedBytes: number;
  /** Bytes that could still have been served, where the resource knows. */
  readonly availableBytes?: number;
  /** The limit that was hit, where one was. */
  readonly limitBytes?: number;
  /** Names of the resources from the outermost to the one that failed first. */
  readonly path: readonly string[];
  /** What was tried to get memory back before giving up, in order. */
  readonly stages?: readonly RecoveryStage[];
}

/** One attempt to get memory back. */
export interface RecoveryStage {
  /** For example `'major-collection'`. */
  readonly stage: string;
  /** Set where it is a sub-stage: `'settle'` and `'trim'` come again after a collection or a callback, with what that freed. */
  readonly after?: string;
  /** Bytes that it gave back; where that cannot be known, 0. */
  readonly recoveredBytes: number;
}

/**
 * Memory ran out. The state of every resource is as it was before the call, and the call may be repeated.
 *
 * Counterpart of `rmm::out_of_memory`.
 */
export class OutOfMemoryError extends CisternError {
  readonly requestedBytes: number;
  readonly availableBytes: number | undefined;
  readonly limitBytes: number | undefined;
  /** What was tried to get memory back before giving up, in order; empty where nothing was. */
  readonly stages: readonly RecoveryStage[];
  #path: readonly string[];

  constructor(message: string, details: OutOfMemoryDetails, options?: ErrorOptions) {
    super('ERR_CISTERN_OUT_OF_MEMORY', message, options);
    this.requestedBytes = details.requestedBytes;
    this.availableBytes = details.availableBytes;
    this.limitBytes = details.limitBytes;
    this.stages = Object.freeze([...(details.stages ?? [])]);
    this.#path = Object.freeze([...details.path]);
  }

  /** Names of the resources that the request came through, from the outermost to the one that failed first. */
  get path(): readonly string[] {
    return this.#path;
  }

  /** Puts the name of a resource that the error passes through in front of the path; to be thrown on by that resource. */
  through(resource: string): this {
    this.#path = Object.freeze([resource, ...this.#path]);
    return this;
  }
}

/**
 * The driver refused a call. `driverName` and `driverStatus` are CUDA's name and number for it.
 *
 * Counterpart of `rmm::cuda_error`.
 */
export class DriverError extends CisternError {
  /** What was being done, such as `copy` or `create stream`. */
  readonly operation: string;
  /** For example `CUDA_ERROR_INVALID_VALUE`. */
  readonly driverName: string;
  /** For example `1`. */
  readonly driverStatus: number;

  constructor(operation: string, driverName: string, driverStatus: number, description: string) {
    super('ERR_CISTERN_DRIVER', `cannot ${operation}: ${driverName} (${driverStatus}), ${description}`);
    this.operation = operation;
    this.driverName = driverName;
    this.driverStatus = driverStatus;
  }
}

/** Something is used after its end, or freed by one that does not own it. */
export class LifetimeError extends CisternError {
  constructor(
    code: 'ERR_CISTERN_DISPOSED' | 'ERR_CISTERN_FOREIGN_POINTER' | 'ERR_CISTERN_DOUBLE_FREE' | 'ERR_CISTERN_WRONG_SIZE',
    message: string,
  ) {
    super(code, message);
  }
}

/** No device of the kind that was asked for. */
export class DeviceUnavailableError extends CisternError {
  constructor(message: string) {
    super('ERR_CISTERN_DEVICE_UNAVAILABLE', message);
  }
}

/** The addon was not built, or was built for another platform. */
export class AddonMissingError extends CisternError {
  constructor(root: string, cause: unknown) {
    super(
      'ERR_CISTERN_ADDON_MISSING',
      `the native addon of cistern cannot be loaded: run "npm rebuild cistern" (in a clone "npm ci"), which needs CMake and a C++ compiler; looked in ${root}`,
      { cause },
    );
  }
}

/** What a {@link SpecificationError} knows: a place in a text, or a place in an object. */
export type SpecificationErrorDetails = {
  /** The words that would have been right there, where they can be listed. */
  readonly expected: readonly string[];
} & (
  | {
      /** The whole text. */
      readonly specification: string;
      /** Where the fault begins, in UTF-16 code units from 0. */
      readonly position: number;
      /** How much of the text is at fault; at least 1. */
      readonly length: number;
    }
  | {
      /** Where the fault is in the object, such as `upstream.options.max`; empty for the object itself. */
      readonly path: string;
    }
);

/**
 * The description of a stack of resources is wrong. For a text, the message ends with the text and a line of carets under the fault, and
 * `specification`, `position` and `length` are set; for an object, the message begins with the path to the fault, and `path` is set.
 */
export class SpecificationError extends CisternError {
  /** The whole text; `undefined` for an object. */
  readonly specification: string | undefined;
  /** Where the fault begins in the text, in UTF-16 code units from 0; `undefined` for an object. */
  readonly position: number | undefined;
  /** How much of the text is at fault, at least 1; `undefined` for an object. */
  readonly length: number | undefined;
  /** Where the fault is in the object, such as `upstream.options.max`, empty for the object itself; `undefined` for a text. */
  readonly path: string | undefined;
  /** The words that would have been right there, where they can be listed. */
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
  return path === '' ? fault : `at ${path}: ${fault}`;
}

function withCarets(
  fault: string,
  { specification, position, length }: { specification: string; position: number; length: number },
): string {
  // A caret only points at what is above it where nothing above it is wider or narrower than one column.
  return `${fault}\n  ${specification.replace(/\s/g, ' ')}\n  ${' '.repeat(position)}${'^'.repeat(length)}`;
}

/** A file is not an allocation log, or one of its rows is wrong. */
export class InvalidLogError extends CisternError {
  /** The path or name of the log. */
  readonly source: string;
  /** The line at fault, from 1, where it is a line. */
  readonly line: number | undefined;

  /** @param fault one lowercase sentence */
  constructor(source: string, line: number | undefined, fault: string, options?: ErrorOptions) {
    super('ERR_CISTERN_INVALID_LOG', `${source}${line === undefined ? '' : `, line ${line}`}: ${fault}`, options);
    this.source = source;
    this.line = line;
  }
}

/** A replay stopped at an event for another reason than exhausted memory; `cause` is that reason. */
export class ReplayError extends CisternError {
  /** The line of the log, from 1. */
  readonly line: number;

  constructor(message: string, line: number, cause: unknown) {
    super('ERR_CISTERN_REPLAY', message, { cause });
    this.line = line;
  }
}

/** `0x7f3e8c000000` for a pointer, or the value as it is where it is none. */
export function formatPointer(pointer: unknown): string {
  return Number.isSafeInteger(pointer) && (pointer as number) >= 0 ? `0x${(pointer as number).toString(16)}` : formatValue(pointer);
}

/** A received value, as an error message shows it. */
export function formatValue(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(value.length > 40 ? `${value.slice(0, 40)}…` : value);
  if (typeof value === 'bigint') return `${value}n`;
  if (typeof value === 'function') return `function ${value.name || '(anonymous)'}`;
  if (typeof value === 'object' && value !== null) return `an instance of ${value.constructor?.name ?? 'Object'}`;
  return String(value);
}
