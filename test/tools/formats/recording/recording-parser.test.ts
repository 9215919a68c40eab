import { crc32, gzipSync } from 'node:zlib';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { InvalidLogError } from '../../../../src/index.js';
import { RecordKind } from '../../../../src/recording/recording-format.js';
import { EventKind, encodeRecording, type RecordedRun, readRecordedRun } from '../../../../src/tools/formats/index.js';
import { readAllocationLog } from '../../../../src/tools/replay/index.js';
import { pieces } from '../logs.js';
import { allocate, anyRun, free, type RunEvent, runOf } from '../runs.js';

const unit = 24;

function encode(run: RecordedRun): Buffer {
  return Buffer.concat([...encodeRecording(run)]);
}

function read(bytes: Uint8Array, pieceBytes?: number): Promise<RecordedRun> {
  return readRecordedRun(pieces(bytes, pieceBytes), { name: 'run' });
}

/** The columns of the first events of a run. */
function events(run: RecordedRun, count = run.eventCount): number[][] {
  const { kinds, layerOf, streamOf, threadOf, phaseOf, stackOf, times, firsts, seconds } = run;
  return [kinds, layerOf, streamOf, threadOf, phaseOf, stackOf, times, firsts, seconds].map((column) => [...column.subarray(0, count)]);
}

/** Corrects the CRC of the block that begins at an offset. */
function seal(bytes: Buffer, block: number): Buffer {
  const end = block + unit + bytes.readUInt32LE(block + 4);
  bytes.writeUInt32LE(crc32(bytes.subarray(block + 12, end)), block + 8);
  return bytes;
}

const second = 1e9;

/** A run with everything in it, in several blocks. */
const rich = runOf(
  [
    { kind: EventKind.phaseBegin, first: 1, second: 0, time: 10 },
    allocate(0x7f0000000000, 4096, { phase: 1, stack: 1, time: 20 }),
    { kind: EventKind.label, first: 0x7f0000000000, second: 1, phase: 1, time: 21 },
    { kind: EventKind.growth, layer: 1, first: 0x7f0000000000, second: 1 << 21, phase: 1, time: 30 },
    allocate(0x7f0000001000, 512, { stream: 1, thread: 1, phase: 2, account: 1, time: 6 * second }),
    free(0x7f0000000000, 4096, { stack: 2, time: 7 * second }),
    { kind: EventKind.failure, first: 0, second: 1 << 30, time: 8 * second },
    { kind: EventKind.eventRecord, stream: 1, first: 3, second: 0, time: 20 * second },
    { kind: EventKind.eventWait, first: 3, second: 0, time: 20 * second },
    { kind: EventKind.phaseEnd, first: 1, second: 0, time: 30 * second },
  ],
  {
    startedAt: 1_700_000_000_000,
    utcOffsetMinutes: 60,
    layers: [
      { name: 'limiting', upstream: 1 },
      { name: 'pool(cuda)', upstream: undefined },
    ],
    streams: ['0x0', '0x55d0c0ffee'],
    threads: ['4242', '4243'],
    phases: [
      { name: '', outer: 0 },
      { name: 'forward', outer: 0 },
      { name: 'größer', outer: 1 },
    ],
    stacks: ['', 'main (file.js:1:2)\nrun (file.js:3:4)', 'other (file.js:5:6)'],
    labels: ['', 'weights'],
    accounts: ['', 'tenant/request'],
  },
);

