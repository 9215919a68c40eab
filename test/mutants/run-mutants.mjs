// `npm run mutants [-- name…]` puts one fault after another into a copy of the tree, and runs the tests that must notice it. `-- --list` tells
// what there is. The exit status is 0 only if a failing assertion or a thrown error killed every mutant; a run that had to be ended by time
// did not.
import { spawn } from 'node:child_process';
import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { constants, setPriority, tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';
import { mutants } from './mutants.mjs';

const root = fileURLToPath(new URL('../..', import.meta.url));
const scratch = mkdtempSync(join(tmpdir(), 'cistern-mutants-'));
const copied = ['src', 'test', 'package.json', 'tsconfig.json', 'vitest.config.ts'];
const linked = ['build', 'dist', 'node_modules'];
const runsAtATime = 2;
const testLimitMilliseconds = 10_000;
const fileLimitMilliseconds = 60_000;

/** Process groups of test runs, which are ended with this one. */
const running = new Set();

function end(pid) {
  try {
    process.kill(-pid, 'SIGKILL');
  } catch {} // It has ended already.
}

process.on('exit', () => {
  for (const pid of running) end(pid);
  rmSync(scratch, { recursive: true, force: true });
});
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(signal, () => process.exit(1));

/** What is wrong with the list itself: it must say of every mutant where it goes, once. */
function faultsOfList(chosen) {
  const faults = [];
  const names = new Set();
  for (const { name, file, text, replacement, tests } of chosen) {
    const path = join(root, file);
    const count = existsSync(path) ? readFileSync(path, 'utf8').split(text).length - 1 : 0;
    if (count === 0) faults.push(`${name}: ${file} does not have its text any more:\n${text}`);
    if (count > 1) faults.push(`${name}: ${file} has its text ${count} times:\n${text}`);
    if (text === replacement) faults.push(`${name} changes nothing`);
    if (names.has(name)) faults.push(`${name}: two mutants have this name`);
    names.add(name);
    for (const test of tests) if (!existsSync(join(root, test))) faults.push(`${name}: there is no ${test}`);
  }
  return faults;
}

function makeCopy(number) {
  const copy = join(scratch, `copy-${number}`);
  for (const name of copied) cpSync(join(root, name), join(copy, name), { recursive: true });
  for (const name of linked) symlinkSync(join(root, name), join(copy, name));
  return copy;
}

/** Runs test files until the first test fails. Resolves with what there is to say of the tests that failed, and of the run. */
function runTests(copy, tests) {
  const report = join(copy, 'report.json');
  rmSync(report, { force: true });
  const vitest = join(root, 'node_modules', 'vitest', 'vitest.mjs');
  const options = [
    '--bail=1',
    '--no-file-parallelism',
    `--testTimeout=${testLimitMilliseconds}`,
    '--reporter=json',
    `--outputFile=${report}`,
  ];
  const child = spawn(process.execPath, [vitest, 'run', '--project=unit', '--project=gc', ...options, ...tests], {
    cwd: copy,
    detached: true,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  running.add(child.pid);
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (data) => {
      output = (output + data).slice(-4000);
    });
  }
  let isOverTime = false;
  const timer = setTimeout(() => {
    isOverTime = true;
    end(child.pid);
  }, fileLimitMilliseconds * tests.length);
  return new Promise((resolve) => {
    child.on('close', (status) => {
      clearTimeout(timer);
      end(child.pid);
      running.delete(child.pid);
      const { testResults = [] } = existsSync(report) ? JSON.parse(readFileSync(report, 'utf8')) : {};
      const failed = testResults.flatMap(({ assertionResults }) => assertionResults.filter((result) => result.status === 'failed'));
      resolve({ status, isOverTime, failed, output: `${testResults.map(({ message }) => message).join('\n')}${output}` });
    });
  });
}

/** Puts a mutant into a copy, tests it, and takes it out again. */
async function runMutant({ file, text, replacement, tests }, copy) {
  const path = join(copy, file);
  const original = readFileSync(path, 'utf8');
  const mutated = original.replace(text, () => replacement);
  writeFileSync(path, mutated);
  const beganAt = performance.now();
  const { status, isOverTime, failed, output } = await runTests(copy, tests);
  const seconds = (performance.now() - beganAt) / 1000;
  writeFileSync(path, original);
  const [first] = failed;
  if (isOverTime) return { isKilled: false, verdict: `hangs: ended after ${seconds.toFixed(0)} s`, seconds };
  if (first === undefined)
    return { isKilled: false, verdict: status === 0 ? 'survives' : `no test failed, but the run did: ${output}`, seconds };
  const [message = ''] = first.failureMessages;
  if (/timed out in \d+ ?ms/.test(message)) return { isKilled: false, verdict: `a time-out only: ${first.fullName}`, seconds };
  // A mutant that is no program any more says nothing of the tests.
  if (/^(ReferenceError|SyntaxError)|Cannot read properties|is not a function/.test(message))
    return { isKilled: false, verdict: `a broken program only: ${message.split('\n')[0]}`, seconds };
  return { isKilled: true, verdict: first.fullName, error: message.split('\n')[0], seconds };
}

function formatTable(head, rows) {
  const cells = (row) => `| ${row.map((cell) => String(cell).replaceAll('|', '\\|').replaceAll('\n', ' ')).join(' | ')} |`;
  return [cells(head), cells(head.map(() => '---')), ...rows.map(cells)].join('\n');
}

async function main(names) {
  const unknown = names.filter((name) => !mutants.some((mutant) => mutant.name === name));
  if (unknown.length > 0) throw new Error(`there is no mutant ${unknown.join(', ')}`);
  const chosen = names.length === 0 ? mutants : mutants.filter(({ name }) => names.includes(name));
  const faults = faultsOfList(chosen);
  if (faults.length > 0) throw new Error(`the list of mutants is wrong:\n${faults.join('\n')}`);
  const beganAt = performance.now();
  setPriority(constants.priority.PRIORITY_BELOW_NORMAL);

  const copies = Array.from({ length: Math.min(runsAtATime, chosen.length) }, (_, number) => makeCopy(number));
  const tests = [...new Set(chosen.flatMap((mutant) => mutant.tests))];
  const shares = copies
    .map((copy, number) => [copy, tests.filter((_, i) => i % copies.length === number)])
    .filter(([, share]) => share.length > 0);
  for (const { status, failed, output } of await Promise.all(shares.map(([copy, share]) => runTests(copy, share)))) {
    if (status !== 0)
      throw new Error(`without a mutant ${failed[0]?.fullName ?? 'the tests'} must not fail:\n${failed[0]?.failureMessages[0] ?? output}`);
  }
  process.stderr.write(`${tests.length} test files pass without a mutant\n`);

  const results = new Map();
  const waiting = [...chosen];
  const work = async (copy) => {
    for (let mutant = waiting.shift(); mutant !== undefined; mutant = waiting.shift()) {
      const result = await runMutant(mutant, copy);
      results.set(mutant, result);
      const verdict = result.isKilled ? `killed: ${result.error}` : `NOT KILLED: ${result.verdict}`;
      process.stderr.write(`${results.size}/${chosen.length} ${mutant.name} ${result.seconds.toFixed(1)} s, ${verdict}\n`);
    }
  };
  await Promise.all(copies.map(work));

  const rows = chosen.map((mutant) => {
    const { isKilled, verdict, seconds } = results.get(mutant);
    return [mutant.name, mutant.fault, isKilled ? verdict : `**not killed**: ${verdict}`, `${seconds.toFixed(1)} s`];
  });
  const isKilled = (mutant) => results.get(mutant).isKilled;
  const files = [...new Set(chosen.map(({ file }) => file))].map((file) => {
    const ofFile = chosen.filter((mutant) => mutant.file === file);
    return [`\`${file}\``, ofFile.length, ofFile.filter(isKilled).length];
  });
  const killed = chosen.filter(isKilled).length;
  console.log(formatTable(['mutant', 'fault', 'killed by', 'time'], rows));
  console.log(`\n${formatTable(['file', 'mutants', 'killed'], files)}`);
  console.log(`\n${killed} of ${chosen.length} mutants killed in ${((performance.now() - beganAt) / 1000).toFixed(0)} s`);
  return killed === chosen.length ? 0 : 1;
}

const names = process.argv.slice(2);
if (names.includes('--list')) {
  for (const { name, file, fault } of mutants) console.log(`${name.padEnd(36)} ${file}: ${fault}`);
} else {
  try {
    process.exitCode = await main(names);
  } catch (error) {
    console.error(error.message);
    process.exitCode = 1;
  }
}
