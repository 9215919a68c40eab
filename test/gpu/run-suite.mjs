/** Runs one of the suites for a CUDA device, and counts results. */
import { spawn } from 'node:child_process';
import { createWriteStream, existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../..', import.meta.url));
const vitest = join(root, 'node_modules', 'vitest', 'vitest.mjs');
const reporter = fileURLToPath(new URL('result-reporter.mjs', import.meta.url));
/** Longer than any suite takes, unless something hangs. */
const longestMilliseconds = 20 * 60_000;

/**
 * @typedef {object} SuiteResult
 * @property {number} passed
 * @property {{ file: string, name: string, message: string }[]} failures
 * @property {Map<string, number>} skips how many tests were skipped, by the reason
 * @property {string} end how vitest ended, if not by itself with a result
 * @property {number} seconds
 */

/**
 * @param {string} name a suite of suites.mjs
 * @param {Record<string, string>} environment
 * @param {string} log the file for vitest's output
 * @returns {Promise<SuiteResult>}
 */
export async function runSuite(name, environment, log) {
  const scratch = mkdtempSync(join(tmpdir(), 'cistern-suite-'));
  const results = join(scratch, 'results');
  const started = performance.now();
  const env = { ...process.env, ...environment, CISTERN_TEST_RESULTS: results, NO_COLOR: '1' };
  const child = spawn(process.execPath, [vitest, 'run', '--project', `gpu-${name}`, '--reporter=default', `--reporter=${reporter}`], {
    cwd: root,
    env,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const output = createWriteStream(log, { flags: 'a' });
  for (const stream of [child.stdout, child.stderr]) stream.pipe(output, { end: false });
  const timer = setTimeout(() => child.kill('SIGKILL'), longestMilliseconds);
  const status = await new Promise((resolve) => {
    child.once('close', (code, signal) => resolve(signal ?? code));
  });
  clearTimeout(timer);
  output.end();
  const lines = existsSync(results)
    ? readFileSync(results, 'utf8')
        .split('\n')
        .filter(Boolean)
        .map((line) => JSON.parse(line))
    : [];
  rmSync(scratch, { recursive: true });
  const skips = new Map();
  for (const { state, note = 'not said why' } of lines) if (state === 'skipped') skips.set(note, (skips.get(note) ?? 0) + 1);
  const failures = lines.filter(({ state }) => state === 'failed').map(({ file, name, message }) => ({ file, name, message }));
  const hasEnded = lines.some(({ end }) => end !== undefined) && (status === 0 || failures.length > 0);
  return {
    passed: lines.filter(({ state }) => state === 'passed').length,
    failures,
    skips,
    end: hasEnded ? '' : `vitest ended with ${status}; see ${log}`,
    seconds: (performance.now() - started) / 1000,
  };
}

/** The number of skipped tests. */
export function skippedOf({ skips }) {
  return [...skips.values()].reduce((sum, count) => sum + count, 0);
}

/** Whether nothing failed, and the suite ran to its end. */
export function isGood({ failures, end }) {
  return failures.length === 0 && end === '';
}

/** Lines about the failures, for people. */
export function failureLines({ failures, end }) {
  const lines = failures.map(({ file, name, message }) => `  ${file} > ${name}\n      ${(message ?? '').split('\n', 3).join('\n      ')}`);
  return end === '' ? lines : [...lines, `  ${end}`];
}