describe('reading a recording', () => {
  test('gives the run that was encoded, whatever the pieces', async () => {
    await fc.assert(
      fc.asyncProperty(anyRun, fc.integer({ min: 1, max: 5000 }), async (run, pieceBytes) => {
        expect(await read(encode(run), pieceBytes)).toEqual(run);
      }),
      { numRuns: 300 },
    );
  });

  test('works compressed, and with pieces as long as blocks', async () => {
    const many = runOf(Array.from({ length: 50_000 }, (_, i) => allocate(256 * (i + 1), i + 1, { time: i * 1e6 })));
    const bytes = encode(many);
    expect(await read(gzipSync(bytes), 777)).toEqual(many);
    expect(bytes.length).toBeLessThan(50_100 * unit);
  });

  test('gives texts that are longer than a block', async () => {
    const run = runOf([allocate(256, 1), allocate(512, 1, { stack: 1 }), free(256, 1)], { stacks: ['', 'x (y:1:1)\n'.repeat(20_000)] });
    expect(await read(encode(run), 1000)).toEqual(run);
  });

  test('puts the layers nearest to the program first, though recorded the other way round', async () => {
    const layers = [
      { name: 'cuda', upstream: undefined },
      { name: 'pool', upstream: 0 },
      { name: 'limiting', upstream: 1 },
    ];
    const run = await read(encode(runOf([allocate(256, 1, { layer: 0 }), allocate(256, 1, { layer: 2 })], { layers })));
    expect(run.layers).toEqual([
      { name: 'limiting', upstream: 1 },
      { name: 'pool', upstream: 2 },
      { name: 'cuda', upstream: undefined },
    ]);
    expect([...run.layerOf]).toEqual([2, 0]);
  });

  test('accepts layers that claim to lie on each other, or on a missing one', async () => {
    const layers = [
      { name: 'a', upstream: 1 },
      { name: 'b', upstream: 0 },
      { name: 'c', upstream: 2 },
      { name: 'd', upstream: 77 },
    ];
    const run = await read(encode(runOf([allocate(256, 1, { layer: 3 })], { layers })));
    expect(run.layers.map(({ name }) => name).sort()).toEqual(['a', 'b', 'c', 'd']);
    expect(run.layers[run.layerOf[0] as number]).toEqual({ name: 'd', upstream: undefined });
  });
});

describe('a truncated recording', () => {
  test('is read up to its last complete record, whichever byte it ends at', async () => {
    const bytes = encode(rich);
    const whole = await read(bytes);
    let known = 0;
    for (let length = 1; length <= bytes.length; length++) {
      const run = await read(bytes.subarray(0, length), 50);
      expect(events(run)).toEqual(events(whole, run.eventCount));
      expect(run.eventCount).toBeGreaterThanOrEqual(known);
      known = run.eventCount;
      if (run.damage === undefined) continue;
      expect(run.damage.isTruncation).toBe(true);
      expect(run.damage.offset).toBeLessThanOrEqual(length);
      // Less than a record is lost, or an incomplete head or text.
      if (run.eventCount > 0) expect(bytes.readUInt8(run.damage.offset)).not.toBe(0);
    }
    expect(known).toBe(rich.eventCount);
    expect((await read(bytes)).damage).toBeUndefined();
  });

  test('gives every complete record of the last block', async () => {
    const bytes = encode(runOf(Array.from({ length: 100 }, (_, i) => allocate(256 * (i + 1), 1))));
    const run = await read(bytes.subarray(0, bytes.length - 10 * unit - 1));
    expect(run.eventCount).toBe(89);
    expect(run.damage).toEqual({
      offset: bytes.length - 11 * unit,
      fault: 'the recording ends in the middle of a block',
      isTruncation: true,
    });
  });

  test('is read as far as possible if it is compressed', async () => {
    const bytes = encode(runOf(Array.from({ length: 200_000 }, (_, i) => allocate(256 * (i + 1), (i * 7919) % 65_521, { time: i * 997 }))));
    const compressed = gzipSync(bytes);
    const run = await read(compressed.subarray(0, compressed.length - 1000), 4096);
    expect(run.eventCount).toBeGreaterThan(50_000);
    expect(run.damage).toMatchObject({ isTruncation: true });
  });

  test('is an error if nothing of it is left', async () => {
    await expect(read(new Uint8Array(0))).rejects.toThrow(new InvalidLogError('run', undefined, 'is empty'));
  });
});

