import { ArgumentRangeError, ArgumentTypeError, formatValue, invalidValue } from './errors.js';
import { suggestion } from './nearest-word.js';
import { ALLOCATION_ALIGNMENT, bytesOf, isPowerOfTwo } from './units.js';

/**
 * Throws unless `bytes` is an integer from 0 to 2^53 - 1.
 * @throws ArgumentTypeError, ArgumentRangeError
 */
export function assertBytes(bytes: unknown, name = 'bytes'): asserts bytes is number {
  if (!Number.isSafeInteger(bytes) || (bytes as number) < 0) throw notBytes(bytes, name);
}

/** A separate function keeps the check short enough to be inlined everywhere. */
function notBytes(value: unknown, name: string): ArgumentTypeError | ArgumentRangeError {
  return typeof value === 'number'
    ? new ArgumentRangeError(`${name} must be an integer from 0 to 2^53 - 1, got ${value}`)
    : new ArgumentTypeError(`${name} must be a number, got ${formatValue(value)}${sizeHint(value)}`);
}

/**
 * The bytes that a text such as `4096`, `512KiB`, `1.5 GiB` or `2GB` names, or `undefined` if it
 * does not name a whole number of bytes from 0 to 2^53 - 1. `KiB`, `MiB`, `GiB`, `TiB` (also `K`,
 * `M`, `G`, `T`) are powers of 1024; `kB`, `MB`, `GB`, `TB` powers of 1000.
 * @throws ArgumentTypeError if `text` is not a string.
 */
export function parseBytes(text: string): number | undefined {
  if (typeof text !== 'string') throw new ArgumentTypeError(`text must be a string, got ${formatValue(text)}`);
  return bytesOf(text);
}

/** A hint how to write a size that was given as text. */
function sizeHint(value: unknown): string {
  if (typeof value !== 'string' || bytesOf(value) === undefined) return '';
  const [, count, unit] = /^\s*(\d+)\s*([KMG]iB)\s*$/.exec(value) ?? [];
  return unit === undefined ? `; write parseBytes(${formatValue(value)})` : `; write ${count} * ${unit}`;
}

/**
 * Throws unless `alignment` is a power of two up to `maximum`.
 * @throws ArgumentTypeError, ArgumentRangeError
 */
export function assertAlignment(alignment: unknown, maximum = 2 ** 40): asserts alignment is number {
  if (typeof alignment !== 'number') throw new ArgumentTypeError(`alignment must be a number, got ${formatValue(alignment)}`);
  if (!isPowerOfTwo(alignment)) throw new ArgumentRangeError(`alignment must be a power of two, got ${alignment}`);
  if (alignment > maximum) {
    const cure = maximum === ALLOCATION_ALIGNMENT ? ', which is what this resource can promise' : '';
    throw new ArgumentRangeError(`alignment must be at most ${maximum}${cure}, got ${alignment}`);
  }
}

/**
 * Throws unless `pointer` is an integer from 0 to 2^53 - 1.
 * @throws ArgumentTypeError, ArgumentRangeError
 */
export function assertPointer(pointer: unknown, name = 'pointer'): asserts pointer is number {
  assertBytes(pointer, name);
}

/** The most allocations that one call may make. */
const maximumMany = 2 ** 20;

/** Throws unless `values` is an array of numbers for a call that allocates or frees many blocks. */
export function assertMany(values: unknown, name: string): asserts values is Float64Array {
  if (!(values instanceof Float64Array)) throw new ArgumentTypeError(`${name} must be a Float64Array, got ${formatValue(values)}`);
  if (values.length > maximumMany) throw new ArgumentRangeError(`${name} must have at most ${maximumMany} elements, got ${values.length}`);
}

/** Throws unless `pointers` and `sizes` are such arrays of the same length. */
export function assertManyPairs(pointers: unknown, sizes: unknown): asserts pointers is Float64Array {
  assertMany(pointers, 'pointers');
  assertMany(sizes, 'sizes');
  if (pointers.length === sizes.length) return;
  throw new ArgumentRangeError(`pointers and sizes must have the same number of elements, got ${pointers.length} and ${sizes.length}`);
}

/** Where a call puts the pointers of many sizes: the array that it was given, or a new one. */
export function pointersFor(sizes: unknown, pointers: unknown): Float64Array {
  assertMany(sizes, 'sizes');
  if (pointers === undefined) return new Float64Array(sizes.length);
  assertManyPairs(pointers, sizes);
  if (pointers.buffer !== sizes.buffer || Math.abs(pointers.byteOffset - sizes.byteOffset) >= sizes.byteLength) return pointers;
  throw new ArgumentRangeError(
    `pointers and sizes must not share memory, got offsets ${pointers.byteOffset} and ${sizes.byteOffset} of one buffer`,
  );
}

/** Throws unless every element is a number of bytes. */
export function assertEachBytes(values: Float64Array, name: string): void {
  for (let i = 0; i < values.length; i++) assertBytes(values[i], `${name}[${i}]`);
}

/** The names of the options that a function knows, and which of them are booleans or functions. */
export type OptionNames = ReadonlyMap<string, 'boolean' | 'function' | true>;

type NamesOf<T> = T extends unknown ? keyof T & string : never;

type MarkOf<T, Name> = T extends { readonly [Key in Name & string]?: infer Value }
  ? [Exclude<Value, undefined>] extends [never]
    ? never
    : [Exclude<Value, undefined>] extends [boolean]
      ? 'boolean'
      : [Exclude<Value, undefined>] extends [(...args: never[]) => unknown]
        ? 'function'
        : true
  : never;

