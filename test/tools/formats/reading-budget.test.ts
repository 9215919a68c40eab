import { gunzipSync, gzipSync } from 'node:zlib';
import { describe, expect, test } from 'vitest';
import { InvalidLogError } from '../../../src/basics/errors.js';
import { parsePlan } from '../../../src/plans/plan.js';
import { readRecordedRun } from '../../../src/tools/formats/index.js';
import { runElement } from '../../../src/tools/formats/report/read-report.js';
import { readAllocationLog } from '../../../src/tools/replay/index.js';
import { readReportRun, writeReport } from '../../../src/tools/report/index.js';
import { RunWriter } from '../report/runs.js';
import { header, pieces } from './logs.js';

/** The sentence that refuses some bytes, whatever reads them. */
async function refusal(bytes: Uint8Array): Promise<string> {
  const messages = new Set<string>();
  for (const read of [readRecordedRun, readAllocationLog, readReportRun]) {
    const error: unknown = await read(pieces(bytes, 2 ** 18), { name: 'log' }).then(
      () => 'was read',
      (reason) => reason,
    );
    if (!(error instanceof InvalidLogError)) throw error;
    messages.add(error.message);
  }
  expect(messages.size).toBe(1);
  return [...messages][0] as string;
}

const tooMuch = 'that would take far more memory than a file of its size should (more than 64 MiB and 128 times its bytes)';

describe('gzip data that expands to far more than its bytes', () => {
  const rows = Buffer.from('1,00:00:00.000000,allocate failure,(nil),1,0x0\n'.repeat(2 ** 20));
  const bomb = (head: string | Buffer, tail: Buffer) => gzipSync(Buffer.concat([Buffer.from(head), tail]), { level: 1 });

  test.each([
    ['an RMM log', `${header}\n`, Buffer.concat([rows, rows])],
    ['a snapshot', Buffer.of(0x80, 4, 0x58, 0, 0, 0, 0x0f), Buffer.alloc(2 ** 26)],
    ['a report', '<!doctype html>', Buffer.alloc(2 ** 26)],
  ])('is refused before all of it is read: %s', async (_, head, tail) => {
    expect(await refusal(bomb(head, tail))).toBe(`log: holds gzip data ${tooMuch}; if you trust it, decompress it first`);
  });

  test('is refused within a report', async () => {
    const page = `<!doctype html>${runElement.begin}${bomb('', Buffer.alloc(2 ** 26)).toString('base64')}${runElement.end}`;
    expect(await refusal(Buffer.from(page))).toBe(`log: holds gzip data ${tooMuch}`);
  });
});

describe('a snapshot that refers to the same objects again and again', () => {
  const text = (value: string) => Buffer.concat([Buffer.of(0x8c, value.length), Buffer.from(value)]);
  /** `items` references to entry `entry` of the memo, as a list. */
  const references = (entry: number, items: number) =>
    Buffer.concat([Buffer.from('('), Buffer.from(`h${String.fromCharCode(entry)}`.repeat(items), 'latin1'), Buffer.from('l')]);
  const block = Buffer.concat([Buffer.from('}('), text('size'), Buffer.from('K\x01'), text('state'), text('inactive'), Buffer.from('u')]);
  const memoized = (value: Buffer, entry: number) => Buffer.concat([value, Buffer.of(0x71, entry), Buffer.from('0')]);

  test('is refused, in work that its bytes can stand for', async () => {
    const segment = Buffer.concat([
      Buffer.from('}('),
      ...[
        text('address'),
        Buffer.from('K\x00'),
        text('total_size'),
        Buffer.from('K\x01'),
        text('blocks'),
        Buffer.from('h\x02'),
        Buffer.from('u'),
      ],
    ]);
    // 2^50 blocks.
    const bytes = Buffer.concat([
      ...[Buffer.of(0x80, 4), memoized(block, 1), memoized(references(1, 2 ** 17), 2), memoized(segment, 3)],
      ...[Buffer.from('}('), text('segments'), references(3, 2 ** 17), Buffer.from('u.')],
    ]);
    expect(await refusal(bytes)).toBe(`log: holds references to the same objects ${tooMuch}`);
  });

  test('is refused if its annotations are looked for among many that stay open', async () => {
    const annotation = (name: string, stage: string) =>
      Buffer.concat([Buffer.from('}('), text('name'), text(name), text('stage'), text(stage), Buffer.from('u')]);
    // They end in the order in which they began: each is looked for below all others.
    const list = Buffer.concat([
      Buffer.from('('),
      ...['START', 'END'].flatMap((stage) => Array.from({ length: 60_000 }, (_, i) => annotation(`a${i}`, stage))),
      Buffer.from('l'),
    ]);
    const bytes = Buffer.concat([
      ...[Buffer.of(0x80, 4), Buffer.from('}('), text('segments'), Buffer.from(']')],
      ...[text('external_annotations'), list, Buffer.from('u.')],
    ]);
    expect(await refusal(bytes)).toBe(`log: holds annotations that are open at once ${tooMuch}`);
  });

  test('is refused if it names many devices', async () => {
    const segments = Array.from({ length: 300 }, (_, device) => {
      const number = Buffer.from('M\0\0');
      number.writeUInt16LE(device, 1);
      return Buffer.concat([
        ...[Buffer.from('}('), text('address'), Buffer.from('K\x00'), text('total_size'), Buffer.from('K\x01'), text('blocks')],
        ...[Buffer.from(']'), text('device'), number, Buffer.from('u')],
      ]);
    });
    const bytes = [Buffer.of(0x80, 4), Buffer.from('}('), text('segments'), Buffer.from('('), ...segments, Buffer.from('lu.')];
    expect(await refusal(Buffer.concat(bytes))).toBe('log: names 300 devices');
  });
});

