import { expect, test } from 'vitest';
import { BumpChains } from '../../src/suballocation/bump-chains.js';

const base = 2 ** 40;

function chainsOfOneBlock() {
  const chains = new BumpChains();
  const lane = chains.addLane();
  chains.addSegment(base, 4096, lane);
  const chain = chains.chainOf(lane);
  chains.extend(chain, chains.allocateAtLeast(1000, lane));
  return { chains, chain, lane };
}

test('bump chains find a used block by every address in it, until it is free', () => {
  const { chains, chain, lane } = chainsOfOneBlock();
  expect(chains.blockAt(base + 4095)).toEqual({ address: base, bytes: 4096, chain, number: 0 });
  expect(chains.blockAt(base + 4096)).toBeUndefined();
  for (const step of chains.stepsBackTo([], false)) chains.stepBack(step);
  expect(chains.blockAt(base)).toBeUndefined();
  expect(chains.largestFreeBytes(lane)).toBe(4096);
  chains.validate();
});

test('bump chains remove all their blocks at once', () => {
  const { chains } = chainsOfOneBlock();
  expect(chains.removeAllSegments()).toEqual([{ address: base, bytes: 4096 }]);
  expect(chains.blockAt(base)).toBeUndefined();
  chains.validate();
});
