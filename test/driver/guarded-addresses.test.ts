import { afterEach, expect, test } from 'vitest';
import {
  type AddressRange,
  assertAwake,
  beginSleep,
  endSleep,
  isAnythingAsleep,
  isAsleepAt,
} from '../../src/driver/memory/guarded-addresses.js';
import { code } from '../support/errors.js';

const ranges: readonly AddressRange[] = [
  { begin: 4096, end: 8192 },
  { begin: 16_384, end: 20_480 },
];
afterEach(() => ranges.forEach(endSleep));

test('memory is asleep if any of its bytes is in a range that sleeps', () => {
  expect([isAnythingAsleep, isAsleepAt(4096, 1)]).toEqual([false, false]);
  ranges.forEach(beginSleep);
  expect(isAnythingAsleep).toBe(true);
  for (const { begin, end } of ranges) {
    const within = [begin, begin + 1, end - 1].map((pointer) => isAsleepAt(pointer, 1));
    expect(within).toEqual([true, true, true]);
    expect([isAsleepAt(begin - 256, 257), isAsleepAt(begin - 1, 10_000)]).toEqual([true, true]);
    expect([isAsleepAt(begin - 256, 256), isAsleepAt(begin - 1, 1), isAsleepAt(end, 1), isAsleepAt(end, 256)]).toEqual(
      new Array(4).fill(false),
    );
    // An address without bytes is where it is.
    expect([begin - 1, begin, end - 1, end].map((pointer) => isAsleepAt(pointer, 0))).toEqual([false, true, true, false]);
  }
});

test('a range that wakes leaves another one asleep', () => {
  ranges.forEach(beginSleep);
  endSleep(ranges[0] as AddressRange);
  expect([isAnythingAsleep, isAsleepAt(4096, 256), isAsleepAt(16_384, 256)]).toEqual([true, false, true]);
  expect(() => assertAwake(16_384, 256, 'copy')).toThrow(code('ERR_CISTERN_ASLEEP'));
  assertAwake(4096, 256, 'copy');
  endSleep(ranges[1] as AddressRange);
  expect([isAnythingAsleep, isAsleepAt(16_384, 256)]).toEqual([false, false]);
});
