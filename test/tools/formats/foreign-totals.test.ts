import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { convertLog, readRecordedRun } from '../../../src/tools/formats/index.js';
import { packReportRun } from '../../../src/tools/report/pack-report-run.js';
import {
  asKineto,
  asOldUmpireReplay,
  asRaftCsv,
  asRmmCsv,
  asRmmDebugLog,
  asSnapshot,
  asSqlite,
  asUmpireEvents,
  nsightColumns,
  nsightRows,
  randomHistory,
  type Totals,
  totalsOf,
} from '../../support/foreign-logs.js';
import { pieces } from './logs.js';
import { hasPython, pythonNote } from './pytorch-snapshot/snapshots.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-foreign-totals-'));
afterAll(() => rmSync(folder, { recursive: true }));

const history = randomHistory(7, 3000, 2);
const ofOneDevice = randomHistory(8, 3000, 1);
const table = 'CUDA_GPU_MEMORY_USAGE_EVENTS';

/** What `cistern summary` and reports say of each layer. */
async function read(log: string | Buffer): Promise<Record<string, Totals>> {
  const run = await readRecordedRun(pieces(Buffer.from(log), 10_007), { name: 'log' });
  return Object.fromEntries(
    packReportRun(run).overview.layers.map(({ name, allocationCount, peakLiveBytes, neverFreedBytes, neverFreedCount }) => [
      name,
      { allocationCount, peakLiveBytes, neverFreedBytes, neverFreedCount },
    ]),
  );
}

test('the history allocates, frees and leaves something on each device', () => {
  for (const device of [0, 1]) {
    const { allocationCount, peakLiveBytes, neverFreedBytes, neverFreedCount } = totalsOf(history, device);
    expect(allocationCount).toBeGreaterThan(500);
    expect(peakLiveBytes).toBeGreaterThan(neverFreedBytes);
    expect(neverFreedCount).toBeGreaterThan(10);
  }
});

describe('the totals of a log are those of the history that was written', () => {
  test.each([
    ["PyTorch's profiler", asKineto(history), ['cuda 0', 'cuda 1']],
    ['Nsight Systems, small pages', asSqlite(table, nsightColumns, nsightRows(history), 4096), ['device memory 0', 'device memory 1']],
    ['Nsight Systems, large pages', asSqlite(table, nsightColumns, nsightRows(history), 65_536), ['device memory 0', 'device memory 1']],
    ['Umpire 5', asOldUmpireReplay(history), ['POOL0', 'POOL1']],
    ['Umpire 6', asUmpireEvents(history), ['POOL0', 'POOL1']],
    ['RAFT', asRaftCsv(history), ['device', 'workspace']],
  ])('%s', async (_, log, layers) => {
    const totals = await read(log);
    expect(layers.map((name) => totals[name])).toEqual([totalsOf(history, 0), totalsOf(history, 1)]);
  });

  test.each([
    ["RMM's debug log", asRmmDebugLog(ofOneDevice)],
    ["RMM's CSV", asRmmCsv(ofOneDevice)],
  ])('%s', async (_, log) => {
    expect(await read(log)).toEqual({ rmm: totalsOf(ofOneDevice, 0) });
  });

  test("RAFT's samples, except for the number of allocations", async () => {
    const totals = await read(asRaftCsv(history, 10));
    for (const [device, name] of ['device', 'workspace'].entries()) {
      const { peakLiveBytes, neverFreedBytes } = totalsOf(history, device);
      expect(totals[name]).toMatchObject({ peakLiveBytes, neverFreedBytes });
    }
  });

  test("cistern's own trace, made of RMM's CSV", async () => {
    const trace = join(folder, 'trace.json');
    await convertLog(pieces(Buffer.from(asRmmCsv(ofOneDevice))), trace);
    expect(await read(readFileSync(trace))).toEqual({ rmm: totalsOf(ofOneDevice, 0) });
  });
});

