import { expect, test } from 'vitest';
import { MiB } from '../../src/basics/units.js';
import { FreeSpaceIndex, unitBytes } from '../../src/suballocation/free-space-index.js';
import { tableBytes } from '../../src/suballocation/index-layout.js';
import { indexModule } from '../../src/suballocation/index-module.js';

const base = 2 ** 40;
const recordBytes = 32;

const heldBytes = () => indexModule.memory.buffer.byteLength;

test('the memory of an index grows by an eighth, or by what it needs', () => {
  const index = new FreeSpaceIndex();
  const buffers = new Set<ArrayBuffer>();
  const before = heldBytes();
  for (let lanes = 1; lanes <= 16384; lanes++) {
    index.addLane();
    buffers.add(indexModule.memory.buffer);
    if (heldBytes() > 1.125 * (before + lanes * tableBytes) + 1.25 * MiB) expect.fail(`${heldBytes()} bytes for ${lanes} lanes`);
  }
  expect(buffers.size).toBeLessThan(35);
});

test('an index of 350,000 blocks finds each, and needs little more memory than their records', () => {
  const count = 350_000;
  const index = new FreeSpaceIndex();
  const lane = index.addLane();
  index.addSegment(base, count * unitBytes, lane);
  const before = heldBytes();
  for (let i = 0; i < count; i++) {
    const address = index.allocate(1, i & 127, lane, i);
    if (address !== base + i * unitBytes) expect.fail(`block ${i} is at ${address}`);
  }
  expect(index.allocate(1, 0, lane)).toBe(-1);
  index.validate();
  // The table of used blocks has 4 to 8 bytes for each; records take the place of those that it has outgrown.
  expect(heldBytes() - before).toBeLessThan(1.2 * count * (recordBytes + 8) + 2 * MiB);
  for (let i = 0; i < count; i += 2) {
    const address = base + i * unitBytes;
    if (index.ownerOf(index.usedBlock(address)) !== i) expect.fail(`block ${i} is not found`);
    if (!index.freeAt(address, unitBytes - (i & 127), lane)) expect.fail(`block ${i} is not freed`);
  }
  index.validate();
  for (let i = 0; i < count; i += 2) if (index.allocate(1, 0, lane) < 0) expect.fail(`nothing is left after ${i / 2} blocks`);
  expect(index.allocate(1, 0, lane)).toBe(-1);
  index.validate();
  index.removeAllSegments();
  // All of the memory serves again.
  const held = heldBytes();
  index.addSegment(base, count * unitBytes, lane);
  for (let i = 0; i < count; i++) index.allocate(1, 0, lane);
  expect(heldBytes()).toBe(held);
});
