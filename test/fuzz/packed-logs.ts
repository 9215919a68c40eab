/**
 * Fuzzes the reading of logs from within: an input is what a log holds once it is unpacked, and is
 * packed again before it is read. Mutations of the packed bytes would end at a checksum.
 *
 *     input   u8 format  rest
 *     0       the bytes of a log, which becomes a .gz; blocks of a recording get their checksums
 *     1       a report's JSON, a zero byte, and its columns, which become a page; the length of the JSON is put before it
 *
 * Whatever is inside, each command that could read it gives a result or an `InvalidLogError` of one
 * short line, with work and memory in proportion to the packed bytes. libFuzzer and the process that
 * mutates without it end a process that takes much more.
 */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { gunzipSync, gzipSync } from 'node:zlib';
import { InvalidLogError } from '../../src/basics/errors.js';
import { convertedFormats, convertLog } from '../../src/tools/formats/convert-log.js';
import { readRecordedRun } from '../../src/tools/formats/read-recorded-run.js';
import { runElement } from '../../src/tools/formats/report/read-report.js';
import { readAllocationLog, readGraphLogs } from '../../src/tools/replay/read-allocation-log.js';
import { diffGroups, diffRuns } from '../../src/tools/report/diff-runs.js';
import { readReportRun } from '../../src/tools/report/read-report-run.js';
import type { ByteNumbers } from './byte-numbers.js';
import * as logReader from './log-reader.js';

const longestMessage = 1500;
const isReport = 1;

/** Names in the JSON of a report and in snapshots, and what is hard to find byte by byte. */
export const words: readonly string[] = [
  ...logReader.words,
  ...['"count":', '"chunks":[[', '[0,1,0,0],', '"isDelta":true', '"spanCount":', '"upstream":', '"outer":', '"phases":['],
  ...['null', '-1', '1e308', '4294967296', '9007199254740991', '[]', '{}'],
];

/** @throws AssertionError if a reader mishandles what is packed. */
export async function run(input: Uint8Array): Promise<void> {
  const packed = input[0] === isReport ? pageOf(input.subarray(1)) : gzipSync(logReader.withRightSums(input.subarray(1)), { level: 1 });
  await orRefusal(() => readAllocationLog(inOnePiece(packed)));
  await orRefusal(() => readGraphLogs(inOnePiece(packed)));
  await orRefusal(() => readReportRun(inOnePiece(packed)));
  const run = await orRefusal(() => readRecordedRun(inOnePiece(packed)));
  if (run === undefined) return;
  for (const by of diffGroups) diffRuns(run, run, { by });
  for (const to of convertedFormats) await orRefusal(() => convertLog(inOnePiece(packed), '/dev/null', { to }));
}

/** The input that a log stands for. */
export function unpacked(log: Uint8Array): Buffer {
  const bytes = log[0] === 0x1f ? gunzipSync(log) : Buffer.from(log);
  const begin = bytes.indexOf(runElement.begin);
  if (begin < 0) return Buffer.concat([Buffer.of(0), bytes]);
  const start = begin + runElement.begin.length;
  const data = gunzipSync(Buffer.from(bytes.toString('latin1', start, bytes.indexOf(runElement.end, start)), 'base64'));
  const columns = 4 + data.readUInt32LE();
  return Buffer.concat([Buffer.of(isReport), data.subarray(4, columns), Buffer.of(0), data.subarray(columns)]);
}

function pageOf(content: Uint8Array): Buffer {
  const zero = content.indexOf(0);
  const json = zero < 0 ? content : content.subarray(0, zero);
  const length = Buffer.alloc(4);
  length.writeUInt32LE(json.length);
  const data = gzipSync(Buffer.concat([length, json, zero < 0 ? Buffer.of() : content.subarray(zero + 1)]), { level: 1 });
  return Buffer.from(`<!doctype html>\n${runElement.begin}${data.toString('base64')}${runElement.end}\n`, 'latin1');
}

/** Numbers that are at an edge of something. */
const edges = [0, 1, 255, 256, 65_535, 65_536, 2 ** 31, 2 ** 32 - 1, 2 ** 32, 2 ** 53 - 1, 2 ** 53, 1e308, -1, 0.5];

/** One change of an input; its first byte, the format, stays. */
export function mutated(input: Buffer, numbers: ByteNumbers): Buffer {
  const at = 1 + numbers.below(input.length);
  const length = numbers.below(numbers.below(4) === 0 ? 400 : 20);
  const [before, behind] = [input.subarray(0, at), input.subarray(at)];
  const edge = edges[numbers.below(edges.length)] as number;
  switch (numbers.below(8)) {
    case 0:
      return Buffer.concat([before, Buffer.of(numbers.below(256)), behind.subarray(1)]);
    case 1:
      return Buffer.concat([before, behind.subarray(length)]);
    case 2:
      return Buffer.concat([before, ...Array.from({ length: 1 + numbers.below(50) }, () => behind.subarray(0, length)), behind]);
    case 3: {
      const from = 1 + numbers.below(input.length);
      return Buffer.concat([before, input.subarray(from, from + length), behind]);
    }
    case 4:
      return Buffer.concat([before, Buffer.from(words[numbers.below(words.length)] as string, 'latin1'), behind]);
    case 5: {
      const bytes = Buffer.alloc(8);
      if (numbers.below(2) === 0) bytes.writeDoubleLE(edge);
      else bytes.writeBigInt64LE(BigInt.asIntN(64, BigInt(Math.trunc(Math.min(edge, 2 ** 53)))));
      const kept = [1, 2, 4, 8][numbers.below(4)] as number;
      return Buffer.concat([before, bytes.subarray(0, kept), behind.subarray(kept)]);
    }
    default: {
      // A number that is written as text; JSON and rows are mostly such numbers.
      const text = behind.toString('latin1');
      const found = /-?\d+/.exec(text);
      if (found === null) return Buffer.concat([before, Buffer.from(String(edge)), behind]);
      return Buffer.concat([before, Buffer.from(text.slice(0, found.index) + edge + text.slice(found.index + found[0].length), 'latin1')]);
    }
  }
}

const corpus = fileURLToPath(new URL('corpus/packed-logs/', import.meta.url));

/** One of the initial inputs with some changes. */
export function anyInput(numbers: ByteNumbers): Buffer {
  const files = readdirSync(corpus).sort();
  let input: Buffer = readFileSync(`${corpus}${files[numbers.below(files.length)]}`);
  for (let changes = 1 + numbers.below(4); changes > 0; changes--) input = mutated(input, numbers);
  return input;
}

async function orRefusal<T>(read: () => Promise<T>): Promise<T | undefined> {
  try {
    return await read();
  } catch (error) {
    if (!(error instanceof InvalidLogError)) throw error;
    assert.ok(error.message.length <= longestMessage, `a message of ${error.message.length} characters`);
    return undefined;
  }
}

async function* inOnePiece(bytes: Uint8Array): AsyncGenerator<Uint8Array> {
  yield bytes;
}
