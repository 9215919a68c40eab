// Many jobs through a few workers, within one limit for all of them.
//
//     node examples/workers/main.js [jobs] [workers]
import { DeviceBuffer, formatBytes, MiB, OutOfMemoryError } from 'cistern';
import { attachBuffer } from 'cistern/workers';
import { disposeMemory, sharedBytes, stack, stream } from './memory.js';
import { WorkerPool } from './pool.js';

const jobCount = Number(process.argv[2] ?? 200);
const pool = new WorkerPool(Number(process.argv[3] ?? 4));
let right = 0;
let refusals = 0;

/** Resolves when another job may have given memory back, which comes home in the event loop. */
const later = () => new Promise((resolve) => setTimeout(resolve, 1));

async function makeInput(value) {
  for (;;) {
    try {
      const input = new DeviceBuffer(1 * MiB, { resource: stack.resource, stream });
      input.fill(value);
      return input;
    } catch (error) {
      if (!(error instanceof OutOfMemoryError)) throw error;
      refusals++;
      await later();
    }
  }
}

async function runJob(value) {
  let buffer = await makeInput(value);
  for (;;) {
    const { message, isRefused } = await pool.run(buffer);
    buffer = attachBuffer(message, { stream });
    if (!isRefused) break;
    refusals++;
    await later();
  }
  const bytes = await buffer.toHost();
  buffer.dispose();
  if (Buffer.from(bytes.buffer).equals(Buffer.alloc(2 * MiB, value))) right++;
}

let next = 0;
async function runJobs() {
  while (next < jobCount) await runJob(next++ % 256);
}
// Twelve at once: their inputs alone leave room for the output of one.
await Promise.all(Array.from({ length: 12 }, runJobs));
await pool.end();

const { current, peak } = sharedBytes();
console.log(`${jobCount} jobs by ${pool.done.length} workers (${pool.done.join(', ')}), ${right} right`);
console.log(`at most ${formatBytes(peak)} live in all threads, ${formatBytes(current)} now; ${refusals} requests waited for the limit`);
disposeMemory();
