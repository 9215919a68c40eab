/**
 * Reads one table of an SQLite database, read-only and without SQL: Node has SQLite since version 22 only, and opens no database that it did
 * not get as a file. https://www.sqlite.org/fileformat.html describes the pages:
 *
 *     page 1: header of 100 bytes, then the table of tables (type, name, tbl_name, rootpage, sql)
 *     interior page of a table: numbers of child pages          leaf: rows, the rest of a long one on a list of overflow pages
 *
 * A damaged or hostile file is refused: each page is visited once, nothing is read beyond the file, and rows together must not be far larger
 * than it.
 */

/** What is wrong with the file, in a few words. */
export class SqliteFault extends Error {}

export const sqliteMagic = Buffer.from('SQLite format 3\0');

export type SqliteValue = number | bigint | string | null;

/** A column's values by its name; blobs are null. */
export type SqliteRow = Readonly<Record<string, SqliteValue>>;

const Page = { interiorTable: 5, leafTable: 13 } as const;
const headerBytes = 100;
/** A text in a row of Nsight is not nearly as long. */
const longestRow = 2 ** 20;

export class SqliteFile {
  readonly #bytes: Buffer;
  readonly #pageBytes: number;
  readonly #usableBytes: number;
  readonly #isUtf8: boolean;
  readonly #spend: (bytes: number) => void;
  readonly #tables = new Map<string, { readonly root: number; readonly columns: readonly string[] }>();

