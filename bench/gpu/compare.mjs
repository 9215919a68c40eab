/**
 * The same real logs through cistern, PyTorch's allocator and CuPy's pools, on one GPU in one run: `node bench/gpu/compare.mjs`. Each subject is
 * a process of its own, since PyTorch reads its settings once. What is not installed is skipped with a sentence.
 */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { importCistern } from '../support/cistern.mjs';
import { formatNumber } from '../support/figures.mjs';
import { formatTable } from '../support/table.mjs';
import { findTraces } from '../support/traces.mjs';

/**
 * What a subject says about a log.
 * @typedef {object} Answer
 * @property {string} log
 * @property {number} operations
 * @property {number} peakBytes that were live at once
 * @property {number} nanoseconds of an operation, in the fastest of the rounds
 * @property {number} firstNanoseconds in the first one, in which the memory comes from the device
 * @property {number} loopNanoseconds what the loop takes by itself in that language
 * @property {number} [driverCalls] in the last round
 * @property {number} [reservedBytes] most that was held of the device in all rounds
 * @property {number | string} [capacity] the smallest limit under which the log completes, over its peak of live bytes; or why it was not found
 */
/** @typedef {Answer & { subject: string }} Row */

const logNames = ['torch-ddp-training', 'torch-owlv2-inference', 'arrow-etl'];
const cisternSubjects = ['cistern pool, deferred', 'cistern pool, eager', 'cistern cuda-async'];
const peerSubjects = ['torch native', 'torch expandable_segments', 'torch cudaMallocAsync', 'cupy MemoryPool', 'cupy MemoryAsyncPool'];

const { values } = parseArgs({
  options: {
    seconds: { type: 'string', default: '60' },
    rounds: { type: 'string', default: '5' },
    operations: { type: 'string', default: 'Infinity' },
    log: { type: 'string', multiple: true, default: logNames },
    python: { type: 'string', default: 'python3' },
    json: { type: 'boolean', default: false },
    help: { type: 'boolean', default: false },
  },
});
if (values.help) {
  console.log(`usage: node bench/gpu/compare.mjs [--seconds 60] [--rounds 5] [--operations N] [--log NAME …] [--python python3] [--json]

--operations N replays only the first ones of each log.
CISTERN_DEVICE chooses the device; CISTERN_TRACES is a folder of logs that are not in the repository: ${logNames.join(', ')}`);
  process.exit();
}

const end = performance.now() + 1000 * Number(values.seconds);
/** @type {string[]} */
const skipped = [];
const cistern = await importCistern();
const device = cistern.Device.get();
const folder = mkdtempSync(join(tmpdir(), 'cistern-compare-'));
try {
  const logs = await writeLogs();
  const subjects = [...cisternSubjects, ...peerSubjects];
  const rows = logs.length === 0 ? [] : subjects.flatMap((subject, i) => answersOf(subject, logs, subjects.length - i));
  const report = { device: device.name, rows, skipped };
  console.log(
    values.json ? JSON.stringify(report) : `${report.device}\n\n${format(rows)}\n${skipped.map((each) => `skipped: ${each}\n`).join('')}`,
  );
} finally {
  rmSync(folder, { recursive: true });
}

/** Writes the logs that fit twice into the device's memory, in a form that both languages read. @returns {Promise<string[]>} their paths */
async function writeLogs() {
  const { freeBytes } = device.memoryInfo();
  const paths = [];
  for (const { name, path } of findTraces(values.log, (reason) => skipped.push(reason))) {
    const log = operationsOf(await cistern.readAllocationLog(path), Number(values.operations));
    if (2 * log.peakBytes > freeBytes) {
      const [needed, free] = [2 * log.peakBytes, freeBytes].map((bytes) => cistern.formatBytes(bytes));
      skipped.push(`log ${name}: it is replayed on a device with ${needed} of free memory, and this one has ${free}`);
      continue;
    }
    const file = join(folder, `${name}.json`);
    writeFileSync(file, JSON.stringify({ name, ...log }));
    paths.push(file);
  }
  return paths;
}

/**
 * Each operation as a number: n allocates the bytes of `sizes[n]`, and ~n frees them.
 * @param {import('../../src/tools/replay/index.js').AllocationLog} log
 * @param {number} most
 */
function operationsOf(log, most) {
  const operations = [];
  const sizes = [];
  const numberOfSlot = new Int32Array(log.slotCount);
  let [liveBytes, peakBytes] = [0, 0];
  for (const chunk of log.chunks) {
    for (let row = 0; row < chunk.count && operations.length < most; row++) {
      const operation = /** @type {number} */ (chunk.operations[row]);
      const bytes = /** @type {number} */ (chunk.sizes[row]);
      if (operation < 0) {
        operations.push(~(/** @type {number} */ (numberOfSlot[~operation])));
        liveBytes -= bytes;
        continue;
      }
      numberOfSlot[operation] = sizes.length;
      operations.push(sizes.length);
      sizes.push(bytes);
      liveBytes += bytes;
      peakBytes = Math.max(peakBytes, liveBytes);
    }
  }
  return { peakBytes, operations, sizes };
}

/**
 * Runs a subject in its share of the time that is left.
 * @param {string} subject
 * @param {readonly string[]} logs
 * @param {number} subjectsLeft
 * @returns {Row[]}
 */
function answersOf(subject, logs, subjectsLeft) {
  const seconds = (end - performance.now()) / 1000 / subjectsLeft;
  const isOwn = subject.startsWith('cistern ');
  const program = fileURLToPath(new URL(isOwn ? 'through-cistern.mjs' : 'through_peers.py', import.meta.url));
  const { status, stdout, stderr, error } = spawnSync(
    isOwn ? process.execPath : values.python,
    [program, subject, values.rounds, String(seconds), ...logs],
    { encoding: 'utf8', timeout: Math.max(1, Math.round(1000 * (2 * seconds + 5))), killSignal: 'SIGKILL' },
  );
  const lines = (stdout ?? '').split('\n').filter((line) => line.startsWith('{'));
  const answers = lines.map((line) => JSON.parse(line));
  const reason = answers.find((answer) => answer.skipped !== undefined)?.skipped;
  const failure = error?.message ?? stderr.match(/^\w*Error\b.*/m)?.[0] ?? `it ended with ${status}`;
  if (reason !== undefined || status !== 0) skipped.push(`${subject}: ${reason ?? failure}`);
  // A log that has been answered counts, also if a later one was not.
  return answers.filter(({ log }) => log !== undefined).map((answer) => ({ subject, ...answer }));
}

/** @param {readonly Row[]} rows */
function format(rows) {
  return formatTable(
    ['log', 'subject', 'ns/op', 'first', 'loop', 'calls', 'reserved MiB', 'capacity'],
    rows
      .toSorted((a, b) => logNames.indexOf(a.log) - logNames.indexOf(b.log))
      .map((row) => [
        row.log,
        row.subject,
        formatNumber(row.nanoseconds, 0),
        formatNumber(row.firstNanoseconds, 0),
        formatNumber(row.loopNanoseconds, 0),
        formatNumber(row.driverCalls, 0),
        row.reservedBytes === undefined ? '-' : formatNumber(row.reservedBytes / 2 ** 20, 0),
        typeof row.capacity === 'number' ? row.capacity.toFixed(3) : (row.capacity ?? '-'),
      ]),
    2,
  );
}
