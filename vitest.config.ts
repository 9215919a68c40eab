import { availableParallelism } from 'node:os';
import { defineConfig } from 'vitest/config';
import './scripts/build-wasm.mjs';
import './scripts/build-stale-entries.mjs';
import { gpuSuites, trialSuite } from './test/gpu/suites.mjs';
import { deviceUnderTest } from './test/support/device-under-test.mjs';

const setupFiles = ['test/support/plain-stacks.ts', 'test/support/direct-faults-of-tests.ts', 'test/support/captures-left-over.ts'];

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
      {
        extends: true,
        test: {
          name: 'unit',
          include: ['test/**/*.test.ts'],
          exclude: ['test/gc/**', 'test/gpu/**', 'test/browser/**'],
          env: deviceUnderTest,
          setupFiles,
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
      ...Object.entries({ ...gpuSuites, trial: trialSuite }).map(([name, { include, exclude, execArgv }]) => ({
        extends: true as const,
        test: {
          name: `gpu-${name}`,
          include: [...include],
          exclude: [...exclude],
          execArgv: [...execArgv],
          env: { CISTERN_DEVICE: 'cuda' },
          setupFiles: ['test/gpu/report-progress.ts', ...setupFiles],
          fileParallelism: false,
        },
      })),
    ],
  },
});
