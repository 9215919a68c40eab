import { describe, expect, test } from 'vitest';
import { CallTree, weighStacks } from '../../../src/tools/report/call-tree.js';
import { matchingAllocations } from '../../../src/tools/report/held-bytes.js';
import { createReportRun } from './create-report-run.js';
import { RunWriter } from './runs.js';

describe('the call tree', () => {
  const run = createReportRun(
    new RunWriter()
      .allocate(256, 10, { stack: 'leaf (a.js:1:1)\nmain (a.js:9:1)' })
      .allocate(512, 20, { stack: 'other (a.js:2:1)\nmain (a.js:9:1)' })
      .free(256, 10)
      .allocate(768, 5, { stack: 'leaf (a.js:1:1)\nmain (a.js:9:1)' })
      .allocate(1024, 1, { stack: undefined })
      .finish(),
  );
  const tree = new CallTree(run.stacks);
  const mask = matchingAllocations(run, { layer: 0 });
  const weightsBy = (...measure: Parameters<typeof weighStacks>[2][]) =>
    measure.map((each) => {
      const weights = tree.weigh(weighStacks(run, mask, each, 0, run.changes.length));
      return Object.fromEntries(tree.nodes.map(({ name }, node) => [name, weights[node]]));
    })[0];

  test('puts callers over callees', () => {
    expect(tree.nodes).toEqual([
      { name: 'all', parent: 0, depth: 0 },
      { name: '(no stack)', parent: 0, depth: 1 },
      { name: 'main (a.js:9:1)', parent: 0, depth: 1 },
      { name: 'leaf (a.js:1:1)', parent: 2, depth: 2 },
      { name: 'other (a.js:2:1)', parent: 2, depth: 2 },
    ]);
  });

  test('weighs by bytes allocated, never freed or live after a change, and by count', () => {
    expect(weightsBy({ kind: 'allocated' })).toMatchObject({ all: 36, '(no stack)': 1, 'main (a.js:9:1)': 35, 'leaf (a.js:1:1)': 15 });
    expect(weightsBy({ kind: 'count' })).toMatchObject({ all: 4, 'leaf (a.js:1:1)': 2 });
    expect(weightsBy({ kind: 'held' })).toMatchObject({ all: 26, 'leaf (a.js:1:1)': 5, 'other (a.js:2:1)': 20 });
    expect(weightsBy({ kind: 'live', change: 1 })).toMatchObject({ all: 30, 'leaf (a.js:1:1)': 10, 'other (a.js:2:1)': 20 });
    expect(weightsBy({ kind: 'live', change: 2 })).toMatchObject({ all: 20, 'leaf (a.js:1:1)': 0 });
  });
});
