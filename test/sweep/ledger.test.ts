import { expect, test } from 'vitest';
import { Stream } from '../../src/index.js';
import { failCall } from '../../src/tools/testing/index.js';
import { ThreadSafeArenaMemoryResource } from '../../src/workers/index.js';
import { leaksBetween, takeLedger } from './ledger.js';

test('a stream that is not destroyed is a leak', () => {
  const before = takeLedger();
  const stream = new Stream();
  expect(leaksBetween(before, takeLedger(), [])).toEqual(['1 streams']);
  failCall('cuStreamDestroy');
  expect(() => stream.dispose()).toThrow();
  expect(leaksBetween(before, takeLedger(), ['cuStreamDestroy'])).toEqual(['1 streams']);
  stream.dispose();
  expect(leaksBetween(before, takeLedger(), [])).toEqual([]);
});

test('so is one that native code made, whose calls are not counted', () => {
  const before = takeLedger();
  const arena = new ThreadSafeArenaMemoryResource({ arenaBytes: 1024 * 1024 });
  expect(leaksBetween(before, takeLedger(), [])).toContain('1 streams');
  arena.dispose();
  expect(leaksBetween(before, takeLedger(), [])).toEqual([]);
  failCall('cuStreamCreateWithPriority');
  expect(() => new ThreadSafeArenaMemoryResource({ arenaBytes: 1024 * 1024 })).toThrow();
  expect(leaksBetween(before, takeLedger(), ['cuStreamCreateWithPriority'])).toEqual([]);
});
