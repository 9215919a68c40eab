/**
 * Reads recordings in pieces of any size; `src/recording/recording-format.ts` describes
 * their bytes. Pieces are gathered until a block is whole; its records are then read through typed
 * arrays, without creating an object for any of them.
 *
 * Records of kinds that a newer cistern writes are skipped and counted. A fault ends the reading. Events are passed on only from blocks whose CRC is right, and from the
 * last block if the file ends within it.
 */
import { crc32 } from 'node:zlib';
import { formatValue, InvalidLogError } from '../../../basics/errors.js';
import { KiB } from '../../../basics/units.js';
import {
  blockMarker,
  type CsvSpelling,
  firstDefinitionKind,
  firstStateKind,
  maximumPayloadBytes,
  maximumTextBytes,
  paddedToRecord,
  type RecordingHeader,
  RecordKind,
  recordBytes,
  recordingMagic,
  recordingVersion,
} from '../../../recording/recording-format.js';
import { type EventKind, type EventSink, emptyEvent, maximumNames } from '../event-columns.js';
import { isDate, isUtcOffset, type RecordedNames, type RecordedPhase, type RecordingDamage } from '../recorded-run.js';

/** Longer headers are treated as damage. */
const maximumHeaderBytes = 1024 * KiB;

/** A run stores indexes in 8, 16 and 32 bits. */
const maximumLayers = 2 ** 8;
const maximumStacks = 2 ** 32;

const magicWords = new Uint32Array(new TextEncoder().encode(recordingMagic).buffer);
const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** The fields of a header that a reader uses. */
interface HeaderFields {
  readonly startedAt: number | undefined;
  readonly utcOffsetMinutes: number;
  readonly csv: CsvSpelling | undefined;
}

/** Turns the bytes of a recording into events. */
export class RecordingParser {
  readonly #source: string;
  readonly #names: RecordedNames;
  readonly #events: EventSink;
  /** Bytes read but not yet parsed are from `start` to `end`; `start` is a multiple of 8. */
  #bytes = new Uint8Array(512 * KiB);
  #words = new Uint32Array(this.#bytes.buffer);
  #doubles = new Float64Array(this.#bytes.buffer);
  #start = 0;
  #end = 0;
  /** The offset of `start` in the recording. */
  #offset = 0;
  #header: HeaderFields | undefined;
  #damage: RecordingDamage | undefined;
  #skippedRecords = 0;

  /** The last event; thread, phase, stack and account are those of the next one. */
  readonly #event = emptyEvent();

  /** @param names receives each name before the first event that refers to it */
  constructor(source: string, names: RecordedNames, events: EventSink) {
    this.#source = source;
    this.#names = names;
    this.#events = events;
  }

  /** Where the recording cannot be read further, if a fault was found. */
  get damage(): RecordingDamage | undefined {
    return this.#damage;
  }

  /** Number of records of unknown kinds. */
  get skippedRecords(): number {
    return this.#skippedRecords;
  }

  get header(): HeaderFields {
    return this.#header ?? { startedAt: undefined, utcOffsetMinutes: 0, csv: undefined };
  }

