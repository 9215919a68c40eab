import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import fc from 'fast-check';
import { afterAll, describe, expect, test } from 'vitest';
import { HostMemoryResource, LoggingResourceAdaptor, Stream } from '../../../../src/index.js';
import { eventsOf } from '../../../../src/tools/formats/event-columns.js';
import { EventKind, encodeRecording, type RecordedRun, readRecordedRun } from '../../../../src/tools/formats/index.js';
import { rmmCsv } from '../../../../src/tools/formats/rmm-csv/convert-to-rmm-csv.js';
import { arrowEtl, logText, pieces } from '../logs.js';
import { allocate, free, runOf } from '../runs.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-'));
afterAll(() => rmSync(folder, { recursive: true }));

const sharedTraces = '../shared/traces';
const traces = existsSync(sharedTraces) ? readdirSync(sharedTraces).filter((name) => name.endsWith('.csv.gz')) : [];

async function throughRecording(text: Uint8Array): Promise<string> {
  const run = await readRecordedRun(pieces(text, 65_536));
  const recording = Buffer.concat([...encodeRecording(run)]);
  return csv(await readRecordedRun(pieces(recording, 65_536)));
}

function csv(run: RecordedRun, layer = 0): string {
  return Buffer.concat([...rmmCsv(run, eventsOf(run), layer)]).toString();
}

describe('an RMM log converted to a recording and back', () => {
  test.each([arrowEtl, ...traces.map((name) => join(sharedTraces, name))])('is unchanged: %s', async (path) => {
    const compressed = readFileSync(path);
    // The texts are too long to print.
    expect((await throughRecording(compressed)) === gunzipSync(compressed).toString()).toBe(true);
  });

  test.skipIf(traces.length > 0)('cannot be tested with further traces, because ../shared/traces is absent', () => {});

  test('is unchanged, whichever version of RMM wrote it', async () => {
    const time = fc.record({
      hours: fc.nat({ max: 23 }),
      minutes: fc.nat({ max: 59 }),
      seconds: fc.nat({ max: 59 }),
      micros: fc.nat({ max: 999_999 }),
    });
    const amount = fc.maxSafeNat();
    const event = fc.record({
      time,
      thread: fc.oneof(fc.nat({ max: 3 }), amount),
      action: fc.constantFrom('allocate', 'allocate failure', 'free'),
      pointer: fc.oneof(fc.constant(0), amount),
      bytes: fc.oneof(amount.map(BigInt), fc.bigInt({ min: 0n, max: 2n ** 64n - 1n })),
      stream: fc.oneof(fc.nat({ max: 3 }), amount),
      isPrefixed: fc.boolean(),
    });
    const version = fc.record({ separator: fc.constantFrom('.', ':'), nullPointer: fc.constantFrom('(nil)', '0x0', '0') });
    await fc.assert(
      fc.asyncProperty(fc.array(event, { maxLength: 40, size: 'max' }), version, async (events, { separator, nullPointer }) => {
        const rows = events.map(({ time, thread, action, pointer, bytes, stream, isPrefixed }) => {
          const two = (value: number) => String(value).padStart(2, '0');
          const micros = String(time.micros).padStart(6, '0');
          const clock = `${two(time.hours)}:${two(time.minutes)}:${two(time.seconds)}${separator}${micros}`;
          const isFailure = action === 'allocate failure';
          const where = pointer === 0 || isFailure ? nullPointer : `0x${pointer.toString(16)}`;
          const size = isFailure ? bytes : bytes % 2n ** 53n;
          return `${thread},${clock},${action},${where},${size},${isPrefixed ? '0x' : ''}${stream.toString(16)}`;
        });
        const text = logText(...rows);
        expect(await throughRecording(Buffer.from(text))).toBe(text);
      }),
      { numRuns: 200 },
    );
  });

  test('is unchanged if cistern wrote it', async () => {
    const file = join(folder, 'log.csv');
    {
      using stream = new Stream();
      using resource = new LoggingResourceAdaptor(new HostMemoryResource(), { file });
      const pointers = [0, 1, 256, 70_000].map((bytes) => [resource.allocate(bytes, stream), bytes] as const);
      expect(() => resource.allocate(Number.MAX_SAFE_INTEGER, stream)).toThrow();
      for (const [pointer, bytes] of pointers) resource.deallocate(pointer, bytes, stream);
    }
    const text = readFileSync(file, 'utf8');
    expect(text).toContain('allocate failure,(nil)');
    expect(text).toContain('allocate,(nil),0');
    expect(await throughRecording(Buffer.from(text))).toBe(text);
  });
});

describe('the RMM log of a recording', () => {
  test('has the local times of day, and continues after midnight', () => {
    const run = runOf([allocate(256, 1, { time: 1_234_999 }), free(256, 1, { time: 3600e9 })], {
      startedAt: Date.UTC(2024, 1, 29, 21, 30, 0, 5),
      utcOffsetMinutes: 90,
    });
    expect(csv(run).split('\n').slice(1, 3)).toEqual(['1,23:00:00.006234,allocate,0x100,1,0x0', '1,00:00:00.005000,free,0x100,1,0x0']);
  });

  test('has the allocations, failures and frees of a layer, and nothing else', () => {
    const run = runOf(
      [
        allocate(256, 1, { layer: 1 }),
        { kind: EventKind.growth, first: 256, second: 1 },
        { kind: EventKind.phaseBegin, first: 0, second: 0 },
        { kind: EventKind.failure, first: 0, second: 7, stream: 1, thread: 1 },
        free(0, 0),
      ],
      {
        layers: [
          { name: 'a', upstream: 1 },
          { name: 'b', upstream: undefined },
        ],
        streams: ['0x0', '0x2'],
        threads: ['1', '2'],
      },
    );
    expect(csv(run).split('\n').slice(1)).toEqual([
      '2,00:00:00.000000,allocate failure,(nil),7,0x2',
      '1,00:00:00.000000,free,(nil),0,0x0',
      '',
    ]);
    expect(csv(run, 1).split('\n').slice(1)).toEqual(['1,00:00:00.000000,allocate,0x100,1,0x0', '']);
  });

  test('has the names of streams and threads, whatever they are', () => {
    const name = `線 ${'é'.repeat(100_000)}`;
    const failure = { kind: EventKind.failure, first: 7, second: 2 ** 60 };
    const run = runOf([allocate(256, 1), failure, free(256, 1)], { streams: [name], threads: [name] });
    expect(csv(run).split('\n').slice(1)).toEqual([
      `${name},00:00:00.000000,allocate,0x100,1,${name}`,
      `${name},00:00:00.000000,allocate failure,(nil),${2n ** 60n + 7n},${name}`,
      `${name},00:00:00.000000,free,0x100,1,${name}`,
      '',
    ]);
  });
});
