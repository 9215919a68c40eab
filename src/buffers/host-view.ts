import { isTypedArray } from 'node:util/types';
import { ArgumentRangeError, ArgumentTypeError, formatValue } from '../basics/errors.js';
import { assertBytes, optionNames } from '../basics/validation.js';

/** A class of typed arrays, such as `Float32Array`. */
export interface TypedArrayClass<T extends ArrayBufferView> {
  new (buffer: ArrayBuffer, byteOffset: number, length: number): T;
  readonly BYTES_PER_ELEMENT: number;
}

/** Options of {@link DeviceBuffer.hostView}. */
export interface HostViewOptions {
  /**
   * The start in the buffer, in bytes: a multiple of the size of an element.
   * @defaultValue 0
   */
  readonly byteOffset?: number;
  /**
   * The number of elements.
   * @defaultValue everything after `byteOffset`, which must then be a whole number of elements
   */
  readonly length?: number;
  /**
   * If the buffer's stream has unfinished work: `'wait'` blocks until that is done, `'refuse'`
   * throws.
   * @defaultValue `'wait'`
   */
  readonly whenBusy?: 'wait' | 'refuse';
}

/** @internal */
export const hostViewOptionNames = optionNames<HostViewOptions>({ byteOffset: true, length: true, whenBusy: true });

/** The part of a buffer that a view of this class shows, in bytes and in elements. */
export function viewRange(
  type: TypedArrayClass<ArrayBufferView>,
  { byteOffset = 0, length }: HostViewOptions,
  byteLength: number,
): { readonly byteOffset: number; readonly length: number } {
  if (!isTypedArrayClass(type)) {
    throw new ArgumentTypeError(`type must be a class of typed arrays, such as Float32Array, got ${formatValue(type)}`);
  }
  assertBytes(byteOffset, 'byteOffset');
  if (length !== undefined) assertBytes(length, 'length');
  const size = type.BYTES_PER_ELEMENT;
  const rest = byteLength - byteOffset;
  if (byteOffset % size !== 0) throw new ArgumentRangeError(`byteOffset must be a multiple of ${size}, got ${byteOffset}`);
  if (length === undefined && rest % size !== 0) {
    throw new ArgumentRangeError(`the ${rest} bytes after byteOffset must be a multiple of ${size} if no length is given`);
  }
  const elements = length === undefined ? rest / size : length;
  if (rest < 0 || elements > rest / size) {
    throw new ArgumentRangeError(
      `${elements} elements of ${size} bytes from offset ${byteOffset} do not lie within the ${byteLength} bytes of the buffer`,
    );
  }
  return { byteOffset, length: elements };
}

/** Test runners that use contexts have classes of their own in each. */
function isTypedArrayClass(type: unknown): boolean {
  const prototype: unknown = typeof type === 'function' ? Object.getPrototypeOf(type) : undefined;
  return typeof prototype === 'function' && prototype.name === 'TypedArray' && isTypedArray(Reflect.construct(type as never, [0]));
}
