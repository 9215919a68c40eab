/** RMM's resources and OffsetAllocator, beside the pool and the arena, in turns. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { figuresOf, formatNumber } from '../support/figures.mjs';
import { Peers } from '../support/peers.mjs';
import { runSubject } from '../support/processes.mjs';
import { writeStreamTrace } from '../support/stream-traces.mjs';
import { formatTable } from '../support/table.mjs';

/** @typedef {import('../support/context.mjs').Context} Context */
/** @typedef {import('../../src/tools/replay/index.js').ReplayStreams} ReplayStreams */
/** @typedef {'replay' | 'capacity' | 'streams, roomy' | 'streams, tight' | 'holes' | 'live'} Section */

/**
 * Nanoseconds for one operation, or, under `capacity`, sizes over the peak of live bytes.
 * @typedef {object} Measured
 * @property {number} minimum of all samples, or the smallest size that completes
 * @property {number} [median] of the processes' medians
 * @property {number} [always] the size from which all complete
 */

/**
 * @typedef {object} PeersRow
 * @property {Section} section
 * @property {string} of the trace, or the number of streams, holes or live blocks
 * @property {string} subject
 * @property {Measured | undefined} measured
 * @property {string | undefined} reason why it is not measured
 * @property {Judgement[]} judgements
 */

/**
 * @typedef {object} Judgement
 * @property {string} against
 * @property {number} value a ratio of minima, or under `capacity` the capacity
 * @property {number} limit
 * @property {boolean} met
 */

/**
 * Something to measure in a fresh process.
 * @typedef {object} Run
 * @property {string} subject
 * @property {() => Promise<Measured>} measure
 */

/** A trace in the form that both sides read. @typedef {{ path: string, csv: string, peakLiveBytes: number }} Input */

/**
 * A replay.
 * @typedef {object} Setting
 * @property {Input} input
 * @property {ReplayStreams} streams
 * @property {number} bytes the size of the resource
 * @property {number} repeat samples of a process
 */

export const name = 'peers';
export const title = "RMM's pool and arena and OffsetAllocator in C++, beside ours: minima";

/** The parts that `--section` chooses. */
export const sections = /** @type {const} */ (['replay', 'capacity', 'streams', 'holes', 'live']);

const pools = ['eager', 'deferred', 'off'].map((events) => ({
  subject: `pool ${events}`,
  events,
  specification: `pool(cuda, initialBytes=SIZE, maximumBytes=SIZE, deallocationEvents=${events})`,
}));
/** Those whose events cost nothing, as the peers' do not. */
const timedPools = pools.slice(1);
const [deferredPool] = timedPools;
const arena = { subject: 'arena', specification: 'arena(cuda, arenaBytes=SIZE)' };
const virtualPool = { subject: 'pool(virtual)', specification: 'pool(virtual, maximumBytes=SIZE, deallocationEvents=deferred)' };
const rmmPool = { subject: 'RMM pool', word: 'pool' };
const rmmArena = { subject: 'RMM arena', word: 'arena' };
const offsetAllocator = { subject: 'OffsetAllocator', word: 'offset' };

const precision = 0.0025;
/** Size over the peak of live bytes. */
const roomy = 4;
const tight = 2;
const timeout = 300_000;
const capacityTimeout = 900_000;

/** @param {Context} context @returns {Promise<PeersRow[]>} */
export async function run(context) {
  const folder = mkdtempSync(join(tmpdir(), 'cistern-bench-peers-'));
  try {
    const bench = new PeersBench(context, folder);
    // Capacities are not a part of --quick, since they take the longest.
    const wanted = context.sections ?? sections.filter((section) => !context.isQuick || section !== 'capacity');
    for (const section of sections.filter((each) => wanted.includes(each))) await bench[section]();
    judge(bench.rows, context.baseline.peers);
    return bench.rows;
  } finally {
    rmSync(folder, { recursive: true });
  }
}

class PeersBench {
  /** @type {PeersRow[]} */
  rows = [];
  #peers = new Peers();
  #context;
  #folder;
  /** @type {Map<string, Input>} */
  #inputs = new Map();

