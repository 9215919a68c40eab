/**
 * Fuzzers: `npm run fuzz -- TARGET|all [--seconds N] [--seed S]`, or `npm run fuzz -- TARGET
 * --input FILE` to run one input again. Interesting inputs are kept in build-presets/fuzz/corpus/,
 * where the next run starts. Exits with 0 only without a finding.
 */
import { spawn, spawnSync } from 'node:child_process';
import { closeSync, existsSync, mkdirSync, openSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { join, relative } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import { build } from 'vite';
import { saveFigures } from '../../scripts/proof-figures.mjs';
import { countBranches } from './count-branches.mjs';

/** By name: whether it needs the instrumented addon, the maximum input length, and whether it can also mutate by itself. */
const targets = {
  'packed-logs': { isNative: false, maximumBytes: 24_000, mutates: true },
  'log-reader': { isNative: false, maximumBytes: 6000 },
  specification: { isNative: false, maximumBytes: 1000 },
  'native-boundary': { isNative: true, maximumBytes: 1000 },
};

const processor = process.arch === 'x64' ? 'x86_64' : 'aarch64';
const sanitizerLibrary = `libclang_rt.asan-${processor}.so`;
const root = fileURLToPath(new URL('../..', import.meta.url));
const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
const folder = join(root, 'build-presets', 'fuzz');
const addons = join(folder, 'Release');
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    seconds: { type: 'string', default: '60' },
    seed: { type: 'string' },
    input: { type: 'string' },
    save: { type: 'boolean', default: false },
  },
});
const [name] = positionals;
const names = name === 'all' ? Object.keys(targets) : [name];
if (positionals.length !== 1 || names.some((each) => !Object.hasOwn(targets, each)) || (values.input !== undefined && name === 'all')) {
  console.error(
    `usage: npm run fuzz -- TARGET|all [--seconds N] [--seed S] [--save], or TARGET --input FILE; targets: ${Object.keys(targets).join(', ')}`,
  );
  process.exit(2);
}
const seconds = wholeNumber('seconds', values.seconds);
const seed = values.seed === undefined ? 1 + Math.trunc(Math.random() * 2 ** 31) : wholeNumber('seed', values.seed);

const missing = whatIsMissing();
if (missing !== undefined) {
  const mutating = names.filter((each) => targets[each].mutates && values.input === undefined);
  console.log(`${missing}; fuzzing needs Linux, and clang with libFuzzer (Debian: apt install clang)`);
  console.log(mutating.length === 0 ? 'skipped' : `skipped, except ${mutating.join(', ')}, without a look at what is reached`);
  process.exit(mutating.map(mutateAlone).every((status) => status === 0) ? 0 : 1);
}
buildForFuzzing();
const results = [];
for (const each of names) results.push(await fuzz(each));
printTable(results);
if (values.save) {
  const rowOf = ({ target, runs, seconds, coverage, corpus, finding }) => ({
    target: `\`${target}\``,
    runs: Number(runs),
    seconds: Number(seconds),
    'counters reached': Number(coverage),
    'inputs kept': Number(corpus),
    findings: finding === '' ? 0 : 1,
  });
  saveFigures('fuzz', results.map(rowOf));
}
process.exit(results.some(({ finding }) => finding !== '') ? 1 : 0);

function mutateAlone(target) {
  const script = fileURLToPath(new URL('mutate.mjs', import.meta.url));
  const env = { ...process.env, ...environmentOf(false) };
  const begin = [script, target, String(seconds), String(seed), join(folder, 'findings', target)];
  const { status } = spawnSync(process.execPath, begin, { cwd: root, env, stdio: 'inherit' });
  console.log(`${target}: seed ${seed}`);
  return status;
}

function wholeNumber(option, text) {
  const number = Number(text);
  if (Number.isSafeInteger(number) && number >= 1) return number;
  console.error(`--${option} must be a whole number from 1, got ${text}`);
  process.exit(2);
}

function whatIsMissing() {
  if (process.platform !== 'linux') return `libFuzzer is used on Linux only, and this is ${process.platform}`;
  for (const library of [`libclang_rt.fuzzer_no_main-${processor}.a`, sanitizerLibrary]) {
    const path = clangFile(library);
    if (path === undefined) return 'clang++ is not installed';
    if (!existsSync(path)) return `clang++ has no ${library}`;
  }
  return spawnSync('cmake', ['--version']).status === 0 ? undefined : 'CMake is not installed';
}

function clangFile(file) {
  const { status, stdout } = spawnSync('clang++', [`-print-file-name=${file}`], { encoding: 'utf8' });
  return status === 0 ? stdout.trim() : undefined;
}

/**
 * Builds the addon with libFuzzer's instrumentation, and libFuzzer as an addon, which is loaded
 * before everything else, so that the instrumentation finds the functions that it calls.
 */
function buildForFuzzing() {
  for (const step of [
    ['--preset', 'fuzz'],
    ['--build', '--preset', 'fuzz', '--parallel', String(availableParallelism())],
  ]) {
    const { status, stdout, stderr } = spawnSync('cmake', step, {
      cwd: root,
      encoding: 'utf8',
      maxBuffer: 2 ** 26,
    });
    if (status === 0) continue;
    console.error(`${stdout}${stderr}`);
    process.exit(1);
  }
}

/**
 * Bundles the target and what it uses into one file, in which the branches of `src` are counted.
 */
