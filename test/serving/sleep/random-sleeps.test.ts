import { expect, test } from 'vitest';
import { Device, MiB, Stream, set, VirtualMemoryResource } from '../../../src/index.js';
import { sleepResource, wakeResource } from '../../../src/serving/index.js';
import { Random } from '../../../src/tools/testing/random.js';
import { skipTest } from '../../support/skip-test.js';
import { valuesOf } from '../../support/stream-order.js';

const programs = 12;
const rounds = 30;

/** An allocation, and the byte that all of it should have. */
interface Piece {
  readonly pointer: number;
  readonly bytes: number;
  value: number;
}

/** Between a wake and the next sleep, allocates, frees and fills a little, and mostly says that no kernel has written, which is so. */
async function run(seed: number): Promise<void> {
  const random = new Random(seed);
  using stream = new Stream({ nonBlocking: true });
  using upstream = new VirtualMemoryResource({ reservationBytes: 256 * MiB });
  const page = upstream.granularityBytes;
  const live: Piece[] = [];
  const write = (piece: Piece) => {
    piece.value = random.below(255);
    set(piece.pointer, piece.value, 1, piece.bytes, stream);
  };
  const allocate = () => {
    const bytes = page * (1 + random.below(2));
    const piece = { pointer: upstream.allocate(bytes, stream), bytes, value: 0 };
    write(piece);
    live.push(piece);
  };
  const free = () => {
    const [piece] = live.splice(random.below(live.length), 1);
    if (piece !== undefined) upstream.deallocate(piece.pointer, piece.bytes, stream);
  };
  while (live.length < 8) allocate();
  for (let round = 0; round < rounds; round++) {
    for (let changes = random.below(4); changes > 0; changes--) {
      const choice = random.below(4);
      const piece = live[random.below(live.length)];
      if (choice < 2) free();
      else if (choice === 2 || piece === undefined) allocate();
      else write(piece);
    }
    const unchanged = random.below(4) > 0;
    const { keptBytes, copiedBytes } = await sleepResource(upstream, { keep: 'host', unchanged });
    expect(copiedBytes <= keptBytes && (unchanged || copiedBytes === keptBytes), `seed ${seed}`).toBe(true);
    if (random.below(4) === 0) free();
    await wakeResource(upstream, { stagingBytes: random.below(4) === 0 ? page : 64 * page });
    for (const { pointer, bytes, value } of live) expect(valuesOf(pointer, bytes, stream), `seed ${seed}`).toEqual([value]);
  }
  while (live.length > 0) free();
}

test('memory has its contents after random sleeps, also where only what cistern itself has written is copied', async () => {
  if (Device.get().attribute('virtualMemoryManagementSupported') !== 1) skipTest('the device has no virtual memory management');
  for (let seed = 1; seed <= programs; seed++) await run(seed);
});
