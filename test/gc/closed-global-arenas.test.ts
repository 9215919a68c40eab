import { expect, it } from 'vitest';
import { Device, KiB, Stream } from '../../src/index.js';
import { GlobalArena } from '../../src/workers/global-arena.js';
import { collectGarbageUntil } from './collection.js';

const bytes = 64 * KiB;

it.each<[string, (arena: GlobalArena, free: () => void) => void]>([
  [
    'closed after its memory was freed',
    (arena, free) => {
      free();
      arena.close();
    },
  ],
  [
    'closed before',
    (arena, free) => {
      arena.close();
      free();
    },
  ],
])('what a worker knows of a global arena is collected if it was %s', async (_when, end) => {
  let isCollected = false;
  const collected = new FinalizationRegistry(() => {
    isCollected = true;
  });
  (() => {
    using stream = new Stream({ nonBlocking: true });
    const settings = { name: 'closed', device: Device.get(), kind: undefined, arenaBytes: bytes, superblockBytes: bytes };
    const arena = GlobalArena.open(settings);
    collected.register(arena, undefined);
    const pointer = arena.allocate(bytes, stream, 0);
    end(arena, () => arena.deallocate(pointer, bytes, stream));
  })();
  await collectGarbageUntil(() => isCollected);
  expect(isCollected).toBe(true);
});
