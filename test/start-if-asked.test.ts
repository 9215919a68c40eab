import { expect, test } from 'vitest';
import { runModule } from './support/run-module.js';

test('a misspelt environment variable causes one warning that suggests the name', () => {
  const { status, stderr } = runModule(
    "import 'cistern'; import { Worker } from 'node:worker_threads'; new Worker('import(\"cistern\")', { eval: true });",
    {
      CISTERN_RESOURCES: 'pool(cuda)',
      CISTERN_LIMITS: '8GiB',
      CISTERN_DUMP_ON_OOM: 'dumps',
      CISTERN_SERVICE_HOST: '10.0.0.1', // Kubernetes sets such variables
      CISTERN_TEST_DEVICE: 'software',
    },
  );
  const warnings = stderr.match(/^.*CISTERN_UNKNOWN_SETTING.*$/gm) ?? [];
  expect(status).toBe(0);
  expect(warnings.map((line) => line.replace(/^.*Warning: /, '')).sort()).toEqual([
    'the environment variable CISTERN_DUMP_ON_OOM has no effect: did you mean CISTERN_DUMP_ON_OUT_OF_MEMORY?',
    'the environment variable CISTERN_LIMITS has no effect: did you mean CISTERN_LIMIT?',
    'the environment variable CISTERN_RESOURCES has no effect: did you mean CISTERN_RESOURCE?',
  ]);
  expect(stderr).not.toMatch(/SERVICE_HOST|TEST_DEVICE/);
});
