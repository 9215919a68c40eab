/**
 * The pool compared with RMM's, a throwaway pool in JavaScript, malloc and a resource that does
 * nothing, on whole traces.
 */
import { combined, formatNumber, formatRatio, formatSpread, verdict } from '../support/figures.mjs';
import { runSubject } from '../support/processes.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/figures.mjs').Figures} Figures */
/** @typedef {import('../support/context.mjs').Context} Context */

/**
 * @typedef {object} PoolRow
 * @property {string} trace
 * @property {string} streams
 * @property {string} events
 * @property {Figures} nanosecondsPerOperation
 * @property {number} firstReplay the first measured replay of a process, after an unmeasured one
 * @property {Figures} nullResource
 * @property {Figures | undefined} nullNative
 * @property {Figures | undefined} nativeAllocator
 * @property {number} rmmPool
 * @property {number | undefined} twiceThrowaway
 * @property {number} limit
 * @property {string} met
 * @property {{ allocation: number, free: number }} longest the single allocation and free that take longest, in nanoseconds
 * @property {number} eventRecords
 * @property {number} highWaterRatio the span of addresses used over the peak of live bytes
 * @property {number} maximumResidentBytes
 */

export const name = 'pool';
export const title =
  'Pool over cuda, ns per operation of a whole replay (its loop; a fresh pool for each replay, initially twice the peak of live bytes)';

const policies = ['eager', 'deferred', 'off'];
const initialFactor = 2;
const timedReplays = 50;

/** @param {Context} context @returns {Promise<PoolRow[]>} */
export async function run(context) {
  const rows = [];
  for (const trace of context.traces) {
    // RMM's figure is for this trace's own streams.
    const streamModes = trace.name === 'multi-stream' ? ['single', 'log'] : ['single'];
    const cases = streamModes.flatMap((streams) => policies.map((events) => ({ streams, events })));
    /** @type {Figures[]} */
    const nullResource = [];
    /** @type {Figures[]} */
    const nullNative = [];
    /** @type {Figures[]} */
    const nativeAllocator = [];
    /** @type {any[][]} */
    const pools = cases.map(() => []);
    for (let round = 0; round < context.rounds; round++) {
      context.progress(`${trace.name}: null and native`);
      const base = { trace: trace.path, repeat: context.repeat };
      nullResource.push((await runSubject('replay', { ...base, subject: 'null' })).nanosecondsPerOperation);
      if (context.native.isAvailable) {
        nullNative.push(await context.replayNatively('null', trace));
        nativeAllocator.push(await context.replayNatively('malloc', trace));
      }
      for (const [i, { streams, events }] of cases.entries()) {
        context.progress(`${trace.name}: pool, ${events}, streams: ${streams}`);
        pools[i].push(await runSubject('replay', { ...base, subject: 'pool', events, streams, initialFactor, timedReplays }));
      }
    }
    const { rmmPool, throwaway } = context.baseline.traces[trace.name];
    const twiceThrowaway = throwaway === undefined ? undefined : throwaway * context.baseline.throwawayFactor;
    const limit = Math.min(rmmPool, twiceThrowaway ?? rmmPool);
    for (const [i, { streams, events }] of cases.entries()) {
      const nanosecondsPerOperation = combined(pools[i].map((result) => result.nanosecondsPerOperation));
      const [result] = pools[i];
      rows.push({
        trace: trace.name,
        streams,
        events,
        nanosecondsPerOperation,
        firstReplay: Math.min(...pools[i].map((each) => each.firstReplay)),
        nullResource: combined(nullResource),
        nullNative: nullNative.length === 0 ? undefined : combined(nullNative),
        nativeAllocator: nativeAllocator.length === 0 ? undefined : combined(nativeAllocator),
        rmmPool,
        twiceThrowaway,
        limit,
        met: verdict(nanosecondsPerOperation, limit),
        longest: {
          allocation: Math.min(...pools[i].map(({ longest }) => longest.allocation)),
          free: Math.min(...pools[i].map(({ longest }) => longest.free)),
        },
        eventRecords: result.driver.eventRecords,
        highWaterRatio: result.highWaterBytes / result.peakLiveBytes,
        maximumResidentBytes: Math.max(...pools[i].map((each) => each.maximumResidentBytes)),
      });
    }
  }
  return rows;
}

/** @param {PoolRow[]} rows @param {Context} context */
export function format(rows, context) {
  const { allocatorName } = context.native;
  return formatTable(
    [
      'trace',
      'events',
      'median',
      'minimum',
      'spread',
      'null\nJS',
      'x null',
      'null\nC++',
      allocatorName,
      `x ${allocatorName}`,
      'RMM\nC++',
      '2 x throw-\naway',
      'within\nboth',
      'longest\nalloc',
      'longest\nfree',
      'high\nwater',
      'RSS\nMiB',
    ],
    rows.map((row) => [
      row.streams === 'single' ? row.trace : `${row.trace} (own streams)`,
      row.events,
      formatNumber(row.nanosecondsPerOperation.median),
      formatNumber(row.nanosecondsPerOperation.minimum),
      formatSpread(row.nanosecondsPerOperation),
      formatNumber(row.nullResource.median),
      formatRatio(row.nanosecondsPerOperation.median, row.nullResource.median),
      formatNumber(row.nullNative?.median),
      formatNumber(row.nativeAllocator?.median),
      formatRatio(row.nanosecondsPerOperation.median, row.nativeAllocator?.median),
      formatNumber(row.rmmPool, 0),
      formatNumber(row.twiceThrowaway, 0),
      row.met,
      formatNumber(row.longest.allocation, 0),
      formatNumber(row.longest.free, 0),
      formatNumber(row.highWaterRatio, 3),
      formatNumber(row.maximumResidentBytes / 2 ** 20, 0),
    ]),
    2,
  );
}
