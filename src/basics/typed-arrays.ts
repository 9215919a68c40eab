/** A copy with room for twice as many elements. */
export function doubled<T extends Uint8Array | Uint16Array | Uint32Array | Int32Array | Float64Array>(array: T): T {
  const larger = new (array.constructor as new (length: number) => T)(2 * array.length);
  larger.set(array);
  return larger;
}