describe('a damaged recording', () => {
  test('is trusted only up to the damage, whichever byte changes', async () => {
    const bytes = encode(rich);
    const whole = await read(bytes);
    for (let at = 0; at < bytes.length; at++) {
      for (const flip of [0x01, 0x80, 0xff]) {
        const damaged = Buffer.from(bytes);
        damaged[at] = (damaged[at] as number) ^ flip;
        let run: RecordedRun;
        try {
          run = await read(damaged);
        } catch (error) {
          expect(error).toBeInstanceOf(InvalidLogError);
          // Only the first bytes say what the file is, and its version.
          expect(at).toBeLessThan(12);
          continue;
        }
        expect(events(run)).toEqual(events(whole, run.eventCount));
        if (run.eventCount < whole.eventCount) expect(run.damage).toBeDefined();
        if (run.damage !== undefined && !run.damage.isTruncation) expect(run.damage.offset).toBeLessThanOrEqual(at);
      }
    }
  });

  const header = encode(rich).indexOf('CBLK');
  const firstRecord = header + unit;

  test.each<[string, string, number, (bytes: Buffer) => void]>([
    ['the CRC of a block is wrong', 'a bit of a record is flipped', header, (bytes) => bytes.writeUInt8(3, firstRecord + 8)],
    ['there is no block where one should begin', 'a marker is wrong', header, (bytes) => bytes.write('X', header)],
    ['the length of a block is invalid', 'a length is not a multiple of the unit', header, (bytes) => bytes.writeUInt32LE(25, header + 4)],
    ['the length of a block is invalid', 'a length is huge', header, (bytes) => bytes.writeUInt32LE(unit * 1e8, header + 4)],
    ['the time of a block is invalid', 'a time is not a number', header, (bytes) => bytes.writeDoubleLE(Number.NaN, header + 16)],
    ['there is no record kind 0', 'a record is empty', firstRecord, (bytes) => seal(bytes, header).writeUInt8(0, firstRecord)],
    ['the length of a text is invalid', 'a text is too long', firstRecord, (bytes) => bytes.writeDoubleLE(2 ** 30, firstRecord + 16)],
    [
      'a name has the index 7, which is not the next one',
      'an index skips others',
      firstRecord,
      (bytes) => bytes.writeDoubleLE(7, firstRecord + 8),
    ],
    ['a text is not UTF-8', 'a text is not valid', firstRecord, (bytes) => bytes.writeUInt8(0xff, firstRecord + unit)],
  ])('reports that %s if %s', async (fault, _, offset, damage) => {
    const bytes = encode(rich);
    damage(bytes);
    if (/kind|text|name/.test(fault)) seal(bytes, header);
    expect((await read(bytes)).damage).toEqual({ offset, fault, isTruncation: false });
  });

  test('reports a block that does not hold what its head says, although its CRC is right', async () => {
    const bytes = encode(rich);
    const records = bytes.readUInt32LE(header + 12);
    bytes.writeUInt32LE(records - 1, header + 12);
    const fault = 'a block does not hold as many records as its head says';
    expect((await read(seal(bytes, header))).damage).toEqual({ offset: header, fault, isTruncation: false });
    bytes.writeUInt32LE(records, header + 12);
    bytes.writeDoubleLE(2 ** 20, firstRecord + 16);
    expect((await read(seal(bytes, header))).damage).toMatchObject({ offset: header, fault: 'a block does not hold whole records' });
  });

  test('reports an undefined thread', async () => {
    const run = await read(encode(runOf([allocate(256, 1)], { threads: [] })));
    expect([run.eventCount, run.damage?.fault]).toEqual([0, 'a thread is not defined']);
  });

  test.each<[string, RunEvent]>([
    ['a layer', allocate(256, 1, { layer: 1 })],
    ['a stream', allocate(256, 1, { stream: 1 })],
    ['a stream', { kind: EventKind.eventWait, stream: 3, first: 1, second: 0 }],
    ['a phase', { kind: EventKind.phaseBegin, first: 1, second: 0 }],
    ['a phase', { kind: EventKind.phaseEnd, first: -1, second: 0 }],
    ['a label', { kind: EventKind.label, first: 1, second: 1 }],
    ['what a record refers to', allocate(256, 1, { phase: 1 })],
    ['what a record refers to', allocate(256, 1, { stack: 1 })],
    ['what a record refers to', allocate(256, 1, { thread: 1 })],
    ['what a record refers to', allocate(256, 1, { account: 1 })],
    ['a pointer or size', allocate(0.5, 1)],
    ['a pointer or size', allocate(256, -1)],
    ['a pointer or size', free(Number.NaN, 1)],
    ['a pointer or size', { kind: EventKind.failure, first: 0, second: Number.POSITIVE_INFINITY }],
  ])('reports the record if %s is invalid', async (what, event) => {
    const good = encode(runOf([allocate(256, 1)]));
    const bytes = encode(runOf([allocate(256, 1), event]));
    const run = await read(bytes);
    expect(run.eventCount).toBe(1);
    expect(run.damage?.fault).toContain(what);
    expect(run.damage?.offset).toBeGreaterThanOrEqual(good.length);
  });

  test('has a date in its header, or none', async () => {
    for (const startedAt of [1e16, -1e300]) {
      const { damage, eventCount } = await read(encode(runOf([allocate(256, 1)], { startedAt })));
      expect([eventCount, damage]).toEqual([0, { offset: 0, fault: 'the header is not valid JSON for a recording', isTruncation: false }]);
    }
  });

  test('is refused if it has another version', async () => {
    const bytes = encode(rich);
    bytes.writeUInt32LE(2, 8);
    await expect(read(bytes)).rejects.toThrow(/^run: is a recording of version 2; this cistern reads version 1$/);
  });
});

