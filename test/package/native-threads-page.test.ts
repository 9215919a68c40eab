/** The table of docs/guides/native-threads.md says what each kind does. */

import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { type CisternError, createResource, KiB, Stream } from '../../src/index.js';
import { addonInterface } from '../../src/interchange/index.js';
import { everyKind } from '../../src/tools/every-kind.js';

const page = readFileSync('docs/guides/native-threads.md', 'utf8');
const rows = [...page.matchAll(/^\| (`.*`) \| (.*) \| (.*) \| (.*) \|$/gm)].flatMap(([, names = '', ...cells]) =>
  [...names.matchAll(/`([\w-]+)`/g)].map(([, name = '']) => [name, ...cells.map((cell) => cell.replaceAll('`', ''))]),
);
const examples = new Map(everyKind.map(({ name, example }) => [name, example]));

/** What a call does, as the table has it. */
function outcome(call: () => void, success: string): string {
  try {
    call();
    return success;
  } catch (error) {
    return (error as CisternError).code;
  }
}

test('the table has every resource that takes its memory from no other, and the pools', () => {
  const leaves = everyKind.filter(({ role }) => role === 'upstream').map(({ name }) => name);
  const expected = [...leaves, 'pool', 'arena', 'fixed-size', 'binning', 'monotonic'];
  expect(rows.map(([name]) => name).sort()).toEqual(expected.sort());
});

test.each(rows)('%s', (name = '', table, allocation, free) => {
  const resource = createResource(examples.get(name) as string);
  using stream = new Stream({ nonBlocking: true, device: resource.device });
  const bytes = 4 * KiB;
  // Memory from the first block would be memory from before the capture.
  const older = resource.allocate(bytes, stream);
  // A table that nobody can release from here.
  expect(outcome(() => void addonInterface.threadSafeResource(resource), 'yes')).toBe(table);
  const allocated: number[] = [];
  const graph = stream.capture(() => {
    expect(outcome(() => void allocated.push(resource.allocate(bytes, stream)), 'works')).toBe(allocation);
    expect(outcome(() => resource.deallocate(older, bytes, stream), 'works')).toBe(free);
  });
  graph.dispose();
  for (const pointer of [older, ...allocated]) resource.deallocate(pointer, bytes, stream);
  stream.synchronizeSync();
  resource[Symbol.dispose]();
});
