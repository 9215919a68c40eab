/**
 * Writes the rows of RMM's log straight into bytes, since a string per row costs several times what is allowed here (150 ns a row, of which
 * the clock takes a third).
 *
 *     12345,14:03:22.  123456,  allocate,   0x7f3e8c000000   ,  1024     ,0x1\n
 *     `-- prefix ---'  digits   `-action-'  hexadecimal         digits   `suffix'
 *
 * The prefix is made anew once a second, the suffix once per stream. Everything is stored four bytes at a time, beyond its end if need be: what
 * comes next overwrites that, and a row may be followed by three bytes that do not count.
 */
import { operatingSystemThreadId } from '../../driver/thread.js';
import { cancelFlushAtExit, flushAtExit } from '../../files/flush-at-exit.js';
import type { LogTarget } from '../../files/log-target.js';

/** The first line of every log. */
export const logHeader = 'Thread,Time,Action,Pointer,Size,Stream';

/** More than the longest row: 20 (thread), 16 (time), 16 (action), 16 (pointer), 16 (size), 16 (stream), 6 separators. */
const maximumRowBytes = 128;
const bufferBytes = 64 * 1024;

const encoder = new TextEncoder();

/** A text to be put into rows. */
class RowText {
  readonly length: number;
  /** Four characters each, the last one padded. */
  readonly words: Int32Array;

  constructor(text: string) {
    this.length = text.length;
    this.words = words(text.padEnd(Math.ceil(text.length / 4) * 4));
  }
}

export type { RowText };

/** What a row says happened, and what comes before its pointer. A null pointer is written as glibc's `%p` does. */
export const LogAction = {
  allocate: new RowText('allocate,0x'),
  allocateNothing: new RowText('allocate,(nil)'),
  allocateFailure: new RowText('allocate failure,(nil)'),
  free: new RowText('free,0x'),
  freeNothing: new RowText('free,(nil)'),
} as const;

/** `000,` to `999,`. */
const threeDigits = words(Array.from({ length: 1000 }, (_, i) => `${String(i).padStart(3, '0')},`).join(''));
/** `0   ` to `999 `. */
const leadingDigits = words(Array.from({ length: 1000 }, (_, i) => String(i).padEnd(4)).join(''));
/** `00` to `ff`, two characters in each. */
const hexadecimalPairs = words(Array.from({ length: 256 }, (_, i) => i.toString(16).padStart(2, '0').padEnd(4)).join(''));
const hexadecimalDigits = words(Array.from({ length: 16 }, (_, i) => i.toString(16).padEnd(4)).join(''));
const comma = 44;

/** Collects rows in memory and hands them to a target, many at a time. */
export class LogWriter {
  readonly #target: LogTarget;
  /** Rows are offered to the target at this many bytes. */
  readonly #fullBytes: number;
  readonly #thread = operatingSystemThreadId();
  /** Wall-clock milliseconds at zero of the monotonic clock. */
  readonly #clockOffset = Math.round(Date.now() - performance.now());
  /** The monotonic clock at the start of the second that the prefix names. */
  #secondStart = Number.NEGATIVE_INFINITY;
  #prefix = new RowText('');
  #bytes = new Uint8Array(bufferBytes + maximumRowBytes);
  #view = new DataView(this.#bytes.buffer);
  #length = 0;

  constructor(target: LogTarget, writesEveryRow: boolean) {
    this.#target = target;
    this.#fullBytes = writesEveryRow ? 1 : bufferBytes;
    this.#length = encoder.encodeInto(`${logHeader}\n`, this.#bytes).written;
    flushAtExit(this);
  }

  /** Whether rows are due to be written. */
  get isFull(): boolean {
    return this.#length >= this.#fullBytes;
  }