/**
 * Lists the names of an interface of options, for {@link assertOptions}. The compiler ensures that
 * there is exactly one entry for each, and that booleans and functions are marked as such.
 */
export function optionNames<T>(names: { readonly [Name in NamesOf<T>]: MarkOf<T, Name> }): OptionNames {
  return new Map(Object.entries(names));
}

/**
 * Throws unless `options` is an object with no options but those in `names`, and those marked as
 * booleans or functions are that.
 * @throws ArgumentTypeError if it is not an object, or if an option must be a boolean or a function and is not;
 * ArgumentRangeError (`ERR_INVALID_ARG_VALUE`) naming the unknown option and the nearest known one.
 */
export function assertOptions(options: unknown, names: OptionNames, name = 'options'): asserts options is object {
  if (typeof options !== 'object' || options === null) {
    throw new ArgumentTypeError(`${name} must be an object, got ${formatValue(options)}`);
  }
  for (const option in options) {
    const mark = names.get(option);
    if (mark === undefined) refuseOption(option, [...names.keys()], name);
    if (mark === true) continue;
    const value = (options as Readonly<Record<string, unknown>>)[option];
    if (value === undefined) continue;
    if (mark === 'boolean') assertBoolean(value, option);
    else assertFunction(value, option);
  }
}

function refuseOption(option: string, names: readonly string[], name: string): never {
  throw invalidValue(`${name} must not have ${formatValue(option)}${suggestion(option, names) || ';'} it can have ${names.join(', ')}`);
}

/**
 * Throws unless `value` is a text of at least one character.
 * @throws ArgumentTypeError
 */
export function assertName(value: unknown, name: string): asserts value is string {
  if (typeof value !== 'string' || value === '')
    throw new ArgumentTypeError(`${name} must be a non-empty string, got ${formatValue(value)}`);
}

/**
 * Throws unless `value` is a boolean.
 * @throws ArgumentTypeError
 */
export function assertBoolean(value: unknown, name: string): asserts value is boolean {
  if (typeof value !== 'boolean') throw new ArgumentTypeError(`${name} must be a boolean, got ${formatValue(value)}`);
}

/**
 * Throws unless `value` is a function.
 * @throws ArgumentTypeError
 */
export function assertFunction(value: unknown, name: string): void {
  if (typeof value !== 'function') throw new ArgumentTypeError(`${name} must be a function, got ${formatValue(value)}`);
}

/**
 * Throws unless `value` is one of the words in `allowed`.
 * @throws ArgumentRangeError naming the allowed words.
 */
export function assertOneOf<T extends string>(value: unknown, allowed: readonly T[], name: string): asserts value is T {
  if (allowed.includes(value as T)) return;
  throw invalidValue(`${name} must be ${allowed.map((word) => `'${word}'`).join(', ')}, got ${formatValue(value)}`);
}

/** Refuses an option whose value differs from that of other adaptors with the same shared name. */
export function assertShared(given: number, known: number, shared: string | undefined, name: string): void {
  if (given === known) return;
  throw invalidValue(`${name} must be ${known}, as in the other adaptors that share ${formatValue(shared)}, got ${given}`);
}

/** Refuses `new` for a class whose objects only cistern makes; `source` says what returns one. */
export function assertMadeByCistern(argument: unknown, name: string, source: string): void {
  if (argument === undefined) throw new ArgumentTypeError(`a ${name} cannot be constructed: ${source} returns one`);
}

/**
 * @param range the numbers of the range, for the message
 * @throws ArgumentTypeError if the value is not a number, ArgumentRangeError if it is not an integer from `least` to `most`
 */
export function assertInteger(
  value: unknown,
  name: string,
  least: number,
  most: number = Number.MAX_SAFE_INTEGER,
  range = `${least} to ${most === Number.MAX_SAFE_INTEGER ? '2^53 - 1' : most}`,
): asserts value is number {
  if (typeof value !== 'number') throw new ArgumentTypeError(`${name} must be a number, got ${formatValue(value)}`);
  if (!Number.isInteger(value) || value < least || value > most)
    throw new ArgumentRangeError(`${name} must be an integer from ${range}, got ${value}`);
}

/** @throws ArgumentTypeError, ArgumentRangeError if the value is not a finite number of at least 0. */
export function assertMilliseconds(value: number, name: string): void {
  if (typeof value !== 'number') throw new ArgumentTypeError(`${name} must be a number, got ${formatValue(value)}`);
  if (!Number.isFinite(value) || value < 0)
    throw new ArgumentRangeError(`${name} must be finite and at least 0, got ${formatValue(value)}`);
}

/** Whether a function's result continues asynchronously. */
export function isThenable(value: unknown): value is PromiseLike<unknown> {
  return typeof (value as PromiseLike<unknown> | null | undefined)?.then === 'function';
}

/**
 * Refuses a promise returned by a function that must be synchronous. Nobody else will hear of its error, if that comes
 * later, so it is ignored.
 * @param what is over when the function returns: `the capture`
 * @throws ArgumentTypeError if it is a promise, of whatever library or realm.
 */
export function assertNoPromise(result: unknown, name: string, what: string): void {
  if (!isThenable(result)) return;
  Promise.resolve(result).catch(() => {});
  throw new ArgumentTypeError(`${name} must be synchronous, but returned a promise: ${what} ends when the function returns`);
}
