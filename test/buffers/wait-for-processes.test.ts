import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test, vi } from 'vitest';
import { endLater } from '../../src/buffers/sharing/wait-for-processes.js';

test('the next look is not put off by what comes meanwhile', async () => {
  let ended = 0;
  const timers = vi.spyOn(globalThis, 'setTimeout');
  for (let i = 0; i < 100; i++) endLater({ endIfOver: () => ++ended > 0 });
  expect(timers).toHaveBeenCalledTimes(1);
  timers.mockRestore();
  while (ended < 100) await sleep(1);
});

test('what is not over is looked at again, and only until it is', async () => {
  let looks = 0;
  endLater({ endIfOver: () => ++looks === 3 });
  while (looks < 3) await sleep(1);
  await sleep(20);
  expect(looks).toBe(3);
});
