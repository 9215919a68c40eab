import { setImmediate } from 'node:timers/promises';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { Event, Stream } from '../../src/index.js';
import { driverCallCounts, failCall } from '../../src/tools/testing/index.js';
import { collectGarbage } from './collection.js';

const warnings: Error[] = [];
const onWarning = (warning: Error) => void warnings.push(warning);

beforeEach(() => {
  warnings.length = 0;
  process.on('warning', onWarning);
});

afterEach(() => {
  process.off('warning', onWarning);
  for (const name of ['cuEventCreate', 'cuEventDestroy', 'cuCtxSynchronize', 'cuStreamDestroy']) failCall(name, 0);
});

/** The target of a `WeakRef` lives until the end of the job that created it. */
const endOfJob = () => setImmediate();

/**
 * Creates a stream whose end needs an event, and returns the number of notifications of its end.
 */
async function dropStream(): Promise<{ ends: number }> {
  const seen = { ends: 0 };
  new Stream().identity.observe({
    needsLastEvent: () => true,
    streamEnded: () => {
      seen.ends++;
    },
  });
  await endOfJob();
  return seen;
}

it('a dropped stream ends after a collection', async () => {
  const seen = await dropStream();
  await collectGarbage();
  expect(seen.ends).toBe(1);
  expect(warnings).toEqual([]);
});

it('a dropped stream lives on while there is another object for it', async () => {
  const same = (() => Stream.fromHandle(new Stream().nativeHandle))();
  await endOfJob();
  await collectGarbage();
  expect(same.query()).toBe(true);
  same.dispose();
  expect(same.isDisposed).toBe(true);
});

it('a dropped stream on which no event can be recorded is reported as a warning, and ends at a later collection', async () => {
  const seen = await dropStream();
  failCall('cuEventCreate', 1);
  failCall('cuCtxSynchronize', 1, 700);
  await collectGarbage();
  await collectGarbage();
  expect(seen.ends).toBe(1);
  expect(warnings).toMatchObject([{ code: 'CISTERN_UNREACHABLE_STREAM', message: expect.stringContaining('CUDA_ERROR_ILLEGAL_ADDRESS') }]);
});

it('a dropped stream that cannot be destroyed is reported as a warning, and destroyed at a later collection', async () => {
  const seen = await dropStream();
  failCall('cuStreamDestroy', 1, 999);
  await collectGarbage();
  await collectGarbage();
  expect(seen.ends).toBe(1);
  expect(warnings).toMatchObject([{ code: 'CISTERN_UNREACHABLE_STREAM', message: expect.stringContaining('CUDA_ERROR_UNKNOWN') }]);
});

it('a stream that the driver neither names nor destroys is destroyed at the next collection', async () => {
  const streams = () => {
    const { byFunction } = driverCallCounts();
    return (byFunction['cuStreamCreateWithPriority'] as number) - (byFunction['cuStreamDestroy'] as number);
  };
  const before = streams();
  failCall('cuStreamGetId', 1, 999);
  failCall('cuStreamDestroy', 1, 999);
  expect(() => new Stream()).toThrow(expect.objectContaining({ driverStatus: 999 }));
  await collectGarbage();
  // The refused call counts too.
  expect(streams()).toBe(before - 1);
  expect(warnings).toEqual([]);
});

it('a dropped event that cannot be released is reported as a warning, and released at a later collection', async () => {
  const destroyed = () => driverCallCounts().byFunction['cuEventDestroy'] as number;
  const before = destroyed();
  (() => new Event())();
  failCall('cuEventDestroy', 1, 999);
  await collectGarbage();
  await collectGarbage();
  expect(destroyed()).toBe(before + 2);
  expect(warnings).toMatchObject([{ code: 'CISTERN_UNREACHABLE_EVENT', message: expect.stringContaining('CUDA_ERROR_UNKNOWN') }]);
});
