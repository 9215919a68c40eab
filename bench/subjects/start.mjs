/**
 * Imports the main entry and then uses a pool for the first time; or imports an empty module, and uses a
 * resource that does nothing.
 */
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { distFolder } from '../support/cistern.mjs';
import { NullResource } from '../support/null-resource.mjs';
import { seededNumbers } from '../support/numbers.mjs';
import { parameters, report } from '../support/processes.mjs';

const slots = 64;

const { subject, operations } = /** @type {{ subject: 'cistern' | 'null', operations: readonly number[] }} */ (parameters());
const entry = subject === 'null' ? 'data:text/javascript,' : pathToFileURL(join(distFolder(), 'index.js')).href;
const cpuBefore = process.cpuUsage();
const before = performance.now();
const cistern = await import(entry);
const imported = performance.now() - before;
const { user, system } = process.cpuUsage(cpuBefore);
report({ import: imported, cpu: (user + system) / 1000, ...firstOperations() });

/**
 * Microseconds for constructing the pool, and for its first allocation; and nanoseconds for each of the first operations after
 * its free, by how many there are: on the clock, and of all threads.
 */
function firstOperations() {
  const { resource, stream, constructed } = subject === 'null' ? doingNothing() : pool();
  const beforeFirst = performance.now();
  const pointer = resource.allocate(4096, stream);
  const allocated = (performance.now() - beforeFirst) * 1000;
  resource.deallocate(pointer, 4096, stream);
  const random = seededNumbers();
  const sizes = Float64Array.from({ length: Math.max(...operations) }, () => Math.floor(2 ** (8 + 12 * random())));
  const pointers = new Float64Array(slots);
  /** @type {number[]} */
  const first = [];
  /** @type {number[]} */
  const firstCpu = [];
  let done = 0;
  let step = 0;
  const cpuAtStart = process.cpuUsage();
  const start = performance.now();
  for (const count of operations) {
    // Allocates into each slot in turn, and frees what it held before.
    while (done < count) {
      const slot = step % slots;
      if (step >= slots) {
        resource.deallocate(pointers[slot], sizes[step - slots], stream);
        done++;
      }
      pointers[slot] = resource.allocate(sizes[step], stream);
      step++;
      done++;
    }
    first.push(((performance.now() - start) * 1e6) / done);
    const { user, system } = process.cpuUsage(cpuAtStart);
    firstCpu.push(((user + system) * 1e3) / done);
  }
  return { constructed, allocated, first, firstCpu };
}

function pool() {
  cistern.configureSoftwareDevice({ totalBytes: 4 * 1024 * cistern.GiB });
  cistern.selectBackend('software');
  const stream = new cistern.Stream({ nonBlocking: true });
  const upstream = new cistern.CudaMemoryResource();
  const before = performance.now();
  const resource = new cistern.PoolMemoryResource(upstream, { initialBytes: cistern.GiB, deallocationEvents: 'deferred' });
  return { resource, stream, constructed: (performance.now() - before) * 1000 };
}

/** It never looks at its device or the stream. @returns {any} */
function doingNothing() {
  return { resource: new NullResource(/** @type {any} */ (undefined)), stream: undefined, constructed: 0 };
}
