import assert from 'node:assert/strict';
import { ALLOCATION_ALIGNMENT, KiB, MiB } from '../../basics/units.js';
import { pointerInfo } from '../../driver/memory/transfer.js';
import type { ResourceSupport } from './harness.js';
import { Random } from './random.js';
import { assertOutOfMemory, assertRefused, type Block, type TestBed } from './test-bed.js';

type Body = (bed: TestBed) => void;

/** What an allocation must return. */
export function allocationCases(supports: ResourceSupport): Record<string, Body> {
  return {
    'returns the null pointer for zero bytes, and freeing it does nothing': ({ resource, stream }) => {
      assert.equal(resource.allocate(0, stream), 0, 'zero bytes must return the null pointer');
      resource.deallocate(0, 0, stream);
      resource.deallocate(0, 4096, stream);
      resource.deallocate(0, 0, stream);
    },
    'aligns to 256 for sizes that are not multiples of it': (bed) => {
      const sizes = [1, 2, 255, 256, 257, 1000, 4095, 4097, 65_537, 1_000_003];
      for (const block of sizes.map((bytes) => bed.allocate(bytes))) bed.free(block);
    },
    'aligns to at least 256 for a smaller alignment': (bed) => {
      for (const alignment of [1, 2, 64, 128, 256]) bed.free(bed.allocate(100, bed.stream, alignment));
    },
    'supports every alignment up to its maximum, and refuses larger ones': (bed) => {
      const blocks: Block[] = [];
      for (let alignment = ALLOCATION_ALIGNMENT; alignment <= Math.min(supports.maximumAlignment, 64 * KiB); alignment *= 2) {
        const block = bed.allocate(1000, bed.stream, alignment);
        assert.equal(block.pointer % alignment, 0, `the pointer must be a multiple of ${alignment}, got ${block.pointer}`);
        blocks.push(block);
      }
      for (const block of blocks) bed.free(block);
      if (supports.maximumAlignment === Number.POSITIVE_INFINITY) return;
      const alignment = 2 * supports.maximumAlignment;
      assertRefused(alignment, 'alignment', () => bed.resource.allocate(1000, bed.stream, alignment));
    },
    'returns memory that can be written and read': (bed) => {
      const block = bed.allocate(100_001);
      bed.fill(block, 0x5a);
      bed.assertFilled(block, 0x5a);
      bed.free(block);
    },
    'returns memory of its kind and on its device': (bed) => {
      const { resource } = bed;
      assert.ok(
        ['device', 'managed', 'pinned-host', 'host'].includes(resource.memoryKind),
        `${resource.memoryKind} is not a kind of memory`,
      );
      const block = bed.allocate(4096);
      const { memoryKind, device } = pointerInfo(block.pointer);
      // Drivers do not know ordinary host memory.
      if (resource.memoryKind !== 'host') {
        assert.equal(memoryKind, resource.memoryKind, `the pointer must point to ${resource.memoryKind} memory, got ${memoryKind}`);
      }
      if (resource.memoryKind === 'device') assert.equal(device, resource.device.index);
      bed.free(block);
    },
    'keeps live allocations separate, whatever is allocated and freed in between': (bed) => {
      const seed = bed.harness.seed ?? Date.now() % 2 ** 32;
      try {
        allocateAndFreeAtRandom(bed, new Random(seed));
      } catch (error) {
        throw new Error(`with seed ${seed}: ${error instanceof Error ? error.message : error}`, { cause: error });
      }
    },
    'frees on a stream other than the one that it allocated on': (bed) => {
      const other = bed.newStream();
      const block = bed.allocate(4096);
      bed.stream.synchronizeSync();
      bed.free(block, other);
      bed.free(bed.allocate(4096, other), other);
    },
    'runs out of memory for sizes that no machine has, and is unchanged': (bed) => {
      const block = bed.allocate(5000);
      bed.fill(block, 7);
      for (const bytes of [2 ** 50, Number.MAX_SAFE_INTEGER]) {
        assertOutOfMemory(bytes, () => bed.resource.allocate(bytes, bed.stream));
        bed.assertIntact(block, 7);
      }
      bed.free(block);
    },
    ...(supports.capacityBytes === undefined ? {} : exhaustionCases(supports.reusesFreedMemory !== false)),
  };
}

function exhaustionCases(reusesFreedMemory: boolean): Record<string, Body> {
  if (!reusesFreedMemory) {
    return {
      'runs out of memory at its capacity, and is unchanged': (bed) => {
        const blocks = allocateUntilExhausted(bed, bed.shareOfCapacity(1 / 8));
        for (const block of blocks) bed.assertFilled(headOf(block), 1);
        for (const block of blocks) bed.free(block);
      },
      'does not reuse freed memory': (bed) => {
        const bytes = bed.shareOfCapacity(0.6);
        bed.free(bed.allocate(bytes));
        bed.stream.synchronizeSync();
        assertOutOfMemory(bytes, () => bed.resource.allocate(bytes, bed.stream));
      },
    };
  }
  return {
    'runs out of memory at its capacity, is unchanged, and has memory again once it is freed': (bed) => {
      const bytes = bed.shareOfCapacity(1 / 8);
      const rounds = [0, 1].map(() => {
        const blocks = allocateUntilExhausted(bed, bytes);
        bed.assertFilled(headOf(blocks[0] as Block), 1);
        for (const block of blocks) bed.free(block);
        bed.stream.synchronizeSync();
        return blocks.length;
      });
      assert.equal(rounds[1], rounds[0], `there must be room for ${rounds[0]} blocks again after all are freed, was for ${rounds[1]}`);
    },
    'serves a request that fits after it ran out of memory': (bed) => {
      const blocks = allocateUntilExhausted(bed, bed.shareOfCapacity(1 / 8));
      const last = blocks.pop() as Block;
      bed.free(last);
      bed.stream.synchronizeSync();
      blocks.push(bed.allocate(last.bytes));
      for (const block of blocks) bed.free(block);
    },
    'reuses freed memory': (bed) => {
      for (let i = 0; i < 8; i++) bed.free(bed.allocate(bed.shareOfCapacity(0.6)));
    },
  };
}

function allocateUntilExhausted(bed: TestBed, bytes: number): Block[] {
  const blocks: Block[] = [];
  assertOutOfMemory(bytes, () => {
    while (blocks.length <= 8) blocks.push(bed.allocate(bytes));
  });
  assert.ok(blocks.length > 0, `an eighth of the capacity, ${bytes} bytes, must be possible`);
  for (const block of blocks) bed.fill(headOf(block), 1);
  return blocks;
}

/** The part of a block that the test writes. */
function headOf({ pointer, bytes }: Block): Block {
  return { pointer, bytes: Math.min(bytes, MiB) };
}

function allocateAndFreeAtRandom(bed: TestBed, random: Random): void {
  const live: { block: Block; stamp: number }[] = [];
  for (let i = 0; i < 400; i++) {
    if (live.length > random.below(64)) {
      const [{ block, stamp }] = live.splice(random.below(live.length), 1) as [(typeof live)[0]];
      bed.assertFilled(block, stamp);
      bed.free(block);
    } else {
      const block = bed.allocate(random.size(64 * KiB));
      const stamp = random.below(256);
      bed.fill(block, stamp);
      live.push({ block, stamp });
    }
  }
  for (const { block, stamp } of live) {
    bed.assertFilled(block, stamp);
    bed.free(block);
  }
}
