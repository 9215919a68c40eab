import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { pageWithResults } from '../../bench/write-measurements.mjs';

test('docs/measurements.md has the figures of the newest results', () => {
  expect(readFileSync('docs/measurements.md', 'utf8'), 'run node bench/write-measurements.mjs').toBe(pageWithResults());
});
