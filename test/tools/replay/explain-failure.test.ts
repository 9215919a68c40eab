import { describe, expect, test } from 'vitest';
import { createResourceStack, KiB, MiB } from '../../../src/index.js';
import {
  type AllocationLog,
  explainFailure,
  type FailureExplanation,
  generateLog,
  readAllocationLog,
  replayLog,
} from '../../../src/tools/replay/index.js';
import { logText, readText, row } from '../formats/logs.js';

const first = '0x10';
const second = '0x20';

function explain(log: AllocationLog, specification: string, options = {}): FailureExplanation {
  const explanation = explainFailure(log, specification, options);
  if (explanation === null) throw new Error(`${specification} completes the log`);
  return explanation;
}

/** Three adjacent blocks of 1 KiB; the outer two are freed before 2 KiB are requested. */
const fragmented = await readText(
  logText(
    row('allocate', 1, KiB),
    row('allocate', 11, KiB),
    row('allocate', 21, KiB, { thread: 2 }),
    row('free', 1, KiB),
    row('free', 21, KiB),
    row('allocate', 31, 2 * KiB),
    row('free', 11, KiB),
    row('free', 31, 2 * KiB),
  ),
);

describe('explainFailure', () => {
  test('is null if the log completes', () => {
    expect(explainFailure(fragmented, 'host')).toBeNull();
  });

  test('tells where memory ran out, what was live and what was kept', () => {
    const explanation = explain(fragmented, 'pool(host, initialBytes=3KiB, maximumBytes=3KiB)');
    expect(explanation).toMatchObject({
      resource: 'pool(host, initialBytes=3KiB, maximumBytes=3KiB)',
      events: 'eager',
      streams: 'log',
      failure: { line: 7, event: 5, bytes: 2 * KiB, stream: '0x0', message: expect.stringMatching(/out of memory/) },
      limitBytes: 3 * KiB,
      reasons: ['fragmentation'],
      live: {
        bytes: KiB,
        count: 1,
        streams: [{ stream: '0x0', bytes: KiB, count: 1 }],
        largest: [{ bytes: KiB, line: 3, stream: '0x0', thread: '1' }],
      },
      kept: [
        {
          layer: 'PoolMemoryResource',
          reservedBytes: 3 * KiB,
          upstreamBlocks: 1,
          allocatedBytes: KiB,
          freeBytes: 2 * KiB,
          largestFreeBytes: KiB,
          heldBackBytes: 0,
        },
      ],
    });
  });

  test('finds the least maximum that serves the request, by trying it', () => {
    const { alternatives } = explain(fragmented, 'pool(host, initialBytes=3KiB, maximumBytes=3KiB)');
    const larger = alternatives.find(({ change }) => change === 'maximum');
    expect(larger).toEqual({
      change: 'maximum',
      resource: 'pool(host, initialBytes=3KiB, maximumBytes=5KiB)',
      survives: true,
      completes: true,
      failure: null,
    });
  });

  test('describes every alternative truthfully', async () => {
    const log = await readAllocationLog(generateLog('dataframe', { events: 6_000 }), { name: 'dataframe' });
    const { alternatives, failure } = explain(log, 'pool(host, maximumBytes=1100MiB)');
    expect(alternatives.map(({ change }) => change)).toEqual(['events', 'events', 'maximum', 'maximum', 'initial']);
    for (const alternative of alternatives) {
      const replayed = replayLog(log, () => createResourceStack(alternative.resource), { repeat: 1 });
      expect(alternative.completes).toBe(replayed.failures === 0);
      expect(alternative.failure).toEqual(replayed.firstFailure);
      expect(alternative.survives).toBe(replayed.firstFailure === null || replayed.firstFailure.line > failure.line);
    }
    // The larger maximum that serves this request is not enough for the next, so the one that
    // completes the log is listed too.
    expect(alternatives.filter(({ change }) => change === 'maximum').map(({ completes }) => completes)).toEqual([false, true]);
  });

  test('recognizes what no allocator could have served', async () => {
    const log = await readText(logText(row('allocate', 1, 1000), row('allocate', 9, 2000)));
    const explanation = explain(log, 'limiting(pool(host), limitBytes=2KiB)');
    expect(explanation).toMatchObject({ reasons: ['maximum'], limitBytes: 2 * KiB, failure: { line: 3 } });
    expect(explanation.alternatives.filter(({ completes }) => completes).map(({ resource }) => resource)).toEqual([
      'limiting(pool(host), limitBytes=3KiB)',
    ]);
  });

  test('recognizes what only rounding up makes too large', async () => {
    const log = await readText(logText(row('allocate', 1, 1), row('allocate', 2, 1), row('allocate', 3, 1)));
    expect(explain(log, 'limiting(host, limitBytes=600)').reasons).toEqual(['rounding']);
    expect(explain(log, 'pool(host, maximumBytes=512)').reasons).toEqual(['rounding']);
  });

  test('recognizes what was held back for other streams before the host waited for them', async () => {
    const log = await readText(
      logText(
        row('allocate', 1, KiB, { stream: first }),
        row('allocate', 11, KiB, { stream: second }),
        row('free', 1, KiB, { stream: first }),
        row('allocate', 21, 2 * KiB, { stream: second }),
      ),
    );
    const explanation = explain(log, 'pool(host, initialBytes=2KiB, maximumBytes=2KiB, deallocationEvents=off)');
    expect(explanation.reasons).toEqual(['maximum']);
    expect(explanation.kept).toMatchObject([{ freeBytes: KiB, heldBackBytes: KiB }]);
    const rest = explain(log, 'pool(host, initialBytes=2560, maximumBytes=3KiB, deallocationEvents=off)');
    expect(rest.reasons).toContain('held-back');
    // On a single stream, nothing is held back.
    expect(
      explain(log, 'pool(host, initialBytes=2560, maximumBytes=3KiB, deallocationEvents=off)', { streams: 'single' }).kept,
    ).toMatchObject([{ heldBackBytes: 0 }]);
  });

  test('recognizes the limit of the resource below', async () => {
    const log = await readText(logText(row('allocate', 1, 2 * KiB), row('allocate', 11, 3 * KiB)));
    expect(explain(log, 'pool(limiting(host, limitBytes=4KiB))')).toMatchObject({ reasons: ['maximum'], limitBytes: 4096 });
  });

  test('lists allocations by stream, and the largest first', async () => {
    const log = await readText(
      logText(
        row('allocate', 1, 100, { stream: first }),
        row('allocate', 2, 300, { stream: second }),
        row('allocate', 4, 200, { stream: first, thread: 7 }),
        row('allocate', 5, 5000),
      ),
    );
    const { live } = explain(log, 'limiting(host, limitBytes=4KiB)', { largest: 2 });
    expect(live).toEqual({
      bytes: 600,
      count: 3,
      streams: [
        { stream: first, bytes: 300, count: 2 },
        { stream: second, bytes: 300, count: 1 },
      ],
      largest: [
        { bytes: 300, line: 3, stream: second, thread: '1' },
        { bytes: 200, line: 4, stream: first, thread: '7' },
      ],
    });
  });

  test('frees everything, and counts its replays', async () => {
    using host = createResourceStack('host');
    const before = host.resource as unknown as { reservedBytes: number };
    let replays = 0;
    explain(fragmented, 'pool(host, initialBytes=3KiB, maximumBytes=3KiB)', {
      onReplay: () => {
        replays++;
      },
    });
    expect(before.reservedBytes).toBe(0);
    expect(replays).toBeGreaterThan(5);
  });

  test('throws if the stack itself cannot be constructed', () => {
    expect(() => explainFailure(fragmented, 'pool(limiting(host, limitBytes=1KiB), initialBytes=1MiB)')).toThrow(/limit of 1 KiB/);
    expect(() => explainFailure(fragmented, 'poll(host)')).toThrow(/did you mean pool/);
    expect(() => explainFailure(fragmented, 'host', { streams: 'two' as 'log' })).toThrow(/^streams must be/);
  });

  test('replays an arena with a larger size if none was given', async () => {
    const bytes = 700 * MiB;
    const log = await readText(logText(row('allocate', 1, bytes)));
    const { alternatives } = explain(log, 'arena(cuda)');
    expect(alternatives.filter(({ completes }) => completes).map(({ resource }) => resource)).toEqual(['arena(cuda, arenaBytes=700MiB)']);
  });
});
