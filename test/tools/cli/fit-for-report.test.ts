import { expect, test } from 'vitest';
import { ReplayedEvents } from '../../../src/tools/cli/fit-for-report.js';
import { appendEvents } from '../../../src/tools/formats/event-columns.js';
import { readRecordedRun } from '../../../src/tools/formats/read-recorded-run.js';
import { AllocationProjection } from '../../../src/tools/replay/project-allocations.js';
import { logText, pieces, row } from '../formats/logs.js';

test.each([
  [4, 4],
  [3, undefined],
])('of a log with four events, of which at most %d may be, %s are replayed', async (most, replayed) => {
  const text = logText(row('allocate', 1, 512), row('free', 1, 512), row('allocate', 2, 512), row('free', 2, 512));
  const run = await readRecordedRun(pieces(Buffer.from(text)), { name: 'log' });
  const events = new ReplayedEvents(new AllocationProjection('log', run, undefined), most);
  appendEvents(run, events);
  expect(events.finish({ damage: undefined, skippedRecordCount: 0 }).log?.eventCount).toBe(replayed);
});
