import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { afterAll, describe, expect, test } from 'vitest';
import { convertLog, EventKind, type RecordedRun, readRecordedRun } from '../../../src/tools/formats/index.js';
import { SqliteFile } from '../../../src/tools/formats/nsight-sqlite/sqlite-table.js';
import { arrowEtl, pieces } from './logs.js';
import { hasPython, pythonNote } from './pytorch-snapshot/snapshots.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-foreign-logs-'));
afterAll(() => rmSync(folder, { recursive: true }));

const read = (text: string | Buffer, name = 'log') => readRecordedRun(pieces(Buffer.from(text)), { name });

const words: Readonly<Record<number, string>> = { [EventKind.allocate]: '+', [EventKind.free]: '-', [EventKind.failure]: '!' };

/** Allocations, frees and failures of a run. */
function steps({ kinds, layerOf, layers, firsts, seconds, times }: RecordedRun): string[] {
  return [...kinds].flatMap((kind, i) =>
    words[kind] === undefined ? [] : [`${times[i]} ${layers[layerOf[i] as number]?.name} ${words[kind]}${firsts[i]} ${seconds[i]}`],
  );
}

/** The most that a layer has live, counted by addresses. */
function peakOf(run: RecordedRun, layer: number): number {
  const live = new Map<number, number>();
  let bytes = 0;
  let peak = 0;
  for (let i = 0; i < run.eventCount; i++) {
    if (run.layerOf[i] !== layer) continue;
    const address = run.firsts[i] as number;
    if (run.kinds[i] === EventKind.allocate) {
      live.set(address, run.seconds[i] as number);
      bytes += run.seconds[i] as number;
    } else if (run.kinds[i] === EventKind.free) {
      bytes -= live.get(address) ?? 0;
      live.delete(address);
    }
    peak = Math.max(peak, bytes);
  }
  return peak;
}

describe("a trace of PyTorch's profiler", () => {
  const memory = (ts: number | string, Addr: number, Bytes: number, type = 1) => ({
    ph: 'i',
    cat: 'cpu_instant_event',
    s: 't',
    name: '[memory]',
    pid: 7,
    tid: 8,
    ts,
    args: { 'Total Reserved': 2 ** 21, 'Total Allocated': 0, Bytes, Addr, 'Device Id': type === 0 ? -1 : 0, 'Device Type': type },
  });
  const events = [
    { ph: 'X', name: 'aten::mm', ts: 1, dur: 5 },
    memory(10.5, 4096, 512),
    memory('12.5', 8192, 1024),
    memory(11, 64, 8, 0),
    memory(14, 4096, -512),
  ];

  test.each([JSON.stringify({ schemaVersion: 1, traceEvents: events }), JSON.stringify(events, undefined, 1)])('is read', async (text) => {
    const run = await read(gzipSync(text));
    expect(steps(run)).toEqual(['0 cuda 0 +4096 512', '500 cpu +64 8', '2000 cuda 0 +8192 1024', '3500 cuda 0 -4096 512']);
    expect(run.threads).toEqual(['8']);
  });

  test('without memory events is named', async () => {
    await expect(read('{"traceEvents":[{"ph":"X"}]}')).rejects.toThrow(
      /^log: is JSON, but no trace with memory events: .*profile_memory=True/,
    );
    for (const snapshot of ['{"segments":[],"device_traces":[]}', '[{"device":0,"blocks":[]}]', '[{"segments":[]}]'])
      await expect(read(snapshot)).rejects.toThrow(/^log: is a snapshot of PyTorch as JSON, .*_dump_snapshot/);
    await expect(read('{"a":1}')).rejects.toThrow(/^log: is JSON, but no trace/);
    await expect(read('[1, null, "a", []]')).rejects.toThrow(/^log: is JSON, but no trace/);
    await expect(read('{"traceEvents":[')).rejects.toThrow(/^log: looks like JSON, but is none/);
    await expect(read('['.repeat(100_000))).rejects.toThrow(/^log: looks like JSON, but is none/);
  });
});

