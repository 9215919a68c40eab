type Column = Uint8Array | Uint16Array | Uint32Array | Int32Array | Float64Array;

/** A copy with room for twice as many elements. */
export function doubled<T extends Column>(array: T): T {
  return resized(array, 2 * array.length);
}

/** A copy with room for `length` elements, at least as many as the array has. */
export function resized<T extends Column>(array: T, length: number): T {
  const larger = new (array.constructor as new (length: number) => T)(length);
  larger.set(array);
  return larger;
}
