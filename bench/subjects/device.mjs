/** What a device's own calls cost, and what the resources over them spare: a section in each process. */
import { loadCistern } from '../support/cistern.mjs';
import { figuresOf } from '../support/figures.mjs';
import { parameters, report } from '../support/processes.mjs';

/**
 * @typedef {object} DeviceParameters
 * @property {'pairs' | 'busy' | 'sleep' | 'pinned'} section
 * @property {string} resource the specification of what is measured
 * @property {number} bytes of an allocation
 * @property {number} repeat
 */

const { section, resource: specification, bytes, repeat } = /** @type {DeviceParameters} */ (parameters());
const cistern = await loadCistern();
const stream = new cistern.Stream({ nonBlocking: true });
const stack = cistern.createResourceStack(specification);
const { resource } = stack;
/** Seconds for a sample. */
const least = 0.05;
/** Memory that is filled for as long as the device shall be busy. */
const filledBytes = 2 * cistern.GiB;

report(await { pairs, busy, sleep, pinned }[section]());
stack.dispose();

/** Nanoseconds for an allocation and its free, while the stream has nothing to do. */
function pairs() {
  const pair = () => resource.deallocate(resource.allocate(bytes, stream), bytes, stream);
  /** @param {number} count */
  const nanoseconds = (count) => {
    const began = performance.now();
    for (let i = 0; i < count; i++) pair();
    return ((performance.now() - began) * 1e6) / count;
  };
  let count = 8;
  while (nanoseconds(count) * count < least * 1e9) count *= 2;
  const samples = Array.from({ length: repeat }, () => {
    const sample = nanoseconds(count);
    stream.synchronizeSync();
    return sample;
  });
  return { pair: figuresOf(samples) };
}

/**
 * Microseconds for an allocation and for a free on a stream that is busy, how long it was busy, and how many of the calls
 * lasted until it was idle.
 */
function busy() {
  const cuda = new cistern.CudaMemoryResource();
  const filled = cuda.allocate(filledBytes, stream);
  const fill = () => cistern.set(filled, 1, 1, filledBytes, stream);
  fill();
  stream.synchronizeSync();
  const began = performance.now();
  fill();
  stream.synchronizeSync();
  const fills = Math.ceil(30 / (performance.now() - began));
  /** @type {{ allocate: number[], free: number[], busy: number[] }} */
  const samples = { allocate: [], free: [], busy: [] };
  const idle = new cistern.Event();
  let [waitingAllocations, waitingFrees] = [0, 0];
  for (let i = 0; i < repeat + 3; i++) {
    for (let n = 0; n < fills; n++) fill();
    idle.record(stream);
    const started = performance.now();
    const pointer = resource.allocate(bytes, stream);
    const allocated = performance.now();
    const allocationWaited = idle.query();
    for (let n = 0; n < fills; n++) fill();
    idle.record(stream);
    const middle = performance.now();
    resource.deallocate(pointer, bytes, stream);
    const freed = performance.now();
    const freeWaited = idle.query();
    stream.synchronizeSync();
    if (i < 3) continue;
    samples.allocate.push((allocated - started) * 1000);
    samples.free.push((freed - middle) * 1000);
    samples.busy.push((performance.now() - started) * 1000);
    waitingAllocations += Number(allocationWaited);
    waitingFrees += Number(freeWaited);
  }
  cuda.deallocate(filled, filledBytes, stream);
  const { allocate, free, busy: total } = samples;
  return { allocate: figuresOf(allocate), free: figuresOf(free), busy: figuresOf(total), waitingAllocations, waitingFrees, of: repeat };
}

/** Milliseconds for each GiB that falls asleep and wakes, with its contents and without. */
async function sleep() {
  const pointer = resource.allocate(bytes, stream);
  cistern.set(pointer, 1, 1, bytes, stream);
  stream.synchronizeSync();
  const perGiB = cistern.GiB / bytes;
  /** @type {Record<string, number[]>} */
  const samples = { sleepKept: [], wakeKept: [], sleepEmpty: [], wakeEmpty: [] };
  for (let i = 0; i <= Math.min(repeat, 3); i++) {
    const kept = await cistern.sleepResource(resource, { keep: 'host' });
    const restored = await cistern.wakeResource(resource);
    const empty = await cistern.sleepResource(resource, { keep: 'nothing' });
    const mapped = await cistern.wakeResource(resource);
    if (i === 0) continue;
    for (const [name, each] of Object.entries({ sleepKept: kept, wakeKept: restored, sleepEmpty: empty, wakeEmpty: mapped }))
      samples[name].push(each.elapsedMilliseconds * perGiB);
  }
  resource.deallocate(pointer, bytes, stream);
  return Object.fromEntries(Object.entries(samples).map(([name, values]) => [name, figuresOf(values)]));
}

/** Milliseconds for an allocation of pinned memory, and for its free. The first of a process, since later ones find pages cleared. */
function pinned() {
  const began = performance.now();
  const pointer = resource.allocate(bytes, stream);
  const allocated = performance.now();
  resource.deallocate(pointer, bytes, stream);
  return { allocate: allocated - began, free: performance.now() - allocated };
}
