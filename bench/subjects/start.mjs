/** Imports the main entry, or an empty module, and then uses a pool for the first time. */
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { distFolder } from '../support/cistern.mjs';
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
report({ import: imported, cpu: (user + system) / 1000, first: subject === 'null' ? undefined : firstOperations() });

/** Nanoseconds for each of the first operations, by how many there are. */
function firstOperations() {
  cistern.configureSoftwareDevice({ totalBytes: 4 * 1024 * cistern.GiB });
  cistern.selectBackend('software');
  const stream = new cistern.Stream({ nonBlocking: true });
  const pool = new cistern.PoolMemoryResource(new cistern.CudaMemoryResource(), {
    initialBytes: cistern.GiB,
    deallocationEvents: 'deferred',
  });
  const random = seededNumbers();
  const sizes = Float64Array.from({ length: Math.max(...operations) }, () => Math.floor(2 ** (8 + 12 * random())));
  const pointers = new Float64Array(slots);
  /** @type {number[]} */
  const ends = [];
  const start = performance.now();
  let done = 0;
  let step = 0;
  for (const count of operations) {
    // Allocates into each slot in turn, and frees what it held before.
    while (done < count) {
      const slot = step % slots;
      if (step >= slots) {
        pool.deallocate(pointers[slot], sizes[step - slots], stream);
        done++;
      }
      pointers[slot] = pool.allocate(sizes[step], stream);
      step++;
      done++;
    }
    ends.push(((performance.now() - start) * 1e6) / done);
  }
  return ends;
}
