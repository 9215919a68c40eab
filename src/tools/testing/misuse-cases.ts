import assert from 'node:assert/strict';
import type { Stream } from '../../driver/streams/stream.js';
import type { ResourceSupport } from './harness.js';
import { assertLifetimeError, assertRefused, type Block, type TestBed } from './test-bed.js';

type Body = (bed: TestBed) => void;

const notByteCounts: readonly unknown[] = [-1, -0.5, 1.5, Number.NaN, Infinity, -Infinity, 2 ** 53, '4096', 4096n, null, undefined, {}];
const notPointers: readonly unknown[] = [-1, 0.5, Number.NaN, Infinity, 2 ** 53, '0x100', 256n, null, undefined, {}];
const notAlignments: readonly unknown[] = [0, 3, -256, 300, 1.5, Number.NaN, Infinity, '256', 256n, null, {}];
const notStreams: readonly unknown[] = [undefined, null, 0, 'stream', {}];

/**
 * Calls that a resource must refuse without a change of state: bad arguments, pointers that are not
 * live here, and uses after it is disposed.
 */
export function misuseCases(supports: ResourceSupport): Record<string, Body> {
  return {
    'refuses invalid sizes': (bed) => {
      onIntactResource(bed, (block) => {
        for (const bytes of notByteCounts as number[]) {
          assertRefused(bytes, 'bytes', () => bed.resource.allocate(bytes, bed.stream));
          assertRefused(bytes, 'bytes', () => bed.resource.deallocate(block.pointer, bytes, bed.stream));
        }
      });
    },
    'refuses invalid alignments': (bed) => {
      onIntactResource(bed, () => {
        for (const alignment of notAlignments as number[]) {
          assertRefused(alignment, 'alignment', () => bed.resource.allocate(1000, bed.stream, alignment));
        }
      });
    },
    'refuses invalid pointers': (bed) => {
      onIntactResource(bed, () => {
        for (const pointer of notPointers as number[]) {
          assertRefused(pointer, 'pointer', () => bed.resource.deallocate(pointer, 4096, bed.stream));
        }
      });
    },
    'refuses values that are not streams': (bed) => {
      onIntactResource(bed, (block) => {
        for (const stream of notStreams as Stream[]) {
          assertRefused(String(stream), 'stream', () => bed.resource.allocate(4096, stream));
          assertRefused(String(stream), 'stream', () => bed.resource.deallocate(block.pointer, block.bytes, stream));
        }
      });
    },
    'refuses a disposed stream': (bed) => {
      onIntactResource(bed, (block) => {
        const unused = bed.newStream();
        const used = bed.newStream();
        bed.free(bed.allocate(1000, used), used);
        for (const stream of [unused, used]) {
          stream.dispose();
          assertLifetimeError(['ERR_CISTERN_DISPOSED'], 'allocating on a disposed stream', () => bed.resource.allocate(4096, stream));
          assertLifetimeError(['ERR_CISTERN_DISPOSED'], 'freeing on a disposed stream', () =>
            bed.resource.deallocate(block.pointer, block.bytes, stream),
          );
        }
      });
    },
    'refuses to free a pointer that it did not allocate': (bed) => {
      onIntactResource(bed, (block) => {
        for (const pointer of [1, 4096, block.pointer + 2 ** 45]) {
          assertLifetimeError(['ERR_CISTERN_FOREIGN_POINTER'], `freeing the foreign pointer ${pointer}`, () =>
            bed.resource.deallocate(pointer, block.bytes, bed.stream),
          );
        }
      });
    },
    ...(supports.checksFrees === false ? uncheckedFreeCases() : checkedFreeCases()),
    'equals itself, and another only if each frees what the other allocated': (bed) => {
      const { resource, stream } = bed;
      const other = bed.anotherResource();
      assert.equal(resource.isEqual(resource), true);
      assert.equal(resource.isEqual(other), other.isEqual(resource));
      if (!resource.isEqual(other)) return;
      other.deallocate(resource.allocate(4096, stream), 4096, stream);
      resource.deallocate(other.allocate(4096, stream), 4096, stream);
    },
    'refuses to be used after one or two disposals': (bed) => {
      const { resource, stream } = bed;
      bed.free(bed.allocate(4096));
      for (let i = 0; i < 2; i++) {
        resource[Symbol.dispose]();
        assertLifetimeError(['ERR_CISTERN_DISPOSED'], 'allocating after dispose', () => resource.allocate(4096, stream));
        // A pass-through adaptor may leave this to its upstream.
        assertLifetimeError(['ERR_CISTERN_DISPOSED', 'ERR_CISTERN_FOREIGN_POINTER'], 'freeing what is not live after dispose', () =>
          resource.deallocate(4096, 4096, stream),
        );
      }
    },
  };
}

function checkedFreeCases(): Record<string, Body> {
  return {
    'refuses to free a pointer into an allocation': (bed) => {
      onIntactResource(bed, (block) => {
        for (const offset of [1, 256, block.bytes - 1]) {
          assertLifetimeError(['ERR_CISTERN_FOREIGN_POINTER'], 'freeing a pointer into an allocation', () =>
            bed.resource.deallocate(block.pointer + offset, block.bytes - offset, bed.stream),
          );
        }
      });
    },
    'refuses to free twice': (bed) => {
      onIntactResource(bed, () => {
        const freed = bed.allocate(4096);
        bed.free(freed);
        for (let i = 0; i < 2; i++) {
          assertLifetimeError(['ERR_CISTERN_DOUBLE_FREE', 'ERR_CISTERN_FOREIGN_POINTER'], 'freeing twice', () =>
            bed.resource.deallocate(freed.pointer, freed.bytes, bed.stream),
          );
        }
      });
    },
    'refuses to free with a wrong size': (bed) => {
      onIntactResource(bed, (block) => {
        for (const bytes of [0, 1, block.bytes - 1, block.bytes + 1, 2 * block.bytes, 2 ** 40]) {
          assertLifetimeError(['ERR_CISTERN_WRONG_SIZE'], `freeing ${block.bytes} bytes as ${bytes}`, () =>
            bed.resource.deallocate(block.pointer, bytes, bed.stream),
          );
        }
      });
    },
  };
}

function uncheckedFreeCases(): Record<string, Body> {
  return {
    'accepts a second free, and one with a wrong size': (bed) => {
      onIntactResource(bed, (block) => {
        const freed = bed.allocate(4096);
        bed.free(freed);
        for (const { pointer, bytes } of [freed, { ...freed, bytes: freed.bytes - 1 }, { ...block, bytes: block.bytes - 1 }]) {
          try {
            bed.resource.deallocate(pointer, bytes, bed.stream);
          } catch (error) {
            assert.fail(`a resource that does not check frees must accept all of them, but this one refused one: ${error}`);
          }
        }
      });
    },
  };
}

/**
 * Runs `misuse` while a block is live, and asserts that the block and the resource are unchanged.
 */
function onIntactResource(bed: TestBed, misuse: (block: Block) => void): void {
  const block = bed.allocate(5000);
  bed.fill(block, 0x33);
  misuse(block);
  bed.assertIntact(block, 0x33);
  bed.free(block);
}
