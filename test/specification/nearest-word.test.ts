import { expect, test } from 'vitest';
import { nearestWord } from '../../src/specification/nearest-word.js';

test.each([
  ['poool', 'pool'],
  ['opol', 'pool'],
  ['POOL', 'pool'],
  ['pol', 'pool'],
  ['limitng', 'limiting'],
  ['statistcs', 'statistics'],
  ['x', undefined],
  ['table', undefined],
  ['', undefined],
])('%j is nearest to %j', (text, expected) => {
  expect(nearestWord(text, ['pool', 'limiting', 'statistics'])).toBe(expected);
});