  /** @param {Context} context @param {string} folder for traces */
  constructor(context, folder) {
    this.#context = context;
    this.#folder = folder;
    if (!this.#peers.isAvailable) context.skip('RMM pool, RMM arena, OffsetAllocator: CISTERN_PEERS names no program (bench/README.md)');
  }

  async replay() {
    for (const { of, streams, input } of await this.#cases(['multi-stream'])) {
      const setting = { input, streams, bytes: sizeOf(input, roomy), repeat: this.#context.repeat };
      await this.#inTurns('replay', of, [
        ...this.#peerReplays([rmmPool, rmmArena, ...(streams === 'single' ? [offsetAllocator] : [])], setting),
        ...this.#ourReplays([...pools, arena], setting),
      ]);
    }
  }

  async capacity() {
    for (const { of, streams, input } of await this.#cases(['multi-stream', 'arrow-etl'])) {
      const peers = [rmmPool, rmmArena, ...(streams === 'single' ? [offsetAllocator] : [])].map(({ subject, word }) =>
        this.#peer(subject, 'capacity', word, input.csv, { streams, step: precision }, capacityOf, capacityTimeout),
      );
      const ours = [deferredPool, arena, virtualPool].map(({ subject, specification: resource }) => ({
        subject,
        measure: async () => capacityOf(await runSubject('capacity', { trace: input.path, resource, streams, precision }, capacityTimeout)),
      }));
      await this.#inTurns('capacity', of, [...peers, ...ours], 1);
    }
  }

  async streams() {
    for (const count of this.#context.isQuick ? [8, 512] : [1, 8, 64, 512, 4096]) {
      const path = join(this.#folder, `streams-${count}.csv`);
      writeStreamTrace(count, path);
      const input = await this.#input(path);
      for (const [section, factor] of /** @type {const} */ ([
        ['streams, roomy', roomy],
        ['streams, tight', tight],
      ])) {
        // Few, since RMM's pool takes microseconds for each operation.
        const repeat = Math.min(this.#context.repeat, 3);
        const setting = { input, streams: /** @type {const} */ ('log'), bytes: sizeOf(input, factor), repeat };
        await this.#inTurns(section, String(count), [
          ...this.#peerReplays([rmmPool, rmmArena], setting),
          ...this.#ourReplays([...timedPools, arena], setting),
        ]);
      }
      rmSync(path);
    }
  }

