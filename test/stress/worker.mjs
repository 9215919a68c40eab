/**
 * A worker thread that uses all kinds of memory, leaves it live on busy streams, and ends as it is
 * told to.
 */
import { parentPort, workerData } from 'node:worker_threads';
import * as cistern from 'cistern';

const { KiB, MiB } = cistern;
const { end, seed } = workerData;
const upstreams = [new cistern.CudaMemoryResource(), new cistern.CudaAsyncMemoryResource()];
const streams = [0, 1].map(() => new cistern.Stream({ nonBlocking: true }));
const deallocationEvents = ['eager', 'deferred', 'off'][seed % 3];
const resources = upstreams.flatMap((upstream) => [
  new cistern.PoolMemoryResource(upstream, { deallocationEvents }),
  new cistern.ArenaMemoryResource(upstream, { arenaBytes: 4 * MiB, deallocationEvents }),
  new cistern.FixedSizeMemoryResource(upstream, { blockBytes: 64 * KiB, blocksToPreallocate: 2, deallocationEvents }),
  new cistern.BinningMemoryResource(upstream, { bins: [64 * KiB], deallocationEvents }),
  new cistern.MonotonicMemoryResource(upstream, { initialBytes: 128 * KiB, deallocationEvents }),
  new cistern.CachingMemoryResource(upstream, { deallocationEvents }),
]);
const checker = end === 'terminated while checking' ? cistern.checkOrder({ stacks: false }) : undefined;
const holds = end === 'exit while held' || end === 'throw while held' ? streams.map((stream) => stream.hold()) : [];
const buffers = [];

function use(resource, value) {
  for (const stream of streams) {
    const [live, freed] = [0, 1].map(() => resource.allocate(20_000, stream));
    cistern.set(live, value, 1, 20_000, stream);
    cistern.set(freed, value, 1, 20_000, stream);
    resource.deallocate(freed, 20_000, stream);
    if (end === 'tidy') resource.deallocate(live, 20_000, stream);
  }
  buffers.push(new cistern.DeviceBuffer(new Uint8Array(10_000).fill(value), { resource, stream: streams[value % 2] }));
}

for (const [index, resource] of resources.entries()) {
  if (end === 'tidy' || !(resource instanceof cistern.CachingMemoryResource)) {
    use(resource, index);
    continue;
  }
  resource.run(() => {
    use(resource, index);
    // A run that never ends keeps its memory.
    return new Promise(() => {});
  });
}
if (holds.length === 0) {
  for (const [index, buffer] of buffers.entries()) {
    const bytes = await buffer.toHost();
    if (!bytes.every((byte) => byte === index)) throw new Error(`a buffer of the worker holds something other than ${index}`);
  }
}

/** Runs forever. Never queues more than one turn, which another thread may have to wait for. */
function keepBusy() {
  for (const buffer of buffers) buffer.fill(seed % 256);
  streams[seed % 2].launchHostFunction(() => setImmediate(keepBusy));
}

switch (end) {
  case 'tidy':
    for (const each of [...buffers, ...resources.toReversed(), ...streams]) each[Symbol.dispose]();
    break;
  case 'leave':
    break;
  case 'exit while held':
    setTimeout(() => process.exit(3), seed % 8);
    break;
  case 'exit in a host function':
    streams[0].launchHostFunction(() => process.exit(3));
    break;
  case 'throw while held':
    setTimeout(() => {
      throw new Error('meant');
    }, seed % 8);
    break;
  default:
    keepBusy();
    parentPort.postMessage(checker === undefined ? 'busy' : 'busy and checking');
}