  /** Adds a row. Takes memory if it must, and cannot fail. */
  append(action: RowText, pointer: number, size: number, suffix: RowText): void {
    if (this.#length + maximumRowBytes > this.#bytes.length) this.#grow();
    let elapsed = performance.now() - this.#secondStart;
    if (elapsed >= 1000) elapsed = this.#beginSecond();
    const view = this.#view;
    const microseconds = (elapsed * 1000) | 0;
    const milliseconds = (microseconds / 1000) | 0;
    let at = putText(view, this.#length, this.#prefix);
    at = putThreeDigits(view, at, milliseconds);
    at = putThreeDigits(view, at, microseconds - milliseconds * 1000) + 1;
    at = putText(view, at, action);
    if (pointer !== 0) at = putHexadecimal(view, at, pointer);
    view.setUint8(at, comma);
    at = putInteger(view, at + 1, size);
    this.#length = putText(view, at, suffix);
  }

  /**
   * Hands every row to the target.
   * @throws CisternError (`ERR_CISTERN_LOG_WRITE`) where it does not take them; they are kept, to be tried again.
   */
  flush(): void {
    let written = 0;
    try {
      do {
        written += this.#target.write(this.#bytes.subarray(written, this.#length));
      } while (written < this.#length);
    } finally {
      this.#bytes.copyWithin(0, written, this.#length);
      this.#length -= written;
    }
  }

  /** Hands the rows to the target if they are due. Where it does not take them, they stay due, and the next `flush` says why. */
  tryFlush(): void {
    if (!this.isFull) return;
    try {
      this.flush();
    } catch {}
  }

  /** Writes what is left, and ends the use of the target. */
  close(): void {
    cancelFlushAtExit(this);
    try {
      this.flush();
    } finally {
      this.#target.close();
    }
  }

  /** Makes the prefix of the second that it is now, and returns the milliseconds since its start. */
  #beginSecond(): number {
    const now = performance.now();
    const wallClock = now + this.#clockOffset;
    const date = new Date(wallClock);
    this.#secondStart = Math.floor(wallClock / 1000) * 1000 - this.#clockOffset;
    this.#prefix = new RowText(`${this.#thread},${date.toTimeString().slice(0, 8)}.`);
    return now - this.#secondStart;
  }

  #grow(): void {
    const grown = new Uint8Array(2 * this.#bytes.length);
    grown.set(this.#bytes);
    this.#bytes = grown;
    this.#view = new DataView(grown.buffer);
  }
}

/** The end of every row of a stream, by the driver's handle for it. */
export function streamSuffix(handle: number): RowText {
  return new RowText(`,0x${handle.toString(16)}\n`);
}

/** A text of a multiple of 4 characters, four in each word. */
function words(text: string): Int32Array {
  const view = new DataView(encoder.encode(text).buffer);
  return Int32Array.from({ length: text.length / 4 }, (_, i) => view.getInt32(4 * i, true));
}

function putText(view: DataView, at: number, text: RowText): number {
  const { words } = text;
  for (let i = 0; i < words.length; i++) view.setInt32(at + 4 * i, words[i] as number, true);
  return at + text.length;
}

/** A number below 1000, in three digits and a comma that does not count. */
function putThreeDigits(view: DataView, at: number, value: number): number {
  view.setInt32(at, threeDigits[value] as number, true);
  return at + 3;
}

/** An integer from 0 to 2^53 - 1, in decimal. */
function putInteger(view: DataView, at: number, value: number): number {
  if (value < 1e9) return putSmallInteger(view, at, value | 0);
  const billions = Math.floor(value / 1e9);
  const rest = (value - billions * 1e9) | 0;
  const thousands = (rest / 1000) | 0;
  const millions = (thousands / 1000) | 0;
  let end = putSmallInteger(view, at, billions);
  end = putThreeDigits(view, end, millions);
  end = putThreeDigits(view, end, thousands - millions * 1000);
  return putThreeDigits(view, end, rest - thousands * 1000);
}

/** An integer below 10^9. */
function putSmallInteger(view: DataView, at: number, value: number): number {
  if (value < 1000) return putLeadingDigits(view, at, value);
  const thousands = (value / 1000) | 0;
  if (thousands < 1000) return putThreeDigits(view, putLeadingDigits(view, at, thousands), value - thousands * 1000);
  const millions = (thousands / 1000) | 0;
  const end = putThreeDigits(view, putLeadingDigits(view, at, millions), thousands - millions * 1000);
  return putThreeDigits(view, end, value - thousands * 1000);
}

function putLeadingDigits(view: DataView, at: number, value: number): number {
  view.setInt32(at, leadingDigits[value] as number, true);
  return at + (value < 10 ? 1 : value < 100 ? 2 : 3);
}

/** An integer from 1 to 2^53 - 1, in hexadecimal. */
function putHexadecimal(view: DataView, at: number, value: number): number {
  const high = Math.floor(value / 2 ** 32) | 0;
  const low = value | 0;
  if (high === 0) return putHexadecimalDigits(view, at, low, significantBits(low));
  return putHexadecimalDigits(view, putHexadecimalDigits(view, at, high, significantBits(high)), low, 32);
}

/** A multiple of 4. */
function significantBits(value: number): number {
  return (35 - Math.clz32(value)) & ~3;
}

function putHexadecimalDigits(view: DataView, at: number, value: number, bits: number): number {
  let end = at;
  let shift = bits;
  if ((shift & 4) !== 0) {
    shift -= 4;
    view.setInt32(end++, hexadecimalDigits[(value >>> shift) & 15] as number, true);
  }
  for (shift -= 8; shift >= 0; shift -= 8, end += 2) view.setInt32(end, hexadecimalPairs[(value >>> shift) & 255] as number, true);
  return end;
}
