import { logHeader } from '../formats/rmm-csv/log-writer.js';
import { MiB } from '../units.js';

/** A live allocation of a generated log. */
export interface GeneratedAllocation {
  readonly slot: number;
  readonly bytes: number;
  readonly stream: string;
}

const firstAddress = 0x100000000000;
const firstHour = 10;

/** Makes the text of a log: a row each microsecond, from 10 o'clock on. An address is used again after its free, as in a log of a real run. */
export class GeneratedRows {
  readonly #strideBytes: number;
  readonly #freeSlots: number[] = [];
  #slotCount = 0;
  #second = -1;
  #secondText = '';
  #text = `${logHeader}\n`;
  /** Rows so far. */
  count = 0;

  /** @param strideBytes how far addresses lie apart: at least the largest size */
  constructor(strideBytes = 256 * MiB) {
    this.#strideBytes = strideBytes;
  }

  /** Characters that `take` would give. */
  get length(): number {
    return this.#text.length;
  }

  allocate(bytes: number, stream = '0'): GeneratedAllocation {
    const slot = this.#freeSlots.pop() ?? this.#slotCount++;
    this.#append('allocate', slot, bytes, stream);
    return { slot, bytes, stream };
  }

  free({ slot, bytes, stream }: GeneratedAllocation): void {
    this.#append('free', slot, bytes, stream);
    this.#freeSlots.push(slot);
  }

  /** The rows since the last call. */
  take(): string {
    const text = this.#text;
    this.#text = '';
    return text;
  }

  #append(action: string, slot: number, bytes: number, stream: string): void {
    const time = this.count++;
    const second = Math.floor(time / 1e6);
    if (second !== this.#second) {
      this.#second = second;
      const hours = firstHour + Math.floor(second / 3600);
      this.#secondText = [hours, Math.floor(second / 60) % 60, second % 60].map((part) => String(part).padStart(2, '0')).join(':');
    }
    const microseconds = String(time % 1e6).padStart(6, '0');
    const pointer = (firstAddress + slot * this.#strideBytes).toString(16);
    this.#text += `1,${this.#secondText}.${microseconds},${action},0x${pointer},${bytes},${stream}\n`;
  }
}
