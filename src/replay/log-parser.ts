import { logHeader } from '../adaptors/log-writer.js';
import { formatValue, InvalidLogError } from '../errors.js';
import type { AllocationLog } from './allocation-log.js';
import { AllocationLogBuilder } from './allocation-log-builder.js';
import { explainRow, holdsBinaryData } from './log-row-fault.js';

/** No row comes near this; what does is not a log. */
const maximumLineBytes = 4096;

const newline = 0x0a;
const carriageReturn = 0x0d;
const space = 0x20;
const comma = 0x2c;
const zero = 0x30;

/** The value of every hexadecimal digit, -1 for all other bytes. */
const hexadecimalDigits = new Int8Array(256).fill(-1);
for (let digit = 0; digit < 16; digit++) {
  const text = digit.toString(16);
  hexadecimalDigits[text.charCodeAt(0)] = digit;
  hexadecimalDigits[text.toUpperCase().charCodeAt(0)] = digit;
}

const allocateSuffix = Buffer.from('llocate');
const failureSuffix = Buffer.from(' failure,');
const freeSuffix = Buffer.from('ree,');
const nilPointer = Buffer.from('(nil),');

/**
 * Turns the bytes of an RMM log, in pieces of any size, into an {@link AllocationLog}.
 *
 * Rows are read where they lie, without a string or an object per row. A row that is not as it should be is looked at a second time, as
 * text, to say what is wrong with it.
 */
export class LogParser {
  readonly #source: string;
  readonly #builder: AllocationLogBuilder;
  /** The beginning of a line whose end has not come yet. */
  #carry: Uint8Array = new Uint8Array(0);
  /** The line that is being read, from 1. */
  #line = 1;
  /** The first of the blank lines just read, or 0: they may only be the last. */
  #blankLine = 0;
  #sawBytes = false;

  constructor(source: string) {
    this.#source = source;
    this.#builder = new AllocationLogBuilder(source);
  }

  /** The events so far. */
  get eventCount(): number {
    return this.#builder.eventCount;
  }

  /** The complete lines so far. */
  get lineCount(): number {
    return this.#line - 1;
  }

  /** @throws InvalidLogError naming the first line at fault. */
  push(bytes: Uint8Array): void {
    if (bytes.length === 0) return;
    this.#sawBytes = true;
    let start = 0;
    if (this.#carry.length > 0) {
      const end = bytes.indexOf(newline) + 1;
      const line = Buffer.concat([this.#carry, end === 0 ? bytes : bytes.subarray(0, end)]);
      if (end === 0) {
        this.#keep(line);
        return;
      }
      this.#carry = line.subarray(0, 0);
      this.#parseLines(line, 0, line.length);
      start = end;
    }
    const end = bytes.lastIndexOf(newline) + 1;
    if (end > start) this.#parseLines(bytes, start, end);
    this.#keep(bytes.slice(end));
  }

  /** @throws InvalidLogError where the log is empty or its last line at fault. */
  finish(): AllocationLog {
    if (!this.#sawBytes) this.#fail(undefined, 'is empty');
    if (this.#carry.length > 0) {
      const line = Buffer.concat([this.#carry, Uint8Array.of(newline)]);
      const isRow = this.#line > 1;
      try {
        this.#parseLines(line, 0, line.length);
      } catch (error) {
        const fault = explainRow(line.toString('utf8').trimEnd());
        if (!isRow || fault === undefined || !(error instanceof InvalidLogError)) throw error;
        this.#fail(this.#line, `the log ends in the middle of a row: ${fault}`);
      }
    }
    return this.#builder.finish();
  }

  #keep(line: Uint8Array): void {
    if (line.length > maximumLineBytes) {
      this.#fail(this.#line === 1 ? undefined : this.#line, `is not an RMM log: a line is longer than ${maximumLineBytes} bytes`);
    }
    this.#carry = line;
  }

  #parseLines(bytes: Uint8Array, start: number, end: number): void {
    let at = start;
    if (this.#line === 1) {
      at = bytes.indexOf(newline, start) + 1;
      this.#checkHeader(bytes.subarray(start, at));
      this.#line = 2;
    }
    while (at < end) at = this.#parseRow(bytes, at);
  }

  /** Reads the row at `start`, which ends with a newline, and returns where the next one begins. */
  #parseRow(bytes: Uint8Array, start: number): number {
    let at = start;
    let byte = bytes[at++] as number;

    // A newline is no digit, so that no loop below runs past the row.
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

    let pointer = 0;
    if (bytes[at] === 0x28) {
      if (!matches(bytes, at, nilPointer)) return this.#refuseRow(bytes, start);
      at += nilPointer.length;
    } else {
      if (bytes[at] === zero && bytes[at + 1] === 0x78) at += 2;
      pointer = hexadecimalDigits[bytes[at++] as number] as number;
      if (pointer < 0) return this.#refuseRow(bytes, start);
      for (byte = bytes[at++] as number; byte !== comma; byte = bytes[at++] as number) {
        const digit = hexadecimalDigits[byte] as number;
        if (digit < 0) return this.#refuseRow(bytes, start);
        pointer = pointer * 16 + digit;
      }
    }

    byte = bytes[at++] as number;
    let size = byte - zero;
    if (size < 0 || size > 9) return this.#refuseRow(bytes, start);
    for (byte = bytes[at++] as number; byte !== comma; byte = bytes[at++] as number) {
      const digit = byte - zero;
      if (digit < 0 || digit > 9) return this.#refuseRow(bytes, start);
      size = size * 10 + digit;
    }

    if (bytes[at] === zero && bytes[at + 1] === 0x78) at += 2;
    let stream = hexadecimalDigits[bytes[at++] as number] as number;
    if (stream < 0) return this.#refuseRow(bytes, start);
    for (byte = bytes[at++] as number; byte !== newline; byte = bytes[at++] as number) {
      if (byte === carriageReturn && bytes[at] === newline) continue;
      const digit = hexadecimalDigits[byte] as number;
      if (digit < 0) return this.#refuseRow(bytes, start);
      stream = stream * 16 + digit;
    }

    const largest = Number.MAX_SAFE_INTEGER;
    if (thread > largest || pointer > largest || (size > largest && !isFailure) || stream > largest) return this.#refuseRow(bytes, start);
    if (this.#blankLine > 0) this.#fail(this.#blankLine, 'is blank, and is not the end');

    let fault: string | undefined;
    if (isFailure) this.#builder.skip();
    else if (isFree) fault = this.#builder.free(thread, pointer, size, stream);
    else fault = this.#builder.allocate(thread, pointer, size, stream);
    if (fault !== undefined) this.#fail(this.#line, fault);
    this.#line++;
    return at;
  }

  /** Accepts a blank line, and throws for everything else. */
  #refuseRow(bytes: Uint8Array, start: number): number {
    const end = bytes.indexOf(newline, start);
    const text = Buffer.from(bytes.subarray(start, end)).toString('utf8').trimEnd();
    if (text !== '') this.#fail(this.#line, explainRow(text) ?? `is no row of an RMM log: ${formatValue(text)}`);
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
