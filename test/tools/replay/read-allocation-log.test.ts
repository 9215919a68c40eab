import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { gunzipSync, gzipSync } from 'node:zlib';
import fc from 'fast-check';
import { afterAll, describe, expect, test } from 'vitest';
import { InvalidLogError, MiB } from '../../../src/index.js';
import { type AllocationLog, type LogEvent, readAllocationLog } from '../../../src/tools/replay/index.js';
import { arrowEtl, header, logText, pieces, readText, row } from '../formats/logs.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-'));
afterAll(() => rmSync(folder, { recursive: true }));

function file(name: string, contents: string | Uint8Array): string {
  const path = join(folder, name);
  writeFileSync(path, contents);
  return path;
}

function events(log: AllocationLog): LogEvent[] {
  return Array.from({ length: log.eventCount }, (_, i) => log.event(i));
}

describe('reading a log', () => {
  test('gives the events of the bundled log', async () => {
    const log = await readAllocationLog(arrowEtl);
    expect(log.eventCount).toBe(194_854);
    expect(log.allocationCount).toBe(97_427);
    expect(log.peakLiveBytes / MiB).toBeCloseTo(608.5, 1);
    expect(log.slotCount).toBe(1087);
    expect(log.threads).toHaveLength(8);
    expect(log.streams).toEqual(['0x0']);
    expect([log.unfreedCount, log.unfreedBytes, log.failureCount]).toEqual([0, 0, 0]);
  });

  test('gives each event with its line, and reuses slots', async () => {
    const log = await readText(
      logText(
        row('allocate', 1, 100),
        row('allocate', 2, 200, { thread: 7 }),
        row('free', 1, 100),
        row('allocate', 3, 300, { stream: '0x5' }),
      ),
    );
    expect(events(log)).toEqual([
      { action: 'allocate', bytes: 100, slot: 0, thread: 0, stream: 0, line: 2 },
      { action: 'allocate', bytes: 200, slot: 1, thread: 1, stream: 0, line: 3 },
      { action: 'free', bytes: 100, slot: 0, thread: 0, stream: 0, line: 4 },
      { action: 'allocate', bytes: 300, slot: 0, thread: 0, stream: 1, line: 5 },
    ]);
    expect(log.threads).toEqual(['1', '7']);
    expect(log.streams).toEqual(['0x0', '0x5']);
    expect([log.peakLiveBytes, log.slotCount, log.unfreedCount, log.unfreedBytes]).toEqual([500, 2, 2, 500]);
  });

  test('recognizes gzip by its bytes, not by its name', async () => {
    const text = logText(row('allocate', 1, 1));
    expect((await readAllocationLog(file('compressed.csv', gzipSync(text)))).eventCount).toBe(1);
    expect((await readAllocationLog(file('plain.gz', text))).eventCount).toBe(1);
    expect((await readAllocationLog(pathToFileURL(file('url.csv', text)))).eventCount).toBe(1);
  });

  test('reads all members of a gzip file that was appended to', async () => {
    const bytes = Buffer.concat([gzipSync(`${header}\n${row('allocate', 1, 1)}\n`), gzipSync(`${row('free', 1, 1)}\n`)]);
    expect((await readAllocationLog(pieces(bytes, 10))).eventCount).toBe(2);
  });

  test.each([
    ['carriage returns', logText(row('allocate', 1, 1), row('free', 1, 1)).replaceAll('\n', '\r\n')],
    ['a byte order mark', `\ufeff${logText(row('allocate', 1, 1), row('free', 1, 1))}`],
    ['blank lines at the end', `${logText(row('allocate', 1, 1), row('free', 1, 1))}\n\r\n\n`],
    ['no newline at the end', logText(row('allocate', 1, 1), row('free', 1, 1)).trimEnd()],
    ['upper-case digits', logText(row('allocate', 0xabcd, 1), row('free', 0xabcd, 1).replaceAll('abcd', 'ABCD'))],
    ['pointers without 0x', logText(row('allocate', 1, 1), row('free', 1, 1)).replaceAll('0x', '')],
  ])('accepts %s', async (_, text) => {
    for (const pieceBytes of [1, 7, 1000]) expect((await readText(text, { pieceBytes })).eventCount).toBe(2);
  });

  test('accepts a header alone', async () => {
    expect(await readText(header)).toMatchObject({ eventCount: 0, slotCount: 0, peakLiveBytes: 0 });
  });

  test('counts failed allocations and skips them', async () => {
    const failure = '1,00:00:00.000000,allocate failure,(nil),99999999999999999999,0';
    const log = await readText(logText(failure, row('allocate', 1, 1), failure, failure, row('free', 1, 1)));
    expect(log.failureCount).toBe(3);
    expect(events(log).map(({ line }) => line)).toEqual([3, 6]);
  });

  test('accepts the null pointer for zero bytes, several times at once', async () => {
    const nil = (action: string) => `1,00:00:00.000000,${action},(nil),0,0`;
    const log = await readText(
      logText(nil('allocate'), nil('allocate'), row('allocate', 1, 5), nil('free'), nil('free'), row('free', 1, 5)),
    );
    expect(log.eventCount).toBe(6);
    expect(log.peakLiveBytes).toBe(5);
    expect(log.unfreedCount).toBe(0);
  });

  test('reads stream handles as hexadecimal numbers, and all names of the legacy default stream as one', async () => {
    const streams = ['0', '0x0', '0x1', '10', '0x10', '0x7f3e8c000000'];
    const log = await readText(logText(...streams.map((stream, i) => row('allocate', i + 1, 1, { stream }))));
    expect(log.streams).toEqual(['0x0', '0x10', '0x7f3e8c000000']);
    expect(events(log).map(({ stream }) => stream)).toEqual([0, 0, 0, 1, 1, 2]);
  });

  test('reads the per-thread default stream as one stream per thread', async () => {
    const rows = [1, 2, 1].map((thread, i) => row('allocate', i + 1, 1, { thread, stream: '0x2' }));
    const log = await readText(logText(...rows));
    expect(log.streams).toEqual(['0x2 of thread 1', '0x2 of thread 2']);
    expect(events(log).map(({ stream }) => stream)).toEqual([0, 1, 0]);
  });

  test('reports its progress in bytes of the file', async () => {
    const path = file('progress.csv.gz', gzipSync(logText(...Array.from({ length: 5000 }, (_, i) => row('allocate', i + 1, 1)))));
    const seen: number[] = [];
    const log = await readAllocationLog(path, {
      onProgress: ({ bytesRead, totalBytes, events }) => {
        expect(totalBytes).toBe(readFileSync(path).length);
        seen.push(bytesRead, events);
      },
    });
    expect(seen.slice(-2)).toEqual([readFileSync(path).length, log.eventCount]);
  });

  test('gives the same result whatever the pieces', async () => {
    const program = fc.array(
      fc.record({ pick: fc.nat(), bytes: fc.nat({ max: 2 ** 40 }), thread: fc.nat({ max: 3 }), stream: fc.nat({ max: 9 }) }),
    );
    await fc.assert(
      fc.asyncProperty(program, fc.integer({ min: 1, max: 200 }), fc.boolean(), async (steps, pieceBytes, gzip) => {
        const live: { pointer: number; bytes: number; slot: number }[] = [];
        const rows: string[] = [];
        const expected: { action: string; bytes: number; pointer: number }[] = [];
        let liveBytes = 0;
        let peakLiveBytes = 0;
        for (const [i, { pick, bytes, thread, stream }] of steps.entries()) {
          const victim = live[pick % (live.length + 1)];
          const where = { thread, stream: `0x${stream.toString(16)}` };
          if (victim === undefined) {
            live.push({ pointer: i + 1, bytes, slot: -1 });
            rows.push(row('allocate', i + 1, bytes, where));
            expected.push({ action: 'allocate', bytes, pointer: i + 1 });
            liveBytes += bytes;
            peakLiveBytes = Math.max(peakLiveBytes, liveBytes);
          } else {
            live.splice(live.indexOf(victim), 1);
            rows.push(row('free', victim.pointer, victim.bytes, where));
            expected.push({ action: 'free', bytes: victim.bytes, pointer: victim.pointer });
            liveBytes -= victim.bytes;
          }
        }
        const log = await readText(logText(...rows), { pieceBytes, gzip });
        expect(log).toMatchObject({ eventCount: steps.length, peakLiveBytes, unfreedBytes: liveBytes });
        const owner = new Map<number, number>();
        for (const [i, event] of events(log).entries()) {
          const { action, bytes, pointer } = expected[i] as (typeof expected)[number];
          expect(event).toMatchObject({ action, bytes, line: i + 2 });
          if (bytes === 0) continue;
          expect(owner.get(event.slot)).toBe(action === 'allocate' ? undefined : pointer);
          if (action === 'allocate') owner.set(event.slot, pointer);
          else owner.delete(event.slot);
        }
      }),
      { numRuns: 100 },
    );
  });

  test('keeps more events than one chunk holds', async () => {
    const rows = Array.from({ length: 70_000 }, (_, i) => row(i % 2 === 0 ? 'allocate' : 'free', 1, 1 + (i >> 1)));
    const log = await readText(logText(...rows));
    expect(log.chunks.map(({ count }) => count)).toEqual([65_536, 70_000 - 65_536]);
    expect(log.event(69_999)).toMatchObject({ action: 'free', bytes: 35_000, line: 70_001 });
    expect(() => log.event(70_000)).toThrow('index must be an integer from 0 to 69999, got 70000');
  });
});

