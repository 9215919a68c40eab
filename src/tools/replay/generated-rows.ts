import { KiB, MiB } from '../../basics/units.js';
import { CsvRows, defaultNullPointer, RowText, rowActions } from '../../files/csv-rows.js';

/** A live allocation of a generated log. */
export interface GeneratedAllocation {
  readonly slot: number;
  readonly bytes: number;
  readonly stream: string;
}

const firstAddress = 0x100000000000;
const firstHour = 10;

const actions = rowActions(defaultNullPointer);

/**
 * Makes the rows of a log: one per microsecond, from 10 o'clock on. An address is reused after its
 * free, as in the log of a real run.
 */
export class GeneratedRows {
  readonly #strideBytes: number;
  readonly #freeSlots: number[] = [];
  #slotCount = 0;
  readonly #rows = new CsvRows(128 * KiB);
  #second = -1;
  #prefix = new RowText('');
  readonly #suffixes = new Map<string, RowText>();
  /** Number of rows. */
  count = 0;

  /** @param strideBytes the distance between addresses: at least the largest size */
  constructor(strideBytes = 256 * MiB) {
    this.#strideBytes = strideBytes;
  }

  /** Number of bytes that `take` would return. */
  get length(): number {
    return this.#rows.length;
  }

  allocate(bytes: number, stream = '0'): GeneratedAllocation {
    const slot = this.#freeSlots.pop() ?? this.#slotCount++;
    this.#append(actions.allocate, slot, bytes, stream);
    return { slot, bytes, stream };
  }

  free({ slot, bytes, stream }: GeneratedAllocation): void {
    this.#append(actions.free, slot, bytes, stream);
    this.#freeSlots.push(slot);
  }

  /** Returns the rows since the last call. */
  take(): Uint8Array {
    return this.#rows.take();
  }

  #append(action: RowText, slot: number, bytes: number, stream: string): void {
    const time = this.count++;
    const second = Math.floor(time / 1e6);
    if (second !== this.#second) {
      this.#second = second;
      const hours = firstHour + Math.floor(second / 3600);
      const clock = [hours, Math.floor(second / 60) % 60, second % 60].map((part) => String(part).padStart(2, '0')).join(':');
      this.#prefix = new RowText(`1,${clock}.`);
    }
    const suffix = this.#suffixes.get(stream) ?? this.#newSuffix(stream);
    this.#rows.add(this.#prefix, time % 1e6, action, firstAddress + slot * this.#strideBytes, bytes, suffix);
  }

  #newSuffix(stream: string): RowText {
    const suffix = new RowText(`,${stream}\n`);
    this.#suffixes.set(stream, suffix);
    return suffix;
  }
}
