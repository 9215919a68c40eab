import { InvalidLogError } from '../../basics/errors.js';

const newline = 0x0a;
/** No line of a log is nearly as long. */
const longestLine = 2 ** 20;

/** The lines of a text, each with its number from 1; empty ones are left out. */
export function* linesOf(source: string, bytes: Buffer): Generator<readonly [line: string, number: number]> {
  let number = 1;
  for (let start = 0; start < bytes.length; number++) {
    const found = bytes.indexOf(newline, start);
    const end = found < 0 ? bytes.length : found;
    if (end - start > longestLine) throw new InvalidLogError(source, number, `is longer than ${longestLine} bytes`);
    const line = bytes.toString('utf8', start, end).replace(/\r$/, '');
    if (line !== '') yield [number === 1 ? line.replace(/^\ufeff/, '') : line, number];
    start = end + 1;
  }
}
