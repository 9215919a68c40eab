/**
 * Reads Python pickles of plain data: dicts, lists, tuples, strings, numbers, booleans and None, of
 * protocols 0 to 5. Opcodes that construct an object of a class are refused, so nothing named in a
 * file is ever looked up or called.
 */

import type { ReadingBudget } from '../reading-budget.js';

/**
 * A value in a pickle of plain data. A tuple is an array; an integer above 2^53 - 1 is a `bigint`.
 */
export type PickledValue = null | boolean | number | bigint | string | PickledValue[] | PickledDict;

/** A dict. Keys that are not strings are converted to strings. */
export interface PickledDict {
  [key: string]: PickledValue;
}

/** The pickle is damaged, ends early, or holds more than plain data. */
export class UnpicklingError extends Error {
  /** Offset of the faulty byte. */
  readonly offset: number;

  constructor(offset: number, fault: string) {
    super(fault);
    this.offset = offset;
  }
}

const Opcode = {
  mark: 0x28,
  popMark: 0x31,
  duplicate: 0x32,
  textFloat: 0x46,
  textInteger: 0x49,
  textLong: 0x4c,
  textString: 0x53,
  binaryString: 0x54,
  shortBinaryString: 0x55,
  textUnicode: 0x56,
  textGet: 0x67,
  textPut: 0x70,
  emptyTuple: 0x29,
  stop: 0x2e,
  pop: 0x30,
  binaryFloat: 0x47,
  binaryInteger: 0x4a,
  binaryInteger1: 0x4b,
  binaryInteger2: 0x4d,
  none: 0x4e,
  binaryUnicode: 0x58,
  emptyList: 0x5d,
  append: 0x61,
  dict: 0x64,
  appends: 0x65,
  binaryGet: 0x68,
  longBinaryGet: 0x6a,
  list: 0x6c,
  binaryPut: 0x71,
  longBinaryPut: 0x72,
  setItem: 0x73,
  tuple: 0x74,
  setItems: 0x75,
  emptyDict: 0x7d,
  protocol: 0x80,
  tuple1: 0x85,
  tuple2: 0x86,
  tuple3: 0x87,
  true: 0x88,
  false: 0x89,
  long1: 0x8a,
  long4: 0x8b,
  shortBinaryUnicode: 0x8c,
  binaryUnicode8: 0x8d,
  memoize: 0x94,
  frame: 0x95,
} as const;

/** No text of a snapshot is nearly as long. */
const longestLine = 2 ** 20;

/** Longer texts could not be strings, and would have to be held in pieces. */
const longestText = 2 ** 28;

/** No number in a snapshot is nearly this long. */
const maximumIntegerBytes = 32;

/** Takes items of lists out of a pickle while it is read, so that millions of objects need not be kept. */
export interface ItemTaker {
  /** Whether it took an item, which is then not put into its list. */
  take(list: readonly PickledValue[], item: PickledValue): boolean;
  /** Replaces what need not be remembered of the memo's entries from an index on: those of the items that were just taken. */
  forget(memo: (PickledValue | undefined)[], from: number): void;
}

/** What reading is given up with until more bytes are there. */
const endOfPieces = new Error('more bytes are needed');

/** Reads the value that a pickle holds from bytes in pieces. */
export class Unpickler {
  /** What of the pieces is not yet read, joined when an operation may be complete. */
  #pieces: Uint8Array[] = [];
  #pendingBytes = 0;
  /** The bytes that the next operation needs. */
  #neededBytes = 1;
  #bytes: Buffer = Buffer.alloc(0);
  #at = 0;
  /** Where the operation that is being read begins, and the offset of the bytes in the pickle. */
  #start = 0;
  #offset = 0;
  /** What is missing begins here. */
  #endsAt = 0;
  #value: PickledValue | undefined;
  #stack: PickledValue[] = [];
  readonly #outer: PickledValue[][] = [];
  /** The length of the memo at each mark. */
  readonly #memoAtMarks: number[] = [];
  readonly #memo: (PickledValue | undefined)[] = [];
  readonly #budget: Pick<ReadingBudget, 'keepOne'>;
  readonly #taker: ItemTaker;