  async holes() {
    const { isQuick, repeat } = this.#context;
    for (const holes of isQuick ? [100, 10_000, 1_000_000] : [100, 1000, 10_000, 100_000, 1_000_000]) {
      await this.#inTurns('holes', String(holes), [
        ...this.#peersAmong('holes', holes, ({ pair }) => pair),
        ...timedPools.map(({ subject, events }) => ({
          subject,
          measure: async () => (await runSubject('holes', { subject: 'pool', events, holes, repeat }, timeout)).pair,
        })),
      ]);
    }
  }

  async live() {
    const { isQuick, repeat } = this.#context;
    for (const live of isQuick ? [1000, 1_000_000] : [1000, 10_000, 100_000, 1_000_000]) {
      await this.#inTurns('live', String(live), [
        ...this.#peersAmong('live', live, ({ ns }) => ns),
        ...timedPools.map(({ subject, events }) => ({
          subject,
          measure: async () => (await runSubject('live', { events, live, repeat }, timeout)).nanosecondsPerOperation,
        })),
      ]);
    }
  }

  /**
   * RMM's pool, unless it would take minutes, and OffsetAllocator.
   * @param {'holes' | 'live'} command
   * @param {number} blocks
   * @param {(result: any) => Measured} read
   * @returns {Run[]}
   */
  #peersAmong(command, blocks, read) {
    const most = this.#context.isQuick ? 10_000 : 100_000;
    const options = { seconds: 0.3 };
    const isLinear = new Error(`linear in the blocks, so not measured among more than ${most.toLocaleString('en')}`);
    return [
      blocks > most
        ? { subject: rmmPool.subject, measure: () => Promise.reject(isLinear) }
        : this.#peer(rmmPool.subject, command, rmmPool.word, blocks, options, read),
      this.#peer(offsetAllocator.subject, command, offsetAllocator.word, blocks, options, read),
    ];
  }

  /**
   * Measures all in turns, `rounds` times, each in a fresh process.
   * @param {Section} section
   * @param {string} of
   * @param {readonly Run[]} runs
   * @param {number} [rounds]
   */
  async #inTurns(section, of, runs, rounds = this.#context.rounds) {
    const turns = runs.map((each) => ({
      ...each,
      results: /** @type {Measured[]} */ ([]),
      reason: /** @type {string | undefined} */ (undefined),
    }));
    for (let round = 0; round < rounds; round++) {
      for (const turn of turns.filter(({ reason }) => reason === undefined)) {
        this.#context.progress(`${section}, ${of}: ${turn.subject}`);
        try {
          turn.results.push(await turn.measure());
        } catch (error) {
          turn.reason = reasonOf(error);
        }
      }
    }
    for (const { subject, results, reason } of turns) {
      const measured = reason === undefined ? folded(results) : undefined;
      this.rows.push({ section, of, subject, measured, reason, judgements: [] });
    }
  }

  /**
   * Every trace on one stream; some on their own streams as well, and arrow-etl, which has none, on
   * one for each thread.
   * @param {readonly string[]} onStreams
   */
  async #cases(onStreams) {
    /** @type {{ of: string, streams: ReplayStreams, input: Input }[]} */
    const cases = [];
    for (const trace of this.#context.traces) {
      const input = await this.#input(trace.path);
      cases.push({ of: trace.name, streams: 'single', input });
      if (!onStreams.includes(trace.name)) continue;
      const streams = trace.name === 'arrow-etl' ? 'thread' : 'log';
      cases.push({ of: `${trace.name} (streams)`, streams, input });
    }
    return cases;
  }

  /** @param {string} path @returns {Promise<Input>} */
  async #input(path) {
    const known = this.#inputs.get(path);
    if (known !== undefined) return known;
    let csv = path;
    if (path.endsWith('.gz')) {
      csv = join(this.#folder, `${this.#inputs.size}.csv`);
      writeFileSync(csv, gunzipSync(readFileSync(path)));
    }
    const { peakLiveBytes } = await this.#context.cistern.readAllocationLog(path);
    const input = { path, csv, peakLiveBytes };
    this.#inputs.set(path, input);
    return input;
  }

  /**
   * @param {readonly { subject: string, word: string }[]} subjects
   * @param {Setting} setting
   */
  #peerReplays(subjects, { input, streams, bytes, repeat }) {
    const options = { streams, initial: bytes, maximum: bytes, repeat, warm: 1 };
    return subjects.map(({ subject, word }) => this.#peer(subject, 'replay', word, input.csv, options, ({ ns }) => ns));
  }

  /**
   * @param {readonly { subject: string, specification: string }[]} subjects
   * @param {Setting} setting
   * @returns {Run[]}
   */
  #ourReplays(subjects, { input, streams, bytes, repeat }) {
    return subjects.map(({ subject, specification }) => {
      const resource = specification.replaceAll('SIZE', String(bytes));
      const parameters = { trace: input.path, subject: 'specified', resource, streams, repeat };
      return { subject, measure: async () => (await runSubject('replay', parameters, timeout)).nanosecondsPerOperation };
    });
  }

  /**
   * @param {string} subject
   * @param {Parameters<Peers['run']>[0]} command
   * @param {string} word
   * @param {string | number} target
   * @param {import('../support/peers.mjs').Options} options
   * @param {(result: any) => Measured} read
   * @param {number} [limit]
   * @returns {Run}
   */
  #peer(subject, command, word, target, options, read, limit = timeout) {
    return { subject, measure: async () => read(await this.#peers.run(command, word, target, options, limit)) };
  }
}

/** What several processes measured, as one. @param {readonly Measured[]} results @returns {Measured} */
function folded(results) {
  if (results.length === 1) return results[0];
  const medians = results.flatMap(({ median }) => median ?? []);
  return { minimum: Math.min(...results.map(({ minimum }) => minimum)), median: figuresOf(medians).median };
}

/** @param {Input} input @param {number} factor */
function sizeOf({ peakLiveBytes }, factor) {
  return Math.ceil((peakLiveBytes * factor) / 256) * 256;
}

/** @param {any} result @returns {Measured} */
function capacityOf({ capacity, always }) {
  return { minimum: capacity, always };
}

/** @param {any} error of a process @returns {string} */
function reasonOf(error) {
  if (error.killed) return 'took too long';
  if (/out of memory|out_of_memory|Exhausted/.test(error.stderr)) return 'out of memory';
  const lines = String(error.stderr || error.message)
    .trim()
    .split('\n');
  return (lines.find((line) => /Error( \[\w+\])?: |what\(\): /.test(line)) ?? lines[0]).trim();
}

