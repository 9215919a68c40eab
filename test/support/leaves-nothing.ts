// Loaded before each test file of those that share a process (together.mjs): the files after it begin with the device, and with the environment,
// that it leaves. So one that leaves memory behind fails, and not a later one that finds it.
import { isDeepStrictEqual } from 'node:util';
import { afterAll, beforeEach, expect } from 'vitest';
import { CudaMemoryResource, Device, HostMemoryResource, ManagedMemoryResource, PinnedHostMemoryResource } from '../../src/index.js';

const kinds = { CudaMemoryResource, HostMemoryResource, ManagedMemoryResource, PinnedHostMemoryResource };

function left(): Record<string, unknown> {
  const bytes = Object.entries(kinds).map(([name, Kind]) => {
    const resource = new Kind();
    const { reservedBytes } = resource;
    resource.dispose();
    return [name, reservedBytes];
  });
  const variables = Object.entries(process.env).filter(([name]) => name.startsWith('CISTERN_') && name !== 'CISTERN_TEST_RESULTS');
  const { totalBytes } = Device.get(0).memoryInfo();
  return { ...Object.fromEntries(bytes), totalBytes, variables: variables.sort(), folder: process.cwd() };
}

const before = left();
let hasFailed = false;
beforeEach(({ onTestFailed }) =>
  onTestFailed(() => {
    hasFailed = true;
  }),
);

// The hooks of the file itself, which end what it shares between tests, come first.
afterAll(() => {
  const isLeft = !isDeepStrictEqual(left(), before);
  // On a visit (test/gpu/run-gpu.mjs), the file then runs by itself, and those after it in another process.
  if (process.env['CISTERN_TEST_RESULTS'] !== undefined && (hasFailed || isLeft)) process.kill(process.pid, 'SIGKILL');
  expect(left(), 'what this file leaves to the next one in its process').toEqual(before);
});
