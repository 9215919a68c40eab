/** Captures on a stream that workers share: one of them has begun it, and it is no capture of the others. */
import { expect, test } from 'vitest';
import { needCaptures } from '../support/need-captures.js';
import { stream } from '../support/stream.js';
import { runWithWorkers } from '../support/workers.js';

/** Workers begin to capture one stream at the same time. Only one of them can. */
const compete = `
  const rounds = 2000;
  const [ready, done, failed] = [0, 1, 2];
  /** All of them go on at the same time, unless one has failed. */
  const meet = (cell, round) => {
    Atomics.add(cells, cell, 1);
    while (Atomics.load(cells, cell) < 2 * round && Atomics.load(cells, failed) === 0);
  };
  const compete = (stream) => {
    const counts = { begun: 0, refused: 0 };
    for (let round = 1; round <= rounds && Atomics.load(cells, failed) === 0; round++) {
      meet(ready, round);
      let isMine = false;
      try {
        stream.beginCapture();
        isMine = true;
        counts.begun++;
      } catch {
        counts.refused++;
      }
      meet(done, round);
      try {
        if (isMine) stream.endCapture().dispose();
      } catch (error) {
        Atomics.store(cells, failed, 1);
        counts.error = String(error);
      }
    }
    return counts;
  };
`;

test('a capture that two workers begin at once belongs to one of them', () => {
  needCaptures(stream);
  const { status, stdout, stderr } = runWithWorkers(
    `
    const shared = new Stream({ nonBlocking: true });
    const workers = start("post(compete(cistern.attachStream(await received())));", 2);
    for (const worker of workers) worker.postMessage(cistern.shareStream(shared));
    const [one, two] = await Promise.all(workers.map(received));
    show(one.begun + two.begun, one.refused + two.refused, one.error ?? two.error, shared.captureStatus);
    Device.get().synchronizeSync();
    `,
    { everywhere: compete },
  );
  expect([status, stdout, stderr]).toEqual([0, '2000 2000 undefined none\n', '']);
});
