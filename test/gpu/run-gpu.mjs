/**
 * Runs the tests on a GPU: `npm run test:gpu -- [--out FOLDER] [--seconds N] [--longest N] [--probes all|NAME,…]
 * [--figures all|NAME,…] [SUITE|FILE …]`, or, from a bundle (scripts/bundle.mjs), `./run …`; see docs/gpu.md. A GPU may be there for minutes only, so nothing is lost if this is cut:
 *
 * - each test's line is in `FOLDER/results.jsonl` when the test ends; without `--out`, the folder is `$OUT`, or a new one;
 * - what was never seen on a GPU (seen.json), or not with this code, runs first, then what failed there, then the rest;
 * - a test that hangs, or crashes, costs `--longest` seconds at most, and the files after it run;
 * - with the results of an earlier run in the folder, the files that ended there are not run again, and one that did not end comes last.
 */
import { spawn, spawnSync } from 'node:child_process';
import { appendFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { buildKernels } from '../../scripts/build-for-tests.mjs';
import { togetherOnVisits } from '../support/together.mjs';
import { figures } from './figures.mjs';
import { failureLines, fileItself, linesOf, runTestsInto } from './run-suite.mjs';
import { hashOfDriverCode, hashOfFile, hashOfRow, isCurrent, readSeen, rowsOf } from './seen.mjs';
import { filesOf, gpuSuites, trialSuite, visitOrder } from './suites.mjs';

const root = fileURLToPath(new URL('../..', import.meta.url));
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    out: { type: 'string', default: process.env.OUT ?? mkdtempSync(join(tmpdir(), 'cistern-gpu-')) },
    seconds: { type: 'string', default: '36000' },
    longest: { type: 'string', default: '30' },
    probes: { type: 'string' },
    figures: { type: 'string' },
  },
});
const suites = { ...gpuSuites, trial: trialSuite };
const chosen = chosenFiles();
const endOfAll = performance.now() + 1000 * Number(values.seconds);
mkdirSync(values.out, { recursive: true });
const results = join(values.out, 'results.jsonl');
const log = join(values.out, 'output.txt');
const write = (line) => appendFileSync(results, `${JSON.stringify(line)}\n`);

const doctor = spawnSync(process.execPath, [join(root, 'dist', 'tools', 'cli', 'main.js'), 'doctor', '--device', 'cuda'], {
  encoding: 'utf8',
});
process.stdout.write(doctor.stdout + doctor.stderr);
writeFileSync(join(values.out, 'machine.txt'), doctor.stdout + doctor.stderr + smi());
if (doctor.status !== 0) {
  // Doctor says what is missing; if it has not run at all, this is no answer about the machine.
  const hasAnswered = doctor.status === 1 && doctor.stdout.includes('no CUDA');
  console.log(
    hasAnswered ? '\nno GPU can be used here: nothing was run' : '\ncistern doctor did not run: nothing is known about this machine',
  );
  process.exit(hasAnswered ? 0 : 1);
}

const isTrial = process.env.STRICT_DRIVER_CONTROL !== undefined;
const earlier = existsSync(results) ? linesOf(readFileSync(results)) : [];
// A cut may have left a part of a line.
if (earlier.length > 0) appendFileSync(results, '\n');
const driverCode = hashOfDriverCode();
const wantedFigures = figuresLeft(values.figures?.split(',') ?? []);
/** Tests end early enough for what is to be measured after them. */
const end = endOfAll - 1000 * wantedFigures.reduce((sum, name) => sum + secondsOf(name), 0);
const environment = {
  CISTERN_TEST_DEVICE: 'cuda',
  ...kernels(),
  // What the driver would load later takes device memory, of which tests count bytes.
  CUDA_MODULE_LOADING: process.env.CUDA_MODULE_LOADING ?? 'EAGER',
};
const keeper = await keepDevice();
write({ visit: { ...keeper.machine, commit: commit(), driverCode, day: new Date().toISOString().slice(0, 10) } });
if (values.probes !== undefined) probe(values.probes.split(','));
for (const [suite, files] of turns()) {
  const apart = files.filter((file) => !togetherOnVisits.includes(file));
  const again = await runTogether(
    suite,
    files.filter((file) => togetherOnVisits.includes(file)),
  );
  await runFiles(suite, [...apart, ...again]);
}
for (const name of wantedFigures) measure(name);
keeper.process.kill('SIGKILL');
process.exit(tell() ? 0 : 1);

