import { defineConfig } from 'vitest/config';

const software = { CISTERN_DEVICE: 'software', CISTERN_SOFTWARE_MEMORY: '1GiB', CISTERN_SOFTWARE_DEVICES: '2' };

export default defineConfig({
  test: {
    pool: 'forks',
    maxWorkers: '100%',
    testTimeout: 30_000,
    projects: [
      {
        extends: true,
        test: { name: 'unit', include: ['test/**/*.test.ts'], exclude: ['test/gc/**', 'test/gpu/**', 'test/browser/**'], env: software },
      },
      {
        extends: true,
        test: { name: 'gc', include: ['test/gc/**/*.test.ts'], env: software, execArgv: ['--expose-gc'] },
      },
      {
        extends: true,
        // What a page has drawn when it is looked at depends on how busy the machine is.
        test: { name: 'browser', include: ['test/browser/**/*.test.ts'], env: software, retry: 1 },
      },
      {
        extends: true,
        test: { name: 'gpu', include: ['test/gpu/**/*.test.ts'], env: { CISTERN_DEVICE: 'cuda' } },
      },
    ],
  },
});