test("a trace of cistern's own holds the same allocations as the log that it was made from", async () => {
  const trace = join(folder, 'trace.json.gz');
  await convertLog(arrowEtl, trace);
  const log = await readRecordedRun(arrowEtl);
  const run = await readRecordedRun(trace);
  const allocated = (each: RecordedRun) =>
    [...each.kinds].reduce((sum, kind, i) => sum + (kind === EventKind.allocate ? (each.seconds[i] as number) : 0), 0);
  expect(allocated(run)).toBe(allocated(log));
  expect(peakOf(run, 0)).toBe(peakOf(log, 0));
  expect(run.layers.map(({ name }) => name)).toEqual(['rmm']);
  expect([...run.threads].sort()).toEqual([...log.threads].sort());
});

describe.skipIf(!hasPython)(`an SQLite export of Nsight Systems${pythonNote}`, () => {
  const file = join(folder, 'nsight.sqlite');
  const columns = `start INTEGER NOT NULL, -- Event start timestamp (ns), since the start.
     globalPid INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, address INTEGER NOT NULL, pc INTEGER NOT NULL,
     bytes INTEGER NOT NULL, memKind INTEGER NOT NULL, memoryOperationType INTEGER NOT NULL, name TEXT, correlationId INTEGER, streamId INTEGER`;

  /** A database that Python's SQLite writes; `script` has `db`. */
  function write(script: string): Buffer {
    const program = `import os, sqlite3, sys
if os.path.exists(sys.argv[1]): os.remove(sys.argv[1])
db = sqlite3.connect(sys.argv[1])
columns = """${columns}"""
${script}
db.commit()`;
    const { stderr } = spawnSync('python3', ['-c', program, file], { encoding: 'utf8' });
    expect(stderr).toBe('');
    return readFileSync(file);
  }

  test('is read, with every page size, long rows and many of them', { timeout: 60_000 }, async () => {
    for (const page of [512, 4096, 65_536]) {
      const bytes = write(`
db.execute('PRAGMA page_size = ${page}')
db.execute('CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)')
db.execute(f'CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS ({columns})')
for i in range(3000):
    name = 'x' * 3000 if i % 500 == 0 else None
    db.execute('INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (?,?,?,?,?,?,?,?,?,?,?,?)', (1000 + i, 2**40, i % 2, 1, 2**46 + 4096 * i, 0, 1 + i, 2, 0, name, i, 13))
    if i % 3 == 0:
        db.execute('INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (?,?,?,?,?,?,?,?,?,?,?,?)', (1000 + i, 2**40, i % 2, 1, 2**46 + 4096 * i, 0, 1 + i, 2, 1, name, i, 13))`);
      const run = await read(bytes);
      expect(run.layers.map(({ name }) => name)).toEqual(['device memory 0', 'device memory 1']);
      expect(run.streams).toEqual(['13']);
      const sums = [0, 0, 0];
      for (let i = 0; i < run.eventCount; i++)
        sums[run.kinds[i] as number] = (sums[run.kinds[i] as number] as number) + (run.seconds[i] as number);
      expect(sums[EventKind.allocate]).toBe((3000 * 3001) / 2);
      expect(sums[EventKind.free]).toBe(Array.from({ length: 1000 }, (_, i) => 1 + 3 * i).reduce((sum, each) => sum + each, 0));
    }
  });

  test('without the table says how to record it', async () => {
    await expect(read(write("db.execute('CREATE TABLE t (a)')"))).rejects.toThrow(
      /^log: is an SQLite database without the table CUDA_GPU_MEMORY_USAGE_EVENTS: .*--cuda-memory-usage=true/,
    );
  });

  test('that is damaged or hostile is refused with a sentence, or read in part', { timeout: 60_000 }, async () => {
    const whole = write(`
db.execute('PRAGMA page_size = 512')
db.execute(f'CREATE TABLE CUDA_GPU_MEMORY_USAGE_EVENTS ({columns})')
for i in range(60):
    db.execute('INSERT INTO CUDA_GPU_MEMORY_USAGE_EVENTS VALUES (?,?,?,?,?,?,?,?,?,?,?,?)', (i, 1, 0, 1, 4096 * i, 0, 1 + i, 2, 0, 'n' * (i * 20), i, 13))`);
    let random = 1;
    for (let i = 0; i < 400; i++) {
      const bytes = Buffer.from(whole);
      for (let change = 0; change < 3; change++) {
        random = (random * 48_271) % 2_147_483_647;
        bytes[random % bytes.length] = i % 2 === 0 ? 0xff : random & 0xff;
      }
      const text = await read(i % 5 === 0 ? bytes.subarray(0, random % bytes.length) : bytes).then(
        () => 'read',
        ({ message }: Error) => message,
      );
      expect(text).toMatch(/^read$|^log/);
    }
    // A page that is its own child.
    expect(
      () =>
        new SqliteFile(
          Buffer.concat([whole.subarray(0, 100), Buffer.of(5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1), whole.subarray(112)]),
          () => {},
        ),
    ).toThrow('refers to page 1 twice');
  });
});

