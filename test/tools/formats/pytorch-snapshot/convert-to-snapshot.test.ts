import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, describe, expect, test } from 'vitest';
import { HostMemoryResource, KiB, MiB, PoolMemoryResource, Stream } from '../../../../src/index.js';
import { annotate, Recording, RecordingResourceAdaptor } from '../../../../src/recording/index.js';
import { convertLog, EventKind, encodeRecording, type RecordedRun, readRecordedRun } from '../../../../src/tools/formats/index.js';
import { readAllocationLog, readGraphLogs } from '../../../../src/tools/replay/index.js';
import { arrowEtl, pieces } from '../logs.js';
import { allocate, free, type RunEvent, runOf } from '../runs.js';
import { checkSnapshot, hasPython, liveRangeSteps, loadWithPython, pickleWithPython, pythonNote, type Snapshot } from './snapshots.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-'));
afterAll(() => rmSync(folder, { recursive: true }));

const path = (name: string) => join(folder, name);
const microsecond = 1000;

/** Writes a run as a snapshot. */
async function write(run: RecordedRun, name = 'run.pickle'): Promise<string> {
  const file = path(name);
  await convertLog(pieces(Buffer.concat([...encodeRecording(run)])), file);
  return file;
}

async function writeAndLoad(run: RecordedRun): Promise<Snapshot> {
  const snapshot = await loadWithPython(await write(run));
  checkSnapshot(snapshot);
  return snapshot;
}

function growth(first: number, second: number, more: Partial<RunEvent> = {}): RunEvent {
  return { kind: EventKind.growth, first, second, ...more };
}

/** Records a program over a pool. */
function recordProgram(file: string): void {
  using recording = new Recording({ file });
  using pool = new PoolMemoryResource(new HostMemoryResource(), { initialBytes: 1 * MiB, maximumBytes: 64 * MiB });
  using resource = new RecordingResourceAdaptor(pool, { recording, stackSampleBytes: 0 });
  using stream = new Stream();
  using other = new Stream();
  // This is never freed, and keeps the first segment.
  resource.allocate(4 * KiB, stream);
  const live: [number, number][] = [];
  annotate('fill', () => {
    for (let i = 0; i < 300; i++) {
      const bytes = ((i * 7919) % 97) * 4 * KiB;
      const on = i % 3 === 0 ? other : stream;
      live.push([resource.allocate(bytes, on), bytes]);
      if (i % 2 === 1) {
        const [pointer, size] = live.splice((i * 31) % live.length, 1)[0] as [number, number];
        resource.deallocate(pointer, size, stream);
      }
    }
  });
  resource.label(live.at(-1)?.[0] as number, 'the last');
  expect(() => resource.allocate(128 * MiB, stream)).toThrow();
  annotate('empty', () => {
    for (const [pointer, bytes] of live) resource.deallocate(pointer, bytes, stream);
  });
  pool.trim(stream);
  recording.flush();
}

