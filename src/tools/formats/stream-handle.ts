/**
 * The driver's handle of a stream, from its hexadecimal name in a log; `undefined` for other names.
 */
export function streamHandle(name: string): number | undefined {
  const digits = /^(?:0x)?([0-9a-f]+)$/i.exec(name)?.[1];
  const handle = Number.parseInt(digits ?? '', 16);
  return Number.isSafeInteger(handle) ? handle : undefined;
}