describe("RMM's debug log", () => {
  const log = `[ 12345][14:03:22:123456][info  ] ----- RMM LOG BEGIN [PTDS DISABLED] -----
[ 12345][14:03:22:123460][trace ] [A][stream 0x55d0][1024B]
[ 12345][14:03:22:123461][trace ] [A][stream 0x55d0][1024B][0x7f3e8c000000]
[ 12346][23:59:59:999999][trace ] [A][stream 0x1][256B][0x7f3e8c000400]
[ 12345][00:00:00:000001][trace ] [D][stream 0x55d0][1024B][0x7f3e8c000000]
[ 12345][00:00:00:000002][error ] [A][Stream 0x55d0][Upstream 4096B][FAILURE maximum pool size exceeded]
`;

  test('is read, over midnight too', async () => {
    const run = await read(log);
    const start = ((14 * 60 + 3) * 60 + 22) * 1e9 + 123_461e3;
    expect(steps(run)).toEqual([
      `0 rmm +${0x7f3e8c000000} 1024`,
      `${86_399_999_999e3 - start} rmm +${0x7f3e8c000400} 256`,
      `${86_400_000_001e3 - start} rmm -${0x7f3e8c000000} 1024`,
      `${86_400_000_002e3 - start} rmm !0 4096`,
    ]);
    expect([run.threads, run.streams]).toEqual([
      ['12345', '12346'],
      ['0x55d0', '0x1'],
    ]);
  });

  test('without allocations says at which level they are logged', async () => {
    await expect(read(log.split('\n')[0] ?? '')).rejects.toThrow(
      /^log: is RMM's debug log, but has no allocations: .*RMM_LOGGING_LEVEL=TRACE/,
    );
  });
});

describe("Umpire's replay log", () => {
  const old = (time: number, event: string, rest: string) =>
    `{ "kind":"replay", "uid":1, "timestamp":${time}, "event": "${event}", ${rest} }`;
  const expected = ['0 pool +4096 64', '10 pool +8192 100', '20 pool -4096 64'];

  test('of version 5 and older is read', async () => {
    const log = [
      '# a comment',
      old(90, 'version', '"payload": { "major":0 }'),
      'what the program prints',
      old(95, 'makeAllocator', '"payload": { "allocator_name":"pool" }, "result": { "allocator_ref":"0x1" }'),
      old(99, 'allocate', '"payload": { "allocator_ref": "0x1", "size": 64 }'),
      old(100, 'allocate', '"payload": { "allocator_ref": "0x1", "size": 64 }, "result": { "memory_ptr": "0x1000" }'),
      old(110, 'allocate', '"payload": { "allocator_ref": "0x1", "size": 100 }, "result": { "memory_ptr": "0x2000" }'),
      old(120, 'deallocate', '"payload": { "allocator_ref": "0x1", "memory_ptr": "0x1000" }'),
    ].join('\n');
    expect(steps(await read(log))).toEqual(expected);
  });

  test('of version 6 and newer is read', async () => {
    const event = (timestamp: number, name: string, pointer: string, size?: number) =>
      JSON.stringify({
        category: 'operation',
        name,
        numeric_args: size === undefined ? {} : { size },
        string_args: { allocator_ref: '0x1', pointer },
        tags: { allocator_name: 'pool', replay: 'true' },
        timestamp,
      });
    const log = [event(100, 'allocate', '0x1000', 64), event(110, 'allocate', '0x2000', 100), event(120, 'deallocate', '0x1000')].join(
      '\n',
    );
    expect(steps(await read(log))).toEqual(expected);
  });

  test('that is damaged is refused with its line', async () => {
    const line = old(100, 'allocate', '"payload": { "allocator_ref": "0x1", "size": -1 }, "result": { "memory_ptr": "0x1000" }');
    await expect(read(line)).rejects.toThrow(/^log, line 1: the size must be an integer/);
    await expect(read(`${line.slice(0, 60)}`)).rejects.toThrow(/^log, line 1: is not JSON/);
    await expect(read(old(1, 'version', '"payload": null'))).rejects.toThrow('is a replay log of Umpire without allocations');
  });
});

