// Managed memory with twice as much data as the device has memory, processed in windows that are
// moved ahead of their use.
//
//     node examples/managed-oversubscription.mjs [windows]
//
// The software device keeps all managed memory on the host and moves nothing, but it remembers
// where each range was last prefetched to and what it was advised. The program prints that, and the
// number of driver calls. On a GPU the same calls move pages.
import process from 'node:process';
import {
  advise,
  CudaMemoryResource,
  configureSoftwareDevice,
  copy,
  copyToHostSync,
  DeviceBuffer,
  Event,
  formatBytes,
  KiB,
  ManagedMemoryResource,
  MiB,
  managedRangeAttributes,
  OutOfMemoryError,
  PoolMemoryResource,
  PrefetchResourceAdaptor,
  prefetch,
  Stream,
  selectBackend,
  set,
} from 'cistern';
import { driverCallCounts } from 'cistern/testing';

const windows = Number(process.argv[2] ?? 16);
const windowBytes = 16 * MiB;
const dataBytes = windows * windowBytes;
const tableBytes = 4 * MiB;
const scratchBytes = 64 * KiB;

selectBackend('software');
configureSoftwareDevice({ totalBytes: dataBytes / 2 });
const cuda = new CudaMemoryResource();
const { device } = cuda;
const work = new Stream({ nonBlocking: true });
const ahead = new Stream({ nonBlocking: true });
const moved = new Event();
const done = new Event();

console.log(`${formatBytes(dataBytes)} of data, a device of ${formatBytes(device.totalBytes)}`);
try {
  cuda.allocate(dataBytes, work);
  throw new Error('there is room for the data on the device');
} catch (error) {
  if (!(error instanceof OutOfMemoryError)) throw error;
  console.log(`ordinary device memory: ${error.message}`);
}

const before = driverCallCounts();
const managed = new ManagedMemoryResource();
const pool = new PoolMemoryResource(managed, { initialBytes: dataBytes + 2 * tableBytes, deallocationEvents: 'deferred' });
/**
 * Allocations from this are small and used on the device at once, so they are moved there as they
 * are allocated.
 */
const onDevice = new PrefetchResourceAdaptor(pool);

// The data lives on the host; its windows only visit the device. Every step reads the table, which
// may have a copy in each place.
const data = pool.allocate(dataBytes, work);
advise(data, dataBytes, 'set-preferred-location', 'host');
for (let i = 0; i < windows; i++) set(data + i * windowBytes, (i + 1) & 255, 1, windowBytes, work);
const table = onDevice.allocate(tableBytes, work);
advise(table, tableBytes, 'set-read-mostly');
set(table, 7, 1, tableBytes, work);
console.log(`managed memory: ${formatBytes(managed.reservedBytes)} in ${delta('cuMemAllocManaged')} allocation of the driver\n`);

/**
 * Moves a window to the device, while earlier work continues. Work that needs it there waits for
 * `moved`.
 */
function bring(i) {
  prefetch(data + i * windowBytes, windowBytes, device, ahead);
  moved.record(ahead);
}

/** Moves a window back to the host once the work so far is done. */
function sendBack(i) {
  done.record(work);
  ahead.wait(done);
  prefetch(data + i * windowBytes, windowBytes, 'host', ahead);
}

let most = 0;
let halfway;
const sums = [];
done.record(work);
ahead.wait(done);
bring(0);
for (let i = 0; i < windows; i++) {
  work.wait(moved);
  if (i + 1 < windows) bring(i + 1); // while this one is being processed
  most = Math.max(most, windowsOnDevice());
  if (i === windows >> 1) halfway = places(i);
  sums.push(step(data + i * windowBytes));
  sendBack(i);
}

/**
 * Stands for kernels: they change the window with the help of the table, and leave a result, of
 * which the host checks two bytes.
 */
function step(window) {
  const result = new DeviceBuffer(scratchBytes, { resource: onDevice, stream: work });
  copy(window + windowBytes - tableBytes, table, tableBytes, work);
  copy(result.ptr, window, scratchBytes / 2, work);
  copy(result.ptr + scratchBytes / 2, window + windowBytes - scratchBytes / 2, scratchBytes / 2, work);
  const host = new Uint8Array(scratchBytes);
  copyToHostSync(host, result.ptr, work);
  result.dispose();
  return host[0] + host[scratchBytes - 1];
}

function windowsOnDevice() {
  return Array.from({ length: windows }, (_, i) => lastPlace(data + i * windowBytes, windowBytes)).filter((place) => place === device.index)
    .length;
}

function lastPlace(pointer, bytes) {
  return managedRangeAttributes(pointer, bytes).lastPrefetchLocation;
}

/** What the driver knows about the ranges, around a window. */
function places(current) {
  const rows = {};
  const add = (name, pointer, bytes) => {
    const { isReadMostly, preferredLocation, lastPrefetchLocation } = managedRangeAttributes(pointer, bytes);
    rows[name] = { 'read mostly': isReadMostly, preferred: preferredLocation ?? '-', 'prefetched to last': lastPrefetchLocation ?? '-' };
  };
  add('table', table, tableBytes);
  for (let i = Math.max(0, current - 2); i < Math.min(windows, current + 3); i++) add(`window ${i}`, data + i * windowBytes, windowBytes);
  return rows;
}

function delta(name) {
  return driverCallCounts().byFunction[name] - before.byFunction[name];
}

const wrong = sums.findIndex((sum, i) => sum !== ((i + 1) & 255) + 7);
if (wrong !== -1) throw new Error(`window ${wrong} has ${sums[wrong]}`);
work.synchronizeSync();
ahead.synchronizeSync();

console.log(`halfway, while window ${windows >> 1} is processed (the device is ${device.index}):`);
console.table(halfway);
console.log(
  `${windows} windows of ${formatBytes(windowBytes)} done, every result right; prefetched to the device and not back, at most: ${most}`,
);
console.log(`afterwards: ${windowsOnDevice()} on the device, the whole data last prefetched to: ${lastPlace(data, dataBytes)}`);
const names = ['cuMemAllocManaged', 'cuMemPrefetchAsync', 'cuMemAdvise', 'cuEventRecord', 'cuStreamWaitEvent'];
console.log(`driver calls: ${names.map((name) => `${delta(name)} ${name}`).join(', ')}`);

pool.deallocate(data, dataBytes, work);
onDevice.deallocate(table, tableBytes, work);
for (const resource of [onDevice, pool, managed, cuda, moved, done, ahead, work]) resource.dispose();