/** The files to run, by suite. */
function chosenFiles() {
  const byFile = new Map(Object.entries(suites).flatMap(([name, suite]) => filesOf(suite).map((file) => [file, name])));
  const wanted = positionals.length > 0 ? positionals : visitOrder;
  const unknown = wanted.filter((name) => suites[name] === undefined && !byFile.has(name));
  if (unknown.length > 0) {
    console.error(`there is no suite or test file ${unknown.join(', ')}; the suites are ${Object.keys(gpuSuites).join(', ')}`);
    process.exit(2);
  }
  const filesOfSuites = new Map();
  for (const name of wanted) {
    const suite = suites[name] === undefined ? byFile.get(name) : name;
    const files = suite === name ? filesOf(suites[name]) : [name];
    filesOfSuites.set(suite, [...new Set([...(filesOfSuites.get(suite) ?? []), ...files])]);
  }
  return [...filesOfSuites];
}

/** The files that are left, in runs: vitest sorts the files of a run by itself, so each rank of a suite is a run of its own. */
function turns() {
  const seen = { ...readSeen(), ...current(rowsOf(earlier)) };
  const isDone = current(rowsOf(earlier));
  const begun = new Set(earlier.filter(({ name, progress }) => name === fileItself && progress === 'began').map(({ file }) => file));
  const rankOf = (file) => {
    if (begun.has(file)) return 3;
    if (!isCurrent(file, seen[file], driverCode)) return 0;
    return seen[file].failed > 0 ? 1 : 2;
  };
  return [0, 1, 2, 3].flatMap((rank) =>
    chosen.map(([suite, files]) => [suite, files.filter((file) => isDone[file] === undefined && rankOf(file) === rank)]),
  );
}

/** The rows that speak for this tree. */
function current(rows) {
  return Object.fromEntries(Object.entries(rows).filter(([name, row]) => isCurrent(name, row, driverCode)));
}

/** Runs files of a project, until a test hangs or crashes. */
async function run(project, files) {
  const longest = 1000 * Number(values.longest);
  const which = ['--project', project, ...files, `--testTimeout=${longest}`];
  const result = await runTestsInto(results, which, environment, log, longest, end);
  const progressOf = (what) =>
    new Set(result.lines.filter(({ name, progress }) => name === fileItself && progress === what).map(({ file }) => file));
  return { ...result, begun: progressOf('began'), ended: progressOf('ended') };
}

/**
 * Runs files one after another in a process that they share, which ends with the first that fails; the next ones share a new one.
 * @returns those that failed, which may be due to what an earlier one has left: they count only once they have run by themselves
 */
async function runTogether(suite, files) {
  const again = [];
  let left = files;
  while (left.length > 0 && performance.now() < end) {
    const { begun, ended, lines, passed, seconds, stopped } = await run(`gpu-${suite}-together`, left);
    const hasFailed = new Set(lines.filter(({ state, sofar }) => state === 'failed' || sofar === 'failed').map(({ file }) => file));
    const failed = [...begun].filter((file) => hasFailed.has(file) || !ended.has(file));
    console.log(`${suite}: ${passed} passed in a process that ${begun.size} of ${left.length} files shared, ${seconds.toFixed(0)} s`);
    if (failed.length > 0) console.log(`  by itself again: ${failed.join(', ')}`);
    if (stopped === 'out of time') return [];
    again.push(...failed);
    // If none has begun, each is tried by itself.
    if (begun.size === 0) return [...again, ...left];
    left = left.filter((file) => !begun.has(file));
  }
  return again;
}

