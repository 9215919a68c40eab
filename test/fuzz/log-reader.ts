/**
 * Fuzzes the reading of logs: any bytes are a log or an `InvalidLogError`, with the same result
 * whatever the pieces, and compressed too.
 */
import assert from 'node:assert/strict';
import { crc32, gzipSync } from 'node:zlib';
import { InvalidLogError } from '../../src/basics/errors.js';
import { paddedToRecord, recordBytes, recordingMagic } from '../../src/recording/recording-format.js';
import { readRecordedRun } from '../../src/tools/formats/read-recorded-run.js';
import type { AllocationLog, LogEvent } from '../../src/tools/replay/allocation-log.js';
import { readAllocationLog } from '../../src/tools/replay/read-allocation-log.js';
import { ByteNumbers } from './byte-numbers.js';

/** Sequences that are hard to find byte by byte. */
export const words: readonly string[] = [
  'Thread,Time,Action,Pointer,Size,Stream\n',
  ',allocate,',
  ',allocate failure,',
  ',free,',
  '(nil)',
  '0x7f3e8c000000',
  '9007199254740991',
  '9007199254740992',
  '0x1fffffffffffff',
  '0x20000000000000',
  '1,00:00:00.000000,allocate,0x100,256,0x0\n',
  '1,00:00:00.000000,free,0x100,256,0x0\n',
  '\r\n',
  '\ufeff',
  recordingMagic,
  'CBLK',
  // A pickle: its beginning, a list by reference, an entry of the memo far away, and what a snapshot has.
  '\x80\x02}(',
  ')q\x01(h\x01h\x01lq\x02',
  'r\xfe\xff\xff\xff',
  ...['segments', 'device_traces', 'external_annotations', 'blocks', 'action', 'frames', 'name', 'filename', 'toString', 'constructor'].map(
    (key) => `X${String.fromCharCode(key.length)}\0\0\0${key}`,
  ),
];

/** Whatever the input is. */
const longestMessage = 1500;

type Outcome =
  | { readonly message: string; readonly line: number | undefined }
  | { readonly log: AllocationLog; readonly events: readonly LogEvent[] };

/** @throws AssertionError if the reader mishandles the bytes. */
export async function run(input: Uint8Array): Promise<void> {
  const bytes = withRightSums(input);
  const numbers = new ByteNumbers(bytes);
  const whole = await outcomeOf([bytes]);
  if ('log' in whole) checkCounts(whole.log, whole.events);
  await orRefusal(() => readRecordedRun(asynchronous([bytes])));

  const pieces: Uint8Array[] = [];
  const largestPiece = 1 + numbers.below(numbers.below(4) === 0 ? 4 : 200);
  for (let at = 0; at < bytes.length; at += (pieces.at(-1) as Uint8Array).length) {
    pieces.push(bytes.subarray(at, at + 1 + numbers.below(largestPiece)));
  }
  const inPieces = await outcomeOf(pieces);
  // How far damaged gzip data can be read depends on its pieces, and so does the fault found first.
  const isGzip = bytes[0] === 0x1f && bytes[1] === 0x8b;
  if (isGzip && !('log' in whole)) assert.ok(!('log' in inPieces), 'the pieces matter');
  else assert.deepEqual(inPieces, whole, 'the pieces matter');

  if (!isGzip && numbers.below(4) === 0) {
    const compressed = gzipSync(bytes, { level: 1 });
    const at = numbers.below(compressed.length);
    assert.deepEqual(await outcomeOf([compressed.subarray(0, at), compressed.subarray(at)]), whole, 'the compression matters');
  }
}

async function outcomeOf(pieces: readonly Uint8Array[]): Promise<Outcome> {
  const log = await orRefusal(() => readAllocationLog(asynchronous(pieces)));
  if (log instanceof InvalidLogError) return { message: log.message, line: log.line };
  return { log, events: Array.from({ length: log.eventCount }, (_, i) => log.event(i)) };
}

async function orRefusal<T>(read: () => Promise<T>): Promise<T | InvalidLogError> {
  try {
    return await read();
  } catch (error) {
    if (!(error instanceof InvalidLogError)) throw error;
    assert.ok(error.line === undefined || error.line >= 1, `line ${error.line}`);
    assert.ok(error.message.length <= longestMessage, `a message of ${error.message.length} characters`);
    return error;
  }
}

/**
 * A recording whose blocks have correct CRCs: otherwise nearly every mutated recording would be
 * refused for its CRC.
 */
export function withRightSums(input: Uint8Array): Uint8Array {
  if (Buffer.from(input.subarray(0, recordingMagic.length)).toString('latin1') !== recordingMagic || input.length < recordBytes)
    return input;
  const bytes = input.slice();
  const view = new DataView(bytes.buffer);
  let block = recordBytes + paddedToRecord(view.getUint32(12, true));
  while (block + recordBytes <= bytes.length) {
    const end = block + recordBytes + view.getUint32(block + 4, true);
    view.setUint32(block + 8, crc32(bytes.subarray(block + 12, end)), true);
    block = end;
  }
  return bytes;
}

async function* asynchronous(pieces: readonly Uint8Array[]): AsyncGenerator<Uint8Array> {
  yield* pieces;
}

/** Checks the totals of a log against a naive count of its events. */
function checkCounts(log: AllocationLog, events: readonly LogEvent[]): void {
  const live = new Map<number, number>();
  const zeroSized = new Set<number>();
  let liveBytes = 0;
  let peakLiveBytes = 0;
  let line = 1;
  for (const event of events) {
    const { action, bytes, slot } = event;
    assert.ok(event.line > line, `line ${event.line} comes after line ${line}`);
    line = event.line;
    assert.ok(Number.isSafeInteger(bytes) && bytes >= 0, `${bytes} bytes`);
    assert.ok(slot >= 0 && slot < log.slotCount, `slot ${slot} of ${log.slotCount}`);
    assert.ok(event.thread < log.threads.length && event.stream < log.streams.length, 'a thread and a stream');
    if (bytes === 0) {
      zeroSized.add(slot);
    } else if (action === 'allocate') {
      assert.ok(!live.has(slot), `slot ${slot} is live`);
      live.set(slot, bytes);
      liveBytes += bytes;
    } else {
      assert.equal(live.get(slot), bytes, `slot ${slot} is freed`);
      live.delete(slot);
      liveBytes -= bytes;
    }
    peakLiveBytes = Math.max(peakLiveBytes, liveBytes);
  }
  assert.ok(zeroSized.size <= 1, 'one slot stands for all allocations of zero bytes');
  assert.equal(log.allocationCount, events.filter(({ action }) => action === 'allocate').length);
  assert.deepEqual([log.peakLiveBytes, log.unfreedBytes, log.unfreedCount], [peakLiveBytes, liveBytes, live.size]);
}