describe.skipIf(!hasPython)(`the totals of what Python writes${pythonNote}`, () => {
  let files = 0;

  /** The file that a program writes. */
  function python(script: string): Buffer {
    const program = join(folder, 'program.py');
    const file = join(folder, `log-${files++}`);
    writeFileSync(program, script);
    const { status, stderr } = spawnSync('python3', [program, file], { encoding: 'utf8' });
    expect([status, stderr]).toEqual([0, '']);
    return readFileSync(file);
  }

  const dumped = (value: string, protocol: number) =>
    python(`import pickle, sys
pickle.dump(${value}, open(sys.argv[1], 'wb'), protocol=${protocol})`);

  test.each([0, 1, 2, 4])('snapshots of PyTorch, in protocol %i', async (protocol) => {
    expect(await read(dumped(asSnapshot(history, 2), protocol))).toEqual({
      'pytorch on device 0': totalsOf(history, 0),
      'pytorch on device 1': totalsOf(history, 1),
    });
  });

  test('snapshots whose older entries were dropped: what was live before them counts, at the beginning', async () => {
    const from = 1000;
    const totals = await read(dumped(asSnapshot(history, 2, from), 4));
    for (const device of [0, 1]) {
      const live = new Map(history.slice(0, from).map((step) => [step.address, step]));
      const before = [...live.values()].filter(({ isAllocation }) => isAllocation);
      expect(totals[`pytorch on device ${device}`]).toEqual(totalsOf([...before, ...history.slice(from)], device));
    }
  });

  test('snapshots by rank', async () => {
    const value = `{0: ${asSnapshot(ofOneDevice, 1)}, 1: ${asSnapshot(ofOneDevice.slice(0, 500), 1)}}`;
    expect(await read(dumped(value, 2))).toEqual({
      'pytorch of rank 0': totalsOf(ofOneDevice, 0),
      'pytorch of rank 1': totalsOf(ofOneDevice.slice(0, 500), 0),
    });
  });

  test('SQLite itself finds no fault in the databases of these tests', () => {
    const file = join(folder, 'own.sqlite');
    writeFileSync(file, asSqlite(table, nsightColumns, nsightRows(history), 4096));
    const answers = python(`import sqlite3, sys
db = sqlite3.connect(${JSON.stringify(file)})
answers = [*db.execute('PRAGMA integrity_check').fetchone(), *db.execute('SELECT sum(bytes) FROM ${table} WHERE memoryOperationType = 0').fetchone()]
open(sys.argv[1], 'w').write(' '.join(map(str, answers)))`);
    const allocated = history.reduce((sum, { isAllocation, bytes }) => sum + (isAllocation ? bytes : 0), 0);
    expect(answers.toString()).toBe(`ok ${allocated}`);
  });

  test('a database with deleted rows, an index, other tables and pages that move', async () => {
    const log = python(`import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute('PRAGMA page_size = 1024')
db.execute('PRAGMA auto_vacuum = FULL')
db.execute('CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL)')
db.execute('CREATE TABLE ${table} (${nsightColumns.map((name) => `${name} INTEGER`).join(', ')})')
db.execute('CREATE INDEX byAddress ON ${table} (address)')
rows = ${JSON.stringify(nsightRows(history))}
for i, row in enumerate(rows):
    db.execute('INSERT INTO StringIds (value) VALUES (?)', ('a' * (i % 2000),))
    db.execute('INSERT INTO ${table} VALUES (${nsightColumns.map(() => '?').join(', ')})', row)
    if i % 10 == 0: db.execute('INSERT INTO ${table} VALUES (${nsightColumns.map(() => '?').join(', ')})', [-1, *row[1:]])
db.execute('DELETE FROM ${table} WHERE start < 0')
db.execute('DELETE FROM StringIds WHERE id % 3 = 0')
db.execute('ALTER TABLE ${table} ADD COLUMN importedMemoryPoolAddress INTEGER')
db.commit()
db.execute('VACUUM')`);
    const totals = await read(log);
    expect([0, 1].map((device) => totals[`device memory ${device}`])).toEqual([totalsOf(history, 0), totalsOf(history, 1)]);
  });
});
