import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test, vi } from 'vitest';
import { freeUnreachableBuffers } from '../../src/collector/free-unreachable-buffers.js';
import { untilUnused } from '../../src/processes/export-to-processes.js';
import type { ProcessExport } from '../../src/processes/process-export.js';
import { endLater } from '../../src/processes/wait-for-processes.js';

test('a sweep looks as well, once for each, and counts no bytes for it', async () => {
  const looks = [0, 0];
  for (const expected of [
    [1, 0],
    [2, 1],
    [3, 2],
    [3, 3],
    [3, 3],
  ]) {
    const added = looks.indexOf(0);
    if (added >= 0) endLater({ endIfOver: () => ++(looks[added] as number) === 3 });
    expect(freeUnreachableBuffers()).toBe(0);
    expect(looks).toEqual(expected);
  }
  // The next look finds nothing.
  await sleep(20);
});

test('the next look is not put off by what comes meanwhile', async () => {
  let ended = 0;
  const timers = vi.spyOn(globalThis, 'setTimeout');
  for (let i = 0; i < 100; i++) endLater({ endIfOver: () => ++ended > 0 });
  expect(timers).toHaveBeenCalledTimes(1);
  timers.mockRestore();
  while (ended < 100) await sleep(1);
});

test('who waits until no other process uses memory looks ever more rarely, but again and again', async () => {
  let looks = 0;
  const used = {
    get isUsed() {
      return ++looks <= 20;
    },
  };
  const begun = performance.now();
  await untilUnused(used as ProcessExport);
  expect(looks).toBe(21);
  // 1, 2, 4 and 8 ms, and 16 times 16; timers may be a millisecond early.
  expect(performance.now() - begun).toBeGreaterThan(230);
});

test('what is not over is looked at again, and only until it is', async () => {
  let looks = 0;
  endLater({ endIfOver: () => ++looks === 3 });
  while (looks < 3) await sleep(1);
  await sleep(20);
  expect(looks).toBe(3);
});

/** Looks for something again and again; something else is over at the looks in `finds`. Returns the delays between looks. */
async function delaysOf(lookTakes: number, count: number, finds: readonly number[]): Promise<number[]> {
  let now = 0;
  let looks = 0;
  const wait = (isOver: () => boolean) =>
    new Promise<void>((resolve) => {
      endLater({
        endIfOver: () => {
          const isEnded = isOver();
          if (isEnded) resolve();
          return isEnded;
        },
      });
    });
  const clock = vi.spyOn(performance, 'now').mockImplementation(() => now);
  const timers = vi.spyOn(globalThis, 'setTimeout');
  try {
    // A look that took no time.
    await wait(() => true);
    timers.mockClear();
    const all = wait(() => {
      now += lookTakes;
      return ++looks > count;
    });
    await Promise.all([all, ...finds.map((look) => wait(() => looks >= look))]);
    return timers.mock.calls.map(([, milliseconds]) => milliseconds as number);
  } finally {
    timers.mockRestore();
    clock.mockRestore();
  }
}

test.each([
  ['no time', 0, [], [1, 2, 4, 8, 16, 32, 64, 64]],
  ['12 ms', 12, [], [1, 12, 24, 48, 64, 64]],
  ['a second', 1000, [], [1, 64, 64]],
  ['no time, and the third finds something', 0, [3], [1, 2, 4, 1, 2, 4]],
  ['12 ms, and the second finds something', 12, [2], [1, 12, 12, 24]],
  ['a second, and the first finds something', 1000, [1], [1, 64, 64]],
] as const)(
  'looks become rarer, from 1 to 64 ms, but not more frequent than they may be, if one takes %s',
  async (_, lookTakes, finds, delays) => {
    expect(await delaysOf(lookTakes, delays.length - 1, finds)).toEqual(delays);
  },
);

test('what comes while looks are rare is looked for soon', async () => {
  const timers = vi.spyOn(globalThis, 'setTimeout');
  try {
    let isOver = false;
    let looks = 0;
    endLater({
      endIfOver: () => {
        looks++;
        return isOver;
      },
    });
    while (looks === 0 || timers.mock.lastCall?.[1] !== 64) await sleep(1);
    isOver = true;
    await new Promise<void>((resolve) => {
      endLater({
        endIfOver: () => {
          resolve();
          return true;
        },
      });
      expect(timers.mock.lastCall?.[1]).toBeLessThan(64);
    });
  } finally {
    timers.mockRestore();
  }
});
