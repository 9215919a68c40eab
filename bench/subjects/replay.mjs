/**
 * Replays a trace through one stack repeatedly, each time on a fresh stack. A sample is one replay,
 * or the median of several for a short trace.
 */
import { AsyncResource } from 'node:async_hooks';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadCistern } from '../support/cistern.mjs';
import { figuresOf } from '../support/figures.mjs';
import { NullResource } from '../support/null-resource.mjs';
import { parameters, report } from '../support/processes.mjs';
import { LeastTimes, TimedResource } from '../support/timed-resource.mjs';

/**
 * @typedef {object} ReplayParameters
 * @property {string} trace the path of the log
 * @property {import('../benchmarks/layers.mjs').Layer | 'pool' | 'planned' | 'specified'} subject the layer over the null resource, the pool or a plan of the trace over `cuda`, or `resource`
 * @property {string} [resource] the specification of what is `specified`
 * @property {import('../../src/index.js').DeallocationEvents} [events]
 * @property {import('../../src/tools/replay/index.js').ReplayStreams} [streams]
 * @property {number} [initialFactor] the pool's initial size over the trace's peak of live bytes
 * @property {number} repeat
 * @property {number} [timedReplays] more replays, in which each call is timed
 */

/**
 * Events to replay before the first sample, so that the code is compiled; also the least number in
 * a sample.
 */
const warmUpEvents = 500_000;
const leastEvents = 100_000;

const {
  trace,
  subject,
  resource,
  events,
  streams = 'single',
  initialFactor = 0,
  repeat,
  timedReplays = 0,
} = /** @type {ReplayParameters} */ (parameters());
const cistern = await loadCistern();
const device = cistern.Device.get();
const log = await cistern.readAllocationLog(trace);
const plan = subject === 'planned' ? cistern.planAllocations(log) : undefined;
const folder = mkdtempSync(join(tmpdir(), 'cistern-bench-'));
try {
  const within = accountsOf(subject);
  const replay = () => within(() => cistern.replayLog(log, () => cistern.ResourceStack.of(createResource()), { streams, repeat: 1 }));
  let last = replay();
  const firstReplay = last.nanosecondsPerOperation.minimum;
  for (let warm = 2 * log.eventCount; warm < warmUpEvents; warm += 2 * log.eventCount) replay();
  const replaysPerSample = Math.ceil(leastEvents / log.eventCount);
  const samples = Array.from({ length: repeat }, () => {
    const replays = Array.from({ length: replaysPerSample }, () => {
      last = replay();
      return last.nanosecondsPerOperation.minimum;
    });
    return figuresOf(replays).median;
  });
  if (last.failures > 0) throw new Error(`${last.failures} allocations failed: ${last.firstFailure?.message}`);
  const { operations, streamCount, peakLiveBytes, peakReservedBytes, highWaterBytes, driver, replayer } = last;
  const results = { operations, streamCount, peakLiveBytes, peakReservedBytes, highWaterBytes, driver, replayer };
  const longest = timedReplays > 0 ? longestCalls() : undefined;
  report({ nanosecondsPerOperation: figuresOf(samples), replaysPerSample, firstReplay, longest, frees: frees(), ...results });
} finally {
  rmSync(folder, { recursive: true });
}

/** The longest allocation and free, in nanoseconds, with about 40 that the clock takes. */
function longestCalls() {
  const times = new LeastTimes(log.eventCount);
  cistern.replayLog(log, () => cistern.ResourceStack.of(new TimedResource(createResource(), times)), { streams, repeat: timedReplays });
  return times.longest();
}

/** What runs a replay in the scope of accounts, and in an execution of its own, as a server runs a request. @param {ReplayParameters['subject']} name @returns {<T>(fn: () => T) => T} */
function accountsOf(name) {
  if (!name.startsWith('accounting')) return (fn) => fn();
  const limits = { limitBytes: Number.MAX_SAFE_INTEGER, softBytes: Number.MAX_SAFE_INTEGER };
  const tenant = new cistern.Account({ name: 'tenant', ...limits });
  const account = name === 'accounting' ? tenant : new cistern.Account({ name: 'request', parent: tenant, ...limits });
  return (fn) => new AsyncResource('request').runInAsyncScope(() => account.run(fn));
}

function createResource() {
  if (subject === 'specified') return cistern.createResource(/** @type {string} */ (resource));
  if (plan !== undefined)
    return new cistern.PlannedMemoryResource(new cistern.CudaMemoryResource({ device }), plan, { repeats: true, deviations: 'refuse' });
  if (subject === 'pool') {
    const upstream = new cistern.CudaMemoryResource({ device });
    const initialBytes = Math.ceil(log.peakLiveBytes * initialFactor);
    return new cistern.PoolMemoryResource(upstream, { initialBytes, ...(events === undefined ? {} : { deallocationEvents: events }) });
  }
  const upstream = new NullResource(device);
  switch (subject) {
    case 'limiting':
      return new cistern.LimitingResourceAdaptor(upstream, { limitBytes: Number.MAX_SAFE_INTEGER });
    case 'statistics':
      return new cistern.StatisticsResourceAdaptor(upstream);
    case 'aligned':
      return new cistern.AlignedResourceAdaptor(upstream);
    case 'aligned to 512':
      return new cistern.AlignedResourceAdaptor(upstream, { alignment: 512 });
    case 'rounding (multiple)':
      return new cistern.RoundingResourceAdaptor(upstream, { kind: 'multiple', multipleBytes: 2 * cistern.MiB });
    case 'rounding (top bits)':
      return new cistern.RoundingResourceAdaptor(upstream, { kind: 'top-bits' });
    case 'accounting':
    case 'accounting (request of a tenant)':
      return new cistern.AccountingResourceAdaptor(upstream);
    case 'admitting (outside of grants)':
      return new cistern.AdmittingResourceAdaptor(upstream, { limitBytes: Number.MAX_SAFE_INTEGER });
    case 'tracking':
      return new cistern.TrackingResourceAdaptor(upstream);
    case 'logging':
      return new cistern.LoggingResourceAdaptor(upstream, { file: join(folder, 'log.csv') });
    case 'recording':
      return new cistern.RecordingResourceAdaptor(upstream, { file: join(folder, 'run.cistern') });
    default:
      return upstream;
  }
}

function frees() {
  return log.eventCount - log.allocationCount;
}
