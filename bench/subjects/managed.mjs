/**
 * One access pattern over managed memory under one policy, on two software devices with less memory
 * than the pattern uses. A device reads by copies to memory of its own, as a kernel would.
 */
import { loadCistern } from '../support/cistern.mjs';
import { parameters, report } from '../support/processes.mjs';

/** @typedef {'streaming' | 'random' | 'two devices'} Pattern */
/** @typedef {'none' | 'prefetch' | 'preferred location' | 'read-mostly'} Policy */

const { pattern, policy } = /** @type {{ pattern: Pattern; policy: Policy }} */ (parameters());
process.env['CISTERN_SOFTWARE_DEVICES'] = '2';
const cistern = await loadCistern();
const { MiB } = cistern;
const page = 2 * MiB;
const devicePages = 32;
const passes = 2;

// Half of what the first two patterns read fits; the tables that both devices read fit on each.
const pages = pattern === 'two devices' ? devicePages / 2 : 2 * devicePages;
const scratchBytes = page;
cistern.configureSoftwareDevice({ totalBytes: devicePages * page + scratchBytes });
const devices = [cistern.Device.get(0), cistern.Device.get(1)];
const readers = devices.map((device) => {
  const stream = new cistern.Stream({ device });
  return { device, stream, scratch: new cistern.CudaMemoryResource({ device }).allocate(scratchBytes, stream) };
});
const managed = new cistern.ManagedMemoryResource();
const [first] = /** @type {[typeof readers[0]]} */ (readers);
const input = new cistern.DeviceBuffer(pages * page, { resource: managed, stream: first.stream });

// The host writes the input.
input.to('host');
const view = input.hostView(Uint32Array);
for (let i = 0; i < pages; i++) view[(i * page) / 4] = i + 1;

const { ptr } = input;
if (policy === 'preferred location') cistern.advise(ptr, pages * page, 'set-preferred-location', 'host');
if (policy === 'read-mostly') cistern.advise(ptr, pages * page, 'set-read-mostly');
cistern.resetManagedActivity();

let wrong = 0;
/** @param {typeof first} reader @param {number} index @param {number} bytes */
function read(reader, index, bytes) {
  cistern.copy(reader.scratch, ptr + index * page, bytes, reader.stream);
  const word = new Uint32Array(1);
  cistern.copyToHostSync(word, reader.scratch, reader.stream);
  if (word[0] !== index + 1) wrong++;
}

let seed = 1;
function random() {
  seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
  return seed / 2 ** 32;
}

let readBytes = 0;
for (let pass = 0; pass < passes; pass++) {
  for (let step = 0; step < pages; step++) {
    const used = pattern === 'two devices' ? readers : [first];
    // Streaming and shared tables are read whole, random accesses touch 64 KiB.
    const bytes = pattern === 'random' ? 64 * cistern.KiB : page;
    const index = pattern === 'random' ? Math.floor(random() * pages) : step;
    for (const reader of used) {
      if (policy === 'prefetch') cistern.prefetch(ptr + index * page, page, reader.device, reader.stream);
      read(reader, index, bytes);
      readBytes += bytes;
    }
  }
}
const places = [...devices, /** @type {const} */ ('host')].map((place) => cistern.managedActivity(place));
/** @param {keyof (typeof places)[0]} name */
const sum = (name) => places.reduce((total, each) => total + each[name], 0);
report({
  readBytes,
  movedBytes: sum('bytesFromHost') + sum('bytesFromDevices'),
  evictedBytes: sum('evictedBytes'),
  remoteBytes: sum('remoteBytes'),
  faults: sum('faults'),
  thrashes: sum('thrashes'),
  wrong,
});
