import { existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { createResourceStack, MiB } from '../../../src/index.js';
import { EventKind } from '../../../src/tools/formats/event-columns.js';
import { readRecordedRun } from '../../../src/tools/formats/index.js';
import { readAllocationLog, recordReplay, replayLog } from '../../../src/tools/replay/index.js';
import { arrowEtl, logText, row } from '../formats/logs.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-'));
afterAll(() => rmSync(folder, { recursive: true }));

const path = (name: string) => join(folder, name);

function countKinds(kinds: Uint8Array, kind: number): number {
  return kinds.reduce((count, each) => count + (each === kind ? 1 : 0), 0);
}

describe('recordReplay', () => {
  test('records the same allocations in the same order, and the growth of the pool that serves them', async () => {
    const log = await readAllocationLog(arrowEtl);
    const file = path('etl.cistern.gz');
    const { resource, failures } = await recordReplay(log, 'pool(cuda, deallocationEvents=deferred)', file);
    expect(resource).toBe('pool(cuda, deallocationEvents=deferred)');
    expect(failures).toBe(0);
    const run = await readRecordedRun(file);
    expect(run.damage).toBeUndefined();
    expect(run.layers[0]?.name).toBe('pool');
    const again = await readAllocationLog(file);
    expect(again.eventCount).toBe(log.eventCount + log.unfreedCount);
    expect(again.peakLiveBytes).toBe(log.peakLiveBytes);
    for (const index of [0, 1, 1000, 100_000]) {
      expect(again.event(index)).toMatchObject({ action: log.event(index).action, bytes: log.event(index).bytes });
    }
    const { driver } = replayLog(log, () => createResourceStack('pool(cuda, deallocationEvents=deferred)'), { repeat: 1 });
    expect(countKinds(run.kinds, EventKind.growth)).toBe(driver.allocations);
  });

  test('records allocations that ran out of memory, and goes on', async () => {
    writeFileSync(path('two.csv'), logText(row('allocate', 1, MiB), row('allocate', 2, MiB), row('free', 2, MiB), row('free', 1, MiB)));
    const log = await readAllocationLog(path('two.csv'));
    const file = path('two.cistern');
    expect((await recordReplay(log, `pool(cuda, maximumBytes=${MiB})`, file)).failures).toBe(1);
    const run = await readRecordedRun(file);
    const kinds = [...run.kinds].filter((kind) => kind <= EventKind.failure);
    expect(kinds).toEqual([EventKind.allocate, EventKind.failure, EventKind.free]);
  });

  test('leaves no file behind if the process is killed', async () => {
    const log = await readAllocationLog(path('two.csv'));
    const scratch = mkdtempSync(join(folder, 'scratch-'));
    const temporary = process.env['TMPDIR'];
    const seen: string[] = [];
    process.env['TMPDIR'] = scratch;
    try {
      const recording = recordReplay(log, 'pool(cuda)', path('three.cistern'));
      // The replay is over, but the file is not yet written.
      seen.push(...readdirSync(scratch));
      await recording;
    } finally {
      if (temporary === undefined) delete process.env['TMPDIR'];
      else process.env['TMPDIR'] = temporary;
    }
    expect(seen).toEqual([]);
    expect((await readRecordedRun(path('three.cistern'))).eventCount).toBeGreaterThan(4);
  });

  test('leaves no file and no folder if the stack is refused', async () => {
    const log = await readAllocationLog(path('two.csv'));
    const folders = () => readdirSync(tmpdir()).filter((name) => name.startsWith('cistern-timeline-'));
    const before = folders();
    await expect(recordReplay(log, 'pool(cuda, initialBytes=100TiB)', path('none.cistern'))).rejects.toThrow('out of memory');
    await expect(recordReplay(log, 'pool(', path('none.cistern'))).rejects.toMatchObject({ code: 'ERR_CISTERN_INVALID_SPECIFICATION' });
    expect(existsSync(path('none.cistern'))).toBe(false);
    expect(folders()).toEqual(before);
  });
});
