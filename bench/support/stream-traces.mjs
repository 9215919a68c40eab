/** Traces with any number of streams. */
import { writeFileSync } from 'node:fs';
import { seededNumbers } from './numbers.mjs';

const events = 400_000;
const liveBlocks = 4000;

/**
 * Writes a log of 4,000 live blocks of 256 B to 1 MiB (log-uniform). Every allocation is on a random
 * stream. Three frees in ten are on another one, so that memory wanders between streams.
 * @param {number} streams
 * @param {string} path
 */
export function writeStreamTrace(streams, path) {
  const random = seededNumbers(streams);
  const below = (/** @type {number} */ count) => Math.floor(random() * count);
  /** @type {{ slot: number, bytes: number, stream: number }[]} */
  const live = [];
  /** @type {number[]} */
  const vacant = [];
  const lines = ['Thread,Time,Action,Pointer,Size,Stream'];
  /** @param {string} action @param {number} slot @param {number} bytes @param {number} stream */
  const write = (action, slot, bytes, stream) => {
    const time = `10:00:00.${String(lines.length - 1).padStart(6, '0')}`;
    const pointer = (0x1000_0000_0000 + slot * 0x1000_0000).toString(16);
    const handle = (0x55d0_0000_0000 + (stream + 1) * 0x1000).toString(16);
    lines.push(`1,${time},${action},0x${pointer},${bytes},0x${handle}`);
  };
  let slots = 0;
  while (lines.length <= events) {
    if (live.length < liveBlocks || (random() < 0.5 && live.length < liveBlocks + 100)) {
      const block = { slot: vacant.pop() ?? slots++, bytes: Math.floor(2 ** (8 + 12 * random())), stream: below(streams) };
      live.push(block);
      write('allocate', block.slot, block.bytes, block.stream);
      continue;
    }
    const index = below(live.length);
    const { slot, bytes, stream } = live[index];
    live[index] = /** @type {typeof live[number]} */ (live.at(-1));
    live.pop();
    vacant.push(slot);
    write('free', slot, bytes, random() < 0.3 ? below(streams) : stream);
  }
  writeFileSync(path, `${lines.join('\n')}\n`);
}
