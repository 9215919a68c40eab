/** The driver's handle of a stream by its name in a log, which is hexadecimal, or `undefined` where the name is none. */
export function streamHandle(name: string): number | undefined {
  const digits = /^(?:0x)?([0-9a-f]+)$/i.exec(name)?.[1];
  const handle = Number.parseInt(digits ?? '', 16);
  return Number.isSafeInteger(handle) ? handle : undefined;
}