describe.skipIf(!hasPython)(`a written snapshot${pythonNote}`, { timeout: 120_000 }, () => {
  const shared = ['torch-ddp-training', 'torch-owlv2-inference', 'torch-sglang-capture'].map((name) => `../shared/traces/${name}.csv.gz`);

  test.each([arrowEtl, ...shared.filter((file) => existsSync(file))])('loads in Python and gives the same live ranges: %s', async (log) => {
    const file = path('trace.pickle');
    const { omissions } = await convertLog(log, file);
    checkSnapshot(await loadWithPython(file));
    const before = liveRangeSteps(await readRecordedRun(log));
    const after = liveRangeSteps(await readRecordedRun(file));
    expect(after.length).toBe(before.length);
    expect(after.every((step, i) => step === before[i])).toBe(true);
    expect(omissions.every((omission) => /^threads|of zero bytes/.test(omission))).toBe(true);
  });

  test('has as its segments what a pool took and returned', async () => {
    const recorded = path('program.cistern');
    recordProgram(recorded);
    const file = path('program.pickle');
    await convertLog(recorded, file);
    const snapshot = await loadWithPython(file);
    checkSnapshot(snapshot);
    const run = await readRecordedRun(recorded);
    const again = await readRecordedRun(file);
    expect(liveRangeSteps(again)).toEqual(liveRangeSteps(run));
    const actions = (snapshot.device_traces[0] ?? []).map(({ action }) => action);
    expect(actions.filter((action) => action === 'segment_alloc').length).toBeGreaterThan(1);
    expect(actions).toContain('segment_free');
    expect(actions).toContain('oom');
    expect(snapshot.external_annotations.map(({ name, stage }) => `${name} ${stage}`)).toEqual([
      'fill START',
      'fill END',
      'empty START',
      'empty END',
    ]);
    // Growth, phases, labels, stacks and times survive, except for nanoseconds and columns.
    const count = (each: RecordedRun, kind: number) => each.kinds.filter((known) => known === kind).length;
    for (const kind of [EventKind.growth, EventKind.failure, EventKind.phaseBegin, EventKind.label]) {
      expect([kind, count(again, kind)]).toEqual([kind, count(run, kind)]);
    }
    expect(again.labels).toEqual(['', 'the last']);
    expect(again.stacks.length).toBeGreaterThan(1);
    expect(again.stacks[1]).toBe(run.stacks[1]?.replace(/:\d+\)$/gm, ')'));
    expect(again.startedAt).toBeGreaterThanOrEqual(run.startedAt as number);
    expect(again.phases.map(({ name }) => name)).toEqual(['', 'fill', 'empty']);
  });

  test('makes up segments if allocations lie outside the recorded ones', async () => {
    const events = [growth(0x10000, 0x1000), allocate(0x10000, 512), allocate(0x900000, 512), free(0x10000, 512)];
    const { segments, device_traces } = await writeAndLoad(runOf(events));
    expect(segments.map(({ address, total_size }) => [address, total_size])).toEqual([
      [0, 2 * MiB],
      [8 * MiB, 2 * MiB],
    ]);
    expect(device_traces[0]?.map(({ action }) => action)).toEqual(['alloc', 'alloc', 'free_requested', 'free_completed']);
  });

  test.each<[string, readonly RunEvent[]]>([
    ['is freed with another size', [growth(0x1000, 512), { kind: EventKind.release, first: 0x1000, second: 256 }, allocate(0x1000, 1)]],
    ['overlaps the one before', [growth(0x1000, 512), growth(0x1100, 512), allocate(0x1000, 1)]],
    ['overlaps the one after', [growth(0x1100, 512), growth(0x1000, 512), allocate(0x1000, 1)]],
  ])('makes up segments if a recorded one %s', async (_, events) => {
    const { segments, device_traces } = await writeAndLoad(runOf(events));
    expect(segments).toHaveLength(1);
    expect(device_traces[0]?.some(({ action }) => action.startsWith('segment'))).toBe(false);
  });

  test('keeps a segment that was returned with allocations in it', async () => {
    const events = [growth(0x1000, 512), allocate(0x1000, 512), { kind: EventKind.release, first: 0x1000, second: 512 }];
    const { segments, device_traces } = await writeAndLoad(runOf(events));
    expect(segments).toMatchObject([{ address: 0x1000, total_size: 512, allocated_size: 512 }]);
    expect(device_traces[0]?.map(({ action }) => action)).toEqual(['segment_alloc', 'alloc']);
  });

  test('leaves out what a trace cannot hold, and says so', async () => {
    const events = [
      allocate(0, 0),
      allocate(0x1000, 256),
      allocate(0x1000, 512),
      free(0x2000, 1, { thread: 1 }),
      free(0, 0),
      { kind: EventKind.eventRecord, first: 1, second: 0 },
      allocate(0x9000, 4, { layer: 1 }),
      growth(0x9000, 4, { layer: 1 }),
    ];
    const layers = [
      { name: 'pool', upstream: 1 },
      { name: 'cuda', upstream: undefined },
    ];
    const bytes = Buffer.concat([...encodeRecording(runOf(events, { layers, threads: ['1', '2'] }))]);
    const { omissions } = await convertLog(pieces(bytes), path('left.pickle'));
    expect(omissions).toEqual([
      'events of the layer cuda: 1',
      'threads: 2',
      'events of zero bytes: 2',
      'frees of memory that the log does not allocate: 1',
      'allocations at a live address: 1',
      'blocks that a layer took from its upstream or returned: 1',
      'event records and waits: 1',
    ]);
    const snapshot = await loadWithPython(path('left.pickle'));
    checkSnapshot(snapshot);
    expect(snapshot.device_traces[0]).toHaveLength(1);
  });

  test('is refused if allocations overlap', async () => {
    await expect(write(runOf([allocate(0x1000, 512), allocate(0x1100, 1)]))).rejects.toThrow(
      /the allocations at 0x1000 and 0x1100 overlap$/,
    );
  });

  test('has numbers of every size, stacks, labels and times', async () => {
    const events = [
      allocate(2 ** 52 + 512, 255, { stack: 1, time: 5 * microsecond }),
      { kind: EventKind.label, first: 2 ** 52 + 512, second: 1 },
      allocate(2 ** 31, 2 ** 31 - 1, { stream: 1, stack: 2 }),
      allocate(256, 65_536, { stream: 2 }),
      { kind: EventKind.failure, first: -448, second: 2 ** 64 },
    ];
    const snapshot = await writeAndLoad(
      runOf(events, {
        startedAt: 1_700_000_000_123,
        streams: ['0', '0xfffffffff', '(more streams)'],
        stacks: ['', 'f (a b.js:7:9)\nasync g (node:x:1:2)', 'strange'],
        labels: ['', 'Gewichte µ'],
      }),
    );
    expect(snapshot.device_traces[0]).toEqual([
      {
        action: 'alloc',
        addr: 2 ** 52 + 512,
        size: 255,
        stream: 0,
        time_us: 1_700_000_000_123_005,
        frames: [
          { name: 'f', filename: 'a b.js', line: 7 },
          { name: 'async g', filename: 'node:x', line: 1 },
        ],
        user_metadata: 'Gewichte µ',
      },
      {
        action: 'alloc',
        addr: 2 ** 31,
        size: 2 ** 31 - 1,
        stream: 0xfffffffff,
        time_us: 1_700_000_000_123_000,
        frames: [{ name: 'strange', filename: '', line: 0 }],
      },
      { action: 'alloc', addr: 256, size: 65_536, stream: 0, time_us: 1_700_000_000_123_000, frames: [] },
      // JSON rounds this number; the pickle does not.
      { action: 'oom', device_free: 0, size: Number(2n ** 64n - 448n), stream: 0, time_us: 1_700_000_000_123_000, frames: [] },
    ]);
  });

  test('keeps what PyTorch relies on, whatever the program did', async () => {
    const step = fc.record({ pick: fc.nat(), bytes: fc.nat({ max: 4 * MiB }), gap: fc.nat({ max: 8 * MiB }), stream: fc.nat({ max: 1 }) });
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 60, size: 'max' }), async (steps) => {
        const live: { pointer: number; bytes: number }[] = [];
        const events: RunEvent[] = [];
        let next = 4096;
        for (const { pick, bytes, gap, stream } of steps) {
          const victim = live[pick % (live.length + 1)];
          if (victim === undefined) {
            const pointer = next + gap;
            next = pointer + bytes;
            if (bytes > 0) live.push({ pointer, bytes });
            events.push(allocate(pointer, bytes, { stream }));
          } else {
            live.splice(live.indexOf(victim), 1);
            events.push(free(victim.pointer, victim.bytes, { stream }));
          }
        }
        const run = runOf(events, { streams: ['0', '0x5'] });
        const file = await write(run, 'random.pickle');
        checkSnapshot(await loadWithPython(file));
        expect(liveRangeSteps(await readRecordedRun(file))).toEqual(liveRangeSteps(run));
      }),
      { numRuns: 20 },
    );
  });
});