  /**
   * @param spend called with the bytes of each row; throws if they are too many
   * @throws SqliteFault
   */
  constructor(bytes: Buffer, spend: (bytes: number) => void) {
    this.#spend = spend;
    if (bytes.length < headerBytes || !bytes.subarray(0, sqliteMagic.length).equals(sqliteMagic)) throw new SqliteFault('has no header');
    this.#bytes = bytes;
    const size = bytes.readUInt16BE(16);
    this.#pageBytes = size === 1 ? 65_536 : size;
    if (this.#pageBytes < 512 || (this.#pageBytes & (this.#pageBytes - 1)) !== 0) throw new SqliteFault('has no page size');
    this.#usableBytes = this.#pageBytes - (bytes[20] as number);
    if (this.#usableBytes < 480) throw new SqliteFault('has no room in its pages');
    this.#isUtf8 = bytes.readUInt32BE(56) <= 1;
    for (const [type, name, , root, sql] of this.#rows(1)) {
      if (type === 'table' && typeof name === 'string' && typeof root === 'number' && typeof sql === 'string')
        this.#tables.set(name, { root, columns: columnsOf(sql) });
    }
  }

  hasTable(name: string): boolean {
    return this.#tables.has(name);
  }

  /** The rows of a table, in order of their ids; none if there is no such table. */
  *table(name: string): Generator<SqliteRow> {
    const table = this.#tables.get(name);
    if (table === undefined) return;
    for (const values of this.#rows(table.root)) {
      yield Object.fromEntries(table.columns.map((column, i) => [column, values[i] ?? null]));
    }
  }

  /** The values of each row below a page. */
  *#rows(root: number): Generator<readonly SqliteValue[]> {
    const seen = new Set<number>();
    const pages = [root];
    for (let page = pages.pop(); page !== undefined; page = pages.pop()) {
      if (seen.has(page)) throw new SqliteFault(`refers to page ${page} twice`);
      seen.add(page);
      const start = this.#startOf(page);
      const at = start + (page === 1 ? headerBytes : 0);
      const kind = this.#bytes[at];
      const cells = this.#bytes.readUInt16BE(at + 3);
      const isLeaf = kind === Page.leafTable;
      if (!isLeaf && kind !== Page.interiorTable) throw new SqliteFault(`has no table on page ${page}`);
      const pointers = at + (isLeaf ? 8 : 12);
      if (pointers + 2 * cells > start + this.#pageBytes) throw new SqliteFault(`has too many cells on page ${page}`);
      const children: number[] = [];
      for (let cell = 0; cell < cells; cell++) {
        const place = start + this.#bytes.readUInt16BE(pointers + 2 * cell);
        if (place + 4 > start + this.#pageBytes) throw new SqliteFault(`has a cell outside page ${page}`);
        if (isLeaf) yield this.#row(place, start + this.#pageBytes);
        else children.push(this.#bytes.readUInt32BE(place));
      }
      if (!isLeaf) children.push(this.#bytes.readUInt32BE(at + 8));
      pages.push(...children.reverse());
    }
  }

  #startOf(page: number): number {
    const start = (page - 1) * this.#pageBytes;
    if (page < 1 || start + this.#pageBytes > this.#bytes.length) throw new SqliteFault(`ends before page ${page}`);
    return start;
  }

  /** A row; `end` is that of its page. */
  #row(place: number, end: number): SqliteValue[] {
    const [length, afterLength] = this.#varint(place, end);
    const [id, start] = this.#varint(afterLength, end);
    if (length > longestRow) throw new SqliteFault(`has a row of ${length} bytes`);
    const payload = this.#payload(start, length, end);
    this.#spend(payload.length);
    const reader = new Payload(payload);
    return reader.values(this.#isUtf8).map((value, column) => (value === null && column === 0 ? id : value));
  }

  /** The bytes of a row: those on its page, and those on overflow pages. */
  #payload(start: number, length: number, end: number): Buffer {
    const usable = this.#usableBytes;
    if (length <= usable - 35) {
      if (start + length > end) throw new SqliteFault('has a row that leaves its page');
      return this.#bytes.subarray(start, start + length);
    }
    const least = Math.floor(((usable - 12) * 32) / 255) - 23;
    const rest = least + ((length - least) % (usable - 4));
    const local = rest <= usable - 35 ? rest : least;
    if (start + local + 4 > end) throw new SqliteFault('has a row that leaves its page');
    const pieces = [this.#bytes.subarray(start, start + local)];
    let left = length - local;
    for (let page = this.#bytes.readUInt32BE(start + local); left > 0; ) {
      const at = this.#startOf(page);
      const piece = Math.min(left, usable - 4);
      pieces.push(this.#bytes.subarray(at + 4, at + 4 + piece));
      left -= piece;
      page = this.#bytes.readUInt32BE(at);
    }
    return Buffer.concat(pieces);
  }

  #varint(at: number, end: number): [value: number, after: number] {
    return varint(this.#bytes, at, end);
  }
}

/** The values in the bytes of a row. */
class Payload {
  readonly #bytes: Buffer;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  values(isUtf8: boolean): SqliteValue[] {
    const bytes = this.#bytes;
    const [headerEnd, afterLength] = varint(bytes, 0, bytes.length);
    if (headerEnd > bytes.length) throw new SqliteFault('has a row without values');
    const values: SqliteValue[] = [];
    let at = headerEnd;
    for (let place = afterLength; place < headerEnd; ) {
      const [type, after] = varint(bytes, place, headerEnd);
      place = after;
      const length = lengthOf(type);
      if (at + length > bytes.length) throw new SqliteFault('has a value that leaves its row');
      values.push(this.#value(type, at, length, isUtf8));
      at += length;
    }
    return values;
  }

  #value(type: number, at: number, length: number, isUtf8: boolean): SqliteValue {
    const bytes = this.#bytes;
    if (type === 0) return null;
    if (type === 7) return bytes.readDoubleBE(at);
    if (type >= 8 && type <= 9) return type - 8;
    if (type === 6) {
      const value = bytes.readBigInt64BE(at);
      return value >= Number.MIN_SAFE_INTEGER && value <= Number.MAX_SAFE_INTEGER ? Number(value) : value;
    }
    if (type < 6) return bytes.readIntBE(at, length);
    return type % 2 === 1 && isUtf8 ? bytes.toString('utf8', at, at + length) : null;
  }
}

/** Bytes of a value, by its type in a row. */
function lengthOf(type: number): number {
  if (type >= 12) return Math.floor((type - 12) / 2);
  return [0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0][type] as number;
}

/** A number of one to nine bytes, the highest first. */
function varint(bytes: Buffer, start: number, end: number): [value: number, after: number] {
  let value = 0;
  for (let i = 0; i < 9; i++) {
    if (start + i >= end) throw new SqliteFault('has a number that leaves its page');
    const byte = bytes[start + i] as number;
    if (i === 8) return [value * 256 + byte, start + 9];
    value = value * 128 + (byte & 0x7f);
    if (byte < 0x80) return [value, start + i + 1];
  }
  return [value, start + 9];
}

/** The names of columns in `CREATE TABLE name (start INTEGER NOT NULL, …)`, with comments. */
function columnsOf(sql: string): string[] {
  const inner = sql
    .replace(/--[^\n]*/g, '')
    .replace(/^[^(]*\(/, '')
    .replace(/\)[^)]*$/, '');
  return inner.split(',').map((column) => /^\s*["'`[]?(\w+)/.exec(column)?.[1] ?? '');
}
