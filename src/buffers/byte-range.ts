import { isAnyArrayBuffer } from 'node:util/types';
import { ArgumentRangeError, ArgumentTypeError, formatValue } from '../errors.js';
import { assertBytes, assertOptions, type OptionNames, optionNames } from '../validation.js';

/**
 * A part of a buffer. Neither an array nor a buffer is one, though they have a `byteLength`: TypeScript refuses them, and so do the methods that
 * take a range.
 */
export interface ByteRange {
  /** @internal */
  readonly [Symbol.toStringTag]?: never;
  /** @internal */
  readonly [Symbol.dispose]?: never;
  /**
   * Where it begins, in bytes.
   * @defaultValue 0
   */
  readonly byteOffset: number;
  /**
   * How many bytes it has.
   * @defaultValue all that follow `byteOffset`
   */
  readonly byteLength: number;
}

const rangeNames = optionNames<ByteRange>({ byteLength: true, byteOffset: true });

/**
 * The range of something of `limitBytes` bytes that is meant.
 * @throws ArgumentTypeError, ArgumentRangeError for one that does not lie within.
 */
export function resolveRange(
  range: { readonly byteOffset?: number | undefined; readonly byteLength?: number | undefined },
  limitBytes: number,
  name: string,
): ByteRange {
  assertNoMemory(range, rangeNames, 'range');
  const { byteOffset = 0 } = range;
  assertBytes(byteOffset, 'byteOffset');
  const { byteLength = Math.max(limitBytes - byteOffset, 0) } = range;
  assertBytes(byteLength, 'byteLength');
  if (byteOffset > limitBytes || byteLength > limitBytes - byteOffset) {
    throw new ArgumentRangeError(`${byteLength} bytes from offset ${byteOffset} do not lie within the ${limitBytes} bytes of the ${name}`);
  }
  return { byteOffset, byteLength };
}

/** @throws ArgumentTypeError for what is no object, and for one that has bytes itself; ArgumentRangeError for a name that is none of `names`. */
export function assertNoMemory(value: unknown, names: OptionNames, name: string): void {
  if (ArrayBuffer.isView(value) || isAnyArrayBuffer(value) || (typeof value === 'object' && value !== null && Symbol.dispose in value)) {
    throw new ArgumentTypeError(`${name} must be an object with offsets and lengths, got ${formatValue(value)}`);
  }
  assertOptions(value, names, name);
}
