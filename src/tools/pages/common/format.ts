import { formatBytes } from '../../../basics/units.js';

export { formatBytes };

/** `1234567` as `1,234,567`; at most one digit after the decimal point. */
export function formatCount(count: number): string {
  return count.toLocaleString('en-US', { maximumFractionDigits: 1 });
}

/** A rate per second: `12.5/s`, `1.2 M/s`. */
export function formatRate(perSecond: number): string {
  return `${perSecond.toLocaleString('en-US', { notation: 'compact', maximumSignificantDigits: 3 })}/s`;
}

/** `0.125` as `12.5 %`. */
export function formatShare(share: number): string {
  return `${(100 * share).toFixed(1)} %`;
}

const durationUnits = [
  ['h', 3_600_000],
  ['min', 60_000],
  ['s', 1000],
  ['ms', 1],
  ['µs', 1e-3],
  ['ns', 1e-6],
] as const;

/** A duration in its largest whole unit: `1.5 s`, `12 µs`. */
export function formatDuration(milliseconds: number): string {
  if (milliseconds === 0) return '0 s';
  const [suffix, size] = durationUnits.find(([, unit]) => Math.abs(milliseconds) >= unit) ?? ['ns', 1e-6];
  return `${Number((milliseconds / size).toPrecision(3))} ${suffix}`;
}

/** The time of day in the reader's time zone, from milliseconds since 1970. */
export function formatTimeOfDay(milliseconds: number): string {
  return new Date(milliseconds).toLocaleTimeString('en-GB');
}

const timeUnits = [
  ['s', 1e9],
  ['ms', 1e6],
  ['µs', 1e3],
] as const;

/**
 * Formats nanoseconds in the unit that fits `total`, with enough digits to distinguish a thousandth
 * of `shown`.
 */
export function formatTime(nanoseconds: number, total: number, shown = total): string {
  const [suffix, size] = timeUnits.find(([, nanosecondsOfUnit]) => total >= nanosecondsOfUnit) ?? timeUnits[2];
  const digits = Math.min(9, Math.max(0, Math.ceil(-Math.log10(Math.max(1, shown) / size / 1000))));
  return `${(nanoseconds / size).toFixed(digits)} ${suffix}`;
}