async function bundle(target) {
  let counterCount = 0;
  const outDir = join(folder, 'targets');
  await build({
    root,
    configFile: false,
    logLevel: 'error',
    plugins: [countBranches(join(root, 'src/'), (count) => (counterCount = count))],
    define: { CISTERN_VERSION: JSON.stringify(version) },
    build: { ssr: fileURLToPath(new URL(`${target}.ts`, import.meta.url)), outDir, emptyOutDir: false, target: 'node20', minify: false },
  });
  return { path: join(outDir, `${target}.js`), counterCount };
}

async function fuzz(target) {
  const { isNative, maximumBytes } = targets[target];
  const { path, counterCount } = await bundle(target);
  const seeds = fileURLToPath(new URL(`corpus/${target}`, import.meta.url));
  const corpus = join(folder, 'corpus', target);
  const findings = join(folder, 'findings', target);
  const log = join(folder, `${target}.log`);
  const dictionary = join(folder, `${target}.dict`);
  for (const each of [corpus, findings]) mkdirSync(each, { recursive: true });
  globalThis.branchCounters = new Uint8Array(counterCount);
  const { words = [] } = await import(pathToFileURL(path).href);
  // libFuzzer refuses an empty dictionary.
  writeFileSync(dictionary, `${dictionaryOf(words)}"0"\n`);

  const common = ['-detect_leaks=0', '-print_funcs=0', '-timeout=60', '-rss_limit_mb=4096', `-artifact_prefix=${findings}/`];
  const fuzzing = [
    `-max_total_time=${seconds}`,
    `-max_len=${maximumBytes}`,
    `-seed=${seed}`,
    `-dict=${dictionary}`,
    '-print_final_stats=1',
  ];
  const libFuzzerArguments = values.input === undefined ? [...common, ...fuzzing, corpus, seeds] : [...common, values.input];
  const script = fileURLToPath(new URL('fuzz-process.mjs', import.meta.url));
  // A file, because libFuzzer loses output to a pipe that Node has made non-blocking.
  const output = openSync(log, 'w');
  const child = spawn(process.execPath, [script, join(addons, 'fuzzer.node'), path, String(counterCount), ...libFuzzerArguments], {
    cwd: root,
    env: { ...process.env, ...environmentOf(isNative) },
    stdio: ['ignore', 'ignore', output],
  });
  const begun = performance.now();
  const status = await new Promise((resolve) => child.once('close', (code, signal) => resolve(signal ?? code)));
  closeSync(output);
  const text = readFileSync(log, 'utf8');
  const isDone = status === 0 && (values.input !== undefined || /^Done \d+ runs/m.test(text));
  const finding = isDone ? '' : (/Test unit written to (\S+)/.exec(text)?.[1] ?? values.input ?? log);
  if (values.input !== undefined) console.log(text);
  if (!isDone) console.log(`${text.slice(-6000)}\n${target} ended with ${status}; all of its output is in ${relative('.', log)}`);
  const last = [...text.matchAll(/cov: (\d+) ft: (\d+) corp: (\d+)/g)].at(-1) ?? [];
  return {
    target,
    runs: /number_of_executed_units: (\d+)/.exec(text)?.[1] ?? [...text.matchAll(/^#(\d+)\t/gm)].at(-1)?.[1] ?? '1',
    seconds: ((performance.now() - begun) / 1000).toFixed(0),
    coverage: last[1] ?? '-',
    features: last[2] ?? '-',
    corpus: String(readdirSync(corpus).length),
    finding: finding && relative('.', finding),
  };
}

function environmentOf(isNative) {
  const trace = values.input === undefined ? {} : { CISTERN_FUZZ_TRACE: '1' };
  const software = { ...trace, CISTERN_DEVICE: 'software', CISTERN_SOFTWARE_MEMORY: '16MiB', CISTERN_SOFTWARE_DEVICES: '2' };
  if (!isNative) return software;
  return {
    ...software,
    CISTERN_ADDON: join(addons, 'cistern.node'),
    // The sanitizer's library defines empty functions under libFuzzer's names, so libFuzzer must be
    // loaded first.
    LD_PRELOAD: `${join(addons, 'fuzzer.node')}:${clangFile(sanitizerLibrary)}`,
    ASAN_OPTIONS: 'detect_leaks=0:allocator_may_return_null=1:verify_asan_link_order=0',
    UBSAN_OPTIONS: 'print_stacktrace=1',
  };
}

/** In libFuzzer's form: one quoted word per line. */
function dictionaryOf(words) {
  const escaped = (word) =>
    Array.from(Buffer.from(word, [...word].every((character) => character <= '\xff') ? 'latin1' : 'utf8'), (byte) =>
      /[\w ]/.test(String.fromCharCode(byte)) ? String.fromCharCode(byte) : `\\x${byte.toString(16).padStart(2, '0')}`,
    );
  return words.map((word) => `"${escaped(word).join('')}"\n`).join('');
}

function printTable(results) {
  const columns = ['target', 'runs', 'seconds', 'coverage', 'features', 'corpus', 'finding'];
  const rows = [columns, ...results.map((result) => columns.map((column) => result[column] || 'none'))];
  const widths = columns.map((_, i) => Math.max(...rows.map((row) => row[i].length)));
  for (const row of rows) console.log(row.map((cell, i) => (i === 0 ? cell.padEnd(widths[i]) : cell.padStart(widths[i]))).join('  '));
  console.log(`seed ${seed}`);
  for (const { target, finding } of results.filter((result) => result.finding !== '')) {
    console.log(`run it again: npm run fuzz -- ${target} --input ${finding}`);
  }
}
