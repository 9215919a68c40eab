// `npm run mutants` changes the files that matter, one place at a time, and runs the tests that reach it, in a few long-lived processes.
// A change in assembly/ is compiled to WebAssembly, and counts as equivalent if it compiles to the same code.
//   --file TEXT    only files whose path contains this (may be repeated)
//   --name TEXT    only mutants whose name contains this (may be repeated)
//   --tests TEXT   only tests in files whose path contains this (may be repeated)
//   --sample N     only N of them, drawn with --seed S (default 0)
//   --shard I/N    only every Nth, starting with the Ith
//   --quick        without the tests that are slow or start programs: what survives is run again by --resume without this
//   --processes N  default 2
//   --resume       takes the outcomes in CISTERN_MUTANTS_LOG, of runs that were cut short, as those of this run
//   --save TABLE   enters the figures in this table of docs/proof.md
//   --list         prints their names and which are listed as equivalent, and exits
// Exits with 0 only if every surviving mutant is listed in equivalent.mjs, and every listed one survived.
import { fork } from 'node:child_process';
import { appendFileSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import ts from 'typescript';
import { createServer } from 'vite';
import { buildEntries } from '../../scripts/build-entries.mjs';
import { compileWith, moduleOf } from '../../scripts/build-wasm.mjs';
import { saveFigures } from '../../scripts/proof-figures.mjs';
import { byHand } from './by-hand.mjs';
import { equivalent } from './equivalent.mjs';
import { compilerOptions, hashOf, makeMutants, typeChecked, withProbes } from './make-mutants.mjs';

const root = fileURLToPath(new URL('../..', import.meta.url));
/** Only faults by hand are made of these. */
const handFiles = [
  'src/tools/planning/plan-allocations.ts',
  'src/interchange/foreign-memory-resource.ts',
  'src/buffers/device-buffer.ts',
  'src/interchange/dlpack.ts',
  'src/graphs/capture-allocator.ts',
  'src/graphs/graph-memory-resource.ts',
  'src/driver/graphs/graph-exec.ts',
  'src/lasting/region-table.ts',
  'src/lasting/keep-state.ts',
  'src/lasting/share-table.ts',
  'src/lasting/mapped-region.ts',
  'src/lasting/serve-regions.ts',
  'src/lasting/lasting-memory-resource.ts',
];
const files = [
  'src/stream-ordering/stream-lane.ts',
  'src/stream-ordering/common-lane.ts',
  'src/stream-ordering/lane-turns.ts',
  'src/stream-ordering/stream-ordering.ts',
  'src/driver/streams/stream-identity.ts',
  ...readdirSync(join(root, 'src/suballocation'))
    .filter((name) => name !== 'index-binary.ts')
    .sort()
    .map((name) => `src/suballocation/${name}`),
  'src/adaptors/pooling/order-of-tries.ts',
  'src/adaptors/pooling/keeper.ts',
  'src/adaptors/pooling/upstream-blocks.ts',
  'src/adaptors/pooling/stream-ordered-memory-resource.ts',
  'src/adaptors/pooling/pool-memory-resource.ts',
  'src/adaptors/pooling/arena-memory-resource.ts',
  'src/adaptors/pooling/monotonic-memory-resource.ts',
  'src/adaptors/pooling/fixed-size-memory-resource.ts',
  'src/adaptors/pooling/binning-memory-resource.ts',
  'src/adaptors/pooling/caching-memory-resource.ts',
  'src/plans/planned-memory-resource.ts',
  'src/plans/pass-order.ts',
  'src/plans/late-memory.ts',
  'src/plans/plan-learner.ts',
  'src/plans/planned-block.ts',
  'src/plans/pass-recorder.ts',
  'src/tools/planning/lifetimes.ts',
  'src/workers/global-arena.ts',
  'src/driver/workers/collection-requests.ts',
  'src/workers/hand-over.ts',
  'src/processes/process-memory.ts',
  'src/driver/workers/shared-counts.ts',
  'src/workers/global-arena-memory-resource.ts',
  'src/workers/attached-memory.ts',
  'src/interchange/consumers.ts',
  'src/processes/imported-memory.ts',
  'src/workers/attach-from-worker.ts',
  'src/workers/hand-over-buffers.ts',
  'src/processes/export-to-processes.ts',
  'src/workers/give-to-workers.ts',
  'src/processes/open-from-process.ts',
  'src/processes/process-export.ts',
  'src/buffers/buffer-memory.ts',
  'src/buffers/transfers/buffer-transfer.ts',
  'src/processes/wait-for-processes.ts',
  'src/workers/take-returned-memory.ts',
  'src/scopes/resource-scope.ts',
  'src/driver/streams/event.ts',
  'src/driver/streams/stream.ts',
  'src/adaptors/pass-through/aligned-resource-adaptor.ts',
  'src/adaptors/pass-through/fallback-resource-adaptor.ts',
  'src/adaptors/layers.ts',
  'src/adaptors/pass-through/limiting-resource-adaptor.ts',
  'src/adaptors/pass-through/logging-resource-adaptor.ts',
  'src/files/csv-rows.ts',
  'src/files/log-writer.ts',
  'src/adaptors/pass-through/outstanding-allocations.ts',
  'src/adaptors/pass-through/reclaiming-resource-adaptor.ts',
  'src/adaptors/pass-through/rounding-resource-adaptor.ts',
  'src/checking/sanitizing-resource-adaptor.ts',
  'src/adaptors/pass-through/statistics-resource-adaptor.ts',
  'src/adaptors/pass-through/tracking-resource-adaptor.ts',
  'src/buffers/transfers/ordered-copy.ts',
  'src/collector/stage-timings.ts',
  'src/collector/when-memory-is-short.ts',
  'src/graphs/capture-order.ts',
  'src/graphs/launch-order.ts',
  'src/serving/admission/admitting-resource-adaptor.ts',
  'src/serving/admission/grant.ts',
  'src/serving/admission/retry.ts',
  'src/serving/admission/admission-queue.ts',
  'src/serving/spilling/spilling-resource-adaptor.ts',
  'src/serving/spilling/spill-members.ts',
  'src/serving/spilling/moves.ts',
  'src/serving/spilling/filing.ts',
  'src/serving/spilling/spill-policy.ts',
  'src/serving/spilling/spill-files.ts',
  'src/serving/spilling/spillable-buffer.ts',
  'src/serving/spilling/spillable-memory.ts',
  'src/serving/waiting/collect-while-waiting.ts',
  'src/serving/waiting/waiting-line.ts',
  'src/serving/sleep/sleep.ts',
  'src/serving/sleep/sleeping-memory.ts',
  'src/driver/memory/guarded-addresses.ts',
  'src/serving/spilling/address-uses.ts',
  'src/driver/graphs/capture.ts',
  'src/graphs/graph-region.ts',
  'src/graphs/captured-memory.ts',
  'src/graphs/captured-requests.ts',
  'src/graphs/addresses-of-graphs.ts',
  'src/graphs/learnt-captures.ts',
  'src/serving/accounts/account.ts',
  'src/collector/free-unreachable-buffers.ts',
  ...handFiles,
];
/** What is compiled to WebAssembly, and the two modules of `src/` by which it is reached. */
const assemblyFiles = readdirSync(join(root, 'assembly'))
  .filter((name) => name.endsWith('.ts'))
  .sort()
  .map((name) => `assembly/${name}`);
const isAssembly = (file) => file.startsWith('assembly/');
const indexFile = 'src/suballocation/free-space-index.ts';
const binaryFile = 'src/suballocation/index-binary.ts';
/** Compiles in a quarter of the time that the best code takes. */
const assemblyLevel = '-O1';
/** Tests that run the changed code, in their own process or in programs that they start. Those of the folders named here test what is built from it. */
const chosenTests =
  /^test\/(?!browser|files|fuzz|gpu|mutants|package|stress|suites|support|sweep|types|tools\/(?!planning|testing))(.*\/)?(?!environment|lists-and-branches|random-programs)[^/]*\.test\.ts$/;
/** Mutants of assembly/ run on these alone, which are quick, and to be strict enough without others. */
const assemblyTests = /^test\/suballocation\//;
/** A slower test, or one that starts programs, for which the package is built, runs last, on mutants that survive all others. */
const slowMilliseconds = 1_500;
/** The limit for all tests of a file without a mutant. */
const coverLimitMilliseconds = 300_000;
/** A process with more memory is replaced, or one whose tests left more of the devices' memory allocated. */
const memoryLimit = 2 ** 30;
const deviceMemoryLimit = 2 ** 26;
const cache = join(root, 'node_modules/.cache/cistern-mutants');
/** Each outcome is added to this file at once, so that a run that is cut short can be resumed. */
const logFile = process.env.CISTERN_MUTANTS_LOG;
const environment = {
  ...process.env,
  NODE_ENV: 'test',
  CISTERN_DEVICE: 'software',
  CISTERN_SOFTWARE_MEMORY: '1GiB',
  CISTERN_SOFTWARE_DEVICES: '2',
};

const { values: options } = parseArgs({
  options: {
    file: { type: 'string', multiple: true, default: [''] },
    name: { type: 'string', multiple: true, default: [''] },
    tests: { type: 'string', multiple: true, default: [''] },
    sample: { type: 'string' },
    seed: { type: 'string', default: '0' },
    shard: { type: 'string', default: '1/1' },
    processes: { type: 'string', default: '2' },
    quick: { type: 'boolean', default: false },
    resume: { type: 'boolean', default: false },
    save: { type: 'string' },
    list: { type: 'boolean', default: false },
  },
});

const pathOf = (file) => join(root, file);
const tell = (text) => process.stderr.write(`${text}\n`);
const progress = (text) => {
  if (process.stderr.isTTY) process.stderr.write(`\r\u001b[K${text}`);
};

/** The value for a key, from the last run with the same key, or made now. */
async function remembered(name, key, make) {
  const path = join(cache, `${name}-${key}.json`);
  if (existsSync(path)) return JSON.parse(readFileSync(path, 'utf8'));
  const value = await make();
  mkdirSync(cache, { recursive: true });
  writeFileSync(path, JSON.stringify(value));
  return value;
}

function textsUnder(folder) {
  return readdirSync(join(root, folder), { recursive: true })
    .filter((name) => /\.ts$/.test(name))
    .sort()
    .map((name) => `${name}\n${readFileSync(join(root, folder, name), 'utf8')}`);
}

/** All mutants of a file. */
function mutantsOf(file, program, sources) {
  const isByHand = handFiles.includes(file);
  const made = isByHand ? [] : makeMutants(program.getSourceFile(pathOf(file)), program.getTypeChecker(), file);
  const { text } = sources.get(file);
  for (const { file: other, name, from, to } of byHand) {
    if (other !== file) continue;
    const start = text.indexOf(from);
    if (start < 0 || text.indexOf(from, start + 1) >= 0) throw new Error(`by-hand.mjs: ${file} does not have this once:\n${from}`);
    const line = text.slice(0, start).split('\n').length;
    const rest = { kind: 'by hand', where: '', change: name, name: `by hand: ${name}`, reachesOut: true };
    made.push({ file, start, end: start + from.length, text: to, line, region: 0, regionEnd: text.length, ...rest });
  }
  return made;
}

/** The server that transforms modules for the test processes. */
const mutated = new Map();
const server = await createServer({
  root,
  configFile: false,
  logLevel: 'error',
  appType: 'custom',
  server: { middlewareMode: true, hmr: false, ws: false, watch: null },
  oxc: { target: 'es2023' },
  optimizeDeps: { noDiscovery: true, include: [] },
  plugins: [
    {
      name: 'mutants',
      enforce: 'pre',
      load: (id) => mutated.get(id.split('?mutated=')[1]),
    },
  ],
});
const { ssr } = server.environments;

/** The code of a file with another text. */
let texts = 0;
async function transformed(file, text) {
  const key = String(++texts);
  mutated.set(key, text);
  const url = `/${file}?mutated=${key}`;
  const { code } = await ssr.fetchModule(url);
  mutated.delete(key);
  const module = ssr.moduleGraph.getModuleById(`${pathOf(file)}?mutated=${key}`);
  if (module !== undefined) {
    ssr.moduleGraph.urlToModuleMap.delete(module.url);
    ssr.moduleGraph.idToModuleMap.delete(module.id);
    ssr.moduleGraph.fileToModulesMap.get(module.file)?.delete(module);
    for (const imported of module.importedModules) imported.importers.delete(module);
  }
  return code.replace(/\n\/\/# sourceMappingURL=.*$/s, '');
}

const fetches = new Map();
function fetchModule(url, importer) {
  const key = `${url} ${importer}`;
  if (!fetches.has(key)) {
    fetches.set(
      key,
      ssr.fetchModule(url, importer).then((result) => {
        const { code } = result;
        return code === undefined ? result : { ...result, code: code.replace(/\n\/\/# sourceMappingURL=.*$/s, '') };
      }),
    );
  }
  return fetches.get(key);
}

/** Makes a folder that is the package but for its entries, which are built from other texts: for programs that tests start. */
async function makePackage(name, changedTexts, banner) {
  const folder = join(cache, `package-${process.pid}-${name}`);
  if (!existsSync(folder)) {
    mkdirSync(folder, { recursive: true });
    for (const each of readdirSync(root)) if (each !== 'dist') symlinkSync(join(root, each), join(folder, each));
    // Behind the link to the tests is the package itself.
    const whole = readFileSync(join(root, 'test/support/whole-package.mjs'), 'utf8');
    writeFileSync(join(folder, 'whole-package.mjs'), whole.replaceAll('../../dist/', './dist/'));
  }
  await buildEntries(join(folder, 'dist'), changedTexts, banner);
  packageFolders.add(folder);
  return folder;
}
const packageFolders = new Set();
/** Begins each file of a package whose modules count which of their statements run: tells the process that started it. */
const tellHits =
  "import { appendFileSync as tellHit } from 'node:fs'; globalThis.__hit ??= ((known) => (number) => { if (!known.has(number)) { known.add(number); tellHit(process.env.CISTERN_MUTANTS_HITS, number + '\\n'); } })(new Set());";

let processCount = 0;

/** A process that runs tests. It is replaced if it ends or must be ended. */
class TestProcess {
  #child;
  #settle;
  #onBegan;
  #timer;
  #errors = '';
  isFresh = true;
  /** Names what it has of its own. */
  name = String(++processCount);

  #start() {
    const child = fork(fileURLToPath(new URL('test-process.mjs', import.meta.url)), {
      execArgv: ['--expose-gc'],
      env: environment,
      serialization: 'advanced',
      stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
      // Its programs are in its group, and end with it.
      detached: true,
    });
    this.#child = child;
    this.isFresh = true;
    child.stderr.on('data', (data) => {
      this.#errors = (this.#errors + data).slice(-2000);
    });
    child.on('message', async (message) => {
      if (message.kind === 'fetch' || message.kind === 'builtins') {
        let answer;
        try {
          answer = { result: message.kind === 'builtins' ? [] : await fetchModule(message.url, message.importer) };
        } catch (error) {
          answer = { error: String(error) };
        }
        if (child.connected) child.send({ kind: 'answer', request: message.request, ...answer });
      } else if (message.kind === 'began') this.#onBegan?.(message.path, message.place);
      else if (message.kind === 'done') this.#finish(message.error === undefined ? message.result : { crash: message.error });
    });
    // A failed send to a process that has just ended shows by its end.
    child.on('error', () => {});
    child.on('exit', (status, signal) => {
      if (this.#child !== child) return;
      this.#child = undefined;
      this.#finish({ crash: `the process ended with ${signal ?? status}: ${this.#errors.split('\n').slice(0, 3).join(' ')}` });
    });
  }

  #finish(result) {
    clearTimeout(this.#timer);
    const settle = this.#settle;
    this.#settle = undefined;
    settle?.(result);
  }

  /** Ends the current run; the next run has a new process. */
  end() {
    const child = this.#child;
    this.#child = undefined;
    this.isFresh = true;
    if (child?.exitCode !== null || child.signalCode !== null) return;
    process.kill(-child.pid, 'SIGKILL');
  }

  /**
   * Resolves with the answer; or with `isEndless`, after the process was ended.
   * @param limitOf milliseconds that a file may take until its first test, and each test of it
   */
  run(message, limitOf) {
    if (this.#child === undefined) this.#start();
    this.#errors = '';
    const guard = (path, place) => {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(
        () => {
          this.end();
          this.#finish({ isEndless: true, path, place });
        },
        limitOf(path, place),
      );
    };
    this.#onBegan = guard;
    guard(message.path);
    return new Promise((resolve) => {
      this.#settle = (result) => {
        this.isFresh = false;
        if ((result.memory ?? 0) > memoryLimit || (result.deviceBytes ?? 0) > deviceMemoryLimit) this.end();
        resolve(result);
      };
      this.#child.send({ root, ...message });
    });
  }
}

/** Processes a list with several processes. */
async function inProcesses(list, count, work) {
  const waiting = [...list];
  const processes = Array.from({ length: count }, () => new TestProcess());
  await Promise.all(
    processes.map(async (own) => {
      for (let item = waiting.shift(); item !== undefined; item = waiting.shift()) await work(item, own);
      own.end();
    }),
  );
}

/** The tests, and the statements of the files that each reaches. */
async function coverage(sources, count, own, chosen) {
  const probes = {};
  const statements = new Map();
  let first = 0;
  const probedTexts = new Map();
  for (const [file, { path, text }] of sources) {
    const probed = withProbes(ts.createSourceFile(path, text, ts.ScriptTarget.ESNext, true), first);
    probes[path] = { code: await transformed(file, probed.text), count: probed.statements.length };
    statements.set(file, { first, list: probed.statements });
    probedTexts.set(path, probed.text);
    first += probed.statements.length;
  }
  const paths = readdirSync(join(root, 'test'), { recursive: true })
    .map((name) => `test/${name.replaceAll('\\', '/')}`)
    .filter((name) => chosen.test(name) && options.tests.some((text) => name.includes(text)))
    .sort();
  const key = hashOf(files.join(), ...own, ...textsUnder('src'), ...textsUnder('test/support'), ...textsUnder('test/property'));
  const found = {};
  let done = 0;
  const packageFolder = await makePackage('probed', probedTexts, tellHits);
  await inProcesses(paths, count, async (path, process) => {
    const text = readFileSync(pathOf(path), 'utf8');
    found[path] = await remembered(`covered-${path.replaceAll('/', '-')}`, hashOf(key, text), () =>
      process.run(
        { kind: 'cover', path: pathOf(path), probes, packageFolder, hitsFile: join(packageFolder, `hits-${process.name}`) },
        () => coverLimitMilliseconds,
      ),
    );
    progress(`${++done} of ${paths.length} test files`);
  });
  return { statements: Object.fromEntries(statements), files: Object.fromEntries(paths.map((path) => [path, found[path]])) };
}

/**
 * The number of the innermost statement around a mutant, if it is in one of a function; for a
 * mutant by hand, the statement at its start.
 */
function statementOf({ first, list }, { start, end, kind }) {
  let best;
  if (kind === 'by hand') {
    const reached = list.findLastIndex((statement) => statement.start <= start && statement.end > start);
    const last = reached >= 0 ? reached : list.findLastIndex((statement) => statement.start < end && statement.end > start);
    return last < 0 ? undefined : first + last;
  }
  for (const [number, statement] of list.entries()) {
    if (statement.start > start || statement.end < end) continue;
    if (best === undefined || statement.end - statement.start <= list[best].end - list[best].start) best = number;
  }
  return best === undefined ? undefined : first + best;
}

/** For every statement: the tests that reach it, by file. */
function index({ statements, files: testFiles }) {
  const byStatement = new Map();
  const put = (number, path, test) => {
    if (!byStatement.has(number)) byStatement.set(number, new Map());
    const byPath = byStatement.get(number);
    if (!byPath.has(path)) byPath.set(path, new Set());
    byPath.get(path).add(test);
  };
  const fileOf = (number) => Object.entries(statements).find(([, { first, list }]) => number >= first && number < first + list.length)[0];
  const reached = new Map();
  for (const [path, { tests = [], outside = [], failures = [] }] of Object.entries(testFiles)) {
    const failed = new Set(failures.map(({ place }) => place));
    const good = tests.filter(({ place }) => !failed.has(place));
    for (const test of good) {
      for (const number of test.statements) {
        put(number, path, test);
        const file = fileOf(number);
        if (!reached.has(file)) reached.set(file, new Map());
        if (!reached.get(file).has(path)) reached.get(file).set(path, new Set());
        reached.get(file).get(path).add(test);
      }
    }
    // Code that runs before the first test, or in hooks, may affect any test of the file that
    // reaches the same module.
    for (const number of outside) for (const test of reached.get(fileOf(number))?.get(path) ?? []) put(number, path, test);
  }
  return { byStatement, reached };
}

/** How many mutants the tests of a file have killed. */
const kills = new Map();

/**
 * The tests that must notice a mutant, as files with places: those first that have killed the most in their
 * time, or are about its file; slow ones last.
 */
function planOf(mutant, covered, { byStatement, reached }) {
  // What a statement in WebAssembly is reached by is not known.
  const file = isAssembly(mutant.file) ? indexFile : mutant.file;
  const number = isAssembly(mutant.file) ? undefined : statementOf(covered.statements[file], mutant);
  const byPath = (number === undefined ? reached.get(file) : byStatement.get(number)) ?? new Map();
  const own = basename(file, '.ts');
  const plan = [];
  for (const [path, tests] of byPath) {
    if (isAssembly(mutant.file) && !assemblyTests.test(path)) continue;
    for (const isSlow of options.quick ? [false] : [false, true]) {
      const chosen = [...tests].filter(
        ({ milliseconds, elsewhere }) => (milliseconds > slowMilliseconds || elsewhere.length > 0) === isSlow,
      );
      if (chosen.length === 0) continue;
      const milliseconds = chosen.reduce((sum, test) => sum + test.milliseconds, 0);
      plan.push({
        path: pathOf(path),
        places: chosen.map(({ place }) => place),
        startsPrograms: chosen.some(({ elsewhere }) => elsewhere.length > 0),
        milliseconds,
        isSlow,
        rate: ((kills.get(path) ?? 0) + Number(basename(path, '.test.ts') === own)) / (100 + milliseconds),
      });
    }
  }
  return plan.sort((a, b) => a.isSlow - b.isSlow || b.rate - a.rate || a.milliseconds - b.milliseconds || (a.path < b.path ? -1 : 1));
}

/** The WebAssembly with another text of a file, or undefined if it does not compile. */
async function compiledAssembly(sources, file, changedText) {
  const textOf = (name) => {
    if (name === file) return changedText;
    return sources.get(name)?.text ?? (existsSync(pathOf(name)) ? readFileSync(pathOf(name), 'utf8') : null);
  };
  try {
    return moduleOf(await compileWith(textOf, assemblyLevel));
  } catch {
    return undefined;
  }
}
let plainAssembly;

/** The module that a mutant changes; or why it is not run. */
async function changeOf(mutant, sources) {
  const { path, text } = sources.get(mutant.file);
  const changedText = text.slice(0, mutant.start) + mutant.text + text.slice(mutant.end);
  if (!isAssembly(mutant.file)) return { id: path, code: await transformed(mutant.file, changedText), text: changedText };
  const module = await compiledAssembly(sources, mutant.file, changedText);
  if (module === undefined) return { refusal: 'uncompiled' };
  if (module === plainAssembly) return { refusal: 'equivalent' };
  return { id: pathOf(binaryFile), code: await transformed(binaryFile, module) };
}

/** Fails if a test does not pass on WebAssembly that is compiled as for mutants, without one. */
async function checkPlainAssembly(sources, testFiles) {
  plainAssembly = await compiledAssembly(sources);
  const changed = { id: pathOf(binaryFile), code: await transformed(binaryFile, plainAssembly) };
  const list = Object.entries(testFiles).filter(([path]) => assemblyTests.test(path));
  const own = new TestProcess();
  const parts = list.map(([path, { tests = [] }]) => ({ path: pathOf(path), places: tests.map(({ place }) => place) }));
  const { path, failure, crash } = await own.run({ kind: 'run', changed, files: parts }, () => coverLimitMilliseconds);
  own.end();
  if (failure !== undefined || crash !== undefined)
    throw new Error(`without a mutant, compiled with ${assemblyLevel}: ${crash ?? `${path}: ${failure.name}: ${failure.message}`}`);
}

/** Runs one mutant, and returns the outcome. */
async function runMutant(mutant, sources, firstPlan, durations, own) {
  let plan = firstPlan;
  if (plan.length === 0) return { verdict: 'survived', by: options.quick ? quickOnly : 'no test comes there' };
  const changed = await changeOf(mutant, sources);
  if (changed.refusal !== undefined) return { verdict: changed.refusal, by: '' };
  let packageFolder;
  async function runPlan() {
    const startsPrograms = isAssembly(mutant.file) ? -1 : plan.findIndex((part) => part.startsPrograms);
    const result = await own.run({ kind: 'run', changed, files: startsPrograms < 0 ? plan : plan.slice(0, startsPrograms) }, limitOf);
    if (startsPrograms < 0 || result.isEndless || result.crash !== undefined || result.failure !== undefined) return result;
    packageFolder ??= await makePackage(own.name, new Map([[changed.id, changed.text]]));
    return own.run({ kind: 'run', changed, files: plan.slice(startsPrograms), packageFolder }, limitOf);
  }
  const limitOf = (path, place) => patience * (place === undefined ? 10_000 : 3_000 + 4 * (durations.get(`${path} ${place}`) ?? 0));
  for (;;) {
    const { isFresh } = own;
    const result = await runPlan();
    if (result.isEndless) {
      const part = plan.find(({ path }) => path === result.path) ?? plan[0];
      const alone = result.place === undefined ? part : { ...part, places: [result.place] };
      if (await passes(alone, own, limitOf)) return { verdict: 'endless', by: `ended after ${limitOf(result.path, result.place)} ms` };
      // On a busy machine, it takes as long without the mutant.
      patience *= 2;
      continue;
    }
    if (result.crash !== undefined) {
      own.end();
      return { verdict: 'killed', by: result.crash };
    }
    const { failure } = result;
    if (failure === undefined) return { verdict: 'survived', by: options.quick ? quickOnly : '' };
    const by = `${result.path.slice(root.length)}: ${failure.name}: ${failure.message.split('\n')[0]}`;
    const file = result.path.slice(root.length);
    kills.set(file, (kills.get(file) ?? 0) + 1);
    const verdict = /timed out in \d+ ?ms/.test(failure.message) ? 'endless' : 'killed';
    // The tests of assembly/ leave nothing behind: each file has a module of its own.
    if (isAssembly(mutant.file)) return { verdict, by };
    // Leftovers of another mutant may have failed the test: it must pass without any here, or in the next process.
    const places = failure.place === undefined ? plan.find((part) => part.path === result.path).places : [failure.place];
    if (await passes({ path: result.path, places }, own, limitOf)) return { verdict, by };
    own.end();
    if (!isFresh) continue;
    if (await passes({ path: result.path, places }, own, limitOf)) return { verdict, by };
    if (!unreliable.has(by)) tell(`\r\u001b[Kfails alone without a mutant, and is left out: ${file}: ${failure.name}: ${failure.message}`);
    unreliable.add(by);
    plan = plan.map((part) =>
      part.path === result.path ? { ...part, places: part.places.filter((place) => !places.includes(place)) } : part,
    );
  }
}

const quickOnly = 'only quick tests ran';

/** What the limits of the tests are multiplied by. */
let patience = 1;

/** What failed without a mutant. */
const unreliable = new Set();

async function passes(part, own, limitOf) {
  const { failure, isEndless, crash } = await own.run({ kind: 'run', files: [part] }, limitOf);
  return failure === undefined && !isEndless && crash === undefined;
}

/** The outcomes of earlier runs. */
function loggedResults(mutants) {
  const byName = new Map();
  for (const line of existsSync(logFile) ? readFileSync(logFile, 'utf8').split('\n') : []) {
    const [verdict, place = '', name, by] = line.split('\t');
    if (by !== quickOnly || options.quick) byName.set(`${place.replace(/:\d+$/, '')} ${name}`, { verdict, by });
  }
  const known = (mutant) => byName.get(`${mutant.file} ${mutant.name}`);
  return new Map(mutants.filter(known).map((mutant) => [mutant, known(mutant)]));
}

const isNoticed = ({ verdict }) => verdict === 'killed' || verdict === 'endless';

/** Draws items from a list, the same ones for the same seed. */
function draw(list, count, seed) {
  const keyed = list.map((mutant) => [hashOf(String(seed), mutant.file, mutant.name), mutant]);
  const drawn = new Set(
    keyed
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .slice(0, count)
      .map(([, mutant]) => mutant),
  );
  return list.filter((mutant) => drawn.has(mutant));
}

function formatTable(head, rows) {
  const cells = (row) => `| ${row.join(' | ')} |`;
  return [cells(head), cells(head.map((_, i) => (i === 0 ? '---' : '---:'))), ...rows.map(cells)].join('\n');
}

async function main() {
  const startedAt = performance.now();
  const processes = Number(options.processes);
  const chosenFiles = [...files, ...assemblyFiles].filter((file) => options.file.some((text) => file.includes(text)));
  if (chosenFiles.length === 0) throw new Error(`no file has ${options.file.join(' or ')} in its path`);
  const read = (list) => new Map(list.map((file) => [file, { path: pathOf(file), text: readFileSync(pathOf(file), 'utf8') }]));
  const typescript = { sources: read(files), options: compilerOptions(root) };
  const assembly = { sources: read(assemblyFiles), options: compilerOptions(`${root}assembly/`) };
  const sources = new Map([...typescript.sources, ...assembly.sources]);
  const own = ['make-mutants.mjs', 'test-process.mjs'].map((name) => readFileSync(new URL(name, import.meta.url), 'utf8'));
  const sourceTexts = [...textsUnder('src'), ...textsUnder('assembly')];

  let made = 0;
  const lists = [];
  for (const file of chosenFiles) {
    const key = hashOf(file, JSON.stringify(byHand.filter((one) => one.file === file)), ...own, ...sourceTexts);
    lists.push(
      await remembered(`made-${basename(file)}`, key, () => {
        const language = isAssembly(file) ? assembly : typescript;
        language.program ??= ts.createProgram(
          [...language.sources.values()].map(({ path }) => path),
          language.options,
        );
        const some = mutantsOf(file, language.program, sources);
        const good = typeChecked(some, new Map([[file, sources.get(file)]]), language.options, (done, of) =>
          progress(`${file}: types ${done} of ${of}`),
        );
        return { made: some.length, good };
      }),
    );
  }
  for (const list of lists) made += list.made;
  let mutants = lists.flatMap(({ good }) => good).filter(({ name }) => options.name.some((text) => name.includes(text)));
  const [shard, shards] = options.shard.split('/').map(Number);
  mutants = mutants.filter((_, number) => number % shards === shard - 1);
  if (options.sample !== undefined) mutants = draw(mutants, Number(options.sample), options.seed);
  tell(`${mutants.length} mutants (${made} were made of ${chosenFiles.length} files; those that do not type-check are not counted)`);
  const reasonOf = ({ file, name }) => equivalent[file]?.[name];
  if (options.list) {
    for (const mutant of mutants)
      console.log(`${mutant.file}:${mutant.line} ${mutant.name}${reasonOf(mutant) ? ` (equivalent: ${reasonOf(mutant)})` : ''}`);
    return 0;
  }

  const chosen = chosenFiles.every(isAssembly) ? assemblyTests : chosenTests;
  const covered = await coverage(typescript.sources, processes, own, chosen);
  for (const [path, { failures = [], crash, isEndless }] of Object.entries(covered.files)) {
    if (crash !== undefined || isEndless) tell(`${path} does not run without a mutant: ${crash ?? 'it does not end'}`);
    for (const { name, message } of failures) tell(`fails without a mutant, and is left out: ${path}: ${name}: ${message.split('\n')[0]}`);
  }
  const indexed = index(covered);
  if (mutants.some(({ file }) => isAssembly(file))) await checkPlainAssembly(sources, covered.files);
  const durations = new Map(
    Object.entries(covered.files).flatMap(([path, { tests = [] }]) =>
      tests.map((test) => [`${pathOf(path)} ${test.place}`, test.milliseconds]),
    ),
  );
  const results = options.resume ? loggedResults(mutants) : new Map();
  let done = results.size;
  const left = mutants.filter((mutant) => !results.has(mutant));
  await inProcesses(left, processes, async (mutant, process) => {
    const result = await runMutant(mutant, sources, planOf(mutant, covered, indexed), durations, process);
    results.set(mutant, result);
    if (logFile) appendFileSync(logFile, `${result.verdict}\t${mutant.file}:${mutant.line}\t${mutant.name}\t${result.by}\n`);
    const known = reasonOf(mutant) !== undefined;
    if (result.verdict === 'survived' && !known)
      tell(`\r\u001b[Ksurvived: ${mutant.file}:${mutant.line} ${mutant.name}${result.by && ` (${result.by})`}`);
    if (isNoticed(result) && known)
      tell(`\r\u001b[Klisted as equivalent, but ${result.verdict}: ${mutant.file}:${mutant.line} ${mutant.name} (${result.by})`);
    progress(`${++done} of ${mutants.length}`);
  });

  const uncompiled = mutants.filter((mutant) => results.get(mutant).verdict === 'uncompiled').length;
  if (uncompiled > 0) console.log(`${uncompiled} mutants do not compile to WebAssembly, and are not counted`);
  mutants = mutants.filter((mutant) => results.get(mutant).verdict !== 'uncompiled');
  const verdictOf = (mutant) => {
    const { verdict } = results.get(mutant);
    return verdict === 'survived' && reasonOf(mutant) !== undefined ? 'equivalent' : verdict;
  };
  const row = (name, list) => [
    name,
    list.length,
    ...['killed', 'endless', 'equivalent', 'survived'].map((word) => list.filter((mutant) => verdictOf(mutant) === word).length),
  ];
  const rows = chosenFiles.map((file) =>
    row(
      `\`${file}\``,
      mutants.filter((mutant) => mutant.file === file),
    ),
  );
  const columns = ['file', 'mutants', 'killed', 'did not end', 'equivalent', 'survived'];
  console.log(formatTable(columns, [...rows, row('all', mutants)]));
  if (options.save !== undefined) {
    const named = rows.map((cells) => Object.fromEntries(columns.map((column, i) => [column, cells[i]])));
    saveFigures(options.save, named);
  }
  const survivors = mutants.filter((mutant) => verdictOf(mutant) === 'survived');
  for (const mutant of survivors) console.log(`survived: ${mutant.file}:${mutant.line} ${mutant.name}`);
  const wrong = mutants.filter((mutant) => reasonOf(mutant) !== undefined && isNoticed(results.get(mutant)));
  for (const mutant of wrong)
    console.log(`listed as equivalent, but ${results.get(mutant).verdict}: ${mutant.file}:${mutant.line} ${mutant.name}`);
  const names = new Set(lists.flatMap(({ good }) => good).map(({ file, name }) => `${file} ${name}`));
  const stale = chosenFiles.flatMap((file) =>
    Object.keys(equivalent[file] ?? {})
      .filter((name) => !names.has(`${file} ${name}`))
      .map((name) => `${file} ${name}`),
  );
  for (const name of stale) console.log(`listed as equivalent, but not there any more: ${name}`);
  console.log(`${mutants.length} mutants in ${((performance.now() - startedAt) / 1000).toFixed(0)} s`);
  return survivors.length + wrong.length + stale.length === 0 ? 0 : 1;
}

try {
  process.exitCode = await main();
} catch (error) {
  console.error(error.stack);
  process.exitCode = 1;
} finally {
  await server.close();
  for (const folder of packageFolders) rmSync(folder, { recursive: true });
}
