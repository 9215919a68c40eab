import { expect, test } from 'vitest';
import { nearestWord } from '../../src/basics/nearest-word.js';

test.each([
  ['poool', 'pool'],
  ['opol', 'pool'],
  ['POOL', 'pool'],
  ['pol', 'pool'],
  ['limitng', 'limiting'],
  ['statistcs', 'statistics'],
  ['x', undefined],
  ['table', undefined],
  [`${'p'.repeat(100)}-pool`, undefined],
  ['', undefined],
])('%j is nearest to %j', (text, expected) => {
  expect(nearestWord(text, ['pool', 'limiting', 'statistics'])).toBe(expected);
});

test.each([
  ['maxBytes', 'maximumBytes'],
  ['initBytes', 'initialBytes'],
  ['max', 'maximumBytes'],
  ['deallocEvents', 'deallocationEvents'],
  ['ma', undefined],
  ['xBytes', undefined],
])('%j is an abbreviation of %j', (text, expected) => {
  expect(nearestWord(text, ['initialBytes', 'maximumBytes', 'deallocationEvents'])).toBe(expected);
});

test.each([
  ['dump-file', 'dumpFile'],
  ['INITIAL_BYTES', 'initialBytes'],
  ['events', 'deallocationEvents'],
  ['threshold', 'releaseThresholdBytes'],
  ['file-path', 'dumpFile'],
  ['totalBytes', undefined],
  ['at', undefined],
])('%j has a part in common with %j alone, whatever the case', (text, expected) => {
  expect(nearestWord(text, ['initialBytes', 'dumpFile', 'releaseThresholdBytes', 'deallocationEvents'])).toBe(expected);
});
