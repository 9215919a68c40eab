import { setImmediate } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { AdmissionQueue } from '../../src/serving/admission/admission-queue.js';
import { collectGarbage } from './collection.js';

it('a queue for memory keeps no request that was decided or withdrawn', async () => {
  const queue = new AdmissionQueue('', 1024, 16, () => {});
  const requests: WeakRef<object>[] = [];
  const ask = (bytes: number) => {
    const request = { bytes, priority: 0, settle: () => {} };
    requests.push(new WeakRef(request));
    return queue.ask(request);
  };
  // One is admitted, and of those that wait one is withdrawn, and one ended.
  ask(1024);
  expect(queue.withdraw(ask(256))).toBe(true);
  ask(256);
  queue.stop();
  await setImmediate();
  await collectGarbage();
  expect(requests.map((each) => each.deref())).toEqual([undefined, undefined, undefined]);
  expect(queue.read().waiting).toBe(0);
});