  /**
   * Takes bytes. Returns whether more are wanted: `true` until a fault.
   * @throws InvalidLogError if the recording's version is unknown.
   */
  push(piece: Uint8Array): boolean {
    if (this.#damage !== undefined) return false;
    this.#append(piece);
    if (this.#header === undefined && !this.#readHeader()) return this.#damage === undefined;
    while (this.#readBlock()) {}
    return this.#damage === undefined;
  }

  /** Ends the reading: any bytes left belong to a truncated block or header. */
  finish(): void {
    const left = this.#end - this.#start;
    if (this.#damage !== undefined) return;
    if (this.#header === undefined) this.#cutOff(0, 'the recording ends in its header');
    else if (left > 0) this.#readPartOfBlock(left);
  }

  /** Ends the reading if the bytes that follow are lost; those left are not trusted. */
  abandon(fault: string, isTruncation: boolean): void {
    if (isTruncation) this.finish();
    this.#damage ??= { offset: this.#offset, fault, isTruncation };
  }

  #append(piece: Uint8Array): void {
    if (this.#end + piece.length > this.#bytes.length) {
      const left = this.#bytes.subarray(this.#start, this.#end);
      let length = this.#bytes.length;
      while (left.length + piece.length > length) length *= 2;
      if (length === this.#bytes.length) {
        this.#bytes.copyWithin(0, this.#start, this.#end);
      } else {
        this.#bytes = new Uint8Array(length);
        this.#bytes.set(left);
        this.#words = new Uint32Array(this.#bytes.buffer);
        this.#doubles = new Float64Array(this.#bytes.buffer);
      }
      this.#end = left.length;
      this.#start = 0;
    }
    this.#bytes.set(piece, this.#end);
    this.#end += piece.length;
  }

  #consume(bytes: number): void {
    this.#start += bytes;
    this.#offset += bytes;
  }

  /** Returns whether the header is valid. */
  #readHeader(): boolean {
    if (this.#end < recordBytes) return false;
    const [magic0, magic1, version, jsonBytes = 0] = this.#words;
    if (magic0 !== magicWords[0] || magic1 !== magicWords[1]) return this.#spoil(0, 'the first bytes are not those of a recording');
    if (version !== recordingVersion) {
      throw new InvalidLogError(
        this.#source,
        undefined,
        `is a recording of version ${version}; this cistern reads version ${recordingVersion}`,
      );
    }
    if (jsonBytes > maximumHeaderBytes || this.#doubles[2] !== 0) return this.#spoil(0, 'the header is invalid');
    const headerBytes = recordBytes + paddedToRecord(jsonBytes);
    if (this.#end < headerBytes) return false;
    this.#header = parseHeader(this.#bytes.subarray(recordBytes, recordBytes + jsonBytes));
    if (this.#header === undefined) return this.#spoil(0, 'the header is not valid JSON for a recording');
    this.#consume(headerBytes);
    return true;
  }

  /** Reads the next block. Returns whether a whole one was available. */
  #readBlock(): boolean {
    const left = this.#end - this.#start;
    if (left < recordBytes) return false;
    const payloadBytes = this.#blockBytes(left);
    if (payloadBytes === undefined || left < recordBytes + payloadBytes) return false;
    const word = this.#start / 4;
    const end = this.#start + recordBytes + payloadBytes;
    if (crc32(this.#bytes.subarray(this.#start + 12, end)) !== this.#words[word + 2]) {
      return this.#spoil(0, 'the CRC of a block is wrong');
    }
    const read = this.#readRecords(end);
    if (this.#damage !== undefined) return false;
    if (read.end !== end) return this.#spoil(0, 'a block does not hold whole records');
    if (read.records !== this.#words[word + 3]) return this.#spoil(0, 'a block does not hold as many records as its head says');
    this.#consume(recordBytes + payloadBytes);
    return true;
  }

  /**
   * The length of the payload of the block at `start`, or `undefined` if the block's head is
   * invalid.
   */
  #blockBytes(left: number): number | undefined {
    const word = this.#start / 4;
    if (this.#words[word] !== blockMarker) return this.#spoil(0, 'there is no block where one should begin') || undefined;
    const payloadBytes = this.#words[word + 1] as number;
    if (payloadBytes % recordBytes !== 0 || (this.#words[word + 3] as number) * recordBytes > payloadBytes) {
      return this.#spoil(0, 'the length of a block is invalid') || undefined;
    }
    const time = this.#doubles[this.#start / 8 + 2] as number;
    if (!(time >= 0 && time <= Number.MAX_SAFE_INTEGER)) return this.#spoil(0, 'the time of a block is invalid') || undefined;
    // Only a single long text makes a block long. For any other wrong length, the reader would wait
    // for the rest of the file.
    if (payloadBytes > maximumPayloadBytes && left >= 2 * recordBytes) {
      const isText = ((this.#words[word + 6] as number) & 0xff) >= firstDefinitionKind;
      const textBytes = this.#doubles[this.#start / 8 + 5] as number;
      if (!isText || textBytes > maximumTextBytes || paddedToRecord(textBytes) + recordBytes !== payloadBytes) {
        return this.#spoil(0, 'the length of a block is invalid') || undefined;
      }
    }
    return payloadBytes;
  }

  /** Reads the records of a truncated block. */
  #readPartOfBlock(left: number): void {
    if (left < recordBytes) {
      if (left >= 4 && this.#words[this.#start / 4] !== blockMarker) this.#spoil(0, 'there is no block where one should begin');
      else this.#cutOff(0, 'the recording ends in the head of a block');
      return;
    }
    if (this.#blockBytes(left) === undefined) return;
    const records = this.#words[this.#start / 4 + 3] as number;
    const { end } = this.#readRecords(this.#start + left - (left % recordBytes), records);
    this.#cutOff(end - this.#start, 'the recording ends in the middle of a block');
  }

  /**
   * Reads the records of the block from `start` to `end`. Returns where it stopped: at the first
   * incomplete record.
   * @param limit the maximum number of records
   */
  #readRecords(end: number, limit = Number.POSITIVE_INFINITY): { end: number; records: number } {
    const words = this.#words;
    const doubles = this.#doubles;
    const events = this.#events;
    const event = this.#event;
    const time = doubles[this.#start / 8 + 2] as number;
    let at = this.#start + recordBytes;
    let records = 0;
    while (at < end && records < limit) {
      const word = words[at / 4] as number;
      const kind = word & 0xff;
      const layer = (word >>> 8) & 0xff;
      const stream = word >>> 16;
      const first = doubles[at / 8 + 1] as number;
      const second = doubles[at / 8 + 2] as number;
      let fault: string | undefined;
      let length = recordBytes;
      if (kind >= RecordKind.allocate && kind <= RecordKind.label) {
        fault = this.#eventFault(kind, layer, stream, first, second);
        if (fault === undefined) {
          event.kind = kind as EventKind;
          event.layer = layer;
          event.stream = stream;
          event.time = time + (words[at / 4 + 1] as number);
          event.first = first;
          event.second = second;
          events.append(event);
          event.stack = 0;
        }
      } else if (kind >= RecordKind.thread && kind <= RecordKind.account) {
        fault = this.#set(kind, first);
      } else if (kind === 0) {
        fault = 'there is no record kind 0';
      } else if (kind < firstDefinitionKind) {
        this.#skippedRecords++;
        if (kind < firstStateKind) event.stack = 0;
      } else {
        if (!isIndex(second, maximumTextBytes + 1)) {
          fault = 'the length of a text is invalid';
        } else {
          length += paddedToRecord(second);
          if (at + length > end) break;
          if (kind > RecordKind.defineNote) this.#skippedRecords++;
          else fault = this.#define(kind, layer, stream, first, this.#bytes.subarray(at + recordBytes, at + recordBytes + second));
        }
      }
      if (fault !== undefined) {
        this.#spoil(at - this.#start, fault);
        break;
      }
      at += length;
      records++;
    }
    return { end: at, records };
  }

  /** The fault of an event, if any. */
  #eventFault(kind: number, layer: number, stream: number, first: number, second: number): string | undefined {
    const { layers, streams, threads, phases, labels } = this.#names;
    if (this.#event.thread >= threads.length) return 'a thread is not defined';
    if (kind <= RecordKind.eventWait && stream >= streams.length) return 'a stream is not defined';
    if (kind <= RecordKind.release) {
      if (layer >= layers.length) return 'a layer is not defined';
      const areAmounts = kind === RecordKind.failure ? isFailedAmount(first, second) : isAmount(first) && isAmount(second);
      return areAmounts ? undefined : 'a pointer or size is not an integer from 0 to 2^53 - 1';
    }
    if (kind === RecordKind.phaseBegin || kind === RecordKind.phaseEnd) {
      return isIndex(first, phases.length) ? undefined : 'a phase is not defined';
    }
    if (kind === RecordKind.label && layer >= layers.length) return 'a layer is not defined';
    if (kind === RecordKind.label && !isIndex(second, labels.length)) return 'a label is not defined';
    return isAmount(first) ? undefined : 'a number is not an integer from 0 to 2^53 - 1';
  }

  /** Sets the thread, phase, stack or account of the records that follow. Returns the fault, if any. */
  #set(kind: number, index: number): string | undefined {
    const { threads, phases, stacks, accounts } = this.#names;
    const [field, table] = (
      [
        ['thread', threads],
        ['phase', phases],
        ['stack', stacks],
        ['account', accounts],
      ] as const
    )[kind - RecordKind.thread] as readonly ['thread' | 'phase' | 'stack' | 'account', readonly unknown[]];
    if (!isIndex(index, table.length)) return 'what a record refers to is not defined';
    this.#event[field] = index;
    return undefined;
  }

  /** Defines a name. Returns the fault, if any. */
  #define(kind: number, layer: number, stream: number, index: number, bytes: Uint8Array): string | undefined {
    let text: string;
    try {
      text = decoder.decode(bytes);
    } catch {
      return 'a text is not UTF-8';
    }
    const { layers, streams, threads, phases, stacks, labels, accounts, notes } = this.#names;
    let phase: RecordedPhase;
    switch (kind) {
      case RecordKind.defineLayer:
        return put(
          layers,
          index,
          {
            name: text,
            upstream: layer === 0 ? undefined : layer - 1,
            ...(stream === 1 ? { isPlace: true } : stream === 2 ? { isGraph: true } : {}),
          },
          maximumLayers,
        );
      case RecordKind.defineStream:
        return put(streams, index, text, maximumNames);
      case RecordKind.defineThread:
        return put(threads, index, text, maximumNames);
      case RecordKind.definePhase:
        if (stream >= phases.length || stream === index) return 'the phase around a phase is not defined';
        phase = { name: text, outer: stream, ...(layer === 1 ? { isGraph: true } : {}) };
        return index === 0 ? 'a phase has the index 0' : put(phases, index, phase, maximumNames);
      case RecordKind.defineStack:
        return index === 0 ? 'a stack has the index 0' : put(stacks, index, text, maximumStacks);
      case RecordKind.defineNote:
        return put(notes, index, text, maximumNames);
      case RecordKind.defineAccount:
        return index === 0 ? 'an account has the index 0' : put(accounts, index, text, maximumNames);
      default:
        return index === 0 ? 'a label has the index 0' : put(labels, index, text, maximumStacks);
    }
  }

  /** Ends the reading at a fault, `distance` bytes after `start`. Returns `false`. */
  #spoil(distance: number, fault: string): false {
    this.#damage = { offset: this.#offset + distance, fault, isTruncation: false };
    return false;
  }

  #cutOff(distance: number, fault: string): void {
    this.#damage ??= { offset: this.#offset + distance, fault, isTruncation: true };
  }
}

function isAmount(value: number): boolean {
  return value >= 0 && value <= Number.MAX_SAFE_INTEGER && Math.floor(value) === value;
}

/** The size of a failed allocation may exceed any size that could succeed. */
function isFailedAmount(rest: number, bytes: number): boolean {
  return Number.isInteger(rest) && Number.isInteger(bytes) && bytes >= 0;
}

function isIndex(value: number, length: number): boolean {
  return value >= 0 && value < length && Math.floor(value) === value;
}

/** Adds a name, or replaces its text. Returns the fault of the index, if any. */
function put<T>(table: T[], index: number, value: T, maximum: number): string | undefined {
  if (!isIndex(index, Math.min(table.length + 1, maximum))) {
    return `a name has the index ${formatValue(index)}, which is not the next one`;
  }
  table[index] = value;
  return undefined;
}

/** The fields of a header, or `undefined` if the header is invalid. */
function parseHeader(json: Uint8Array): HeaderFields | undefined {
  try {
    const { startedAt, utcOffsetMinutes, csv } = JSON.parse(decoder.decode(json)) as Partial<RecordingHeader>;
    if ((startedAt !== null && !isDate(startedAt)) || !isUtcOffset(utcOffsetMinutes)) return undefined;
    if (csv !== undefined && (typeof csv.timeSeparator !== 'string' || typeof csv.nullPointer !== 'string')) return undefined;
    return { startedAt: startedAt ?? undefined, utcOffsetMinutes, csv };
  } catch {
    return undefined;
  }
}
