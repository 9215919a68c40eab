import { isAnyArrayBuffer } from 'node:util/types';
import { ArgumentRangeError, ArgumentTypeError, formatValue } from '../../basics/errors.js';
import { assertBytes, assertOptions, type OptionNames, optionNames } from '../../basics/validation.js';

/**
 * A part of a buffer. Arrays and buffers have a `byteLength` too, but are not ranges: TypeScript
 * and the methods that take a range reject them.
 */
export interface ByteRange {
  /** @internal */
  readonly [Symbol.toStringTag]?: never;
  /** @internal */
  readonly [Symbol.dispose]?: never;
  /**
   * The start, in bytes.
   * @defaultValue 0
   */
  readonly byteOffset: number;
  /**
   * The length in bytes.
   * @defaultValue everything after `byteOffset`
   */
  readonly byteLength: number;
}

const rangeNames = optionNames<ByteRange>({ byteLength: true, byteOffset: true });

/**
 * Resolves a range of something that has `limitBytes` bytes.
 * @throws ArgumentTypeError, ArgumentRangeError if the range is not within it.
 */
export function resolveRange(
  range: { readonly byteOffset?: number | undefined; readonly byteLength?: number | undefined },
  limitBytes: number,
  name: string,
  offsetName = 'byteOffset',
): ByteRange {
  assertNoMemory(range, rangeNames, 'range');
  const { byteOffset = 0 } = range;
  assertBytes(byteOffset, offsetName);
  const { byteLength = Math.max(limitBytes - byteOffset, 0) } = range;
  assertBytes(byteLength, 'byteLength');
  if (byteOffset > limitBytes || byteLength > limitBytes - byteOffset) {
    throw new ArgumentRangeError(`${byteLength} bytes from offset ${byteOffset} do not lie within the ${limitBytes} bytes of the ${name}`);
  }
  return { byteOffset, byteLength };
}

/**
 * @throws ArgumentTypeError if `value` is not an object, or has bytes itself; ArgumentRangeError
 * for a name that is not in `names`.
 */
export function assertNoMemory(value: unknown, names: OptionNames, name: string): void {
  if (ArrayBuffer.isView(value) || isAnyArrayBuffer(value) || (typeof value === 'object' && value !== null && Symbol.dispose in value)) {
    throw new ArgumentTypeError(`${name} must be an object with offsets and lengths, got ${formatValue(value)}`);
  }
  assertOptions(value, names, name);
}
