import { formatValue } from '../../../basics/errors.js';

const columns = ['thread', 'time', 'action', 'pointer', 'size', 'stream'] as const;

const timeForm = 'a time such as 14:03:22.123456';

/** The pattern of each column, and its description in messages. */
const forms: Readonly<Record<(typeof columns)[number], { readonly pattern: RegExp; readonly expected: string }>> = {
  thread: { pattern: /^\d+$/, expected: 'a decimal number' },
  time: { pattern: /^[^,]+$/, expected: timeForm },
  action: { pattern: /^(allocate|allocate failure|free)$/, expected: 'allocate, allocate failure or free' },
  pointer: { pattern: /^(\(nil\)|(0x)?[0-9A-Fa-f]+)$/, expected: 'a hexadecimal number such as 0x7f3e8c000000, or (nil)' },
  size: { pattern: /^\d+$/, expected: 'a decimal number of bytes' },
  stream: { pattern: /^(0x)?[0-9A-Fa-f]+$/, expected: 'a hexadecimal number such as 0x0' },
};

/** Whether bytes decoded as UTF-8 are binary data: control or replacement characters result. */
export function holdsBinaryData(text: string): boolean {
  return /(?![\t\n\v\f\r])[\p{Cc}\ufffd]/u.test(text);
}

/** The fault of a line as a row of an RMM log, or `undefined` if its form is correct. */
export function explainRow(line: string): string | undefined {
  if (holdsBinaryData(line)) return 'holds binary data';
  const values = line.split(',');
  if (values.length !== columns.length) return `has ${values.length} fields instead of ${columns.length}: ${formatValue(line)}`;
  for (const [i, column] of columns.entries()) {
    const value = values[i] as string;
    const { pattern, expected } = forms[column];
    if (!pattern.test(value)) return `the ${column} must be ${expected}, got ${formatValue(value)}`;
    if (column === 'time' || column === 'action' || value === '(nil)') continue;
    const isHexadecimal = column === 'pointer' || column === 'stream';
    const number = Number(isHexadecimal ? `0x${value.replace(/^0x/, '')}` : value);
    if (number > Number.MAX_SAFE_INTEGER) return `the ${column} must be at most 2^53 - 1, got ${formatValue(value)}`;
  }
  return undefined;
}

/** The fault of the time in a row whose form is right, or `undefined`. */
export function explainTime(line: string): string | undefined {
  const time = line.split(',')[1] as string;
  return /^([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)[.:]\d{6}$/.test(time)
    ? undefined
    : `the time must be ${timeForm}, got ${formatValue(time)}`;
}
