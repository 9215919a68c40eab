import { formatValue, InvalidLogError } from '../../../basics/errors.js';
import { logHeader } from '../../../files/csv-rows.js';
import type { CsvSpelling } from '../../../recording/recording-format.js';
import { EventKind, type EventSink } from '../event-columns.js';
import type { RecordedNames } from '../recorded-run.js';
import { explainRow, explainTime, holdsBinaryData } from './log-row-fault.js';
import { RecordedRows } from './recorded-rows.js';

/** No row is nearly this long; a longer line means that the file is not a log. */
const maximumLineBytes = 4096;

const newline = 0x0a;
const carriageReturn = 0x0d;
const space = 0x20;
const comma = 0x2c;
const zero = 0x30;
const dot = 0x2e;
const colon = 0x3a;

/** The value of each hexadecimal digit, -1 for all other bytes. */
const hexadecimalValues = new Int8Array(256).fill(-1);
for (let digit = 0; digit < 16; digit++) {
  const text = digit.toString(16);
  hexadecimalValues[text.charCodeAt(0)] = digit;
  hexadecimalValues[text.toUpperCase().charCodeAt(0)] = digit;
}

const allocateSuffix = Buffer.from('llocate');
const failureSuffix = Buffer.from(' failure,');
const freeSuffix = Buffer.from('ree,');
const nilPointer = Buffer.from('(nil),');

/**
 * Turns the bytes of an RMM log, in pieces of any size, into rows.
 *
 * Rows are read in place, without a string or an object per row. An invalid row is read again, as
 * text, to say what is wrong with it.
 */
export class LogParser {
  readonly #source: string;
  readonly #rows: RecordedRows;
  readonly #readsTimes: boolean;
  /** The start of an incomplete line. */
  #carry: Uint8Array = new Uint8Array(0);
  /** The number of the current line, from 1. */
  #line = 1;
  /** The first of the blank lines just read, or 0: only the end of the log may be blank. */
  #blankLine = 0;
  /** The offset of that line from the start of the log, in bytes. */
  #offset = 0;
  #timeSeparator: CsvSpelling['timeSeparator'] = '.';
  #nullPointer: CsvSpelling['nullPointer'] = '(nil)';

  /** @param readsTimes whether the time column is read; if not, it may hold anything */
  constructor(source: string, names: RecordedNames, events: EventSink, readsTimes: boolean) {
    this.#source = source;
    this.#rows = new RecordedRows(names, events);
    this.#readsTimes = readsTimes;
  }

  /** The offset of the first incomplete line from the start of the log, in bytes. */
  get offset(): number {
    return this.#offset;
  }

