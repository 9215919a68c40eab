/**
 * The soak: `npm run stress -- --minutes N [--seed S] [--json FILE] [--save]`. Exits with 0 only if nothing
 * was wrong and nothing grew. The rounds run in a separate process, so that only they are measured,
 * and a crash can be reported. `--save` enters the figures in docs/proof.md.
 */
import { spawnSync } from 'node:child_process';
import { readFileSync, rmSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { build } from 'vite';
import { saveFigures } from '../../scripts/proof-figures.mjs';

const { values } = parseArgs({
  options: {
    minutes: { type: 'string', default: '1' },
    seed: { type: 'string' },
    json: { type: 'string' },
    save: { type: 'boolean', default: false },
  },
});
const minutes = Number(values.minutes);
if (!(minutes > 0 && minutes < Number.POSITIVE_INFINITY)) fail(`--minutes must be a positive number, got ${values.minutes}`);
const seed = values.seed === undefined ? Math.trunc(Math.random() * 2 ** 31) : Number(values.seed);
if (!Number.isSafeInteger(seed) || seed < 0 || values.seed === '') fail(`--seed must be a whole number, got ${values.seed}`);

// One file, in which V8 can inline imports. It is as deep below the root as a module of
// `src/driver`, which looks for the addon from there.
const outDir = `build/stress-${process.pid}`;
const outcome = values.json ?? `${outDir}.json`;
const root = fileURLToPath(new URL('../..', import.meta.url));
const input = fileURLToPath(new URL('stress-process.ts', import.meta.url));
const environment = {
  CISTERN_DEVICE: 'software',
  CISTERN_SOFTWARE_MEMORY: '1GiB',
  CISTERN_SOFTWARE_DEVICES: '2',
  // glibc's allocator gives each thread one of many arenas, and adapts to what is freed: both look
  // like growth for a long time.
  MALLOC_ARENA_MAX: '2',
  MALLOC_TRIM_THRESHOLD_: '131072',
  MALLOC_MMAP_THRESHOLD_: '131072',
};
try {
  await build({ root, configFile: false, logLevel: 'error', build: { ssr: input, outDir, target: 'node20', minify: false } });
  const { status, signal } = spawnSync(
    process.execPath,
    ['--no-warnings', `${root}${outDir}/stress-process.js`, String(minutes), String(seed), outcome],
    // Reports a round that never ends.
    { stdio: 'inherit', env: { ...process.env, ...environment }, timeout: minutes * 60_000 + 300_000, killSignal: 'SIGKILL' },
  );
  if (status === null) console.error(`the process ends by ${signal}; again: npm run stress -- --minutes ${minutes} --seed ${seed}`);
  process.exitCode = status ?? 1;
  if (values.save && status !== null) save(JSON.parse(readFileSync(outcome, 'utf8')));
} finally {
  rmSync(`${root}${outDir}`, { recursive: true, force: true });
  if (values.json === undefined) rmSync(outcome, { force: true });
}

function save({ rounds, programs, scenarios, traffic, churned, workers, measures, peakResidentBytes, violations }) {
  const mebibytes = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;
  const resident = [measures.at(Math.ceil(measures.length / 3)), measures.at(-1)].map((each) => mebibytes(each?.residentBytes ?? 0));
  const figures = {
    seed: String(seed),
    minutes,
    rounds,
    programs: programs.programs,
    scenarios,
    'operations of actors': traffic.operations,
    'objects made and ended': churned,
    workers,
    'resident at the peak': mebibytes(peakResidentBytes),
    'resident after a third, at the end': resident.join(', '),
    violations: violations.length,
  };
  saveFigures('stress', [figures]);
}

function fail(message) {
  console.error(message);
  process.exit(2);
}
