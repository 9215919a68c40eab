import { expect, test } from 'vitest';
import { MiB } from '../../src/index.js';
import { generateLog } from '../../src/tools/replay/index.js';
import { readReportRun, writeReport } from '../../src/tools/report/index.js';
import { collectGarbage } from './collection.js';

/** The bytes of reachable typed arrays. */
async function heldBytes(): Promise<number> {
  await collectGarbage();
  return process.memoryUsage().arrayBuffers;
}

test('a report of a log takes 16 bytes of memory per event, plus a constant', async () => {
  const events = 400_000;
  const before = await heldBytes();
  let most = 0;
  const sample = async () => {
    most = Math.max(most, (await heldBytes()) - before);
  };
  async function* log(): AsyncGenerator<Uint8Array> {
    let pieces = 0;
    for await (const piece of generateLog('random', { events })) {
      yield piece;
      if (++pieces % 50 === 0) await sample();
    }
    await sample();
  }
  const run = await readReportRun(log());
  expect(run.eventCount).toBe(events);
  await sample();
  expect((await heldBytes()) - before).toBeLessThan(13 * events);
  let written = 0;
  const sink = {
    write: async (text: string | Uint8Array) => {
      written += text.length;
      await sample();
    },
  };
  await writeReport([run], sink);
  expect(written).toBeGreaterThan(events);
  // The last 65,536 values of each column are kept as numbers.
  expect(most).toBeLessThan(16 * events + 16 * MiB);
});
