/**
 * Replays a log split over workers by its threads, and says whether it completed and how long it took.
 * A free is made by the worker that made the allocation. To find out how much memory is needed, the
 * workers take turns, in windows of the log, so that every run is the same; to measure time, they run
 * at the same time.
 */
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import { importCistern, loadCistern } from '../support/cistern.mjs';
import { parameters, report } from '../support/processes.mjs';

/**
 * @typedef {object} WorkersParameters
 * @property {string} trace the path of the log
 * @property {'global-arena' | 'pools' | 'driver-pool'} stack
 * @property {number} workers
 * @property {number} bytes of the arena, of each pool, or of the device under the driver's pool
 * @property {number} [window] events of a worker in a turn; they run at the same time if it is not given
 * @property {number} [only] the one worker that replays its part
 * @property {number} repeat
 */

/** The cells: the turn, and whether a worker has failed. */
const turn = 0;
const failed = 1;

if (isMainThread) await main(/** @type {WorkersParameters} */ (parameters()));
else await replay(workerData);

/** @param {WorkersParameters} options */
async function main(options) {
  const cistern = await loadCistern();
  if (options.stack === 'driver-pool' && options.window !== undefined) cistern.configureSoftwareDevice({ totalBytes: options.bytes });
  const log = await cistern.readAllocationLog(options.trace);
  const columns = shareColumns(log, options.workers);
  const cells = new Int32Array(new SharedArrayBuffer(8));
  const driverPool = options.stack === 'driver-pool' ? new cistern.CudaAsyncMemoryResource() : undefined;
  const data = { ...options, columns, cells, pool: driverPool?.nativeHandle };
  const numbers = options.only === undefined ? Array.from({ length: options.workers }, (_, number) => number) : [options.only];
  const workers = numbers.map((number) => new Worker(new URL(import.meta.url), { workerData: { ...data, number } }));
  const next = () => Promise.all(workers.map((worker) => new Promise((resolve) => worker.once('message', resolve))));
  await next();
  const ended = next();
  const started = performance.now();
  for (const worker of workers) worker.postMessage('go');
  await ended;
  const milliseconds = performance.now() - started;
  const events = log.eventCount * options.repeat;
  report({ completed: Atomics.load(cells, failed) === 0, nanoseconds: (milliseconds * 1e6) / events, peakLiveBytes: log.peakLiveBytes });
  process.exit(0);
}

/**
 * The log in memory that workers share: what each event does, its bytes, and the worker that does it.
 * @param {import('../../src/tools/replay/index.js').AllocationLog} log
 * @param {number} workers
 */
function shareColumns(log, workers) {
  const operations = new Int32Array(new SharedArrayBuffer(4 * log.eventCount));
  const sizes = new Float64Array(new SharedArrayBuffer(8 * log.eventCount));
  const owners = new Uint8Array(new SharedArrayBuffer(log.eventCount));
  const ownerOf = new Uint8Array(log.slotCount);
  let index = 0;
  for (const chunk of log.chunks) {
    for (let row = 0; row < chunk.count; row++, index++) {
      const operation = chunk.operations[row];
      if (operation >= 0) ownerOf[operation] = chunk.threads[row] % workers;
      operations[index] = operation;
      sizes[index] = chunk.sizes[row];
      owners[index] = ownerOf[operation >= 0 ? operation : ~operation];
    }
  }
  return { operations, sizes, owners, slots: log.slotCount };
}

/** @param {any} data */
async function replay({ stack, bytes, window, workers, number, only, repeat, columns, cells, pool: handle }) {
  // The main thread has configured the device.
  const cistern = await importCistern();
  cistern.selectBackend('software');
  const { operations, sizes, owners, slots } = columns;
  const deallocationEvents = 'deferred';
  const resource = createStack();
  const stream = new cistern.Stream({ nonBlocking: true });
  const pointers = new Float64Array(slots);
  const port = /** @type {import('node:worker_threads').MessagePort} */ (parentPort);
  const go = new Promise((resolve) => port.on('message', resolve));
  port.postMessage('ready');
  await go;
  try {
    for (let round = 0; round < repeat; round++) {
      if (window !== undefined && only === undefined) await inTurns(window);
      else play(0, operations.length);
    }
  } catch (error) {
    if (!(error instanceof cistern.OutOfMemoryError)) throw error;
    Atomics.store(cells, failed, 1);
  }
  stream.synchronizeSync();
  port.postMessage('done');

  function createStack() {
    if (stack === 'driver-pool') return new cistern.CudaAsyncMemoryResource({ pool: handle });
    if (stack === 'pools') {
      return new cistern.PoolMemoryResource(new cistern.CudaMemoryResource(), {
        initialBytes: bytes,
        maximumBytes: bytes,
        deallocationEvents,
      });
    }
    const waitMilliseconds = window !== undefined ? 2000 : 20;
    const arena = new cistern.GlobalArenaMemoryResource({ arenaBytes: bytes, waitMilliseconds });
    return new cistern.PoolMemoryResource(arena, { deallocationEvents });
  }

  /** @param {number} length events of a turn */
  async function inTurns(length) {
    for (let begin = 0, round = 0; begin < operations.length; begin += length, round++) {
      const mine = round * workers + number;
      for (let now = Atomics.load(cells, turn); now !== mine; now = Atomics.load(cells, turn)) {
        if (Atomics.load(cells, failed) !== 0) return;
        // The event loop goes on, and answers other workers.
        await Atomics.waitAsync(cells, turn, now, 1000).value;
      }
      play(begin, Math.min(begin + length, operations.length));
      Atomics.store(cells, turn, mine + 1);
      Atomics.notify(cells, turn);
    }
  }

  /** @param {number} begin @param {number} end */
  function play(begin, end) {
    for (let index = begin; index < end; index++) {
      if (owners[index] !== number) continue;
      const operation = operations[index];
      if (operation >= 0) pointers[operation] = resource.allocate(sizes[index], stream);
      else resource.deallocate(pointers[~operation], sizes[index], stream);
    }
  }
}