describe.skipIf(!hasPython)(`a PyTorch snapshot that is read${pythonNote}`, { timeout: 120_000 }, () => {
  const file = path('torch.pickle');
  const frames = "[{'name': 'forward', 'filename': 'model.py', 'line': 12}, {'name': 'main', 'filename': 'train.py', 'line': 3}]";

  function snapshot(segments: string, trace: string, rest = ''): string {
    return `{'segments': ${segments}, 'device_traces': [${trace}], 'allocator_settings': {'roundup_power2_divisions': {1: 0}}${rest}}`;
  }

  const segment = (address: number, blocks: readonly [number, string][], rest = '') => {
    const total = blocks.reduce((sum, [size]) => sum + size, 0);
    const texts = blocks.map(
      ([size, state]) =>
        `{'size': ${size}, 'requested_size': ${size - (state === 'inactive' ? 0 : 12)}, 'state': '${state}', 'frames': []}`,
    );
    return `{'device': 0, 'address': ${address}, 'total_size': ${total}, 'stream': 0, 'segment_type': 'large', 'frames': [], 'blocks': [${texts.join(', ')}]${rest}}`;
  };
  const entry = (action: string, address: number, size: number, time: number, rest = '') =>
    `{'action': '${action}', 'addr': ${address}, 'size': ${size}, 'stream': 0, 'time_us': ${time}${rest}}`;

  const start = 1_700_000_000_000_250;

  test.each([2, 3, 4, 5])('gives the trace, and at time 0 what was allocated before it (protocol %i)', async (protocol) => {
    const trace = [
      entry('free_requested', 4096, 500, start),
      entry('free_completed', 4096, 500, start + 1),
      entry('segment_alloc', 65_536, 4096, start + 2, `, 'frames': ${frames}`),
      entry('alloc', 65_536, 1012, start + 3, `, 'frames': ${frames}, 'user_metadata': 'weights'`),
      `{'action': 'oom', 'device_free': 5, 'size': ${2 ** 40}, 'stream': 7, 'time_us': ${start + 4}, 'frames': []}`,
      entry('snapshot', 0, 0, start + 5),
      `{'action': 'annotate', 'note': None, 'share': 0.5, 'ok': True}`,
      entry('free_requested', 4608, 500, start + 6),
    ];
    const text = snapshot(
      `[${segment(4096, [
        [512, 'inactive'],
        [512, 'active_pending_free'],
        [3072, 'active_allocated'],
      ])}, ${segment(65_536, [
        [1024, 'active_allocated'],
        [3072, 'inactive'],
      ])}]`,
      `[${trace.join(', ')}], []`,
      `, 'external_annotations': [{'device': 0, 'time_us': ${start + 2}, 'name': 'step', 'stage': 'START'}, {'device': 0, 'time_us': ${start + 4}, 'name': 'step', 'stage': 'END'}]`,
    );
    await pickleWithPython(file, text, protocol);
    const run = await readRecordedRun(file);
    const happened = Array.from({ length: run.eventCount }, (_, i) => [
      ...[run.kinds, run.times, run.firsts, run.seconds, run.phaseOf, run.stackOf].map((column) => column[i] as number),
    ]);
    const { allocate, free, growth, failure, phaseBegin, phaseEnd, label } = EventKind;
    expect(happened).toEqual([
      [growth, 0, 4096, 4096, 0, 0],
      [allocate, 0, 4608, 500, 0, 0],
      [allocate, 0, 5120, 3060, 0, 0],
      [allocate, 0, 4096, 500, 0, 0],
      [free, 251_000, 4096, 500, 0, 0],
      [phaseBegin, 252_000, 1, 0, 0, 0],
      [growth, 252_000, 65_536, 4096, 1, 1],
      [allocate, 253_000, 65_536, 1012, 1, 1],
      [label, 253_000, 65_536, 1, 1, 0],
      [phaseEnd, 254_000, 1, 0, 0, 0],
      [failure, 254_000, 0, 2 ** 40, 0, 0],
    ]);
    expect(run).toMatchObject({
      startedAt: 1_700_000_000_000,
      layers: [{ name: 'pytorch', upstream: undefined }],
      streams: ['0x0', '0x7'],
      stacks: ['', 'forward (model.py:12)\nmain (train.py:3)'],
      labels: ['', 'weights'],
      damage: undefined,
      skippedRecordCount: 0,
    });
  });

  test('follows segments that grow and shrink anywhere', async () => {
    const trace = [
      entry('segment_map', 0x200000, 0x200000, 1),
      entry('segment_map', 0x400000, 0x200000, 2),
      entry('segment_unmap', 0x300000, 0x200000, 3),
      entry('segment_free', 0x900000, 0x1000, 4),
    ];
    const expandable = `[${segment(0x100000, [[0x200000, 'inactive']])}, ${segment(0x500000, [[0x100000, 'inactive']])}]`;
    await pickleWithPython(file, snapshot(expandable, `[${trace.join(', ')}]`), 4);
    const run = await readRecordedRun(file);
    const happened = Array.from({ length: run.eventCount }, (_, i) => [run.kinds[i], run.times[i], run.firsts[i], run.seconds[i]]);
    const { growth, release } = EventKind;
    expect(happened).toEqual([
      [growth, 0, 0x100000, 0x100000],
      [growth, 0, 0x900000, 0x1000],
      [growth, 1000, 0x200000, 0x200000],
      [growth, 2000, 0x400000, 0x200000],
      [release, 3000, 0x200000, 0x200000],
      [growth, 3000, 0x200000, 0x100000],
      [release, 3000, 0x400000, 0x200000],
      [growth, 3000, 0x500000, 0x100000],
      [release, 4000, 0x900000, 0x1000],
    ]);
    expect(run.startedAt).toBeUndefined();
  });

  test('has one layer per device', async () => {
    const other = segment(4096, [[512, 'active_allocated']]).replace("'device': 0", "'device': 2");
    await pickleWithPython(file, snapshot(`[${segment(4096, [[512, 'active_allocated']])}, ${other}]`, '[], [], []'), 4);
    const run = await readRecordedRun(file);
    expect(run.layers.map(({ name }) => name)).toEqual(['pytorch on device 0', 'pytorch on device 2']);
    expect([...run.layerOf]).toEqual([0, 0, 1, 1]);
    const log = await readAllocationLog(file, { layer: 'pytorch on device 2' });
    expect([log.eventCount, log.unfreedBytes]).toEqual([1, 500]);
  });

  test('has a layer for each private pool, with the allocations in its segments, and keeps them in a recording', async () => {
    const inPool = (id: string) => `, 'segment_pool_id': ${id}`;
    const segments = [
      segment(0x100000, [[512, 'active_allocated']], inPool('(0, 0)')),
      segment(
        0x200000,
        [
          [512, 'active_allocated'],
          [3584, 'inactive'],
        ],
        inPool('(7, 0)'),
      ),
      segment(
        0x300000,
        [
          [1024, 'inactive'],
          [1024, 'active_allocated'],
        ],
        inPool('(0, 3)'),
      ),
    ];
    const trace = [
      // Was freed before the snapshot, so nobody knows whose it was.
      entry('segment_alloc', 0x200000, 4096, 1),
      entry('alloc', 0x200000, 700, 2),
      entry('free_completed', 0x200000, 700, 3),
      entry('segment_free', 0x200000, 4096, 4),
      entry('segment_alloc', 0x300000, 2048, 5),
      entry('alloc', 0x300000, 1000, 6, `, 'user_metadata': 'activations'`),
      entry('alloc', 0x300400, 1012, 7),
      entry('segment_alloc', 0x200000, 4096, 8),
      entry('free_completed', 0x300000, 1000, 9),
      entry('alloc', 0x200000, 500, 10),
    ];
    await pickleWithPython(file, snapshot(`[${segments.join(', ')}]`, `[${trace.join(', ')}]`), 4);
    const recording = path('pools.cistern');
    await convertLog(file, recording);
    for (const log of [file, recording]) {
      const run = await readRecordedRun(log);
      expect(run.layers).toMatchObject([{ name: 'pytorch' }, { name: 'private pool 7,0', isGraph: true }, { name: 'pool 0,3' }]);
      expect(run.layers[0]?.isGraph).toBeUndefined();
      expect(liveRangeSteps(run, 0)).toHaveLength(7);
      expect(liveRangeSteps(run, 1)).toEqual([`+${0x200000}+500 on 0`]);
      expect(liveRangeSteps(run, 2)).toEqual([`+${0x300000}+1000 on 0`, `+${0x300400}+1012 on 0`, `-${0x300000}+1000 on 0`]);
      const grown = [...run.kinds.keys()].filter((i) => run.kinds[i] === EventKind.growth).map((i) => [run.layerOf[i], run.seconds[i]]);
      expect(grown).toEqual([
        [0, 512],
        [0, 4096],
        [0, 2048],
        [2, 2048],
        [0, 4096],
        [1, 4096],
      ]);
      const labelled = [...run.kinds.keys()].filter((i) => run.kinds[i] === EventKind.label).map((i) => run.layerOf[i]);
      expect(labelled).toEqual([0, 2]);
      const graphs = await readGraphLogs(log);
      expect(graphs.map(({ source, peakLiveBytes }) => [source, peakLiveBytes])).toEqual([[`${log}: private pool 7,0`, 500]]);
      const whole = await readGraphLogs(log, { layer: 'pytorch' });
      expect(whole.map(({ source, allocationCount }) => [source, allocationCount])).toEqual([[log, 5]]);
      expect((await readAllocationLog(log)).allocationCount).toBe(5);
      await expect(readGraphLogs(log, { layer: 'other' })).rejects.toThrow(/has no layer "?other/);
    }
  });

  test('has layers for the pools of each device', async () => {
    const of = (device: number) =>
      segment(4096, [[512, 'active_allocated']], `, 'segment_pool_id': (1, 0)`).replace("'device': 0", `'device': ${device}`);
    await pickleWithPython(file, snapshot(`[${of(0)}, ${of(1)}]`, '[], []'), 4);
    const graphs = await readGraphLogs(file);
    expect(graphs.map(({ source }) => source)).toEqual([0, 1].map((device) => `${file}: private pool 1,0 on device ${device}`));
  });

  test('is refused if it has more pools than a log can have layers', async () => {
    const pools = Array.from({ length: 256 }, (_, i) => segment(4096 * (i + 1), [[512, 'inactive']], `, 'segment_pool_id': (${i + 1}, 0)`));
    await pickleWithPython(file, snapshot(`[${pools.join(', ')}]`, '[]'), 4);
    await expect(readRecordedRun(file)).rejects.toThrow(/names more than 256 devices and pools$/);
  });

  test('is refused if it is not a snapshot', async () => {
    const cases: [string, RegExp][] = [
      ['[1, 2]', /the snapshot is not a dict$/],
      ["{'segments': 3}", /segments is not a list$/],
      ["{'segments': [], 'device_traces': [3]}", /the trace of a device is not a list$/],
      [`{'segments': [], 'device_traces': [[${entry('alloc', -1, 1, 1)}]]}`, /an address must be an integer from 0 to 2\^53 - 1, got -1$/],
      [
        `{'segments': [], 'device_traces': [[${entry('alloc', 1, 1, 1).replace("'addr': 1", "'addr': 2**63")}]]}`,
        /got 9223372036854775808n$/,
      ],
      ["{'segments': [complex(1, 2)]}", /is damaged at byte \d+, or not a PyTorch snapshot: it holds more than plain data \(opcode 0x/],
      ['{(1, 2): 3}', /a dict key is not a string$/],
      ["{'segments': 1 << 400}", /an integer has 51 bytes$/],
    ];
    for (const [expression, message] of cases) {
      await pickleWithPython(file, expression, 4);
      await expect(readRecordedRun(file)).rejects.toThrow(message);
    }
  });

  test('is an error or a snapshot, whichever byte changes and wherever it ends', async () => {
    await pickleWithPython(file, snapshot(`[${segment(4096, [[512, 'active_allocated']])}]`, `[${entry('alloc', 4096, 500, start)}]`), 4);
    const run = await readRecordedRun(file);
    const whole = readFileSync(file);
    expect(run.eventCount).toBe(2);
    for (let at = 0; at < whole.length; at++) {
      const damaged = Buffer.from(whole);
      damaged[at] = (damaged[at] as number) ^ 0x55;
      for (const bytes of [damaged, whole.subarray(0, at)]) {
        await readRecordedRun(pieces(bytes), { name: 'x' }).catch((error) =>
          expect(error).toMatchObject({ code: 'ERR_CISTERN_INVALID_LOG' }),
        );
      }
    }
  });
});

describe('a snapshot as PyTorch itself writes it from C++', () => {
  test('may have lists of any length in one piece', async () => {
    const entries = 300_000;
    const text = (value: string) => Buffer.concat([Buffer.of(0x58, value.length, 0, 0, 0), Buffer.from(value)]);
    const bytes = Buffer.concat([
      Buffer.of(0x80, 2, 0x7d, 0x28),
      ...[text('segments'), Buffer.of(0x5d), text('device_traces'), Buffer.of(0x5d, 0x28, 0x5d, 0x28)],
      // Repeats {'action': 'snapshot'}, out of the memo.
      ...[Buffer.of(0x7d, 0x28), text('action'), text('snapshot'), Buffer.of(0x75, 0x71, 7)],
      Buffer.alloc(2 * entries).fill(Buffer.of(0x68, 7)),
      Buffer.of(0x65, 0x65, 0x75, 0x2e),
    ]);
    writeFileSync(path('long.pickle'), bytes);
    expect((await readRecordedRun(path('long.pickle'))).eventCount).toBe(0);
  });
});