/** Runs files until none is left; a run ends early if a test hangs or crashes. */
async function runFiles(suite, files) {
  let left = files;
  while (left.length > 0 && performance.now() < end) {
    const result = await run(`gpu-${suite}`, left);
    const { begun, ended } = result;
    if (result.stopped !== 'out of time') {
      const written = new Set(result.lines.map(({ file, name }) => `${file} > ${name}`));
      for (const file of begun) {
        if (ended.has(file)) continue;
        // The tests that began and did not end; or, if all have, the file itself.
        const broken = result.failures.filter((failure) => failure.file === file && written.has(`${file} > ${failure.name}`));
        const unended = broken.filter(({ message }) => message.startsWith('began and did not end'));
        for (const { name, message } of unended.length > 0 ? unended : [{ name: 'the file', message: 'it began and did not end' }])
          write({ file, name, state: 'failed', message });
        write({ file, name: fileItself, progress: 'ended', hash: hashOfFile(file) });
      }
    }
    const { passed, failures, skips, seconds } = result;
    const skipped = [...skips.values()].reduce((sum, count) => sum + count, 0);
    const counts = [`${passed} passed`, `${failures.length} failed`, `${skipped} skipped`, `${begun.size} of ${left.length} files`];
    console.log(`${suite}: ${counts.join(', ')}, ${seconds.toFixed(0)} s${result.stopped === undefined ? '' : `, ${result.stopped}`}`);
    for (const line of failureLines(result)) console.log(line);
    left = begun.size === 0 ? [] : left.filter((file) => !begun.has(file));
  }
}

/** Asks what only a GPU answers, with no test beside it. */
function probe(asked) {
  const answered = current(rowsOf(earlier));
  const script = join(root, 'test', 'gpu', 'probes.mjs');
  const all = JSON.parse(spawnSync(process.execPath, [script, '--list'], { encoding: 'utf8' }).stdout);
  for (const name of all.filter((each) => asked.includes('all') || asked.includes(each))) {
    if (answered[`probe ${name}`] !== undefined) continue;
    if (performance.now() > end) return;
    const timeout = Math.min(1000 * Number(values.longest), end - performance.now());
    const env = { ...process.env, CISTERN_DEVICE: 'cuda' };
    const { stdout, stderr, status } = spawnSync(process.execPath, [script, name], {
      encoding: 'utf8',
      timeout,
      killSignal: 'SIGKILL',
      env,
    });
    const answer = status === 0 ? JSON.parse(stdout) : { failed: stderr.slice(0, 500) || 'it did not end' };
    console.log(`probe ${name}: ${JSON.stringify(answer)}`);
    write({ probe: name, hash: hashOfFile(script), answer });
  }
}

/** The figures that no run into this folder has. */
function figuresLeft(asked) {
  const answered = current(rowsOf(earlier));
  return Object.keys(figures).filter(
    (name) => (asked.includes('all') || asked.includes(name)) && answered[`figures ${name}`] === undefined,
  );
}

function secondsOf(name) {
  return isTrial ? 20 : figures[name].seconds;
}

/** Runs a program that measures, with nothing beside it. */
function measure(name) {
  const { program, trial } = figures[name];
  const timeout = Math.round(Math.min(1500 * secondsOf(name), endOfAll - performance.now()));
  if (timeout <= 0) return;
  const [command, file, ...args] = program;
  const { stdout, stderr, error, status } = spawnSync(
    command === 'node' ? process.execPath : command,
    [join(root, file), ...args, ...(isTrial ? trial : [])],
    { encoding: 'utf8', timeout, killSignal: 'SIGKILL', env: { ...process.env, CISTERN_DEVICE: 'cuda' } },
  );
  const answer =
    error?.code === 'ENOENT'
      ? { skipped: `${command} is not installed` }
      : status === 0
        ? JSON.parse(stdout.trim().split('\n').at(-1))
        : { failed: error?.message ?? (stderr.trim().slice(-500) || `it ended with ${status}`) };
  console.log(`figures ${name}: ${JSON.stringify(answer)}`);
  write({ figures: name, hash: hashOfRow(`figures ${name}`), answer });
}

