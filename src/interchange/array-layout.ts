import { ArgumentRangeError, ArgumentTypeError, formatValue, invalidValue } from '../basics/errors.js';

/** The elements of an array in memory. All figures are bytes, except the shape. */
export interface ArrayLayout {
  /** The number of elements in each dimension; empty for a single element. */
  readonly shape: readonly number[];
  /** The bytes from an element to the next one in each dimension. */
  readonly strides: readonly number[];
  /** The bytes from the first byte of the first element to the end of the last one; 0 if there are no elements. */
  readonly extentBytes: number;
}

/** The most dimensions of an array: NumPy's limit. */
const maximumDimensions = 64;

/**
 * Checks the shape and the strides of an array.
 * @param strides the steps in units of `unitBytes`; `undefined` for an array in C order without gaps
 * @throws ArgumentTypeError, ArgumentRangeError naming the fault. Negative strides are refused,
 * because the pointer of such an array is not the start of its memory.
 */
export function arrayLayout(shape: unknown, strides: unknown, itemBytes: number, unitBytes: number): ArrayLayout {
  const lengths = integers(shape, 'shape');
  // As in NumPy, an array without elements must not be too large in its other dimensions, because
  // its strides are computed from them.
  if (!Number.isSafeInteger(lengths.reduce((product, length) => product * Math.max(1, length), itemBytes))) {
    throw new ArgumentRangeError(`shape must have at most 2^53 - 1 bytes, got ${formatIntegers(lengths)} elements of ${itemBytes} bytes`);
  }
  const steps = strides === undefined ? compactStrides(lengths, itemBytes) : bytesOf(integers(strides, 'strides'), unitBytes);
  if (steps.length !== lengths.length) {
    throw invalidValue(`strides must have ${lengths.length} numbers, as shape does, got ${steps.length}`);
  }
  if (lengths.includes(0)) return { shape: lengths, strides: steps, extentBytes: 0 };
  let extentBytes = itemBytes;
  for (const [i, length] of lengths.entries()) extentBytes += (length - 1) * (steps[i] as number);
  if (!Number.isSafeInteger(extentBytes)) {
    throw new ArgumentRangeError(
      `strides must keep the array within 2^53 - 1 bytes, got ${formatIntegers(steps)} bytes for the shape ${formatIntegers(lengths)}`,
    );
  }
  return { shape: lengths, strides: steps, extentBytes };
}

/** Whether the elements follow each other in C order without gaps. */
export function isCompact({ shape, strides }: ArrayLayout, itemBytes: number): boolean {
  if (shape.includes(0)) return true;
  const compact = compactStrides(shape, itemBytes);
  return shape.every((length, i) => length === 1 || strides[i] === compact[i]);
}

/** @throws ArgumentRangeError if the array is not within a buffer. */
export function assertWithin({ extentBytes }: ArrayLayout, byteOffset: number, byteLength: number): void {
  if (byteOffset <= byteLength && extentBytes <= byteLength - byteOffset) return;
  throw new ArgumentRangeError(
    `the array must be within the ${byteLength} bytes of the buffer, got ${extentBytes} bytes from offset ${byteOffset}`,
  );
}

function compactStrides(shape: readonly number[], itemBytes: number): number[] {
  const strides: number[] = new Array(shape.length);
  let step = itemBytes;
  for (let i = shape.length - 1; i >= 0; i--) {
    strides[i] = step;
    step *= Math.max(1, shape[i] as number);
  }
  return strides;
}

function bytesOf(steps: readonly number[], unitBytes: number): number[] {
  return steps.map((step) => {
    if (Number.isSafeInteger(step * unitBytes)) return step * unitBytes;
    throw new ArgumentRangeError(`strides must be steps of at most 2^53 - 1 bytes, got ${step} elements of ${unitBytes} bytes`);
  });
}

function integers(values: unknown, name: string): number[] {
  if (!Array.isArray(values)) throw new ArgumentTypeError(`${name} must be an array, got ${formatValue(values)}`);
  if (values.length > maximumDimensions) {
    throw new ArgumentRangeError(`${name} must have at most ${maximumDimensions} numbers, got ${values.length}`);
  }
  return Array.from(values, (value: unknown) => {
    if (typeof value !== 'number') throw new ArgumentTypeError(`${name} must have numbers only, got ${formatValue(value)}`);
    if (Number.isSafeInteger(value) && value >= 0) return value;
    throw new ArgumentRangeError(`${name} must have only integers from 0 to 2^53 - 1, got ${value}`);
  });
}

function formatIntegers(values: readonly number[]): string {
  return `[${values.join(', ')}]`;
}