describe('a recording of a newer cistern', () => {
  const isStack = (record: Buffer) => record.readUInt8() === RecordKind.stack;

  test('gives all that is known, and counts what is not', async () => {
    const added = (record: Buffer) => [
      future(20),
      future(31),
      future(40, 0),
      future(255, 30),
      ...(isStack(record) ? [] : [future(11), future(15)]),
    ];
    let count = 0;
    const bytes = withRecords(encode(rich), (record, before) => {
      const more = before === undefined || isStack(before) ? [] : added(before);
      count += more.length;
      return [...more, record];
    });
    expect(count).toBeGreaterThan(100);
    expect(await read(bytes, 100)).toEqual({ ...rich, skippedRecordCount: count });
    const log = await readAllocationLog(pieces(bytes));
    expect([log.eventCount, log.skippedRecordCount]).toEqual([3, count]);
    for (let length = 1; length < bytes.length; length += 7) {
      const run = await read(bytes.subarray(0, length));
      expect(events(run)).toEqual(events(rich, run.eventCount));
      expect(run.damage?.isTruncation ?? true).toBe(true);
    }
  });

  test('has an event that uses up the stack before it, though it is not known', async () => {
    const run = await read(withRecords(encode(rich), (record) => (isStack(record) ? [record, future(12)] : [record])));
    expect(run.stackOf.some((stack) => stack !== 0)).toBe(false);
  });

  test('has a text of its own that is longer than a block', async () => {
    const bytes = encode(rich);
    const head = Buffer.alloc(unit);
    head.write('CBLK');
    const text = future(99, 200_000);
    head.writeUInt32LE(text.length, 4);
    head.writeUInt32LE(1, 12);
    const block = seal(Buffer.concat([head, text]), 0);
    const at = bytes.indexOf('CBLK');
    const run = await read(Buffer.concat([bytes.subarray(0, at), block, bytes.subarray(at)]), 5000);
    expect(run).toEqual({ ...rich, skippedRecordCount: 1 });
  });
});

/** A record of a kind that does not exist yet, with so many bytes of text. */
function future(kind: number, textBytes?: number): Buffer {
  const record = Buffer.alloc(unit + Math.ceil((textBytes ?? 0) / unit) * unit, 0x7a, 'latin1');
  record.writeUInt8(kind);
  record.writeDoubleLE(textBytes ?? 7, 16);
  return record;
}

