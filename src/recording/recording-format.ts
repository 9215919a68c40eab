/**
 * The bytes of a recording, all little-endian, in pieces of 24:
 *
 *     file    'cistern\n'  u32 version  u32 bytes of the JSON header  f64 0        then the header, padded with spaces to a multiple of 24
 *     block   u32 'CBLK'  u32 payload bytes  u32 CRC-32 of the rest  u32 records  f64 time, nanoseconds since the recording began
 *     record  u8 kind  u8 layer  u16 stream  u32 time, nanoseconds since the block's  f64 first  f64 second
 *
 * A block holds whole records and is written in one piece. Its CRC covers everything behind it: the
 * number of records, the time and the payload. A definition is a record followed by UTF-8 text,
 * padded with zeros to a multiple of 24; it precedes the first record that uses its index.
 * Everything is aligned so that a reader can index typed arrays.
 *
 * Indexes are assigned consecutively. The index of a stream that has ended may be defined again;
 * from there on it stands for another stream. cistern does so once 65,535 streams are defined. If
 * there are more layers, streams, phases, stacks, labels or accounts than fit, the last index stands for
 * all the rest, and is called `(more …)`.
 *
 * A newer cistern may write kinds of records that an older one does not know. The number of a kind says
 * what to skip, so they need no new version:
 *
 *     1 to 15    an event: 24 bytes; it uses up a `stack` before it
 *     16 to 31   something about the records that follow: 24 bytes
 *     32 to 255  a definition: 24 bytes, and as many bytes of text as `second` says, padded
 *
 * Readers count the records that they skip. A change that would make an older reader misunderstand
 * records that it knows needs a new version, which that reader refuses. There is no kind 0. Unknown
 * fields of the header are ignored.
 */

import { EventKind } from './event-kind.js';

const encoder = new TextEncoder();

/** The first eight bytes of a recording. */
export const recordingMagic = 'cistern\n';
export const recordingVersion = 1;

/** Bytes of a record, of the file's head, and of a block's head. */
export const recordBytes = 24;

/** The first four bytes of a block: `CBLK`. */
export const blockMarker = 0x4b4c4243;

/**
 * A block is closed before it exceeds this. A definition with a longer text has a block to itself.
 */
export const maximumPayloadBytes = 2730 * recordBytes;

/** No text is longer, so that a reader can recognize a wrong length. */
export const maximumTextBytes = 2 ** 24;

/** A block is closed before the time of a record does not fit into it. */
export const maximumBlockNanoseconds = 2 ** 32 - 1;

/**
 * The kind of a record: an event, or one of these. The comment at each kind gives the meaning of
 * `first` and `second`.
 */
export const RecordKind = {
  ...EventKind,
  /** Thread, 0: the records that follow are by this thread. */
  thread: 16,
  /** Phase or 0, 0: the records that follow are in this phase. */
  phase: 17,
  /** Stack, 0: the stack of the thread's next record only. */
  stack: 18,
  /** Account or 0, 0: the records that follow are made in the scope of this account. */
  account: 19,
  /**
   * Index, bytes of text: the name of a layer. The field `layer` holds the index of its upstream
   * plus 1, or 0 if that is unknown; the field `stream` is 1 for a place of managed memory, and 2 for the
   * memory of a graph.
   */
  defineLayer: 32,
  /** Index, bytes of text: a stream's handle in the driver. */
  defineStream: 33,
  /** Index, bytes of text: the operating system's number of a thread. */
  defineThread: 34,
  /**
   * Index from 1, bytes of text: the name of a phase. The field `stream` holds the index of the
   * phase around it, or 0; the field `layer` is 1 for the captures of a graph.
   */
  definePhase: 35,
  /**
   * Index from 1, bytes of text: a JavaScript stack, innermost call first, one line `function
   * (file:line:column)` per call.
   */
  defineStack: 36,
  /** Index from 1, bytes of text: a label of a buffer. */
  defineLabel: 37,
  /** Index from 1, bytes of text: the path of an account, such as `tenant-a/request`. */
  defineAccount: 38,
  /** Index from 0, bytes of text: a human-readable note of the program. */
  defineNote: 39,
} as const;

export type RecordKind = (typeof RecordKind)[keyof typeof RecordKind];

/** Where the ranges of kinds begin, known ones or not: those before are events. */
export const firstStateKind = 16;
export const firstDefinitionKind = 32;

/** How an RMM log spells what RMM's versions write differently. */
export interface CsvSpelling {
  /** What separates seconds from microseconds. */
  readonly timeSeparator: '.' | ':';
  readonly nullPointer: '(nil)' | '0x0' | '0';
}

/** The header of a recording, as JSON. */
export interface RecordingHeader {
  /**
   * Milliseconds since 1970 when the recording began; `null` if only times of day are known, as in
   * RMM's logs: time 0 is then a midnight.
   */
  readonly startedAt: number | null;
  /** Minutes by which local time is ahead of UTC. */
  readonly utcOffsetMinutes: number;
  /** The process, or `null` if unknown. */
  readonly process: number | null;
  /** The program that wrote it, such as `cistern 0.1.0`. */
  readonly writer: string;
  /**
   * Nanoseconds of the system's monotonic clock (`process.hrtime`) when the recording began. It
   * puts the recordings of several threads of a process in order.
   */
  readonly clock?: number | undefined;
  /** How the original RMM log was spelled, if the recording was made from one. */
  readonly csv?: CsvSpelling | undefined;
}

/** Rounds bytes up to a multiple of a record's size. */
export function paddedToRecord(bytes: number): number {
  return Math.ceil(bytes / recordBytes) * recordBytes;
}

/** The first bytes of a recording. */
export function encodeHeader(header: RecordingHeader): Uint8Array {
  const json = encoder.encode(JSON.stringify(header));
  const bytes = new Uint8Array(recordBytes + paddedToRecord(json.length)).fill(0x20, recordBytes);
  const view = new DataView(bytes.buffer);
  encoder.encodeInto(recordingMagic, bytes);
  view.setUint32(8, recordingVersion, true);
  view.setUint32(12, json.length, true);
  bytes.set(json, recordBytes);
  return bytes;
}
