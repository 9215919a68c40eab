import { ArgumentRangeError } from '../errors.js';
import { assertBytes, assertOptions } from '../validation.js';

/** A part of a buffer. */
export interface ByteRange {
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

/**
 * The range of something of `limitBytes` bytes that is meant.
 * @throws ArgumentTypeError, ArgumentRangeError for one that does not lie within.
 */
export function resolveRange(
  range: { readonly byteOffset?: number | undefined; readonly byteLength?: number | undefined },
  limitBytes: number,
  name: string,
): ByteRange {
  assertOptions(range, 'range');
  const { byteOffset = 0 } = range;
  assertBytes(byteOffset, 'byteOffset');
  const { byteLength = Math.max(limitBytes - byteOffset, 0) } = range;
  assertBytes(byteLength, 'byteLength');
  if (byteOffset > limitBytes || byteLength > limitBytes - byteOffset) {
    throw new ArgumentRangeError(`${byteLength} bytes from offset ${byteOffset} do not lie within the ${limitBytes} bytes of the ${name}`);
  }
  return { byteOffset, byteLength };
}