  constructor(budget: Pick<ReadingBudget, 'keepOne'>, taker: ItemTaker) {
    this.#budget = budget;
    this.#taker = taker;
  }

  /**
   * Reads another piece. Returns whether the pickle goes on.
   * @throws UnpicklingError; InvalidLogError if there is too little memory for it
   */
  push(piece: Uint8Array): boolean {
    this.#pieces.push(piece);
    this.#pendingBytes += piece.length;
    if (this.#pendingBytes < this.#neededBytes) return true;
    this.#bytes = Buffer.concat(this.#pieces);
    this.#at = 0;
    try {
      this.#value = this.#read();
      return false;
    } catch (error) {
      if (error !== endOfPieces) throw error;
    }
    this.#pieces = [this.#bytes.subarray(this.#start)];
    this.#pendingBytes = this.#bytes.length - this.#start;
    this.#offset += this.#start;
    return true;
  }

  /**
   * The value.
   * @throws UnpicklingError if the pickle ends early
   */
  finish(): PickledValue {
    if (this.#value === undefined) throw new UnpicklingError(this.#endsAt, 'the pickle ends early');
    return this.#value;
  }

  /** Reads operations until the last; one that is not complete has no effect. */
  #read(): PickledValue {
    const bytes = this.#bytes;
    const memo = this.#memo;
    for (;;) {
      this.#start = this.#at;
      const opcode = bytes[this.#skip(1)];
      switch (opcode) {
        case Opcode.protocol: {
          const protocol = bytes[this.#skip(1)] as number;
          if (protocol > 5) throw this.#fault(`it is a pickle of protocol ${protocol}`, this.#start);
          break;
        }
        case Opcode.frame:
          this.#skip(8);
          break;
        case Opcode.stop:
          return this.#pop();
        case Opcode.mark:
          this.#outer.push(this.#stack);
          this.#memoAtMarks.push(memo.length);
          this.#stack = [];
          break;
        case Opcode.pop:
          this.#pop();
          break;
        case Opcode.popMark:
          this.#toMark();
          break;
        case Opcode.duplicate:
          this.#stack.push(this.#top());
          break;
        case Opcode.textFloat:
          this.#stack.push(Number(this.#line()));
          break;
        case Opcode.textInteger:
        case Opcode.textLong:
          this.#stack.push(this.#textInteger());
          break;
        case Opcode.textString:
          this.#stack.push(unescaped(this.#line().slice(1, -1)));
          break;
        case Opcode.textUnicode:
          this.#stack.push(unescaped(this.#line()));
          break;
        case Opcode.binaryString:
          this.#stack.push(this.#text(bytes.readUInt32LE(this.#skip(4))));
          break;
        case Opcode.shortBinaryString:
          this.#stack.push(this.#text(bytes[this.#skip(1)] as number));
          break;
        case Opcode.textPut:
          this.#put(this.#index());
          break;
        case Opcode.textGet:
          this.#recall(this.#index());
          break;
        case Opcode.none:
          this.#stack.push(null);
          break;
        case Opcode.true:
          this.#stack.push(true);
          break;
        case Opcode.false:
          this.#stack.push(false);
          break;
        case Opcode.binaryInteger:
          this.#stack.push(bytes.readInt32LE(this.#skip(4)));
          break;
        case Opcode.binaryInteger1:
          this.#stack.push(bytes[this.#skip(1)] as number);
          break;
        case Opcode.binaryInteger2:
          this.#stack.push(bytes.readUInt16LE(this.#skip(2)));
          break;
        case Opcode.long1:
          this.#stack.push(this.#integer(bytes[this.#skip(1)] as number));
          break;
        case Opcode.long4:
          this.#stack.push(this.#integer(bytes.readUInt32LE(this.#skip(4))));
          break;
        case Opcode.binaryFloat:
          this.#stack.push(bytes.readDoubleBE(this.#skip(8)));
          break;
        case Opcode.shortBinaryUnicode:
          this.#stack.push(this.#text(bytes[this.#skip(1)] as number));
          break;
        case Opcode.binaryUnicode:
          this.#stack.push(this.#text(bytes.readUInt32LE(this.#skip(4))));
          break;
        case Opcode.binaryUnicode8:
          this.#stack.push(this.#text(Number(bytes.readBigUInt64LE(this.#skip(8)))));
          break;
        case Opcode.memoize:
          memo.push(this.#top());
          break;
        case Opcode.binaryPut:
          this.#put(bytes[this.#skip(1)] as number);
          break;
        case Opcode.longBinaryPut:
          this.#put(bytes.readUInt32LE(this.#skip(4)));
          break;
        case Opcode.binaryGet:
          this.#recall(bytes[this.#skip(1)] as number);
          break;
        case Opcode.longBinaryGet:
          this.#recall(bytes.readUInt32LE(this.#skip(4)));
          break;
        case Opcode.emptyTuple:
        case Opcode.emptyList:
          this.#budget.keepOne();
          this.#stack.push([]);
          break;
        case Opcode.tuple1:
        case Opcode.tuple2:
        case Opcode.tuple3:
          this.#pushTuple(opcode - Opcode.tuple1 + 1);
          break;
        case Opcode.tuple:
        case Opcode.list: {
          const from = this.#memoAtMarks.at(-1);
          const items = this.#toMark();
          const list: PickledValue[] = [];
          this.#append(list, items, from);
          this.#stack.push(list);
          break;
        }
        case Opcode.append: {
          const item = this.#pop();
          this.#append(this.#listOnTop(), [item], memo.length);
          break;
        }
        case Opcode.appends: {
          const from = this.#memoAtMarks.at(-1);
          const items = this.#toMark();
          this.#append(this.#listOnTop(), items, from);
          break;
        }
        case Opcode.emptyDict:
          this.#budget.keepOne();
          this.#stack.push({});
          break;
        case Opcode.dict: {
          this.#budget.keepOne();
          const items = this.#toMark();
          this.#stack.push({});
          this.#setItems(items);
          break;
        }
        case Opcode.setItem: {
          const value = this.#pop();
          this.#setItems([this.#pop(), value]);
          break;
        }
        case Opcode.setItems:
          this.#setItems(this.#toMark());
          break;
        default:
          throw this.#fault(`it holds more than plain data (opcode 0x${(opcode as number).toString(16)})`, this.#start);
      }
    }
  }

  /** Skips bytes, and returns the place of the first. */
  #skip(count: number): number {
    const start = this.#at;
    if (start + count > this.#bytes.length) return this.#awaitBytes(start + count);
    this.#at = start + count;
    return start;
  }

  #awaitBytes(end: number): never {
    this.#neededBytes = end - this.#start;
    this.#endsAt = this.#offset + this.#at;
    throw endOfPieces;
  }

  #fault(fault: string, place = this.#at): UnpicklingError {
    return new UnpicklingError(this.#offset + place, fault);
  }

  /** @param from the first entry of the memo that only the items may have made */
  #append(list: PickledValue[], items: readonly PickledValue[], from = this.#memo.length): void {
    let hasTaken = false;
    for (const item of items) {
      if (this.#taker.take(list, item)) hasTaken = true;
      else list.push(item);
    }
    if (hasTaken) this.#taker.forget(this.#memo, from);
  }

  #pop(): PickledValue {
    const value = this.#stack.pop();
    if (value === undefined) throw this.#fault('a value is missing');
    return value;
  }

  #top(): PickledValue {
    const value = this.#stack[this.#stack.length - 1];
    if (value === undefined) throw this.#fault('a value is missing');
    return value;
  }

  #listOnTop(): PickledValue[] {
    const list = this.#top();
    if (!Array.isArray(list)) throw this.#fault('a value is not a list');
    return list;
  }

