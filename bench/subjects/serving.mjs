/**
 * Serves requests that each allocate and free as a part of a log does, up to 64 at once, on a device of a given size. Time is counted
 * in turns: in each, every running request makes one call. So every run is the same, however busy the machine is.
 */
import { setImmediate as nextTurn } from 'node:timers/promises';
import { loadCistern } from '../support/cistern.mjs';
import { parameters, report } from '../support/processes.mjs';
import { aligned, requestsOf } from '../support/requests.mjs';

/**
 * @typedef {object} ServingParameters
 * @property {string} trace the path of the log
 * @property {number} requests
 * @property {number} atOnce
 * @property {'unlimited' | 'retries' | 'admission' | 'returns' | 'spill' | 'spill by cost'} mode `returns`: admission, and what a request will not need any more goes back
 * @property {number} bytes of the device; ignored if it is unlimited
 * @property {number} scale what all sizes are divided by
 * @property {number} margin the share of the device that is not promised, for fragmentation
 */

/** @typedef {import('../support/requests.mjs').Request} Request */

/**
 * @typedef {object} Admitted
 * @property {import('../../src/index.js').Grant} grant what is promised to a request
 * @property {(turns: number) => void} note called with how long it waited after it was admitted
 */

/** How often a request that found no memory is tried again, after 1, 2, 4 … turns. */
const retries = 8;

const options = /** @type {ServingParameters} */ (parameters());
const cistern = await loadCistern();
const isSpilling = options.mode.startsWith('spill');
const requests = requestsOf(await cistern.readAllocationLog(options.trace), options.requests, options.scale);
const stream = new cistern.Stream({ nonBlocking: true });
const bytes = options.mode === 'unlimited' ? requests.reduce((sum, { need }) => sum + need, 0) : options.bytes;
const pool = new cistern.PoolMemoryResource(
  // Where contents are copied, there is memory for a small device only, which pages of 2 MiB would not fit.
  isSpilling ? new cistern.CudaMemoryResource() : new cistern.VirtualMemoryResource(),
  options.mode === 'unlimited' ? {} : { maximumBytes: bytes, ...(isSpilling ? { initialBytes: bytes } : {}) },
);
/** As much again on the host: what is promised may be there. */
const spilling = isSpilling
  ? new cistern.SpillingResourceAdaptor(
      pool,
      new cistern.PoolMemoryResource(new cistern.PinnedHostMemoryResource(), { initialBytes: bytes, maximumBytes: bytes }),
      { policy: options.mode === 'spill' ? 'least-recently-used' : 'cost-of-return' },
    )
  : undefined;
const resource =
  options.mode === 'admission' || options.mode === 'returns' || spilling !== undefined
    ? new cistern.AdmittingResourceAdaptor(spilling ?? pool, {
        limitBytes: Math.floor(bytes * (isSpilling ? 2 : 1) * (1 - options.margin)),
      })
    : new cistern.LimitingResourceAdaptor(pool, { limitBytes: bytes });

let turn = 0;
let failed = 0;
let repeated = 0;
let peakBytes = 0;
let liveBytes = 0;
/** Sums over the turns in which a request waited for memory. */
let waiting = 0;
let busyTurns = 0;
let usedShares = 0;
let committedShares = 0;
/** @type {number[]} */
const waits = [];
const queue = requests.keys();
const started = performance.now();
const lanes = Array.from({ length: options.atOnce }, serve);
let isServing = true;
const all = Promise.all(lanes).then(() => {
  isServing = false;
});
while (isServing) {
  await nextTurn();
  turn++;
  if (waiting === 0) continue;
  busyTurns++;
  if (spilling !== undefined) liveBytes = spilling.statistics().liveBytes;
  usedShares += liveBytes / bytes;
  committedShares += (resource instanceof cistern.AdmittingResourceAdaptor ? resource.statistics().committedBytes : liveBytes) / bytes;
}
await all;
const milliseconds = performance.now() - started;
waits.sort((a, b) => a - b);
report({
  needMost: Math.max(...requests.map(({ need }) => need)),
  peakBytes,
  failed,
  repeated,
  turns: turn,
  milliseconds,
  waitingTurns: busyTurns,
  used: busyTurns === 0 ? 0 : usedShares / busyTurns,
  committed: busyTurns === 0 ? 0 : committedShares / busyTurns,
  waitMedian: waits[Math.floor(waits.length / 2)] ?? 0,
  wait99: waits[Math.floor(waits.length * 0.99)] ?? 0,
  waitWorst: waits.at(-1) ?? 0,
  spilledBytes: spilling?.statistics().spilledBytes ?? 0,
  returnedBytes: spilling?.statistics().returnedBytes ?? 0,
  overtakes: resource instanceof cistern.AdmittingResourceAdaptor ? resource.statistics().overtakes : 0,
});

