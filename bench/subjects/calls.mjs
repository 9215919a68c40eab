/** Which functions of the driver a few operations call, counted in the log of the strict driver, which this process runs over. */
import { readFileSync } from 'node:fs';
import { importCistern } from '../support/cistern.mjs';
import { report } from '../support/processes.mjs';

const log = String(process.env['STRICT_DRIVER_LOG']);
const cistern = await importCistern();
const { MiB } = cistern;
cistern.selectBackend('cuda');
const stream = new cistern.Stream({ nonBlocking: true });
const cuda = new cistern.CudaMemoryResource();
const pinned = new cistern.PinnedHostMemoryResource();
const virtual = new cistern.VirtualMemoryResource();

/** @type {Record<string, Record<string, number>>} */
const operations = {};

/** @param {string} name @param {() => void | Promise<void>} use */
async function count(name, use) {
  const before = readFileSync(log).length;
  await use();
  /** @type {Record<string, number>} */
  const calls = {};
  // How often an event is asked depends on the time.
  for (const [, call] of readFileSync(log)
    .subarray(before)
    .toString()
    .matchAll(/CALL cu(?!EventQuery)(\w+)/g)) {
    calls[String(call)] = (calls[String(call)] ?? 0) + 1;
  }
  operations[name] = calls;
}

let pointer = 0;
const size = 256 * MiB;
await count('virtual: allocate 256 MiB', () => {
  pointer = virtual.allocate(size, stream);
});
await count('virtual: free 256 MiB', () => virtual.deallocate(pointer, size, stream));
pointer = virtual.allocate(size, stream);
for (const name of ['first', 'second']) {
  await count(`${name} sleep of 256 MiB, contents kept`, async () => {
    await cistern.sleepResource(virtual, { keep: 'host' });
  });
  await count(`${name} wake of 256 MiB`, async () => {
    await cistern.wakeResource(virtual, { stagingBytes: name === 'first' ? size : 0 });
  });
}
await cistern.sleepResource(virtual, { keep: 'host' });
await cistern.wakeResource(virtual, { stagingBytes: size });
await count('sleep of 256 MiB again, contents said to be unchanged', async () => {
  await cistern.sleepResource(virtual, { keep: 'host', unchanged: true });
});
await cistern.wakeResource(virtual);
virtual.deallocate(pointer, size, stream);

const bytes = 4096;
const [a, b, host, managed] = [cuda, cuda, pinned, new cistern.ManagedMemoryResource()].map((resource) => resource.allocate(bytes, stream));
const pool = new cistern.PoolMemoryResource(cuda, { initialBytes: 16 * MiB, deallocationEvents: 'deferred' });
const inPool = pool.allocate(bytes, stream);
const asynchronous = new cistern.CudaAsyncMemoryResource();
const fromDriver = asynchronous.allocate(bytes, stream);
const array = new Uint8Array(bytes);
/** @type {[string, () => void][]} */
const small = [
  ['set, memory of cuda', () => cistern.set(Number(a), 1, 1, bytes, stream)],
  ['set, in a pool', () => cistern.set(inPool, 1, 1, bytes, stream)],
  ['set, memory of cuda-async', () => cistern.set(fromDriver, 1, 1, bytes, stream)],
  ['set, managed memory', () => cistern.set(Number(managed), 1, 1, bytes, stream)],
  ['copy within the device', () => cistern.copy(Number(a), Number(b), bytes, stream)],
  ['copy within a pool', () => cistern.copy(inPool + 2048, inPool, 2048, stream)],
  ['copy from pinned memory', () => cistern.copy(Number(a), Number(host), bytes, stream)],
  ['copy from an array', () => cistern.copyFromHost(Number(a), array, stream)],
  ['copy to an array', () => cistern.copyToHostSync(array, Number(a), stream)],
];
for (const deallocationEvents of /** @type {const} */ (['eager', 'deferred'])) {
  const each = new cistern.PoolMemoryResource(cuda, { initialBytes: 16 * MiB, deallocationEvents });
  small.push([`pair of a pool, ${deallocationEvents}`, () => each.deallocate(each.allocate(bytes, stream), bytes, stream)]);
}
small.push(['pair of cuda-async', () => asynchronous.deallocate(asynchronous.allocate(bytes, stream), bytes, stream)]);
for (const [name, use] of small) {
  use();
  stream.synchronizeSync();
  await count(name, use);
}

const half = 8 * MiB;
const limit = new cistern.LimitingResourceAdaptor(new cistern.PoolMemoryResource(cuda, { initialBytes: half }), { limitBytes: half });
const spilling = new cistern.SpillingResourceAdaptor(limit, new cistern.PoolMemoryResource(pinned, { initialBytes: 32 * MiB }));
const buffers = [1, 2, 3, 4].map(() => new cistern.SpillableBuffer(half / 2, { stream, resource: spilling }));
for (const buffer of buffers) (await buffer.pin(stream)).dispose();
stream.synchronizeSync();
const [first] = buffers;
await count('a buffer is brought back, another leaves', async () => (await first?.pin(stream))?.dispose());

const own = new cistern.PoolMemoryResource(cuda, { initialBytes: 16 * MiB, maximumBytes: 16 * MiB, deallocationEvents: 'deferred' });
const ownHost = new cistern.PoolMemoryResource(pinned, { initialBytes: 32 * MiB, deallocationEvents: 'deferred' });
const together = new cistern.SpillingResourceAdaptor(own, ownHost);
const sixteen = Array.from({ length: 16 }, () => new cistern.SpillableBuffer(512 * 1024, { stream, resource: together }));
const everyOther = sixteen.filter((_, i) => i % 2 === 0);
const rest = sixteen.filter((_, i) => i % 2 === 1);
/** @param {typeof sixteen} some @param {string} what */
async function countMoves(some, what) {
  stream.device.synchronizeSync();
  await count(`${some.length} ${what} leave together`, () => void together.spill());
  stream.device.synchronizeSync();
  await count(`${some.length} ${what} come back together`, async () => {
    for (const pin of await cistern.SpillableBuffer.pinAll(some, stream)) pin.dispose();
  });
}
together.spill();
for (const pin of await cistern.SpillableBuffer.pinAll(sixteen, stream)) pin.dispose();
await countMoves(sixteen, 'buffers that are neighbours');
const pins = await cistern.SpillableBuffer.pinAll(rest, stream);
await countMoves(everyOther, 'buffers that are not neighbours');
for (const pin of pins) pin.dispose();

report({ operations });
process.exit(0);
