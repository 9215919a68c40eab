// Visits every state of the model of docs/stream-order-protocol.md within larger bounds than the tests do:
// `npm run prove -- --model`. Exits with 0 only if no state is wrong, and each broken variant is found.
import { brokenVariants, explore } from './stream-order-model.mjs';

let isRight = true;
for (const bounds of [
  { streams: 2, blocks: 1, work: 1, policies: ['eager', 'deferred', 'off', 'fence'], mayEnd: true },
  { streams: 2, blocks: 2, work: 1, policies: ['eager', 'deferred', 'off'], mayEnd: true },
  { streams: 3, blocks: 2, work: 1, policies: ['eager'] },
  { streams: 3, blocks: 2, work: 1, policies: ['deferred'] },
  { streams: 3, blocks: 1, work: 1, policies: ['eager', 'deferred', 'off'], mayEnd: true },
]) {
  const { states, steps, fault } = explore(bounds);
  console.log(`${JSON.stringify(bounds)}: ${states} states, ${steps} steps, ${fault === undefined ? 'no fault' : fault.join('; ')}`);
  if (fault !== undefined) isRight = false;
}
for (const [variant, bounds] of Object.entries(brokenVariants)) {
  const { states, fault } = explore(bounds, variant);
  console.log(`if ${variant}: ${fault === undefined ? 'not found' : `found after ${states} states: ${fault.join('; ')}`}`);
  if (fault === undefined) isRight = false;
}
process.exitCode = isRight ? 0 : 1;