describe('an invalid log', () => {
  async function fault(text: string | Uint8Array): Promise<InvalidLogError> {
    const error = await readAllocationLog(pieces(Buffer.from(text)), { name: 'trace.csv' }).then(
      () => undefined,
      (reason: unknown) => reason,
    );
    expect(error).toBeInstanceOf(InvalidLogError);
    expect(error).toMatchObject({ code: 'ERR_CISTERN_INVALID_LOG', name: 'InvalidLogError', source: 'trace.csv' });
    return error as InvalidLogError;
  }

  const good = row('allocate', 1, 100);
  const bundled = readFileSync(arrowEtl);
  const damagedGzip = gzipSync(logText(good));
  damagedGzip[damagedGzip.length - 8] = (damagedGzip.at(-8) as number) ^ 1;

  test.each<[string, string | Uint8Array, RegExp]>([
    ['is empty', '', /^trace\.csv: is empty$/],
    ['is binary', Uint8Array.from({ length: 500 }, (_, i) => (i * 37) % 251), /^trace\.csv: is not an RMM log: it holds binary data$/],
    ['is one endless line', 'x'.repeat(100_000), /^trace\.csv: is not an RMM log: a line is longer than 4096 bytes$/],
    ['is a different table', 'id,size\n1,2\n', /^trace\.csv, line 1: is not an RMM log: the first line must be Thread.*, got "id,size"$/],
    ['has its columns in another order', header.replace('Thread,Time', 'Time,Thread'), /line 1: is not an RMM log/],
    ['is gzip cut off', bundled.subarray(0, 50_000), /^trace\.csv: the gzip data ends early, after \d{4,} lines$/],
    ['is gzip cut off in its first bytes', bundled.subarray(0, 5), /^trace\.csv: the gzip data ends early, after 0 lines$/],
    ['is gzip of something else', gzipSync('hello\n'), /line 1: is not an RMM log/],
    ['is damaged gzip', damagedGzip, /^trace\.csv: the gzip data is damaged \(incorrect data check\), after \d lines$/],
    [
      'ends in the middle of a row',
      logText(good).slice(0, -14),
      /^trace\.csv, line 2: the log ends in the middle of a row: has 4 fields instead of 6: "1,/,
    ],
    [
      'ends in the middle of a handle',
      logText(good).slice(0, -2),
      /^trace\.csv, line 2: the log ends in the middle of a row: the stream must be/,
    ],
    [
      'has an unknown action',
      logText(good, row('alocate', 2, 1)),
      /^trace\.csv, line 3: the action must be allocate, allocate failure or free, got "alocate"$/,
    ],
    ['has an invalid thread', logText(`x${good}`), /^trace\.csv, line 2: the thread must be a decimal number, got "x1"$/],
    ['has no time', logText(good.replace('00:00:00.000000', '')), /^trace\.csv, line 2: the time must be a time such as .*, got ""$/],
    [
      'has an invalid pointer',
      logText(good.replace('0x100', '0xzz')),
      /^trace\.csv, line 2: the pointer must be a hexadecimal number .*, got "0xzz"$/,
    ],
    [
      'has a pointer beyond 2^53',
      logText(good.replace('0x100', '0x20000000000000')),
      /the pointer must be at most 2\^53 - 1, got "0x20000000000000"$/,
    ],
    [
      'has a negative size',
      logText(good.replace(',100,', ',-100,')),
      /^trace\.csv, line 2: the size must be a decimal number of bytes, got "-100"$/,
    ],
    ['has a size beyond 2^53', logText(good.replace(',100,', ',9007199254740992,')), /the size must be at most 2\^53 - 1/],
    [
      'has an invalid stream',
      logText(good.replace(/0x0$/, 'main')),
      /^trace\.csv, line 2: the stream must be a hexadecimal number .*, got "main"$/,
    ],
    ['has an extra field', logText(`${good},7`), /^trace\.csv, line 2: has 7 fields instead of 6/],
    ['has binary data in a row', logText(good, 'a\0b'), /^trace\.csv, line 3: holds binary data$/],
    ['has a blank line in the middle', logText(good, '', row('free', 1, 100)), /^trace\.csv, line 3: is blank, but not at the end$/],
    ['frees memory that is not live', logText(good, row('free', 2, 100)), /^trace\.csv, line 3: frees 0x200, which is not live$/],
    ['frees twice', logText(good, row('free', 1, 100), row('free', 1, 100)), /^trace\.csv, line 4: frees 0x100, which is not live$/],
    ['frees zero bytes that it never had', logText(row('free', 0, 0)), /^trace\.csv, line 2: frees 0x0, which is not live$/],
    [
      'frees with another size',
      logText(good, row('free', 1, 99)),
      /^trace\.csv, line 3: frees 0x100 with 99 bytes, which was allocated with 100$/,
    ],
    [
      'frees with no size',
      logText(good, row('free', 1, 0)),
      /^trace\.csv, line 3: frees 0x100 with 0 bytes, which was allocated with 100$/,
    ],
    [
      'allocates memory that is live',
      logText(good, row('allocate', 1, 5)),
      /^trace\.csv, line 3: allocates 0x100, which is live with 100 bytes$/,
    ],
    ['allocates at the null pointer', logText(row('allocate', 0, 5)), /^trace\.csv, line 2: allocates 5 bytes at the null pointer$/],
  ])('that %s is refused with its line', async (_, text, message) => {
    expect((await fault(text)).message).toMatch(message);
  });

  test('has the line as a number', async () => {
    expect((await fault(logText(good, 'x'))).line).toBe(3);
    expect((await fault('')).line).toBeUndefined();
  });

  // Valid except for its length. The fuzzer of the log reader found that it was accepted if it came
  // in one piece.
  test.each([64, 100_000])('with a line that is too long is refused, also in pieces of %i bytes', async (pieceBytes) => {
    const text = logText(good, good.replace('00:00:00', '0'.repeat(4200)));
    await expect(readText(text, { pieceBytes })).rejects.toThrow('trace.csv, line 3: is not an RMM log: a line is longer than 4096 bytes');
    const header = `${'x'.repeat(4200)}\n`;
    await expect(readText(header, { pieceBytes })).rejects.toThrow('trace.csv: is not an RMM log: a line is longer than 4096 bytes');
  });

  test('is named by its path', async () => {
    const path = file('empty.csv', '');
    await expect(readAllocationLog(path)).rejects.toThrow(`${path}: is empty`);
    await expect(readAllocationLog(folder)).rejects.toThrow(`${folder}: is a directory`);
    await expect(readAllocationLog(join(folder, 'missing.csv'))).rejects.toMatchObject({ code: 'ENOENT' });
  });

  test('is distinguished from a source that fails', async () => {
    async function* failing(): AsyncGenerator<Uint8Array> {
      yield gzipSync(logText(good)).subarray(0, 15);
      throw new Error('the network is gone');
    }
    await expect(readAllocationLog(failing())).rejects.toThrow('the network is gone');
  });

  test('is refused whatever bytes it holds, and never with another error', async () => {
    const text = gunzipSync(bundled).subarray(0, 3000);
    await fc.assert(
      fc.asyncProperty(fc.nat({ max: 2900 }), fc.uint8Array({ minLength: 1, maxLength: 8 }), async (at, noise) => {
        const damaged = Buffer.concat([text.subarray(0, at), noise, text.subarray(at + noise.length)]);
        await readAllocationLog(pieces(damaged, 64)).catch((error: unknown) => expect(error).toBeInstanceOf(InvalidLogError));
      }),
      { numRuns: 300 },
    );
  });
});