/** A recording with other records in its blocks. */
function withRecords(bytes: Buffer, change: (record: Buffer, before: Buffer | undefined) => Buffer[]): Buffer {
  const pieces: Buffer[] = [bytes.subarray(0, bytes.indexOf('CBLK'))];
  let before: Buffer | undefined;
  for (let block = bytes.indexOf('CBLK'); block < bytes.length; ) {
    const end = block + unit + bytes.readUInt32LE(block + 4);
    const records: Buffer[] = [];
    for (let at = block + unit; at < end; at += (before as Buffer).length) {
      const textBytes = bytes.readUInt8(at) >= 32 ? bytes.readDoubleLE(at + 16) : 0;
      const record = bytes.subarray(at, at + unit + Math.ceil(textBytes / unit) * unit);
      records.push(...change(record, before));
      before = record;
    }
    const head = Buffer.from(bytes.subarray(block, block + unit));
    const payload = Buffer.concat(records);
    head.writeUInt32LE(payload.length, 4);
    head.writeUInt32LE(records.length, 12);
    pieces.push(seal(Buffer.concat([head, payload]), 0));
    block = end;
  }
  return Buffer.concat(pieces);
}

describe('the allocations of a recording', () => {
  test('are those of the layer nearest to the program', async () => {
    const layers = [
      { name: 'cuda', upstream: undefined },
      { name: 'pool', upstream: 0 },
    ];
    const recorded = runOf(
      [
        allocate(0x1000, 1 << 20, { layer: 0, time: 1 }),
        allocate(0x1000, 256, { layer: 1, thread: 1, stream: 1, time: 2 }),
        { kind: EventKind.failure, layer: 1, first: 0, second: 9, time: 3 },
        free(0x1000, 256, { layer: 1, time: 4 }),
      ],
      { layers, threads: ['7', '8'], streams: ['0x0', '0x5'] },
    );
    const bytes = encode(recorded);
    const log = await readAllocationLog(pieces(bytes, 100));
    expect([log.eventCount, log.failureCount, log.peakLiveBytes, log.unfreedCount]).toEqual([2, 1, 256, 0]);
    expect([log.threads, log.streams]).toEqual([
      ['8', '7'],
      ['0x5', '0x0'],
    ]);
    expect(log.event(1)).toEqual({ action: 'free', bytes: 256, slot: 0, thread: 1, stream: 1, line: 4 });
    const below = await readAllocationLog(pieces(bytes), { layer: 'cuda' });
    expect([below.eventCount, below.unfreedBytes, below.truncation]).toEqual([1, 1 << 20, undefined]);
  });

  test('must be consistent in the layer that is read, and only there', async () => {
    const layers = [
      { name: 'pool', upstream: 1 },
      { name: 'cuda', upstream: undefined },
    ];
    const bytes = encode(runOf([free(0x100, 1, { layer: 1 }), allocate(0x100, 1)], { layers }));
    expect((await readAllocationLog(pieces(bytes))).eventCount).toBe(1);
    const reading = readAllocationLog(pieces(bytes), { layer: 'cuda', name: 'run' });
    await expect(reading).rejects.toThrow(/^run: event 0 frees 0x100, which is not live$/);
    await expect(readAllocationLog(pieces(bytes), { layer: 'arena', name: 'run' })).rejects.toThrow(
      /^run: has no layer "arena"; there are: pool, cuda$/,
    );
  });

  test('are read up to the point at which the recording ends early, and not from a damaged one', async () => {
    const bytes = encode(runOf([allocate(0x100, 1), free(0x100, 1)]));
    const log = await readAllocationLog(pieces(bytes.subarray(0, -1)));
    expect([log.eventCount, log.truncation?.offset]).toEqual([1, bytes.length - unit]);
    bytes.writeUInt8(9, bytes.length - 1);
    const block = bytes.indexOf('CBLK');
    await expect(readAllocationLog(pieces(bytes), { name: 'run' })).rejects.toThrow(
      new InvalidLogError('run', undefined, `is damaged at byte ${block}: the CRC of a block is wrong`),
    );
  });

  test('may be on streams that have only names', async () => {
    const log = await readAllocationLog(
      pieces(encode(runOf([allocate(256, 1), allocate(512, 1, { stream: 1 })], { streams: ['(more streams)', '0'] }))),
    );
    expect(log.streams).toEqual(['(more streams)', '0x0']);
  });

  test('are empty if the recording has none', async () => {
    const log = await readAllocationLog(pieces(encode(runOf([], { layers: [], streams: [], threads: [] }))));
    expect(log).toMatchObject({ eventCount: 0, peakLiveBytes: 0 });
  });
});
