// Runs tests in one process, repeatedly, each time on freshly evaluated modules. Started by
// run-mutants.mjs, which supplies the text of every module.
import { readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import process from 'node:process';
import vm from 'node:vm';
import { startTests } from '@vitest/runner';
import fc from 'fast-check';
import { createNodeImportMeta, ModuleRunner } from 'vite/module-runner';

const testLimitMilliseconds = 8_000;
/** Counting statements takes time. */
const coverLimitMilliseconds = 60_000;

// A counterexample need not be small, and the next run must find it again.
fc.configureGlobal({ endOnFailure: true, seed: 1 });

let requests = 0;
const answers = new Map();
function ask(message) {
  return new Promise((resolve, reject) => {
    const number = ++requests;
    answers.set(number, { resolve, reject });
    process.send({ ...message, request: number });
  });
}

/** The parent's answers about modules, which are the same for every run. */
const fetched = new Map();
/** The module that is changed in this run: its id, and its text. */
let changed;

/** The modules that the test file replaces by others with `vi.mock(a, () => import(b))`: b by a, as paths in the tree. */
let replaced = new Map();

function replacedIn(root, path) {
  const pathOf = (specifier) =>
    join(dirname(path), specifier)
      .slice(root.length - 1)
      .replace(/\.js$/, '.ts');
  const calls = readFileSync(path, 'utf8').matchAll(/^vi\.mock\('(.+)', \(\) => import\('(.+)'\)\);$/gm);
  return new Map(Array.from(calls, ([, from, to]) => [pathOf(from), pathOf(to)]));
}

// What functions of `vi` for timers ask for.
globalThis.__vitest_worker__ = { config: { fakeTimers: {} } };

// What `vi.mock` calls when a test file is evaluated.
globalThis.__vitest_mocker__ = {
  queueMock(path) {
    const name = path.slice(path.lastIndexOf('/')).replace(/\.js$/, '.ts');
    if (![...replaced.keys()].some((known) => known.endsWith(name))) throw new Error(`cannot replace ${path}`);
  },
};

async function fetchModule(written, importer, { cached }) {
  if (cached) return { cache: true };
  const url = replaced.get(written) ?? written;
  const key = url.startsWith('.') ? `${url} ${importer}` : url;
  let module = fetched.get(key);
  if (module === undefined) {
    module = await ask({ kind: 'fetch', url, importer });
    fetched.set(key, module);
  }
  return { ...module, invalidate: false };
}

const compiled = new Map();
function compile(code, id) {
  const names =
    '__vite_ssr_exports__, __vite_ssr_import__, __vite_ssr_dynamic_import__, __vite_ssr_exportAll__, __vite_ssr_exportName__, __vite_ssr_import_meta__';
  return new vm.Script(`'use strict'; (async (${names}) => {\n${code}\n})`, { filename: id }).runInThisContext();
}

const evaluator = {
  startOffset: 1,
  async runInlinedModule(context, code, { id }) {
    let run;
    if (changed?.id === id) {
      changed.run ??= compile(changed.code, id);
      run = changed.run;
    } else {
      run = compiled.get(id);
      if (run === undefined) {
        run = compile(overridden.get(id) ?? code, id);
        compiled.set(id, run);
      }
    }
    const keys = ['exports', 'import', 'dynamic_import', 'exportAll', 'exportName', 'import_meta'];
    await run(...keys.map((key) => context[`__vite_ssr_${key}__`]));
  },
  runExternalModule: (file) => import(file),
};
/** Modules that count which of their statements run, by id. */
const overridden = new Map();

const modules = new ModuleRunner(
  {
    hmr: false,
    sourcemapInterceptor: false,
    createImportMeta: createNodeImportMeta,
    transport: {
      async invoke({ data: { name, data } }) {
        return { result: name === 'getBuiltins' ? await ask({ kind: 'builtins' }) : await fetchModule(...data) };
      },
    },
  },
  evaluator,
);

/** An error outside any test. */
let strayError;
process.on('uncaughtException', (error) => {
  strayError ??= error;
});
process.on('unhandledRejection', (error) => {
  strayError ??= error;
});

const config = (root, limitMilliseconds) => ({
  root,
  setupFiles: [],
  name: undefined,
  passWithNoTests: true,
  testNamePattern: undefined,
  allowOnly: true,
  sequence: { seed: 0, hooks: 'stack', setupFiles: 'list' },
  chaiConfig: undefined,
  maxConcurrency: 5,
  testTimeout: limitMilliseconds,
  hookTimeout: limitMilliseconds,
  retry: 0,
  includeTaskLocation: false,
  tags: [],
  tagsFilter: undefined,
  strictTags: false,
});

/** The place of a test in its file: names may occur twice. */
const placeOf = ({ id }) => id.slice(id.indexOf('_') + 1);
const nameOf = (task) => (task.suite === undefined || task.suite.filepath !== undefined ? task.name : `${nameOf(task.suite)} ${task.name}`);

/**
 * Runs tests of one file.
 * @param places the tests to run; all if empty
 * @param options whether to continue after a failure; hooks around each test
 */
async function runFile(root, path, places, { isWhole = false, onBeforeTest, onTest } = {}) {
  const failures = [];
  let isOver = false;
  replaced = replacedIn(root, path);
  modules.clearCache();
  // Each file has modules of its own, which listen for the end of the process: that would keep those of all earlier files, and
  // Node warns of more than ten.
  process.removeAllListeners('exit');
  strayError = undefined;
  const wanted = places === undefined ? undefined : new Set(places);
  function choose(suite) {
    let found = false;
    for (const task of suite.tasks) {
      if (task.type === 'suite') {
        if (choose(task)) found = true;
        else task.mode = 'skip';
      } else if (task.mode === 'run' || task.mode === 'queued') {
        if (wanted === undefined || wanted.has(placeOf(task))) found = true;
        else task.mode = 'skip';
      }
    }
    return found;
  }
  const fail = (name, error, place) => {
    failures.push({ name, place, message: String(error?.message ?? error), stack: String(error?.stack ?? '').slice(0, 2000) });
    if (!isWhole) isOver = true;
  };
  const runner = {
    config: config(root, isWhole ? coverLimitMilliseconds : testLimitMilliseconds),
    importFile: (file) => modules.import(file),
    onCollected(files) {
      for (const file of files) {
        if (file.result?.state === 'fail') fail('(import)', file.result.errors?.[0]);
        if (!choose(file) && wanted !== undefined) file.mode = 'skip';
      }
    },
    onBeforeRunSuite(suite) {
      if (isOver) suite.mode = 'skip';
    },
    onBeforeRunTask(test) {
      if (isOver) test.mode = 'skip';
      test.startedAt = performance.now();
      onBeforeTest?.(placeOf(test));
    },
    onAfterRunTask(test) {
      if (test.mode === 'skip') return;
      if (strayError !== undefined) fail(nameOf(test), strayError, placeOf(test));
      else if (test.result?.state === 'fail') fail(nameOf(test), test.result.errors?.[0], placeOf(test));
      strayError = undefined;
      onTest?.(placeOf(test), nameOf(test), performance.now() - test.startedAt);
    },
    onAfterRunSuite(suite) {
      // A hook failed.
      const [error] = suite.result?.errors ?? [];
      if (error !== undefined && !isOver) fail(`(hook of ${suite.name})`, error);
    },
  };
  await startTests([path], runner);
  return failures;
}

/** Runs all tests of a file, and reports which statements each reached, and which of these in programs that it started. */
async function cover(root, path, probes, hitsFile) {
  for (const [id, { code }] of Object.entries(probes)) overridden.set(id, code);
  const hits = new Uint8Array(Object.values(probes).reduce((sum, { count }) => sum + count, 0));
  globalThis.__hit = (number) => {
    hits[number] = 1;
  };
  writeFileSync(hitsFile, '');
  const take = () => {
    const found = [];
    hits.forEach((hit, number) => {
      if (hit === 1) found.push(number);
    });
    hits.fill(0);
    const elsewhere = new Set(readFileSync(hitsFile, 'utf8').split('\n').filter(Boolean).map(Number));
    if (elsewhere.size > 0) writeFileSync(hitsFile, '');
    return { statements: [...new Set([...found, ...elsewhere])], elsewhere: [...elsewhere] };
  };
  const tests = [];
  const outside = new Set();
  const leave = () => {
    for (const number of take().statements) outside.add(number);
  };
  const startedAt = performance.now();
  const failures = await runFile(root, path, undefined, {
    isWhole: true,
    onBeforeTest: leave,
    onTest: (place, name, milliseconds) => tests.push({ place, name, milliseconds, ...take() }),
  });
  leave();
  return { tests, outside: [...outside], failures, milliseconds: performance.now() - startedAt };
}

/** The memory of this process and, if tests reached the driver, of its devices that is in use now. */
function memoryInUse(root) {
  const { Device } = modules.evaluatedModules.getModuleById(join(root, 'src/driver/device.ts'))?.exports ?? {};
  let deviceBytes = 0;
  try {
    for (let i = 0; i < (Device?.count() ?? 0); i++) {
      const { totalBytes, freeBytes } = Device.get(i).memoryInfo();
      deviceBytes += totalBytes - freeBytes;
    }
  } catch {
    // A mutant of the driver: what it has left cannot be told.
    deviceBytes = Number.POSITIVE_INFINITY;
  }
  return { memory: process.memoryUsage.rss(), deviceBytes };
}

async function answer(message) {
  const { kind, root } = message;
  // Where programs and workers that tests start find the package.
  if (message.packageFolder === undefined) delete process.env.CISTERN_TEST_PACKAGE;
  else process.env.CISTERN_TEST_PACKAGE = message.packageFolder;
  if (kind === 'cover') {
    process.env.CISTERN_MUTANTS_HITS = message.hitsFile;
    return { ...(await cover(root, message.path, message.probes, message.hitsFile)), ...memoryInUse(root) };
  }
  changed = message.changed;
  for (const { path, places } of message.files) {
    process.send({ kind: 'began', path });
    const [failure] = await runFile(root, path, places, { onBeforeTest: (place) => process.send({ kind: 'began', path, place }) });
    if (failure !== undefined) return { path, failure, ...memoryInUse(root) };
  }
  return { failure: undefined, ...memoryInUse(root) };
}

process.on('message', async (message) => {
  if (message.kind === 'answer') {
    const { resolve, reject } = answers.get(message.request);
    answers.delete(message.request);
    if (message.error === undefined) resolve(message.result);
    else reject(new Error(message.error));
    return;
  }
  try {
    process.send({ kind: 'done', result: await answer(message) });
  } catch (error) {
    process.send({ kind: 'done', error: String(error?.stack ?? error) });
  }
});
process.on('disconnect', () => process.exit());
process.send({ kind: 'ready' });
