import { describe, expect, test } from 'vitest';
import { layOutAddresses } from '../../../src/tools/report/address-layout.js';
import { explainGrowth, liveAfter, neverFreed, neverUsedBytes, sumGroups } from '../../../src/tools/report/answers.js';
import { callSites } from '../../../src/tools/report/call-sites.js';
import { FragmentationSweep } from '../../../src/tools/report/fragmentation.js';
import { matchingAllocations, matchingBlocks } from '../../../src/tools/report/held-bytes.js';
import { createReportRun } from './create-report-run.js';
import { RunWriter } from './runs.js';

describe('the call site of a stack', () => {
  test("is its innermost frame in the program's own code", () => {
    const helper = 'upload (node_modules/gpu/index.js:3:1)\nprocess (node:internal/x:1:1)\nhandle (server.js:9:4)\nmain (server.js:40:1)';
    const { names, of } = callSites(['', helper, 'handle (server.js:9:4)', 'only (node_modules/gpu/index.js:7:1)', '']);
    expect(names).toEqual(['no stack', 'handle (server.js:9:4)', 'only (node_modules/gpu/index.js:7:1)']);
    expect([...of]).toEqual([0, 1, 1, 2, 0]);
  });
});

describe('the sums of groups', () => {
  const run = createReportRun(
    new RunWriter()
      .allocate(0x1000, 100, { stack: 'leak (a.js:1:1)', phase: 'get' })
      .allocate(0x2000, 300, { stack: 'leak (a.js:1:1)', phase: 'post' })
      .allocate(0x3000, 50, { stack: 'other (a.js:2:1)', phase: 'post' })
      .allocate(0x4000, 700, { stack: 'other (a.js:2:1)' })
      .free(0x4000, 700)
      .allocate(0x5000, 10, { stack: undefined })
      .finish(),
  );
  const mask = matchingAllocations(run, { layer: 0 });
  const plain = (groups: ReturnType<typeof sumGroups>) => groups.map(({ name, bytes, count, largest }) => [name, bytes, count, largest]);

  test('tell who holds what was never freed, most bytes first', () => {
    const groups = sumGroups(run, neverFreed(run, mask, 0, run.changes.length), 'site');
    expect(plain(groups)).toEqual([
      ['leak (a.js:1:1)', 400, 2, 1],
      ['other (a.js:2:1)', 50, 1, 2],
      ['no stack', 10, 1, 4],
    ]);
    expect([...(groups[0]?.mask ?? [])]).toEqual([1, 1, 0, 0, 0]);
  });

  test('count only what was allocated in the given changes', () => {
    expect(plain(sumGroups(run, neverFreed(run, mask, 1, 3), 'phase'))).toEqual([['post', 350, 2, 1]]);
  });

  test('tell what was live after a change', () => {
    expect(plain(sumGroups(run, liveAfter(run, mask, 3), 'site'))).toEqual([
      ['other (a.js:2:1)', 750, 2, 3],
      ['leak (a.js:1:1)', 400, 2, 1],
    ]);
  });
});

describe('memory that was reserved and not used', () => {
  test('is what no allocation ever covered', () => {
    const run = createReportRun(
      new RunWriter()
        .grow(0x10000, 4096)
        .allocate(0x10000, 1024)
        .free(0x10000, 1024)
        .allocate(0x10000, 512)
        .allocate(0x10800, 256)
        .grow(0x20000, 1024)
        .allocate(0x20000, 1024)
        .finish(),
    );
    const mask = matchingAllocations(run, { layer: 0 });
    const blocks = matchingBlocks(run, 0) as Uint8Array;
    expect(neverUsedBytes(run, mask, blocks)).toBe(1024 + (4096 - 2048 - 256));
    const first = blocks.map((is, span) => (is === 1 && span === 0 ? 1 : 0));
    expect(neverUsedBytes(run, mask, first)).toBe(1024 + (4096 - 2048 - 256));
  });

  test('was taken because too little was free, because of small holes, or although a hole was large enough', () => {
    const run = createReportRun(
      new RunWriter()
        .grow(0x10000, 4096)
        .allocate(0x10000, 1024)
        .allocate(0x10400, 1024)
        .allocate(0x10800, 1024)
        .allocate(0x10c00, 1024)
        .free(0x10000, 1024)
        .free(0x10800, 1024)
        .grow(0x20000, 2048)
        .allocate(0x20000, 2000)
        .grow(0x30000, 1024)
        .allocate(0x30000, 1000)
        .finish(),
    );
    const mask = matchingAllocations(run, { layer: 0 });
    const sweep = new FragmentationSweep(run, 0, layOutAddresses(run, 0));
    sweep.sweep(run.changes.length);
    const growths = explainGrowth(run, mask, matchingBlocks(run, 0) as Uint8Array, sweep.holes, sweep.largestHole);
    expect(growths.map(({ bytes, reason }) => [bytes, reason])).toEqual([
      [4096, 'full'],
      [2048, 'holes'],
      [1024, 'apart'],
    ]);
  });
});
