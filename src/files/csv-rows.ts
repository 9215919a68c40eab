/**
 * Writes the rows of RMM's log straight into bytes. A string per row would cost several times the
 * budget of 150 ns a row, of which the clock takes a third.
 *
 *     12345,14:03:22.  123456,  allocate,   0x7f3e8c000000   ,  1024     ,0x1\n
 *     `-- prefix ---'  digits   `-action-'  hexadecimal         digits   `suffix'
 *
 * Every part is stored four bytes at a time, possibly beyond its end: the next part overwrites the
 * excess. A row may be followed by up to three bytes of excess.
 */
const encoder = new TextEncoder();

/** The first line of every log. */
export const logHeader = 'Thread,Time,Action,Pointer,Size,Stream';

export const nanosecondsPerDay = 86_400e9;

/** An upper bound for a row without its texts: 6 (time), 16 (pointer), 16 (size), 2 separators. */
const numberBytes = 64;

/** A text that is put into rows. */
export class RowText {
  /** In bytes. */
  readonly length: number;
  /** Four bytes in each word, the last one padded. */
  readonly words: Int32Array;

  constructor(text: string) {
    const bytes = encoder.encode(text);
    this.length = bytes.length;
    this.words = words(bytes);
  }
}

/** A null pointer, as glibc's `%p` writes it. */
export const defaultNullPointer = '(nil)';

/** The texts for each action in a row, up to its pointer. */
export interface RowActions {
  readonly allocate: RowText;
  readonly allocateNothing: RowText;
  readonly allocateFailure: RowText;
  readonly free: RowText;
  readonly freeNothing: RowText;
}

/** The actions for a log that writes null pointers in this form. */
export function rowActions(nullPointer: string): RowActions {
  return {
    allocate: new RowText('allocate,0x'),
    allocateNothing: new RowText(`allocate,${nullPointer}`),
    allocateFailure: new RowText(`allocate failure,${nullPointer}`),
    free: new RowText('free,0x'),
    freeNothing: new RowText(`free,${nullPointer}`),
  };
}

/** `000,` to `999,`. */
const threeDigits = words(encoder.encode(Array.from({ length: 1000 }, (_, i) => `${String(i).padStart(3, '0')},`).join('')));
/** `0   ` to `999 `. */
const leadingDigits = words(encoder.encode(Array.from({ length: 1000 }, (_, i) => String(i).padEnd(4)).join('')));
/** `00` to `ff`, one pair of characters per word. */
const hexadecimalPairs = words(encoder.encode(Array.from({ length: 256 }, (_, i) => i.toString(16).padStart(2, '0').padEnd(4)).join('')));
const hexadecimalDigits = words(encoder.encode(Array.from({ length: 16 }, (_, i) => i.toString(16).padEnd(4)).join('')));
const comma = 44;

/** Rows, and the header before them. */
export class CsvRows {
  #bytes: Uint8Array;
  #view: DataView;
  #length: number;

  /** @param capacity bytes that fit before the buffer grows */
  constructor(capacity: number) {
    this.#bytes = new Uint8Array(capacity);
    this.#view = new DataView(this.#bytes.buffer);
    this.#length = encoder.encodeInto(`${logHeader}\n`, this.#bytes).written;
  }

  /** Number of bytes held. */
  get length(): number {
    return this.#length;
  }

  /** The bytes from a position on, valid until the next change. */
  bytesFrom(start: number): Uint8Array {
    return this.#bytes.subarray(start, this.#length);
  }

  /** Returns a copy of all bytes, and drops them here. */
  take(): Uint8Array {
    const taken = this.#bytes.slice(0, this.#length);
    this.#length = 0;
    return taken;
  }

  /** Drops `count` bytes from the front. */
  drop(count: number): void {
    this.#bytes.copyWithin(0, count, this.#length);
    this.#length -= count;
  }

  /**
   * Adds a row, or the rest of one.
   * @param microseconds below a million, written after the prefix
   * @param pointer not written if 0: the action includes a null pointer
   */
  add(prefix: RowText, microseconds: number, action: RowText, pointer: number, bytes: number, suffix: RowText): void {
    if (this.#length + prefix.length + suffix.length + action.length + numberBytes > this.#bytes.length) {
      this.#grow(prefix.length + suffix.length + action.length + numberBytes);
    }
    const view = this.#view;
    const milliseconds = (microseconds / 1000) | 0;
    let at = putText(view, this.#length, prefix);
    at = putThreeDigits(view, at, milliseconds);
    at = putThreeDigits(view, at, microseconds - milliseconds * 1000) + 1;
    at = putText(view, at, action);
    if (pointer !== 0) at = putHexadecimal(view, at, pointer);
    view.setUint8(at, comma);
    at = putInteger(view, at + 1, bytes);
    this.#length = putText(view, at, suffix);
  }

  /** Adds a text: the start of a row, or a whole row. */
  addText(text: RowText): void {
    if (this.#length + text.length + numberBytes > this.#bytes.length) this.#grow(text.length + numberBytes);
    this.#length = putText(this.#view, this.#length, text);
  }

  #grow(bytes: number): void {
    const grown = new Uint8Array(Math.max(2 * this.#bytes.length, this.#length + bytes));
    grown.set(this.#bytes);
    this.#bytes = grown;
    this.#view = new DataView(grown.buffer);
  }
}

/** Packs bytes into words of four, the last one padded with zeros. */
function words(bytes: Uint8Array): Int32Array {
  const padded = new Uint8Array(Math.ceil(bytes.length / 4) * 4);
  padded.set(bytes);
  const view = new DataView(padded.buffer);
  return Int32Array.from({ length: padded.length / 4 }, (_, i) => view.getInt32(4 * i, true));
}

function putText(view: DataView, at: number, text: RowText): number {
  const { words } = text;
  for (let i = 0; i < words.length; i++) view.setInt32(at + 4 * i, words[i] as number, true);
  return at + text.length;
}

/** Writes a number below 1000 as three digits, followed by an excess comma. */
function putThreeDigits(view: DataView, at: number, value: number): number {
  view.setInt32(at, threeDigits[value] as number, true);
  return at + 3;
}

/** Writes an integer from 0 to 2^53 - 1 in decimal. */
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

/** Writes an integer below 10^9. */
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

/** Writes an integer from 1 to 2^53 - 1 in hexadecimal. */
function putHexadecimal(view: DataView, at: number, value: number): number {
  const high = Math.floor(value / 2 ** 32) | 0;
  const low = value | 0;
  if (high === 0) return putHexadecimalDigits(view, at, low, significantBits(low));
  return putHexadecimalDigits(view, putHexadecimalDigits(view, at, high, significantBits(high)), low, 32);
}

/** The bit length, rounded up to a multiple of 4. */
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