/** Serves one request after another. */
async function serve() {
  for (const index of queue) {
    const request = /** @type {Request} */ (requests[index]);
    const arrived = turn;
    if (resource instanceof cistern.AdmittingResourceAdaptor) {
      waiting++;
      const grant = await resource.reserve(request.need);
      waiting--;
      const admitted = turn - arrived;
      let waited = 0;
      const note = (/** @type {number} */ turns) => (waited += turns);
      const serving = spilling === undefined ? () => attempt(request, { grant, note }) : () => attemptSpilling(request, note);
      if (!(await grant.run(serving))) failed++;
      waits.push(admitted + waited);
      grant.dispose();
    } else await serveWithRetries(request, arrived);
  }
}

/** @param {Request} request @param {number} arrived */
async function serveWithRetries(request, arrived) {
  for (let count = 0; ; count++) {
    const began = turn;
    if (await attempt(request)) {
      waits.push(began - arrived);
      return;
    }
    if (count === retries) {
      failed++;
      return;
    }
    repeated++;
    waiting++;
    for (let left = 2 ** count; left > 0; left--) await nextTurn();
    waiting--;
  }
}

/**
 * Makes the calls of a request, one in a turn. Returns whether there was memory; frees all in any case.
 * @param {Request} request
 * @param {Admitted} [admitted]
 */
async function attempt({ calls, needs }, admitted) {
  /** @type {Map<number, { pointer: number, bytes: number }>} */
  const live = new Map();
  const free = (/** @type {number} */ slot) => {
    const { pointer, bytes: size } = /** @type {{ pointer: number, bytes: number }} */ (live.get(slot));
    resource.deallocate(pointer, size, stream);
    liveBytes -= aligned(size);
    live.delete(slot);
  };
  const allocate = (/** @type {number} */ size) => {
    const pointer = resource.allocate(size, stream);
    liveBytes += aligned(size);
    peakBytes = Math.max(peakBytes, liveBytes);
    return pointer;
  };
  try {
    for (const [at, { slot, bytes: size, allocates }] of calls.entries()) {
      if (allocates) {
        const pointer = admitted === undefined ? allocate(size) : await allocateWhenPossible(() => allocate(size), admitted);
        live.set(slot, { pointer, bytes: size });
      } else free(slot);
      if (options.mode === 'returns') admitted?.grant.giveBack(admitted.grant.bytes - /** @type {number} */ (needs[at]));
      await nextTurn();
    }
    return true;
  } catch (error) {
    if (error instanceof cistern.OutOfMemoryError) return false;
    throw error;
  } finally {
    for (const slot of [...live.keys()]) free(slot);
  }
}

/**
 * Allocates what is promised to a request, when there is memory for it in one piece.
 * @param {() => number} allocate
 * @param {Admitted} admitted
 */
async function allocateWhenPossible(allocate, { grant, note }) {
  const began = turn;
  let tries = 0;
  try {
    return await grant.retry(() => {
      if (++tries === 2) waiting++;
      return allocate();
    });
  } finally {
    if (tries > 1) waiting--;
    repeated += Math.max(tries - 1, 0);
    note(turn - began);
  }
}

/**
 * The same with buffers that may leave between their first and their last use, for each of which they are pinned in a turn.
 * @param {Request} request
 * @param {Admitted['note']} note
 */
async function attemptSpilling({ calls }, note) {
  /** @type {Map<number, import('../../src/index.js').SpillableBuffer>} */
  const live = new Map();
  /** @template T @param {Promise<T>} promise @returns {Promise<T>} */
  const counted = async (promise) => {
    const began = turn;
    waiting++;
    try {
      return await promise;
    } finally {
      waiting--;
      note(turn - began);
    }
  };
  try {
    for (const { slot, bytes: size, allocates } of calls) {
      if (allocates) live.set(slot, await counted(cistern.SpillableBuffer.create(size, { stream, resource })));
      const buffer = /** @type {import('../../src/index.js').SpillableBuffer} */ (live.get(slot));
      const pin = await counted(buffer.pin());
      await nextTurn();
      pin.dispose();
      if (allocates) continue;
      buffer.dispose();
      live.delete(slot);
    }
    return true;
  } catch (error) {
    if (error instanceof cistern.OutOfMemoryError) return false;
    throw error;
  } finally {
    for (const buffer of live.values()) buffer.dispose();
  }
}
