/**
 * A pipeline of four workers that hand buffers on. The first one fills buffers of its pool, each of
 * the others checks them and fills them again, and the last one disposes them. Workers are terminated
 * at random, about one for so many finished buffers, and replaced. Fails if a byte is wrong, if the
 * order checker reports anything, or if memory is left at the end.
 *
 *     node test/stress/hand-over-pipeline.mjs --buffers 100000 --terminate-every 200 --check-order
 *
 * Prints one line of JSON.
 */
import process from 'node:process';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { isMainThread, MessageChannel, parentPort, Worker, workerData } from 'node:worker_threads';
import * as cistern from '../support/whole-package.mjs';

const { CudaAsyncMemoryResource, CudaMemoryResource, Device, DeviceBuffer, KiB, MiB, OutOfMemoryError, PoolMemoryResource, Stream } =
  cistern;
const { attachBuffer, detachBuffer, discardBuffer } = cistern;

const stages = 4;
const last = stages - 1;
const mostUnanswered = 24;
const valueAt = (number, stage) => (number * 31 + stage * 7 + 1) % 256;
const bytesOf = (number) => 1 + ((number * 7919) % (96 * KiB));

/** Numbers from 0 to 1, the same for the same seed. */
function randomFrom(seed) {
  let state = (seed * 2654435761 + 1) >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

if (isMainThread) await coordinate();
else stage();

async function coordinate() {
  const { values } = parseArgs({
    options: {
      buffers: { type: 'string', default: '1000' },
      seed: { type: 'string', default: '1' },
      'terminate-every': { type: 'string', default: '0' },
      'check-order': { type: 'boolean', default: false },
    },
  });
  const buffers = Number(values.buffers);
  const finishedPerEnd = Number(values['terminate-every']);
  const random = randomFrom(Number(values.seed));
  const memory = () => {
    // Frees what ended workers have left.
    new Stream().dispose();
    Device.get().synchronizeSync();
    return Device.get().memoryInfo().freeBytes;
  };
  const before = memory();
  if (cistern.currentBackend() === 'software') {
    const delayed = cistern.driverFunctionNames().filter((name) => /Event|Memcpy|Memset/.test(name));
    for (const name of delayed) cistern.setCallLatency(name, Math.floor(random() * 30_000));
  }

  const result = { buffers: 0, wrong: 0, reports: 0, terminated: 0, leakedBytes: 0, seconds: 0 };
  const faults = [];
  const started = performance.now();
  const workers = [];
  let generation = 0;
  let isOver = false;

  const start = (index) => {
    generation++;
    const data = { index, generation, checksOrder: values['check-order'], seed: random() * 2 ** 31 };
    const worker = new Worker(new URL(import.meta.url), { workerData: data, execArgv: [] });
    worker.on('message', ({ finished, wrong, report }) => {
      if (finished !== undefined) result.buffers += finished;
      if (wrong !== undefined) {
        result.wrong++;
        faults.push(wrong);
      }
      if (report !== undefined) {
        result.reports++;
        faults.push(report);
      }
    });
    worker.on('error', (error) => {
      if (!isOver) faults.push(String(error.stack ?? error));
    });
    workers[index] = worker;
  };
  /** Connects a worker with the next one; what they had exchanged and not answered is lost. */
  const connect = (index) => {
    const { port1, port2 } = new MessageChannel();
    workers[index].postMessage({ next: port1 }, [port1]);
    workers[index + 1].postMessage({ previous: port2 }, [port2]);
  };

  for (let index = 0; index < stages; index++) start(index);
  for (let index = 0; index < last; index++) connect(index);
  let next = finishedPerEnd;
  while (result.buffers < buffers && faults.length === 0) {
    await sleep(2);
    if (finishedPerEnd === 0 || result.buffers < next) continue;
    next = result.buffers + 1 + 2 * random() * finishedPerEnd;
    const index = Math.floor(random() * stages);
    await workers[index].terminate();
    result.terminated++;
    start(index);
    if (index > 0) connect(index - 1);
    if (index < last) connect(index);
  }
  isOver = true;
  for (const worker of workers) await worker.terminate();
  result.leakedBytes = before - memory();
  result.seconds = Math.round((performance.now() - started) / 100) / 10;
  console.log(JSON.stringify(result));
  if (faults.length > 0) console.error(faults.slice(0, 3).join('\n'));
  process.exitCode = faults.length === 0 && result.leakedBytes === 0 ? 0 : 1;
}

function stage() {
  const { index, generation, checksOrder, seed } = workerData;
  const random = randomFrom(seed);
  const stream = new Stream({ nonBlocking: true });
  const unanswered = new Map();
  let nextPort;
  if (checksOrder)
    cistern.checkOrder({ stacks: false, onViolation: (report) => parentPort.postMessage({ report: JSON.stringify(report) }) });

  parentPort.on('message', ({ next, previous }) => {
    if (next !== undefined) {
      // Whoever had the old port has ended, and with it what it had attached.
      for (const message of unanswered.values()) discardBuffer(message);
      unanswered.clear();
      nextPort = next;
      next.on('message', (number) => unanswered.delete(number));
      if (index === 0 && generation > 0) void produce();
    }
    previous?.on('message', ({ number, message }) => void take(previous, number, message));
  });

  const send = (number, buffer) => {
    const message = detachBuffer(buffer);
    unanswered.set(number, message);
    nextPort?.postMessage({ number, message });
  };

  const deallocationEvents = ['eager', 'deferred', 'off'][generation % 3];
  // An allocation that waits for a stream behind a hold never returns, since this thread ends the hold. Allocations
  // wait if the device is strict, and if a pool runs out of memory under 'off'.
  const allocatesAtOnce = process.env.CISTERN_SOFTWARE_STRICT !== '1' && (index > 0 || deallocationEvents !== 'off');
  const mayHold = cistern.currentBackend() === 'software' && allocatesAtOnce;

  /** Holds the stream for a while. */
  const stall = () => {
    if (!mayHold || random() > 0.02) return;
    const hold = stream.hold();
    setTimeout(() => hold.release(), random() * 3);
  };

  let isProducing = false;
  async function produce() {
    if (isProducing) return;
    isProducing = true;
    const upstream = generation % 2 === 0 ? new CudaMemoryResource() : new CudaAsyncMemoryResource();
    const pool = new PoolMemoryResource(upstream, { initialBytes: 2 * MiB, maximumBytes: 2 * MiB, deallocationEvents });
    for (let number = generation * 1_000_000; ; ) {
      await nextTurn();
      if (unanswered.size >= mostUnanswered) continue;
      let buffer;
      try {
        buffer = new DeviceBuffer(bytesOf(number), { resource: pool, stream });
      } catch (error) {
        if (!(error instanceof OutOfMemoryError)) throw error;
        // Everything is in the pipeline.
        await sleep(1);
        continue;
      }
      buffer.fill(valueAt(number, 0));
      stall();
      send(number++, buffer);
    }
  }

  async function take(port, number, message) {
    let buffer;
    try {
      buffer = attachBuffer(message, { stream });
    } catch (error) {
      // The sender has ended meanwhile.
      if (error.code === 'ERR_CISTERN_STALE_MESSAGE') return;
      throw error;
    }
    port.postMessage(number);
    stall();
    // The others are only ordered on the device.
    if (index === last || number % 3 === index) {
      const expected = valueAt(number, index - 1);
      const contents = await buffer.toHost();
      const bytes = bytesOf(number);
      const position = contents.findIndex((value) => value !== expected);
      if (contents.length !== bytes || position >= 0) {
        const what = `${contents[position]} instead of ${expected} at ${position} of ${contents.length}, expected ${bytes}`;
        parentPort.postMessage({ wrong: `buffer ${number} in worker ${index}: ${what}` });
      }
    }
    if (index === last) {
      // Some are left to the garbage collector.
      if (number % 50 !== 0) buffer.dispose();
      parentPort.postMessage({ finished: 1 });
      return;
    }
    buffer.fill(valueAt(number, index));
    send(number, buffer);
  }
}
