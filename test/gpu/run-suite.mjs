/** Runs files of tests, ends what hangs, and counts results. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { appendFileSync, createWriteStream, mkdtempSync, readFileSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../..', import.meta.url));
const vitest = join(root, 'node_modules', 'vitest', 'vitest.mjs');
const reporter = fileURLToPath(new URL('result-reporter.mjs', import.meta.url));
/** Longer than any test takes, unless something hangs. */
const longestTestMilliseconds = 5 * 60_000;
/** Vitest itself starts before the first test. */
const shortestStartMilliseconds = 60_000;
const signals = ['SIGINT', 'SIGTERM', 'SIGHUP'];
/** The name in lines about a file, which report-progress.ts and result-reporter.mjs write. */
export const fileItself = 'the file itself';

/**
 * @typedef {object} SuiteResult
 * @property {number} passed
 * @property {{ file: string, name: string, message: string }[]} failures also the tests that began and
 * did not end, and a suite that did not end
 * @property {Map<string, number>} skips how many tests were skipped, by the reason
 * @property {number} seconds
 * @property {'hangs' | 'out of time' | undefined} stopped why it was ended, if it was
 * @property {object[]} lines what result-reporter.mjs and report-progress.ts wrote
 */

/**
 * @param {string} name a suite of suites.mjs
 * @param {Record<string, string>} environment
 * @param {string} log the file for vitest's output
 * @returns {Promise<SuiteResult>}
 */
export function runSuite(name, environment, log) {
  return runTests(['--project', `gpu-${name}`], environment, log, longestTestMilliseconds);
}

/**
 * Runs vitest. If no test begins or ends for some time, it is ended with all processes that it, or
 * a test, has started.
 * @param {readonly string[]} which arguments of vitest
 * @param {Record<string, string>} environment
 * @param {string} log the file for vitest's output
 * @param {number} longestMilliseconds
 * @returns {Promise<SuiteResult>}
 */
export async function runTests(which, environment, log, longestMilliseconds) {
  const scratch = mkdtempSync(join(tmpdir(), 'cistern-suite-'));
  try {
    return await runTestsInto(join(scratch, 'results'), which, environment, log, longestMilliseconds, Number.POSITIVE_INFINITY);
  } finally {
    rmSync(scratch, { recursive: true });
  }
}

/**
 * As `runTests`, and each line is at the end of the file `results` as soon as its test ends.
 * @param {number} end when to end it whatever it does, on the clock of `performance.now()`
 */
export async function runTestsInto(results, which, environment, log, longestMilliseconds, end) {
  appendFileSync(results, '');
  const before = statSync(results).size;
  const started = performance.now();
  const command = [vitest, 'run', ...which, '--reporter=default', `--reporter=${reporter}`];
  const env = { ...process.env, ...environment, CISTERN_TEST_RESULTS: results, NO_COLOR: '1' };
  const { status, stopped } = await runWatched(command, env, log, results, longestMilliseconds, end);
  const lines = linesOf(readFileSync(results).subarray(before));
  const failures = lines.filter(({ state }) => state === 'failed').map(({ file, name, message }) => ({ file, name, message }));
  const hasEnded = stopped === undefined && lines.some(({ end }) => end !== undefined) && (status === 0 || failures.length > 0);
  const way = stopped === 'hangs' ? `no test began or ended for ${longestMilliseconds / 1000} s` : `vitest ended with ${status}`;
  if (stopped !== 'out of time') failures.push(...unfinished(lines, hasEnded ? undefined : `${way}; see ${log}`));
  const skips = new Map();
  for (const { state, note = 'not said why' } of lines) if (state === 'skipped') skips.set(note, (skips.get(note) ?? 0) + 1);
  return {
    passed: lines.filter(({ state }) => state === 'passed').length,
    failures,
    skips,
    seconds: (performance.now() - started) / 1000,
    stopped,
    lines,
  };
}

/** @param {Buffer | string} text lines of JSON, of which a cut may have left a part of the last one */
export function linesOf(text) {
  return text
    .toString()
    .split('\n')
    .flatMap((line) => {
      try {
        return [JSON.parse(line)];
      } catch {
        return [];
      }
    });
}

/**
 * Runs Node in a process group of its own, and in the end kills what is left of the group: a process
 * that lives on would hold memory of the device.
 */
async function runWatched(command, env, log, results, longestMilliseconds, end) {
  const child = spawn(process.execPath, command, { cwd: root, env, detached: true, stdio: ['ignore', 'pipe', 'pipe'] });
  const output = createWriteStream(log, { flags: 'a' });
  for (const stream of [child.stdout, child.stderr]) stream.pipe(output, { end: false });
  const endGroup = () => {
    try {
      process.kill(-child.pid, 'SIGKILL');
    } catch {} // All of it has ended.
  };
  const stop = () => process.exit(1);
  process.on('exit', endGroup);
  for (const signal of signals) process.on(signal, stop);
  const first = statSync(results).size;
  let size = first;
  let progressed = performance.now();
  let stopped;
  const watch = setInterval(() => {
    const now = performance.now();
    const before = size;
    size = statSync(results).size;
    if (size !== before) progressed = now;
    const longest = size > first ? longestMilliseconds : Math.max(longestMilliseconds, shortestStartMilliseconds);
    if (now > end) stopped = 'out of time';
    else if (now - progressed > longest) stopped = 'hangs';
    if (stopped !== undefined) endGroup();
  }, 200);
  const closed = once(child, 'close');
  const [code, signal] = await once(child, 'exit');
  clearInterval(watch);
  endGroup();
  await closed;
  output.end();
  process.off('exit', endGroup);
  for (const each of signals) process.off(each, stop);
  return { status: signal ?? code, stopped };
}

/**
 * What is no failure of a test, but one of the suite: tests that began and did not end, or, without
 * one, that the suite did not.
 * @param {string | undefined} end how the suite ended, if not with a result
 */
function unfinished(lines, end) {
  const idOf = ({ file, name }) => `${file} > ${name}`;
  const begun = lines.filter(({ progress }) => progress === 'began');
  const over = new Set(lines.filter(({ state, progress }) => state !== undefined || progress === 'ended').map(idOf));
  const failures = begun
    .filter((line) => line.name !== fileItself && !over.has(idOf(line)))
    .map(({ file, name }) => ({ file, name, message: `began and did not end${end === undefined ? '' : `: ${end}`}` }));
  if (failures.length > 0 || end === undefined) return failures;
  const last = begun.at(-1);
  return [
    { file: '', name: 'the suite', message: `${end}; ${last === undefined ? 'no test began' : `the last that began was ${idOf(last)}`}` },
  ];
}

/** The number of skipped tests. */
export function skippedOf({ skips }) {
  return [...skips.values()].reduce((sum, count) => sum + count, 0);
}

/** Lines about the failures, for people. */
export function failureLines({ failures }) {
  return failures.map(({ file, name, message }) => `  ${file} > ${name}\n      ${(message ?? '').split('\n', 3).join('\n      ')}`);
}
