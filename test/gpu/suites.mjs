import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('../..', import.meta.url));

/**
 * The suites for a CUDA device, in a sensible order: each relies on what the earlier ones have
 * shown.
 */
export const gpuSuites = {
  driver: suite('streams, events, copies, pools, workers and exits', 'test/driver', 'test/resources'),
  kernels: suite('memory that kernels read and write while it changes hands', 'test/gpu'),
  conformance: suite('every resource and adaptor', 'test/conformance', 'test/tools/testing'),
  adaptors: suite(
    'stream order in every pooling resource',
    'test/adaptors',
    'test/checking',
    'test/graphs',
    'test/plans',
    'test/serving',
    'test/recording/recording-resource-adaptor.test.ts',
    'test/stream-ordering',
    'test/specification/resource-stack.test.ts',
  ),
  buffers: suite(
    'buffers, reclaiming, replay',
    'test/buffers',
    'test/interchange',
    'test/processes',
    'test/lasting',
    'test/workers',
    'test/collector',
    'test/tools/replay/record-replay.test.ts',
    'test/tools/replay/replay-log.test.ts',
    'test/recording/recording.test.ts',
  ),
  collector: { ...suite('what the garbage collector finds', 'test/gc'), execArgv: ['--expose-gc'] },
  programs: suite('known faults and random programs', 'test/property'),
  sweep: suite('each call of the driver fails once; skipped on a GPU', 'test/sweep'),
};

/**
 * Those that a GPU can run, in the order of a visit that may be cut at any time: first the shortest one, which finds the worst
 * faults, then those of which least was ever seen on one.
 */
export const visitOrder = ['kernels', 'buffers', 'conformance', 'collector', 'adaptors', 'driver', 'programs'];

/** What try-visit.mjs runs besides: a test that ends its process, one that hangs, and one that leaves a process behind. */
export const trialSuite = suite(
  'the runner itself',
  ...['crashes', 'hangs', 'lingers'].map((name) => `test/suites/fixture/${name}.suite.ts`),
);

/** The test files of a suite. */
export function filesOf({ paths, exclude }) {
  return paths
    .flatMap((path) => (path.endsWith('.ts') ? path : readdirSync(join(root, path), { recursive: true }).map((name) => `${path}/${name}`)))
    .filter((path) => /\.(test|suite)\.ts$/.test(path) && !exclude.includes(path))
    .sort();
}

function suite(about, ...paths) {
  const include = paths.map((path) => (path.endsWith('.ts') ? path : `${path}/**/*.test.ts`));
  return { about, paths, include, exclude: ['test/driver/software-device.test.ts'], execArgv: [] };
}