  /** How the log is spelled; the time format is known only if times are read. */
  get spelling(): CsvSpelling {
    return { timeSeparator: this.#timeSeparator, nullPointer: this.#nullPointer };
  }

  /** Number of complete lines. */
  get lineCount(): number {
    return this.#line - 1;
  }

  /**
   * Takes bytes, and returns `true`: more are wanted.
   * @throws InvalidLogError naming the first invalid line.
   */
  push(bytes: Uint8Array): true {
    let start = 0;
    if (this.#carry.length > 0) {
      const end = bytes.indexOf(newline) + 1;
      const line = Buffer.concat([this.#carry, end === 0 ? bytes : bytes.subarray(0, end)]);
      if (end === 0) {
        this.#keep(line);
        return true;
      }
      this.#carry = line.subarray(0, 0);
      this.#parseLines(line, 0, line.length);
      start = end;
    }
    const end = bytes.lastIndexOf(newline) + 1;
    if (end > start) this.#parseLines(bytes, start, end);
    this.#keep(bytes.slice(end));
    return true;
  }

  /**
   * Reads the last line if it has no newline. Returns its fault if the log ends, or may end, in the
   * middle of a row.
   *
   * RMM writes each row together with its newline, and so does cistern, so a row without one was cut off,
   * or a person or a tool removed the newline. A row that was cut within its stream looks like a row with
   * another stream, so it counts only if its stream is certainly complete.
   * @throws InvalidLogError if the log is empty or its last line is invalid.
   */
  finish(): string | undefined {
    if (this.#line === 1 && this.#carry.length === 0) this.#fail(undefined, 'is empty');
    if (this.#carry.length === 0) return undefined;
    const line = Buffer.concat([this.#carry, Uint8Array.of(newline)]);
    const isRow = this.#line > 1;
    const { offset } = this;
    const text = line.toString('utf8').trimEnd();
    const stream = text.slice(text.lastIndexOf(',') + 1);
    if (isRow && explainRow(text) === undefined && this.#carry.at(-1) !== carriageReturn && !this.#rows.isWholeStream(stream)) {
      return `the log ends in the middle of a row: it has no newline, and its stream may go on after ${formatValue(stream)}`;
    }
    try {
      this.#parseLines(line, 0, line.length);
      return undefined;
    } catch (error) {
      const fault = explainRow(text);
      if (!isRow || fault === undefined || !(error instanceof InvalidLogError)) throw error;
      this.#offset = offset;
      return `the log ends in the middle of a row: ${fault}`;
    }
  }

  #keep(line: Uint8Array): void {
    this.#checkLength(line.length);
    this.#carry = line;
  }

  /**
   * Checks the length of the current line, without its newline. Whole lines are checked, too, so
   * that the result does not depend on how the bytes are split.
   */
  #checkLength(bytes: number): void {
    if (bytes <= maximumLineBytes) return;
    this.#fail(this.#line === 1 ? undefined : this.#line, `is not an RMM log: a line is longer than ${maximumLineBytes} bytes`);
  }

  #parseLines(bytes: Uint8Array, start: number, end: number): void {
    let at = start;
    if (this.#line === 1) {
      at = bytes.indexOf(newline, start) + 1;
      this.#checkLength(at - 1 - start);
      this.#checkHeader(bytes.subarray(start, at));
      this.#line = 2;
    }
    while (at < end) at = this.#parseRow(bytes, at);
    this.#offset += end - start;
  }

  /** Reads the row at `start`, which ends with a newline. Returns the start of the next row. */
  #parseRow(bytes: Uint8Array, start: number): number {
    let at = start;
    let byte = bytes[at++] as number;

    // A newline is not a digit, so no loop below runs past the row.
    let thread = byte - zero;
    if (thread < 0 || thread > 9) return this.#refuseRow(bytes, start);
    for (byte = bytes[at++] as number; byte !== comma; byte = bytes[at++] as number) {
      const digit = byte - zero;
      if (digit < 0 || digit > 9) return this.#refuseRow(bytes, start);
      thread = thread * 10 + digit;
    }

    const timeStart = at;
    for (byte = bytes[at++] as number; byte !== comma; byte = bytes[at++] as number) {
      if (byte < space) return this.#refuseRow(bytes, start);
    }
    if (at === timeStart + 1) return this.#refuseRow(bytes, start);
    const time = this.#readsTimes ? this.#timeOfDay(bytes, timeStart, at - 1) : -1;
    if (time < 0 && this.#readsTimes) return this.#refuseRow(bytes, start);

    byte = bytes[at++] as number;
    const isFree = byte === 0x66;
    let isFailure = false;
    if (isFree) {
      if (!matches(bytes, at, freeSuffix)) return this.#refuseRow(bytes, start);
      at += freeSuffix.length;
    } else {
      if (byte !== 0x61 || !matches(bytes, at, allocateSuffix)) return this.#refuseRow(bytes, start);
      at += allocateSuffix.length;
      if (bytes[at] === comma) {
        at++;
      } else {
        if (!matches(bytes, at, failureSuffix)) return this.#refuseRow(bytes, start);
        at += failureSuffix.length;
        isFailure = true;
      }
    }

    const pointerStart = at;
    let pointer = 0;
    if (bytes[at] === 0x28) {
      if (!matches(bytes, at, nilPointer)) return this.#refuseRow(bytes, start);
      at += nilPointer.length;
    } else {
      if (bytes[at] === zero && bytes[at + 1] === 0x78) at += 2;
      pointer = hexadecimalValues[bytes[at++] as number] as number;
      if (pointer < 0) return this.#refuseRow(bytes, start);
      for (byte = bytes[at++] as number; byte !== comma; byte = bytes[at++] as number) {
        const digit = hexadecimalValues[byte] as number;
        if (digit < 0) return this.#refuseRow(bytes, start);
        pointer = pointer * 16 + digit;
      }
    }

    if (pointer === 0) this.#noteNullPointer(bytes, pointerStart);

    const sizeStart = at;
    byte = bytes[at++] as number;
    let size = byte - zero;
    if (size < 0 || size > 9) return this.#refuseRow(bytes, start);
    for (byte = bytes[at++] as number; byte !== comma; byte = bytes[at++] as number) {
      const digit = byte - zero;
      if (digit < 0 || digit > 9) return this.#refuseRow(bytes, start);
      size = size * 10 + digit;
    }

    const isPrefixed = bytes[at] === zero && bytes[at + 1] === 0x78;
    if (isPrefixed) at += 2;
    let stream = hexadecimalValues[bytes[at++] as number] as number;
    if (stream < 0) return this.#refuseRow(bytes, start);
    for (byte = bytes[at++] as number; byte !== newline; byte = bytes[at++] as number) {
      if (byte === carriageReturn && bytes[at] === newline) continue;
      const digit = hexadecimalValues[byte] as number;
      if (digit < 0) return this.#refuseRow(bytes, start);
      stream = stream * 16 + digit;
    }

    this.#checkLength(at - 1 - start);
    const largest = Number.MAX_SAFE_INTEGER;
    if (thread > largest || pointer > largest || (size > largest && !isFailure) || stream > largest) return this.#refuseRow(bytes, start);
    if (this.#blankLine > 0) this.#fail(this.#blankLine, 'is blank, but not at the end');

    const rest = size > largest ? restOf(bytes, sizeStart, size) : 0;
    const kind = isFree ? EventKind.free : isFailure ? EventKind.failure : EventKind.allocate;
    const fault = this.#rows.append(kind, thread, isFailure ? rest : pointer, size, stream, time, isPrefixed);
    if (fault !== undefined) this.#fail(this.#line, fault);
    this.#line++;
    return at;
  }

  /** The nanoseconds since midnight of a time such as `14:03:22.123456`, or -1 if it is invalid. */
  #timeOfDay(bytes: Uint8Array, start: number, end: number): number {
    const hours = twoDigits(bytes, start);
    const minutes = twoDigits(bytes, start + 3);
    const seconds = twoDigits(bytes, start + 6);
    const separator = bytes[start + 8];
    const isWrong = hours > 23 || minutes > 59 || seconds > 60 || bytes[start + 2] !== colon || bytes[start + 5] !== colon;
    if (isWrong || end !== start + 15 || (separator !== dot && separator !== colon)) return -1;
    const microseconds = 10_000 * twoDigits(bytes, start + 9) + 100 * twoDigits(bytes, start + 11) + twoDigits(bytes, start + 13);
    if (!(microseconds < 1_000_000)) return -1;
    if (separator === colon) this.#timeSeparator = ':';
    return ((hours * 60 + minutes) * 60 + seconds) * 1e9 + microseconds * 1000;
  }

  #noteNullPointer(bytes: Uint8Array, start: number): void {
    this.#nullPointer = bytes[start] !== zero ? '(nil)' : bytes[start + 1] === 0x78 ? '0x0' : '0';
  }

  /** Accepts a blank line, and throws for anything else. */
  #refuseRow(bytes: Uint8Array, start: number): number {
    const end = bytes.indexOf(newline, start);
    this.#checkLength(end - start);
    const text = Buffer.from(bytes.subarray(start, end)).toString('utf8').trimEnd();
    if (text !== '') this.#fail(this.#line, explainRow(text) ?? explainTime(text) ?? `is not a row of an RMM log: ${formatValue(text)}`);
    if (this.#blankLine === 0) this.#blankLine = this.#line;
    this.#line++;
    return end + 1;
  }

  #checkHeader(bytes: Uint8Array): void {
    const text = Buffer.from(bytes)
      .toString('utf8')
      .replace(/^\ufeff/, '');
    if (text.trimEnd() === logHeader) return;
    if (holdsBinaryData(text)) this.#fail(undefined, 'is not an RMM log: it holds binary data');
    this.#fail(1, `is not an RMM log: the first line must be ${logHeader}, got ${formatValue(text.trimEnd())}`);
  }

  #fail(line: number | undefined, fault: string): never {
    throw new InvalidLogError(this.#source, line, fault);
  }
}

function matches(bytes: Uint8Array, at: number, expected: Uint8Array): boolean {
  for (let i = 0; i < expected.length; i++) {
    if (bytes[at + i] !== expected[i]) return false;
  }
  return true;
}

/** The number of two digits, or a number above any valid one if they are not digits. */
function twoDigits(bytes: Uint8Array, at: number): number {
  const tens = (bytes[at] as number) - zero;
  const ones = (bytes[at + 1] as number) - zero;
  return tens >= 0 && tens <= 9 && ones >= 0 && ones <= 9 ? tens * 10 + ones : Number.POSITIVE_INFINITY;
}

/** The exact value of the decimal digits at `start`, minus the float that approximates it. */
function restOf(bytes: Uint8Array, start: number, about: number): number {
  if (about === Number.POSITIVE_INFINITY) return 0;
  const text = Buffer.from(bytes.subarray(start, bytes.indexOf(comma, start))).toString('latin1');
  return Number(BigInt(text) - BigInt(about));
}