/**
 * Compares rows with the limits.
 * @param {readonly PeersRow[]} rows
 * @param {any} limits
 */
function judge(rows, limits) {
  /** @param {PeersRow} row @param {string} subject @param {string} [of] */
  const minimumOf = (row, subject, of = row.of) =>
    rows.find((each) => each.section === row.section && each.of === of && each.subject === subject)?.measured?.minimum;
  for (const row of rows) {
    const minimum = row.measured?.minimum;
    const isPool = row.subject.startsWith('pool');
    if (minimum === undefined || (!isPool && row.subject !== 'arena')) continue;
    /** @param {string} against @param {number | undefined} reference @param {number | undefined} limit */
    const compare = (against, reference, limit) => {
      if (reference === undefined || limit === undefined) return;
      const value = minimum / reference;
      row.judgements.push({ against, value, limit, met: value <= limit + 1e-9 });
    };
    const trace = row.of.replace(' (streams)', '');
    if (row.section === 'replay' && isPool)
      compare(
        rmmPool.subject,
        minimumOf(row, rmmPool.subject),
        row.subject === 'pool eager' ? limits.eager : (limits.times[trace] ?? limits.time),
      );
    if (row.section.startsWith('streams') && row.of !== '8') compare('8 streams', minimumOf(row, row.subject, '8'), limits.growth);
    if (row.section === 'holes' && row.of !== '100') compare('100 holes', minimumOf(row, row.subject, '100'), limits.growth);
    if (row.section === 'capacity' && row.subject === arena.subject) compare(rmmArena.subject, minimumOf(row, rmmArena.subject), 1);
    if (row.section === 'capacity' && row.subject === deferredPool.subject) compare('peak', 1, limits.poolCapacity[row.of]);
    if (row.section === 'capacity' && row.subject === virtualPool.subject) compare('peak', 1, limits.virtualCapacity[row.of]);
  }
}

/** @param {PeersRow[]} rows */
export function format(rows) {
  const tables = [...new Set(rows.map(({ section }) => section))].map((section) =>
    formatSection(
      section,
      rows.filter((row) => row.section === section),
    ),
  );
  const judged = rows.flatMap((row) => row.judgements.map((judgement) => ({ row, judgement })));
  const targets = formatTable(
    ['section', 'of', 'subject', 'against', 'value', 'limit', 'met'],
    judged.map(({ row, judgement: { against, value, limit, met } }) => [
      row.section,
      row.of,
      row.subject,
      against,
      value.toFixed(value < 1 ? 3 : 2),
      String(limit),
      met ? 'yes' : 'NO',
    ]),
    4,
  );
  return [...tables, `targets, ratios of minima\n\n${targets}`, formatLeftOut(rows)].join('\n');
}

/** One row for each trace or number, one column for each subject. @param {Section} section @param {readonly PeersRow[]} rows */
function formatSection(section, rows) {
  const subjects = [...new Set(rows.map(({ subject }) => subject))];
  const isCapacity = section === 'capacity';
  const lines = [...new Set(rows.map(({ of }) => of))].map((of) => [
    of,
    ...subjects.map((subject) => {
      const measured = rows.find((row) => row.of === of && row.subject === subject)?.measured;
      if (measured === undefined) return '-';
      return isCapacity ? `${formatNumber(measured.minimum, 4)} (${formatNumber(measured.always, 4)})` : formatNumber(measured.minimum);
    }),
  ]);
  const unit = isCapacity ? 'smallest over the peak, in brackets from where on all complete' : 'ns';
  return `${section}, ${unit}\n\n${formatTable([section, ...subjects], lines)}`;
}

/** @param {readonly PeersRow[]} rows */
function formatLeftOut(rows) {
  /** @type {Map<string, string[]>} */
  const places = new Map();
  for (const { section, of, subject, reason } of rows) {
    if (reason === undefined) continue;
    const key = `${subject}: ${reason}`;
    places.set(key, [...(places.get(key) ?? []), `${section} ${of}`]);
  }
  if (places.size === 0) return '';
  return `left out\n\n${[...places].map(([key, where]) => `  ${key} (${where.join('; ')})\n`).join('')}`;
}
