import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';
import { needMemoryPools } from '../support/device-memory.js';
import { runModule } from '../support/run-module.js';
import { skipTest } from '../support/skip-test.js';

const ptx = fileURLToPath(new URL('kernels.ptx', import.meta.url));

/**
 * Declares `breakContext`, which breaks the context of the first device with an illegal address, on
 * a stream of its own, and waits until the device has noticed.
 */
function declareBreakContext(): string {
  const control = process.env['STRICT_DRIVER_CONTROL'];
  const kernels = process.env['CISTERN_KERNELS'];
  if (control !== undefined) return `const breakContext = () => require(${JSON.stringify(control)}).setStickyError(0, 700);`;
  if (kernels === undefined) skipTest('CISTERN_KERNELS does not name the addon that launches kernels');
  return `
    const kernels = require(${JSON.stringify(kernels)});
    const breaker = new Stream({ nonBlocking: true });
    const scratch = new CudaMemoryResource().allocate(4, breaker);
    // The driver loads a kernel at its first launch, and may wait for that until the device is idle.
    for (const call of [
      () => kernels.load(readFileSync(${JSON.stringify(ptx)}, 'utf8')),
      () => kernels.fill(breaker.nativeHandle, scratch, 1, 1),
    ]) {
      const status = call();
      if (status !== 0) throw new Error('cannot prepare the kernel: CUDA error ' + status);
    }
    breaker.synchronizeSync();
    const breakContext = () => {
      kernels.fill(breaker.nativeHandle, 64, 1, 1);
      told(() => breaker.synchronizeSync());
    };
  `;
}

const head = () => `
  import { readFileSync } from 'node:fs';
  import { createRequire } from 'node:module';
  import { CudaAsyncMemoryResource, CudaMemoryResource, DeviceBuffer, Device, Event, PoolMemoryResource, Stream, set } from 'cistern';
  const require = createRequire(process.cwd() + '/');
  const stream = new Stream({ nonBlocking: true });
  const told = (use) => {
    try {
      use();
      return 'nothing';
    } catch (error) {
      return error.code + ' ' + error.driverName;
    }
  };
  ${declareBreakContext()}
`;
const error = 'ERR_CISTERN_DRIVER CUDA_ERROR_ILLEGAL_ADDRESS';

test('an error that stays in the context is thrown by every call that needs the device, and the process ends', () => {
  const { status, signal, stdout, stderr } = runModule(`${head()}
    const resource = new CudaMemoryResource();
    const pointer = resource.allocate(1024, stream);
    const event = new Event();
    event.record(stream);
    stream.synchronizeSync();
    breakContext();
    console.log(told(() => stream.synchronizeSync()));
    for (const use of [
      () => set(pointer, 1, 1, 1024, stream), () => Device.get().synchronizeSync(), () => event.record(stream), () => resource.allocate(8, stream),
      () => stream.query(),
    ]) console.log(told(use));
    console.log(await stream.synchronize().then(() => 'nothing', ({ code, driverName }) => code + ' ' + driverName));
  `);
  expect({ status, signal, lines: stdout.trim().split('\n'), stderr }).toEqual({
    status: 0,
    signal: null,
    lines: Array.from({ length: 7 }, () => error),
    stderr: '',
  });
});

test('a process ends even if host functions and promises wait for a context that is in error', () => {
  needMemoryPools();
  const { status, signal, stdout } = runModule(`${head()}
    const pool = new PoolMemoryResource(new CudaAsyncMemoryResource());
    const buffer = new DeviceBuffer(new Uint8Array(1000), { resource: pool, stream });
    const hold = stream.hold();
    stream.launchHostFunction(() => console.log('never'));
    const waiting = stream.synchronize().then(() => 'nothing', ({ code }) => code);
    const reading = buffer.toHost().then(() => 'nothing', ({ code }) => code);
    breakContext();
    hold.release();
    console.log(await waiting, await reading);
  `);
  expect({ status, signal, stdout }).toEqual({ status: 0, signal: null, stdout: 'ERR_CISTERN_DRIVER ERR_CISTERN_DRIVER\n' });
});
