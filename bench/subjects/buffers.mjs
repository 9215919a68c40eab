/** Makes buffers, and disposes or drops them; reports what V8 collects meanwhile. */
import { constants, PerformanceObserver } from 'node:perf_hooks';
import { loadCistern } from '../support/cistern.mjs';
import { figuresOf } from '../support/figures.mjs';
import { NullResource } from '../support/null-resource.mjs';
import { parameters, report } from '../support/processes.mjs';

const buffersPerSample = 2000;
const buffersPerPass = 200;
const warmUpSamples = 3;

const { subject, use, bytes, repeat } =
  /** @type {{ subject: 'pool' | 'null', use: 'dispose' | 'run' | 'drop', bytes: number, repeat: number }} */ (parameters());
const cistern = await loadCistern();
// Makes three quarters of the device reachable.
cistern.configureSoftwareDevice({ totalBytes: 4 * cistern.GiB });
const stream = new cistern.Stream({ nonBlocking: true });
const device = stream.device;
const upstream =
  subject === 'null'
    ? new NullResource(device)
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
  majors,
  minors,
  collectingShare: collecting / total,
  peakBytes: counted.statistics().bytes.peak,
  totalBytes: device.totalBytes,
});

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
