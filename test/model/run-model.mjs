// Visits every state of the models of docs/*-protocol.md within larger bounds than the tests do: `npm run prove -- --model`. Exits with 0 only if no state is
// wrong, and each broken variant is found.
import * as admission from './admission-model.mjs';
import * as sleep from './sleep-model.mjs';
import * as streamOrder from './stream-order-model.mjs';

const models = {
  'stream order': [
    streamOrder,
    [
      { streams: 2, blocks: 1, work: 1, policies: ['eager', 'deferred', 'off', 'fence'], mayEnd: true },
      { streams: 2, blocks: 2, work: 1, policies: ['eager', 'deferred', 'off'], mayEnd: true },
      { streams: 3, blocks: 2, work: 1, policies: ['eager'] },
      { streams: 3, blocks: 2, work: 1, policies: ['deferred'] },
      { streams: 3, blocks: 1, work: 1, policies: ['eager', 'deferred', 'off'], mayEnd: true },
    ],
  ],
  admission: [
    admission,
    [
      { tasks: 3, limits: [3], overtakes: 1 },
      { tasks: 4, limits: [2], overtakes: 1 },
      { tasks: 3, limits: [2, 1], overtakes: 1 },
      { tasks: 3, limits: [1, 1, 1], overtakes: 0 },
    ],
  ],
  sleep: [
    sleep,
    [
      { leaves: 1, pages: 2, writes: 3, refusals: 2, calls: 4 },
      { leaves: 2, pages: 1, writes: 2, refusals: 2, calls: 4 },
      { leaves: 2, pages: 2, writes: 1, refusals: 1, calls: 3 },
    ],
  ],
};

let isRight = true;
for (const [name, [{ brokenVariants, explore }, allBounds]] of Object.entries(models)) {
  for (const bounds of allBounds) {
    const { states, steps, fault } = explore(bounds);
    console.log(
      `${name} ${JSON.stringify(bounds)}: ${states} states, ${steps} steps, ${fault === undefined ? 'no fault' : fault.join('; ')}`,
    );
    if (fault !== undefined) isRight = false;
  }
  for (const [variant, bounds] of Object.entries(brokenVariants)) {
    const { states, fault } = explore(bounds, variant);
    console.log(`${name} if ${variant}: ${fault === undefined ? 'not found' : `found after ${states} states: ${fault.join('; ')}`}`);
    if (fault === undefined) isRight = false;
  }
}
process.exitCode = isRight ? 0 : 1;