describe("RAFT's CSV of memory", () => {
  test('with an event in each row is read event by event', async () => {
    const run =
      await read(`timestamp_us,host_current,host_peak,host_total_alloc,host_total_freed,device_current,device_peak,device_total_alloc,device_total_freed,nvtx_depth,nvtx_range,event_source,event_bytes,alloc_range
10,0,0,0,0,512,512,512,0,1,"build",device,512,"build#1 > fit, again#2"
11,64,64,64,0,512,512,512,0,1,"build",host,64,""
12,64,64,64,0,1024,1024,1024,0,1,"build",device,512,""
13,64,64,64,0,512,512,1024,512,0,"",device,-512,""
`);
    expect(steps(run).map((step) => step.replace(/[+]\d+/, '+').replace(/-\d+/, '-'))).toEqual([
      '0 device + 512',
      '1000 host + 64',
      '2000 device + 512',
      '3000 device - 512',
    ]);
    expect(run.labels).toContain('build#1 > fit, again#2');
    expect([peakOf(run, 0), peakOf(run, 1)]).toEqual([1024, 64]);
  });

  test('with samples has what was live, and the peaks between', async () => {
    const run = await read(`timestamp_us,device_current,device_peak,device_total_alloc,device_total_freed,nvtx_depth,nvtx_range
10,100,100,100,0,0,""
20,50,400,600,550,1,"search"
30,50,50,600,550,1,"search"
40,0,50,600,600,0,""
`);
    expect(peakOf(run, 0)).toBe(400);
    const bytes = (kind: number) => [...run.kinds].flatMap((each, i) => (each === kind ? [run.seconds[i]] : []));
    expect(bytes(EventKind.allocate)).toEqual([100, 400, 50]);
    expect(bytes(EventKind.free)).toEqual([100, 400, 50]);
  });

  test('that is damaged is refused with its line', async () => {
    const header = 'timestamp_us,a_current,a_peak,a_total_alloc,a_total_freed,nvtx_depth,nvtx_range\n';
    await expect(read(`${header}1,x,2,3,4,0,""\n`)).rejects.toThrow(/^log, line 2: the column a_current must be an integer, got "x"/);
    await expect(read(`${header}1\n`)).rejects.toThrow(/^log, line 2: the column a_current must be an integer, got undefined/);
    await expect(read(`${header}${'1'.repeat(2 ** 21)}`)).rejects.toThrow(/^log, line 2: is longer than/);
  });
});

test.each([
  ['PK\x03\x04', 'a ZIP archive'],
  ['\x7fELF', 'a program'],
  ['\x89PNG', 'a picture'],
  ['QDSTRM', 'a report of Nsight Systems'],
  ['<html>', 'an HTML page'],
  ['PAR1', 'a Parquet file'],
])('a file that begins with %j is named as %s', async (text, name) => {
  await expect(read(Buffer.from(`${text}${'\0'.repeat(9000)}`, 'latin1'))).rejects.toThrow(`log: is ${name}`);
});
