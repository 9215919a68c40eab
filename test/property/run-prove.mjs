/**
 * Random programs in the long form:
 * `npm run prove -- --programs 200000 [--graphs | --arenas | --admission | --rings | --spill | --crossings | --neighbours] [--seed S] [--path P] [--workers N] [--save]`. With
 * `--graphs`, they capture graphs with memory; with `--arenas`, native threads share memory with
 * pools; with `--admission`, they wait for promises of it, and with `--rings` for those of several resources; with `--spill`, buffers leave the
 * device; with `--crossings`, several features have the same memory; with `--neighbours`, several stacks share a device. They are distributed
 * over as many processes as there are processors: each process has its own seed, derived from S.
 * `--save` enters the figures in docs/proof.md.
 * With `--model`, every state of the models of docs/*-protocol.md is visited instead.
 * Exits with 0 only if there was no violation. With the seed and the path that a violation was
 * printed with, its program is run again.
 */
import { fork } from 'node:child_process';
import { rmSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { build } from 'vite';
import { buildThreads } from '../../scripts/build-for-tests.mjs';
import { saveFigures } from '../../scripts/proof-figures.mjs';
import { deviceUnderTest } from '../support/device-under-test.mjs';

const { values } = parseArgs({
  options: {
    admission: { type: 'boolean', default: false },
    arenas: { type: 'boolean', default: false },
    crossings: { type: 'boolean', default: false },
    graphs: { type: 'boolean', default: false },
    model: { type: 'boolean', default: false },
    neighbours: { type: 'boolean', default: false },
    rings: { type: 'boolean', default: false },
    spill: { type: 'boolean', default: false },
    programs: { type: 'string', default: '10000' },
    seed: { type: 'string' },
    path: { type: 'string' },
    save: { type: 'boolean', default: false },
    workers: { type: 'string', default: String(availableParallelism()) },
    help: { type: 'boolean', default: false },
  },
});
if (values.help) {
  console.log(
    `usage: npm run prove -- [options]

Runs random programs under the order checker, and compares them with a model.

  --programs N   how many (10000)
  --graphs       they capture graphs with memory
  --arenas       native threads share memory with pools
  --admission    they wait for promises of memory
  --rings        they wait for promises of several resources
  --spill        buffers leave the device
  --crossings    several features have the same memory
  --neighbours   several stacks share a device
  --seed S       instead of one by chance
  --path P       with the seed of a violation: its program again
  --workers N    processes (one for each processor)
  --save         enters the figures in docs/proof.md
  --model        visits every state of the models of docs/*-protocol.md instead`,
  );
  process.exit();
}
if (values.model) {
  await import('../model/run-model.mjs');
  process.exit();
}
const files = {
  admission: 'admission-programs',
  arenas: 'arena-programs',
  crossings: 'crossing-programs',
  graphs: 'graph-programs',
  neighbours: 'neighbour-programs',
  rings: 'ring-programs',
  spill: 'spill-programs',
};
const only = Object.keys(files).find((name) => values[name]);
const kind = files[only] ?? 'programs';
/** Their seeds are successive numbers. */
const isBySeed = only !== undefined && only !== 'graphs';
const isPath = values.path !== undefined;
const programs = isPath ? 1 : wholeNumber('programs');
const seed = values.seed === undefined ? Math.trunc(Math.random() * 2 ** 31) : wholeNumber('seed');
const workers = isPath ? 1 : Math.max(1, Math.min(wholeNumber('workers'), programs));

Object.assign(process.env, deviceUnderTest);
// One file, in which V8 can inline imports: run module by module, it takes more than twice the
// time. It is as deep below the root as a module of `src/driver`, which looks for the addon from
// there.
const outDir = `build/prove-${process.pid}`;
const root = fileURLToPath(new URL('../..', import.meta.url));
const input = fileURLToPath(new URL('prove-worker.ts', import.meta.url));
await build({ root, configFile: false, logLevel: 'error', build: { ssr: input, outDir, target: 'node20', minify: false } });

const { isTTY } = process.stderr;
const done = new Array(workers).fill(0);
let violations = 0;
try {
  await Promise.all(done.map((_, worker) => run(worker)));
} finally {
  rmSync(`${root}${outDir}`, { recursive: true });
}
process.exit(violations === 0 ? 0 : 1);

/** Runs a share of the programs in a separate process, and prints the outcome. */
function run(worker) {
  const share = Math.floor(programs / workers) + (worker < programs % workers ? 1 : 0);
  const child = fork(`${root}${outDir}/prove-worker.js`);
  child.send({
    only,
    threads: values.arenas ? buildThreads() : undefined,
    programs: share,
    seed: isPath ? seed : seed + worker * (isBySeed ? programs : 1),
    path: values.path,
  });
  return new Promise((resolve) => {
    let isOver = false;
    child.on('message', ({ progress, text, hasViolation, figures }) => {
      if (progress !== undefined) {
        done[worker] = progress;
        if (isTTY) process.stderr.write(`\r${done.reduce((sum, each) => sum + each)} of ${programs} programs`);
        return;
      }
      isOver = true;
      if (hasViolation) violations++;
      if (isTTY) process.stderr.write('\r\u001b[K');
      console.log(text);
      if (values.save && !isPath) saveFigures(kind, [figures]);
    });
    child.on('exit', (code, signal) => {
      if (!isOver || code !== 0) {
        violations++;
        console.log(`the process with seed ${seed + worker} ended by itself (${signal ?? code})`);
      }
      resolve();
    });
  });
}

function wholeNumber(name) {
  const number = Number(values[name]);
  if (Number.isSafeInteger(number) && number >= 0 && values[name] !== '') return number;
  console.error(`--${name} must be a whole number, got ${values[name]}`);
  process.exit(2);
}
