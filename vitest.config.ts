import { availableParallelism } from 'node:os';
import { defineConfig } from 'vitest/config';
import './scripts/build-wasm.mjs';
import './scripts/build-stale-entries.mjs';
import { filesOf, gpuSuites, trialSuite } from './test/gpu/suites.mjs';
import { deviceUnderTest } from './test/support/device-under-test.mjs';
import { together, togetherOnVisits } from './test/support/together.mjs';

const unit = { include: ['test/**/*.test.ts'], exclude: ['test/gc/**', 'test/gpu/**', 'test/browser/**'], env: deviceUnderTest };
const setupFiles = ['test/support/plain-stacks.ts', 'test/support/direct-faults-of-tests.ts', 'test/support/captures-left-over.ts'];
/** What files that share a process have besides, before and after it. */
const freshModules = 'test/support/fresh-modules.ts';
const leavesNothing = 'test/support/leaves-nothing.ts';

export default defineConfig({
  test: {
    pool: 'forks',
    // One more than there are processors: many tests wait for workers, programs and pages that they start. The whole took 461 s, and
    // 558 s with two for two processors.
    maxWorkers: availableParallelism() + 1,
    // A machine that does other things besides may need ten times as long.
    testTimeout: 120_000,
    // A busy machine takes longer than the default of a second.
    expect: { poll: { timeout: 20_000 } },
    projects: [
      // For files by name: each has a process of its own. `npm test` runs the same files as the two after it.
      { extends: true, test: { ...unit, name: 'unit', setupFiles } },
      { extends: true, test: { ...unit, name: 'apart', exclude: [...unit.exclude, ...together], setupFiles } },
      {
        extends: true,
        test: {
          ...unit,
          name: 'together',
          include: [...together],
          isolate: false,
          setupFiles: [freshModules, ...setupFiles, leavesNothing],
        },
      },
      {
        extends: true,
        test: { name: 'gc', include: ['test/gc/**/*.test.ts'], env: deviceUnderTest, setupFiles, execArgv: ['--expose-gc'] },
      },
      {
        extends: true,
        // What a page has drawn when it is looked at depends on how busy the machine is.
        test: { name: 'browser', include: ['test/browser/**/*.test.ts'], env: deviceUnderTest, retry: 1 },
      },
      // What runs on a CUDA device, and there on one file at a time: `npm run test:gpu` runs a suite after another and sums up.
      ...Object.entries({ ...gpuSuites, trial: trialSuite }).flatMap(([name, suite]) => {
        const { include, exclude, execArgv } = suite;
        const test = {
          exclude: [...exclude],
          execArgv: [...execArgv],
          env: { CISTERN_DEVICE: 'cuda' },
          fileParallelism: false,
        };
        const progress = 'test/gpu/report-progress.ts';
        const apart = { ...test, name: `gpu-${name}`, include: [...include], setupFiles: [progress, ...setupFiles] };
        const shared = {
          ...test,
          name: `gpu-${name}-together`,
          include: filesOf(suite).filter((file) => togetherOnVisits.includes(file)),
          isolate: false,
          setupFiles: [freshModules, progress, ...setupFiles, leavesNothing],
        };
        return [apart, shared].filter(({ include }) => include.length > 0).map((each) => ({ extends: true as const, test: each }));
      }),
    ],
  },
});
