import { gzipSync } from 'node:zlib';
import { describe, expect, test } from 'vitest';
import { InvalidLogError } from '../../../src/index.js';
import { EventKind, type RecordedRun, readRecordedRun } from '../../../src/tools/formats/index.js';
import { readAllocationLog } from '../../../src/tools/replay/index.js';
import { arrowEtl, header, logText, pieces, row } from './logs.js';

function readText(text: string, pieceBytes?: number): Promise<RecordedRun> {
  return readRecordedRun(pieces(Buffer.from(text), pieceBytes), { name: 'trace.csv' });
}

/** Rows with these times. */
function at(...times: readonly string[]): string {
  return logText(...times.map((time, i) => `1,${time},allocate,0x${i + 1}00,256,0`));
}

const hour = 3600e9;
const millisecond = 1e6;

describe('an RMM log read as a run', () => {
  test('has all its columns', async () => {
    const run = await readText(
      logText(
        '7,00:00:01.000002,allocate,0x100,256,0',
        '8,00:00:01.000003,allocate failure,(nil),1024,0x7f3e8c000000',
        '7,00:00:01.000004,free,0x100,256,0',
      ),
      10,
    );
    expect(run).toEqual({
      source: 'trace.csv',
      startedAt: undefined,
      utcOffsetMinutes: 0,
      layers: [{ name: 'rmm', upstream: undefined }],
      streams: ['0', '0x7f3e8c000000'],
      threads: ['7', '8'],
      phases: [{ name: '', outer: 0 }],
      stacks: [''],
      labels: [''],
      accounts: [''],
      notes: [],
      eventCount: 3,
      kinds: Uint8Array.of(EventKind.allocate, EventKind.failure, EventKind.free),
      layerOf: new Uint8Array(3),
      streamOf: Uint16Array.of(0, 1, 0),
      threadOf: Uint16Array.of(0, 1, 0),
      phaseOf: new Uint16Array(3),
      stackOf: new Uint32Array(3),
      accountOf: new Uint16Array(3),
      times: Float64Array.of(1_000_002_000, 1_000_003_000, 1_000_004_000),
      firsts: Float64Array.of(0x100, 0, 0x100),
      seconds: Float64Array.of(256, 1024, 256),
      damage: undefined,
      skippedRecordCount: 0,
      csv: { timeSeparator: '.', nullPointer: '(nil)' },
    });
  });

  test('holds as many events as the same log read for replay, and more than the initial capacity of the columns', async () => {
    const run = await readRecordedRun(arrowEtl);
    const log = await readAllocationLog(arrowEtl);
    expect(run.eventCount).toBe(log.eventCount);
    expect(run.threads).toEqual(log.threads);
    const last = run.eventCount - 1;
    expect(run.seconds[last]).toBe(log.event(last).bytes);
    for (let i = 1; i < run.eventCount; i++) expect((run.times[i] as number) >= (run.times[i - 1] as number)).toBe(true);
    for (const column of [run.kinds, run.times, run.stackOf]) expect(column.length).toBe(run.eventCount);
  });

  test.each<[string, readonly string[], readonly number[]]>([
    ['with a point', ['01:02:03.000004'], [3_723_000_004_000]],
    ['with a colon, as older versions of RMM wrote them', ['01:02:03:000004'], [3_723_000_004_000]],
    ['over midnight', ['23:59:59.000000', '00:00:01.000000', '00:00:02.000000'], [24 * hour - 1e9, 24 * hour + 1e9, 24 * hour + 2e9]],
    ['over a night without events', ['20:00:00.000000', '10:00:00.000000'], [20 * hour, 34 * hour]],
    [
      'from threads that wrote out of clock order',
      ['00:00:00.002000', '00:00:00.001000', '00:00:00.003000'],
      [2 * millisecond, millisecond, 3 * millisecond],
    ],
    [
      'out of order around midnight',
      ['23:59:59.999000', '00:00:00.001000', '23:59:59.999500', '00:00:00.002000'],
      [24 * hour - millisecond, 24 * hour + millisecond, 24 * hour - millisecond / 2, 24 * hour + 2 * millisecond],
    ],
    ['of several days', ['12:00:00.000000', '11:00:00.000000', '10:00:00.000000'], [12 * hour, 35 * hour, 58 * hour]],
  ])('has times %s', async (_, times, expected) => {
    expect([...(await readText(at(...times))).times]).toEqual(expected);
  });

  test.each([
    '1:02:03.000004',
    '24:00:00.000000',
    '00:60:00.000000',
    '00:00:61.000000',
    '00:00:00.00001',
    '00:00:00',
    'noon',
    '00-00-00.000000',
  ])('reports that %s is not a time', async (time) => {
    await expect(readText(at('00:00:00.000000', time))).rejects.toThrow(
      `trace.csv, line 3: the time must be a time such as 14:03:22.123456, got ${JSON.stringify(time)}`,
    );
    expect((await readAllocationLog(pieces(Buffer.from(at(time))))).eventCount).toBe(1);
  });

  test('need not be consistent: a run holds what the log says', async () => {
    const run = await readText(logText(row('free', 1, 5), row('allocate', 2, 1), row('allocate', 2, 2)));
    expect([...run.kinds]).toEqual([EventKind.free, EventKind.allocate, EventKind.allocate]);
  });

  test('keeps the exact size of a failure, even one that no JavaScript number can hold', async () => {
    const run = await readText(logText('1,00:00:00.000000,allocate failure,(nil),18446744073709550592,0'));
    expect(BigInt(run.seconds[0] as number) + BigInt(run.firsts[0] as number)).toBe(18_446_744_073_709_550_592n);
    await expect(readText(logText(`1,00:00:00.000000,allocate failure,(nil),${'9'.repeat(400)},0`))).rejects.toThrow(InvalidLogError);
  });

  test('is read up to the row in the middle of which it ends', async () => {
    const text = logText(row('allocate', 1, 5), row('free', 1, 5));
    const run = await readText(text.slice(0, -20), 7);
    expect(run.eventCount).toBe(1);
    expect(run.damage).toMatchObject({ offset: text.indexOf('1,00:00:00.000000,free'), isTruncation: true });
    expect(run.damage?.fault).toMatch(/^the log ends in the middle of a row: has 2 fields/);
  });

  const last = (stream: string) => `1,00:00:00.000000,allocate,0x200,5,${stream}`;
  const earlier = (...streams: readonly string[]) => streams.map((stream, i) => `1,00:00:00.000000,allocate,0x${i + 1}00,5,${stream}`);

  test.each([
    ['0x55d0', [], 0],
    ['0x55d0', ['0x55d0c8b2a3c0'], 1],
    ['0x1', ['0x1', '0x1b3f0c0'], 2],
    ['0', ['0', '0x55d0c8b2a3c0'], 2],
    ['0', [], 0],
  ])('is read up to a last row without a newline whose stream may go on after %s, after %j', async (stream, streams, eventCount) => {
    const text = logText(...earlier(...streams), last(stream));
    expect((await readText(text)).eventCount).toBe(eventCount + 1);
    const run = await readText(text.slice(0, -1));
    expect(run.eventCount).toBe(eventCount);
    expect(run.damage).toEqual({
      offset: text.lastIndexOf(last(stream)),
      fault: `the log ends in the middle of a row: it has no newline, and its stream may go on after "${stream}"`,
      isTruncation: true,
    });
    await expect(readAllocationLog(pieces(Buffer.from(text.slice(0, -1))))).rejects.toThrow(InvalidLogError);
  });

  test.each([
    ['0x0', []],
    ['0x55d0', ['0x55d0', '0x7f10']],
    ['0', ['0']],
    ['0x55d0\r', []],
  ])('is read to the end of a last row without a newline whose stream is plainly whole: %j, after %j', async (stream, streams) => {
    const run = await readText(logText(...earlier(...streams), last(stream)).slice(0, -1));
    expect([run.eventCount, run.damage]).toEqual([streams.length + 1, undefined]);
    expect(run.streams).toEqual([...new Set([...streams, stream.trim()])]);
  });

  test('is read up to the point at which its gzip data ends early', async () => {
    const rows = Array.from({ length: 100_000 }, (_, i) => row('allocate', i + 1, (i * 7919) % 65_521));
    const compressed = gzipSync(logText(...rows));
    const run = await readRecordedRun(pieces(compressed.subarray(0, -1000), 5000));
    expect(run.eventCount).toBeGreaterThan(10_000);
    expect(run.damage).toMatchObject({ fault: 'the gzip data ends early', isTruncation: true });
    await expect(readRecordedRun(pieces(compressed.subarray(0, 9)), { name: 'x' })).rejects.toThrow(
      'x: the gzip data ends early, after 0 lines',
    );
  });

  test.each([
    ['', /^trace\.csv: is empty$/],
    ['1,2,3\n', /^trace\.csv, line 1: is not an RMM log/],
    [`${header}\n1,00:00:00.000000,alocate,0x1,1,0\n1,00:00:00.000000,free,0x1,1,0\n`, /^trace\.csv, line 2: the action must be/],
  ])('refuses %j, which is not a log', async (text, message) => {
    await expect(readText(text)).rejects.toThrow(message);
  });

  test('is refused if it has more threads than indexes', async () => {
    const rows = Array.from({ length: 2 ** 16 + 1 }, (_, i) => row('allocate', i + 1, 1, { thread: i }));
    await expect(readText(logText(...rows))).rejects.toThrow(/line 65538: exceeds the maximum of 65536 threads$/);
  });

  test('reports progress', async () => {
    const seen: number[] = [];
    const bytes = Buffer.from(logText(row('allocate', 1, 1), row('free', 1, 1)));
    await readRecordedRun(pieces(bytes, 64), {
      totalBytes: bytes.length,
      onProgress: ({ bytesRead, totalBytes, events }) => seen.push(bytesRead, totalBytes ?? -1, events),
    });
    expect(seen.slice(-3)).toEqual([bytes.length, bytes.length, 2]);
  });

  test('is read in the given format', async () => {
    await expect(readRecordedRun(pieces(Buffer.from(logText())), { format: 'recording', name: 'x' })).resolves.toMatchObject({
      damage: { offset: 0, isTruncation: false },
    });
  });
});