describe('a report that claims more than it holds', () => {
  type Column = { count: number; isDelta: unknown; chunks: unknown };
  type Head = Record<string, unknown> & { columns: Record<string, Column>; spanCount: number };

  /** The page of a small report whose head is changed. */
  async function pageWith(change: (head: Head) => unknown, columnBytes = (bytes: Buffer) => bytes): Promise<Buffer> {
    const run = new RunWriter().allocate(256, 8, { phase: 'step' }).allocate(512, 16).free(256, 8).finish();
    const page: Buffer[] = [];
    await writeReport([run], { write: async (piece) => void page.push(Buffer.from(piece)) });
    const text = Buffer.concat(page).toString('latin1');
    const start = text.indexOf(runElement.begin) + runElement.begin.length;
    const end = text.indexOf(runElement.end, start);
    const data = gunzipSync(Buffer.from(text.slice(start, end), 'base64'));
    const length = data.readUInt32LE();
    const head = JSON.parse(data.toString('utf8', 4, 4 + length)) as Head;
    const json = Buffer.from(JSON.stringify(change(head) ?? head));
    const prefix = Buffer.alloc(4);
    prefix.writeUInt32LE(json.length);
    const changed = gzipSync(Buffer.concat([prefix, json, columnBytes(data.subarray(4 + length))]));
    return Buffer.from(`${text.slice(0, start)}${changed.toString('base64')}${text.slice(end)}`, 'latin1');
  }

  test('is read if nothing is changed', async () => {
    const page = await pageWith(() => {});
    expect((await readRecordedRun(pieces(page))).eventCount).toBe(3);
  });

  const set = (values: object) => (head: Head) => void Object.assign(head, values);
  const column = (name: string, change: Partial<Column>) => (head: Head) => void Object.assign(head.columns[name] as Column, change);
  const described = (name: string) => `its column ${name} is not described as cistern does`;

  test.each<[string, (head: Head) => unknown, string]>([
    ['planes', column('accountOf', { chunks: [[0, 1, 2 ** 32, 0]] }), described('accountOf')],
    ['eight planes', column('bytes', { chunks: [[0, 1, 8, 0]] }), described('bytes')],
    ['a fraction of a plane', column('bytes', { chunks: [[0, 1, 0.5, 0]] }), described('bytes')],
    ['a negative number of planes', column('bytes', { chunks: [[0, 1, -1, 0]] }), described('bytes')],
    ['no unit', column('bytes', { chunks: [[0, 0, 1, 0]] }), described('bytes')],
    ['a far minimum', column('bytes', { chunks: [[1e308, 1, 1, 0]] }), described('bytes')],
    ['values', column('bytes', { count: 2 ** 52 }), described('bytes')],
    ['a negative count', column('bytes', { count: -1 }), described('bytes')],
    ['no chunks', column('bytes', { chunks: null }), described('bytes')],
    ['chunks for nothing', column('bytes', { count: 0 }), described('bytes')],
    ['no column', (head) => void delete head.columns['bytes'], 'its column bytes is not an object'],
    ['another column', (head) => void Object.assign(head.columns, { more: head.columns['bytes'] }), 'it has columns that are not known'],
    ['spans', set({ spanCount: 2 ** 40 }), 'its column addressOf has 2 values, and others have 1099511627776'],
    ['texts that are objects', set({ streams: [{ toString: 1 }] }), 'its streams are not all texts'],
    ['notes that are none', set({ notes: 'a' }), 'its notes are not a list of at most 65536'],
    ['layers', set({ layers: Array(257).fill({ name: '' }) }), 'its layers are not a list of at most 256'],
    ['an upstream that is none', set({ layers: [{ name: '', upstream: 1 }] }), 'a layer has no name, or an upstream that is none'],
    ['a phase without an outer one', set({ phases: [{ name: '' }] }), 'a phase has no name, or is within one that is none'],
    ['a count of events', set({ eventCount: '4' }), 'its eventCount is not a count'],
    ['a duration', set({ durationNanoseconds: null }), 'its duration is not a number'],
    ['an offset of local time', set({ utcOffsetMinutes: 1e308 }), 'its date is not a date'],
    ['a date', set({ startedAt: 1e300 }), 'its date is not a date'],
    ['damage', set({ damage: { offset: 1 } }), 'its damage has no place'],
    ['a list', () => [], 'its head is not an object'],
    ['nothing', () => 'text', 'its head is not an object'],
  ])('is refused: %s', async (_, change, sentence) => {
    expect(await refusal(await pageWith(change))).toBe(`log: is a damaged report: ${sentence}`);
  });

  test('is refused if its columns take no bytes, but far more memory than the page', async () => {
    const chunks = Array(2000).fill([1, 1, 0, 0]);
    const page = await pageWith((head) => {
      for (const each of Object.values(head.columns)) Object.assign(each, { count: chunks.length * 65_536, chunks });
    });
    expect(await refusal(page)).toBe(`log: holds columns ${tooMuch}`);
  });

  test('is refused if bytes are missing, or left', async () => {
    const named = await refusal(
      await pageWith(
        () => {},
        (bytes) => bytes.subarray(1),
      ),
    );
    expect(named).toMatch(/^log: is a damaged report: its columns have \d+ bytes, but \d+ follow its head$/);
    expect(
      await refusal(
        await pageWith(
          () => {},
          (bytes) => Buffer.concat([bytes, Buffer.of(0)]),
        ),
      ),
    ).toMatch(/^log: is a damaged report: its columns have/);
  });
});

describe('a plan with more lists than a plan has', () => {
  test('is refused before memory is taken for them', () => {
    expect(() => parsePlan(`[${'{},'.repeat(2000)}{}]`)).toThrow('the plan is not a plan: it has more than 1000 lists and objects');
  });
});
