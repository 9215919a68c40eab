const units = [
  ['s', 1e9],
  ['ms', 1e6],
  ['µs', 1e3],
] as const;

/**
 * Formats nanoseconds in the unit that fits `total`, with enough digits to distinguish a thousandth
 * of `shown`.
 */
export function formatTime(nanoseconds: number, total: number, shown = total): string {
  const [suffix, size] = units.find(([, nanosecondsOfUnit]) => total >= nanosecondsOfUnit) ?? units[2];
  const digits = Math.min(9, Math.max(0, Math.ceil(-Math.log10(Math.max(1, shown) / size / 1000))));
  return `${(nanoseconds / size).toFixed(digits)} ${suffix}`;
}