  /** Removes the last mark and the values after it, and returns these values. */
  #toMark(): PickledValue[] {
    const items = this.#stack;
    const stack = this.#outer.pop();
    if (stack === undefined) throw this.#fault('a mark is missing');
    this.#stack = stack;
    this.#memoAtMarks.pop();
    return items;
  }

  #pushTuple(count: number): void {
    const items = this.#stack.splice(-count);
    if (items.length < count) throw this.#fault('a value is missing');
    this.#stack.push(items);
  }

  #put(index: number): void {
    // Every entry takes at least a byte, so larger indexes, for which an array would have no
    // memory, are invalid.
    if (index >= this.#offset + this.#bytes.length) throw this.#fault(`the memo has no entry ${index}`);
    this.#memo[index] = this.#top();
  }

  #recall(index: number): void {
    const value = this.#memo[index];
    if (value === undefined) throw this.#fault('a memo entry is missing');
    this.#stack.push(value);
  }

  #setItems(items: readonly PickledValue[]): void {
    const dict = this.#top();
    if (typeof dict !== 'object' || dict === null || Array.isArray(dict)) throw this.#fault('a value is not a dict');
    if (items.length % 2 !== 0) throw this.#fault('a dict value is missing');
    for (let i = 0; i < items.length; i += 2) {
      const item = items[i] as PickledValue;
      if (typeof item === 'object' && item !== null) throw this.#fault('a dict key is not a string');
      const key = String(item);
      // Assigning to `__proto__` would change the object's prototype.
      if (key !== '__proto__') dict[key] = items[i + 1] as PickledValue;
    }
  }

  /** A little-endian integer in two's complement. */
  #integer(length: number): number | bigint {
    const bytes = this.#bytes;
    if (length > maximumIntegerBytes) throw this.#fault(`an integer has ${length} bytes`);
    const start = this.#skip(length);
    if (length === 0) return 0;
    const isNegative = (bytes[start + length - 1] as number) >= 0x80;
    if (length <= 6) return bytes.readIntLE(start, length);
    let value = isNegative ? -1n : 0n;
    for (let i = length - 1; i >= 0; i--) value = (value << 8n) | BigInt(bytes[start + i] as number);
    return value >= BigInt(Number.MIN_SAFE_INTEGER) && value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : value;
  }

  /** The text up to the end of the line, of the opcodes of protocol 0. */
  #line(): string {
    const end = this.#bytes.indexOf(0x0a, this.#at);
    if (end < 0 && this.#bytes.length - this.#at <= longestLine) return this.#awaitBytes(this.#bytes.length + 1);
    const text = this.#bytes.toString('latin1', this.#at, Math.min(end < 0 ? this.#bytes.length : end, this.#at + longestLine + 1));
    if (text.length > longestLine) throw this.#fault(`a line has more than ${longestLine} characters`);
    this.#at = end + 1;
    return text;
  }

  #index(): number {
    const text = this.#line();
    if (!/^\d{1,10}$/.test(text)) throw this.#fault('the number of a memo entry is none');
    return Number(text);
  }

  /** `5`, `5L`, or `00` and `01` for what is false and true. */
  #textInteger(): PickledValue {
    const text = this.#line().replace(/L$/, '');
    if (text === '00' || text === '01') return text === '01';
    if (!/^[+-]?\d{1,80}$/.test(text)) throw this.#fault('an integer is none');
    return Number.isSafeInteger(Number(text)) ? Number(text) : BigInt(text);
  }

  #text(length: number): string {
    if (length > longestText) throw this.#fault(`a text has ${length} bytes`);
    const start = this.#skip(length);
    return this.#bytes.toString('utf8', start, start + length);
  }
}

/** A text without the escapes of protocol 0. */
function unescaped(text: string): string {
  return text.replace(/\\(?:u([0-9a-f]{4})|U([0-9a-f]{8})|x([0-9a-f]{2})|(.))/gi, (whole, four, eight, two, other: string | undefined) => {
    const code = Number.parseInt(four ?? eight ?? two ?? '', 16);
    if (code <= 0x10ffff) return String.fromCodePoint(code);
    return other === undefined ? whole : (({ n: '\n', r: '\r', t: '\t' } as Record<string, string>)[other] ?? other);
  });
}