/** Prints what is known now, from all runs into this folder, and whether all of it was right. */
function tell() {
  const lines = linesOf(readFileSync(results));
  const rows = current(rowsOf(lines));
  console.log(`\n${'suite'.padEnd(13)} files  passed  failed  skipped  seconds`);
  let isAllGood = true;
  const notRun = [];
  for (const [name, files] of chosen) {
    const ended = files.filter((file) => rows[file] !== undefined);
    notRun.push(...files.filter((file) => rows[file] === undefined));
    const sum = (key) => ended.reduce((total, file) => total + rows[file][key], 0);
    const counts = [`${ended.length}/${files.length}`, sum('passed'), sum('failed'), sum('skipped'), sum('seconds').toFixed(0)];
    console.log(`${name.padEnd(11)}${counts.map((count, i) => String(count).padStart([8, 8, 8, 9, 9][i])).join('')}`);
    isAllGood &&= sum('failed') === 0;
  }
  const reasons = new Map();
  for (const { state, note = 'not said why' } of lines) if (state === 'skipped') reasons.set(note, (reasons.get(note) ?? 0) + 1);
  if (reasons.size > 0) console.log('\nskipped:');
  for (const [reason, count] of reasons) console.log(`  ${String(count).padStart(5)}  ${reason}`);
  const answers = existsSync(log) ? readFileSync(log, 'utf8').match(/capture probe: .*/g) : null;
  if (answers !== null) console.log(`\nwhat CUDA's documentation leaves open:\n${answers.join('\n')}`);
  if (notRun.length > 0)
    console.log(
      `\n${notRun.length} files were not run to their end; the same command with --out ${values.out} goes on:\n  ${notRun.join('\n  ')}`,
    );
  if (!isAllGood) console.log('\nsomething was wrong: docs/gpu.md says what to do');
  else if (notRun.length === 0) console.log('\neverything that this device can do was right');
  console.log(`results, and what the tests printed: ${values.out}`);
  return isAllGood && notRun.length === 0;
}

/**
 * Starts a process that has the device open until this one ends, without a context or memory there: NVIDIA's driver takes a device
 * down when the last process closes it, and takes a second or more to set it up for the next one.
 */
async function keepDevice() {
  const script = `
    const { Device } = await import(${JSON.stringify(join(root, 'dist', 'index.js'))});
    const cuda = Device.driverVersion();
    console.log(JSON.stringify({ gpu: Device.count() > 0 ? Device.get().name : undefined, cuda: Math.floor(cuda / 1000) + '.' + (cuda % 1000) / 10 }));
    process.stdin.on('end', () => process.exit()).resume();`;
  const child = spawn(process.execPath, ['--input-type=module', '--eval', script], {
    env: { ...process.env, CISTERN_DEVICE: 'cuda' },
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const text = await new Promise((resolve, reject) =>
    child.stdout.once('data', resolve).once('end', () => reject(new Error('no device can be opened'))),
  );
  const { gpu, cuda } = JSON.parse(text);
  // What the strict driver shows must not be taken for a GPU's answer.
  const machine = isTrial ? {} : { gpu, driver: smi('--query-gpu=driver_version', '--format=csv,noheader').split('\n')[0], cuda };
  return { process: child, machine };
}

function smi(...args) {
  const { status, stdout } = spawnSync('nvidia-smi', args, { encoding: 'utf8' });
  return status === 0 ? stdout : '';
}

function commit() {
  const bundle = join(root, 'bundle.json');
  if (existsSync(bundle)) return JSON.parse(readFileSync(bundle, 'utf8')).commit;
  return spawnSync('git', ['describe', '--always', '--dirty'], { cwd: root, encoding: 'utf8' }).stdout?.trim();
}

/** Where the addon that launches kernels is. Without it, the tests that need it are skipped. */
function kernels() {
  try {
    return { CISTERN_KERNELS: buildKernels() };
  } catch (error) {
    console.log(`\nkernels: skipped, since the addon that launches them cannot be built here: ${error.message}`);
    return {};
  }
}
