/** Replays logs through a resource of cistern: `node through-cistern.mjs SUBJECT ROUNDS SECONDS LOG …`, a line of JSON for each log; started by compare.mjs. */
import { readFileSync } from 'node:fs';
import { importCistern } from '../support/cistern.mjs';

const [subject = '', rounds, seconds, ...paths] = process.argv.slice(2);
const end = performance.now() + 1000 * Number(seconds);
const cistern = await importCistern();
const stream = new cistern.Stream({ nonBlocking: true });
const cuda = new cistern.CudaMemoryResource();
const events = subject.endsWith('eager') ? 'eager' : 'deferred';

/** @typedef {{ allocate(bytes: number, stream: import('../../src/index.js').Stream): number, deallocate(pointer: number, bytes: number, stream: import('../../src/index.js').Stream): void }} Subject */

/** What the loop itself takes. @type {Subject} */
const nothing = { allocate: (bytes) => bytes, deallocate: () => {} };

for (const path of paths) {
  const log = JSON.parse(readFileSync(path, 'utf8'));
  const operations = Int32Array.from(log.operations);
  const sizes = Float64Array.from(log.sizes);
  const pointers = new Float64Array(sizes.length);
  const freed = new Set(operations.filter((n) => n < 0).map((n) => ~n));
  /** What the log never frees. */
  const left = [...sizes.keys()].filter((n) => !freed.has(n));

  /** Milliseconds of all operations. @param {Subject} resource */
  const replay = (resource) => {
    const began = performance.now();
    for (let i = 0; i < operations.length; i++) {
      const n = operations[i];
      if (n >= 0) pointers[n] = resource.allocate(sizes[n], stream);
      else resource.deallocate(pointers[~n], sizes[~n], stream);
    }
    const spent = performance.now() - began;
    for (const n of left) resource.deallocate(pointers[n], sizes[n], stream);
    return spent;
  };

  const resource = subject.endsWith('cuda-async')
    ? new cistern.CudaAsyncMemoryResource()
    : new cistern.PoolMemoryResource(cuda, { deallocationEvents: events });
  const times = [];
  let driverCalls = 0;
  for (let round = 0; round < Number(rounds) && (round < 2 || performance.now() < end); round++) {
    const before = calls();
    times.push(replay(resource));
    driverCalls = calls() - before;
  }
  stream.synchronizeSync();
  const { peakReservedBytes: reservedBytes } = resource;
  resource.dispose();
  const own = Math.min(...[1, 2, 3].map(() => replay(nothing)));
  const perOperation = (/** @type {number} */ milliseconds) => Math.round((milliseconds * 1e6) / operations.length);
  console.log(
    JSON.stringify({
      log: log.name,
      operations: operations.length,
      peakBytes: log.peakBytes,
      nanoseconds: perOperation(Math.min(...times)),
      firstNanoseconds: perOperation(times[0] ?? 0),
      loopNanoseconds: perOperation(own),
      driverCalls,
      reservedBytes,
      capacity: subject.endsWith('cuda-async') ? 'no limit counts what it holds' : capacityOf(log, operations, sizes),
    }),
  );
}
process.exit(0);

/**
 * By the same limits as through_peers.py: in steps of 1 % to 1.1, of 2.5 % to 1.5, of 10 % to 3. The first that completes counts, since a larger one may fail again.
 * @param {{ peakBytes: number }} log @param {Int32Array} operations @param {Float64Array} sizes
 */
function capacityOf({ peakBytes }, operations, sizes) {
  for (let ratio = 1; ratio <= 3; ratio += ratio < 1.095 ? 0.01 : ratio < 1.495 ? 0.025 : 0.1) {
    if (performance.now() > end) return `above ${ratio.toFixed(3)}, not searched to its end`;
    if (completes(Math.floor((peakBytes * ratio) / 256) * 256, operations, sizes)) return Math.round(ratio * 1000) / 1000;
  }
  return 'above 3';
}

/** @param {number} bytes @param {Int32Array} operations @param {Float64Array} sizes */
function completes(bytes, operations, sizes) {
  const pool = new cistern.PoolMemoryResource(cuda, { initialBytes: bytes, maximumBytes: bytes, deallocationEvents: events });
  const pointers = new Map();
  try {
    for (const n of operations) {
      if (n >= 0) {
        pointers.set(n, pool.allocate(sizes[n], stream));
      } else {
        pool.deallocate(pointers.get(~n), sizes[~n], stream);
        pointers.delete(~n);
      }
    }
    return true;
  } catch (error) {
    if (error instanceof cistern.OutOfMemoryError) return false;
    throw error;
  } finally {
    for (const [n, pointer] of pointers) pool.deallocate(pointer, sizes[n], stream);
    stream.synchronizeSync();
    pool.dispose();
  }
}

function calls() {
  return Object.values(cistern.driverCallCounts().byFunction).reduce((sum, count) => sum + count, 0);
}
