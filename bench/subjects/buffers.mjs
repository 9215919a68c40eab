/**
 * Makes buffers, and disposes or drops them; reports what V8 collects meanwhile. For those that are
 * disposed, also what they add to the allocation and the free alone, without the statistics.
 */
import { constants, PerformanceObserver } from 'node:perf_hooks';
import { loadCistern } from '../support/cistern.mjs';
import { figuresOf } from '../support/figures.mjs';
import { NullResource } from '../support/null-resource.mjs';
import { parameters, report } from '../support/processes.mjs';

const buffersPerSample = 2000;
const buffersPerPass = 200;
const warmUpSamples = 3;
/** Samples of buffers and of pairs alone, in turn. */
const turns = 300;

const { subject, use, bytes, repeat } =
  /** @type {{ subject: 'pool' | 'null', use: 'dispose' | 'run' | 'drop', bytes: number, repeat: number }} */ (parameters());
const cistern = await loadCistern();
// Makes three quarters of the device reachable.
cistern.configureSoftwareDevice({ totalBytes: 4 * cistern.GiB });
const stream = new cistern.Stream({ nonBlocking: true });
const device = stream.device;
const upstream =
  subject === 'null'
    ? new NullResource(device, bytes)
    : new cistern.PoolMemoryResource(new cistern.CudaMemoryResource(), { initialBytes: 2 * cistern.GiB, deallocationEvents: 'deferred' });
const resource = use === 'run' ? new cistern.CachingMemoryResource(upstream) : upstream;
const counted = new cistern.StatisticsResourceAdaptor(resource);

let majors = 0;
let minors = 0;
let collecting = 0;
const observer = new PerformanceObserver((list) => {
  for (const { detail, duration } of /** @type {any[]} */ (list.getEntries())) {
    if (detail.kind === constants.NODE_PERFORMANCE_GC_MAJOR) majors++;
    else if (detail.kind === constants.NODE_PERFORMANCE_GC_MINOR) minors++;
    collecting += duration;
  }
});

const samples = [];
let total = 0;
for (let i = 0; i < warmUpSamples + repeat; i++) {
  if (i === warmUpSamples) observer.observe({ entryTypes: ['gc'] });
  const start = performance.now();
  makeBuffers();
  const milliseconds = performance.now() - start;
  // Entries reach the observer in a later turn of the event loop.
  for (let turn = 0; turn < 3; turn++) await new Promise((resolve) => setImmediate(resolve));
  if (i < warmUpSamples) continue;
  total += milliseconds;
  samples.push((milliseconds * 1e3) / buffersPerSample);
}
observer.disconnect();
report({
  buffer: figuresOf(samples),
  addedNanoseconds: use === 'dispose' ? added() : undefined,
  majors,
  minors,
  collectingShare: collecting / total,
  peakBytes: counted.statistics().bytes.peak,
  totalBytes: device.totalBytes,
});

/** The least time of a buffer over the least time of an allocation and its free. */
function added() {
  let buffer = Number.POSITIVE_INFINITY;
  let pair = Number.POSITIVE_INFINITY;
  for (let i = 0; i < turns; i++) {
    pair = Math.min(pair, nanosecondsOf(makePairs));
    buffer = Math.min(buffer, nanosecondsOf(makePlainBuffers));
  }
  return buffer - pair;
}

/** @param {() => void} make */
function nanosecondsOf(make) {
  const start = performance.now();
  make();
  return ((performance.now() - start) * 1e6) / buffersPerSample;
}

function makePairs() {
  for (let i = 0; i < buffersPerSample; i++) resource.deallocate(resource.allocate(bytes, stream), bytes, stream);
}

function makePlainBuffers() {
  for (let i = 0; i < buffersPerSample; i++) new cistern.DeviceBuffer(bytes, { resource, stream }).dispose();
}

function makeBuffers() {
  switch (use) {
    case 'dispose':
      for (let i = 0; i < buffersPerSample; i++) new cistern.DeviceBuffer(bytes, { resource: counted, stream }).dispose();
      break;
    case 'drop':
      for (let i = 0; i < buffersPerSample; i++) new cistern.DeviceBuffer(bytes, { resource: counted, stream });
      break;
    case 'run':
      for (let pass = 0; pass < buffersPerSample / buffersPerPass; pass++) {
        /** @type {InstanceType<typeof cistern.CachingMemoryResource>} */ (resource).run(() => {
          for (let i = 0; i < buffersPerPass; i++) new cistern.DeviceBuffer(bytes, { resource: counted, stream });
        });
      }
  }
}
