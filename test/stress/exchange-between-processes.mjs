/**
 * Two processes that exchange buffers. Each fills buffers of its pool and exports them; the other
 * opens them, checks them, fills them again and disposes them; then their owner checks what it finds.
 * Either process is killed at random, and replaced. Fails if a byte is wrong, or if the process that
 * lives on does not get all its memory back, or keeps a descriptor or a mapping of the one that was
 * killed.
 *
 *     node test/stress/exchange-between-processes.mjs --buffers 10000 --kills 200
 *
 * Prints one line of JSON.
 */
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import process from 'node:process';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const mostUnanswered = 8;
const patienceMilliseconds = 20_000;
const valueAt = (number, step) => (number * 31 + step * 7 + 1) % 256;
const bytesOf = (number) => 1 + ((number * 7919) % (96 * 1024));

/** Numbers from 0 to 1, the same for the same seed. */
function randomFrom(seed) {
  let state = (seed * 2654435761 + 1) >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

if (process.send === undefined || process.argv[2] !== 'peer') await coordinate();
else await peer();

/** Starts both processes, passes their messages on, and kills them. */
async function coordinate() {
  const { values } = parseArgs({
    options: {
      buffers: { type: 'string', default: '200' },
      kills: { type: 'string', default: '4' },
      seed: { type: 'string', default: '1' },
    },
  });
  const buffers = Number(values.buffers);
  const kills = Number(values.kills);
  const random = randomFrom(Number(values.seed));
  const inSharedMemory = () => readdirSync('/dev/shm').sort().join();
  const before = inSharedMemory();
  const result = { buffers: 0, opened: 0, wrong: 0, kills: 0, survivorsChecked: 0, leaks: 0, seconds: 0 };
  const faults = [];
  const started = performance.now();
  const peers = [];
  let generation = 0;

  const start = (index) => {
    generation++;
    const args = ['peer', String(generation), String(Math.floor(random() * 2 ** 31))];
    const child = fork(fileURLToPath(import.meta.url), args, { serialization: 'advanced' });
    const self = { child, generation, isKilled: false, isEnded: once(child, 'exit') };
    peers[index] = self;
    child.on('message', (message) => {
      if (message.fault !== undefined) {
        // What a killed process has exported need not be whole, and its queued work may never have run.
        if (message.of !== undefined && message.of !== peers[1 - index].generation) return;
        if (message.of !== undefined && peers[1 - index].isKilled) return;
        if (message.isLeak) result.leaks++;
        else result.wrong++;
        faults.push(message.fault);
      } else if (message.finished !== undefined) result.buffers++;
      else if (message.checked !== undefined) result.survivorsChecked++;
      else {
        if (message.opened !== undefined) result.opened++;
        if (peers[1 - index].child.connected) peers[1 - index].child.send(message, () => {});
      }
    });
    child.on('exit', (code, signal) => {
      if (!self.isKilled && code !== 0) faults.push(`process ${self.generation} ended with ${code ?? signal}`);
    });
  };
  const kill = async (index) => {
    const killed = peers[index];
    killed.isKilled = true;
    killed.child.kill('SIGKILL');
    await killed.isEnded;
    start(index);
    peers[1 - index].child.send({ replaced: killed.generation }, () => {});
    result.kills++;
  };

  start(0);
  start(1);
  let next = 1;
  while ((result.buffers < buffers || result.kills < kills) && faults.length === 0) {
    await sleep(1);
    if (result.kills >= kills || result.buffers < next) continue;
    next = result.buffers + 1 + 2 * random() * Math.max(1, (buffers - result.buffers) / (kills - result.kills + 1));
    await sleep(random() * 8);
    await kill(Math.floor(random() * 2));
    // Now and then the new process is killed while it starts, or the other one while it looks for what is left.
    if (random() < 0.1 && result.kills < kills) {
      await sleep(random() * 400);
      await kill(Math.floor(random() * 2));
    }
  }
  for (const { child } of peers) child.send({ end: true }, () => {});
  const tooLong = setTimeout(() => {
    faults.push('a process does not end');
    for (const { child } of peers) child.kill('SIGKILL');
  }, 2 * patienceMilliseconds);
  for (const { isEnded } of peers) await isEnded;
  clearTimeout(tooLong);
  if (inSharedMemory() !== before) faults.push(`/dev/shm has ${inSharedMemory()}, had ${before}`);
  result.seconds = Math.round((performance.now() - started) / 100) / 10;
  console.log(JSON.stringify(result));
  if (faults.length > 0) console.error(faults.slice(0, 3).join('\n'));
  process.exitCode = faults.length === 0 ? 0 : 1;
}

async function peer() {
  const cistern = await import('../support/whole-package.mjs');
  const {
    CudaMemoryResource,
    Device,
    DeviceBuffer,
    MiB,
    OutOfMemoryError,
    PoolMemoryResource,
    Stream,
    exportBuffer,
    importersDone,
    openBuffer,
  } = cistern;
  const [generation, seed] = [Number(process.argv[3]), Number(process.argv[4])];
  const random = randomFrom(seed);
  const isDelayed = cistern.currentBackend() === 'software';
  if (isDelayed) {
    const delayed = cistern.driverFunctionNames().filter((name) => /Event|Memcpy|Memset|Ipc/.test(name));
    for (const name of delayed) cistern.setCallLatency(name, Math.floor(random() * 30_000));
  }
  const stream = new Stream({ nonBlocking: true });
  const totalBytes = Device.get().memoryInfo().freeBytes;
  const upstream = new CudaMemoryResource();
  const pool = new PoolMemoryResource(upstream, {
    initialBytes: 1 * MiB,
    maximumBytes: 2 * MiB,
    deallocationEvents: ['eager', 'deferred', 'off'][generation % 3],
  });
  const report = (fault, of) => process.send({ fault, of });

  /** What this process has exported and not finished, by number. */
  const exported = new Map();
  const opened = new Set();
  let isDraining = false;
  let isOver = false;
  let isClosed = false;

  const stall = () => {
    if (!isDelayed || random() > 0.05) return;
    const hold = stream.hold();
    setTimeout(() => hold.release(), random() * 3);
  };
  const wrongIn = async (buffer, expected, bytes) => {
    const contents = await buffer.toHost();
    const position = contents.findIndex((value) => value !== expected);
    if (contents.length === bytes && position < 0) return undefined;
    return `${contents[position]} instead of ${expected} at ${position} of ${contents.length}, expected ${bytes}`;
  };
  /** The files in memory that are open or mapped, apart from this process's own two. */
  const filesOfOthers = () => {
    const open = readdirSync('/proc/self/fd').filter((descriptor) => {
      try {
        return readlinkSync(`/proc/self/fd/${descriptor}`).includes('memfd:cistern-');
      } catch {
        return false;
      }
    });
    const inodes = new Set();
    for (const line of readFileSync('/proc/self/maps', 'utf8').split('\n')) {
      if (line.includes('memfd:cistern-')) inodes.add(line.split(/\s+/)[4]);
    }
    return Math.max(0, open.length - 2) + Math.max(0, inodes.size - 2);
  };

  /** Waits until nothing of the other process is left here, and all own memory has come home. */
  const drain = async (killed) => {
    isDraining = true;
    for (const { buffer } of exported.values()) buffer.dispose();
    exported.clear();
    const end = performance.now() + patienceMilliseconds;
    const left = () => pool.statistics().allocatedBytes + opened.size + filesOfOthers();
    while (left() > 0 && performance.now() < end) await sleep(2);
    if (left() > 0) {
      const { allocatedBytes } = pool.statistics();
      const fault = `process ${generation} keeps ${allocatedBytes} bytes, ${opened.size} buffers and ${filesOfOthers()} files after ${killed} ended`;
      process.send({ fault, isLeak: true });
    } else process.send({ checked: true });
    isDraining = false;
  };

  let draining = Promise.resolve();
  process.on('message', (message) => {
    if (message.replaced !== undefined) draining = draining.then(() => drain(message.replaced));
    else if (message.handle !== undefined) void take(message);
    else if (message.opened !== undefined) void finish(message.opened, message.by);
    else if (message.end) isOver = true;
  });

  async function take({ number, from, handle }) {
    // A message may come after the last buffer was let go of.
    if (isClosed) return;
    let buffer;
    try {
      buffer = openBuffer(handle, { stream });
    } catch (error) {
      // Its owner has ended, or took this process for dead and gave the buffer up.
      if (error.code === 'ERR_CISTERN_STALE_HANDLE') return;
      report(`buffer ${number} cannot be opened: ${error.stack}`, from);
      return;
    }
    opened.add(buffer);
    stall();
    const wrong = await wrongIn(buffer, valueAt(number, 0), bytesOf(number));
    if (wrong !== undefined) report(`buffer ${number} in process ${generation}: ${wrong}`, from);
    stall();
    buffer.fill(valueAt(number, 1));
    opened.delete(buffer);
    buffer.dispose();
    process.send({ opened: number, by: generation });
  }

  async function finish(number, importer) {
    const entry = exported.get(number);
    if (entry === undefined) return;
    const { buffer } = entry;
    // Some are disposed while the other process still works on them.
    if (number % 5 !== 0) {
      await importersDone(buffer);
      if (exported.get(number) !== entry) return;
      const wrong = await wrongIn(buffer, valueAt(number, 1), bytesOf(number));
      if (wrong !== undefined) report(`buffer ${number} back in process ${generation}: ${wrong}`, importer);
      if (exported.get(number) !== entry) return;
    }
    exported.delete(number);
    buffer.dispose();
    process.send({ finished: number });
  }

  for (let number = generation * 1_000_000; !isOver; ) {
    await nextTurn();
    if (isDraining || exported.size >= mostUnanswered) {
      await sleep(1);
      continue;
    }
    let buffer;
    try {
      buffer = new DeviceBuffer(bytesOf(number), { resource: pool, stream });
    } catch (error) {
      if (!(error instanceof OutOfMemoryError)) throw error;
      await sleep(1);
      continue;
    }
    stall();
    buffer.fill(valueAt(number, 0));
    exported.set(number, { buffer });
    process.send({ number, from: generation, handle: exportBuffer(buffer) });
    number++;
  }
  await draining;
  // The other process ends as well: what it has open it lets go of.
  await drain('the exchange');
  isClosed = true;
  // What is freed while a hold is outstanding goes back later.
  await stream.synchronize();
  pool.dispose();
  stream.dispose();
  const { freeBytes } = Device.get().memoryInfo();
  if (upstream.reservedBytes !== 0 || freeBytes !== totalBytes) {
    process.send({ fault: `process ${generation} leaves ${totalBytes - freeBytes} bytes of the device`, isLeak: true });
  }
  process.disconnect();
}
