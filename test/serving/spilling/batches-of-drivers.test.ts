/** Buffers that leave together, with each form of the driver's batches, and with drivers and devices that go without. */
import { expect, test } from 'vitest';
import { deviceUnderTest } from '../../support/device-under-test.mjs';
import { runModule, wholePackage } from '../../support/run-module.js';
import { skipTest } from '../../support/skip-test.js';

/** Lets 8 buffers leave that are no neighbours, and come back. Prints the copies that this took, and how many have their contents. */
const program = `
  import * as c from '${wholePackage}';
  import { driverCallCounts } from 'cistern/testing';
  c.selectBackend('cuda');
  const stream = new c.Stream({ nonBlocking: true });
  const cuda = new c.CudaMemoryResource();
  const host = new c.PoolMemoryResource(new c.PinnedHostMemoryResource(), { initialBytes: 1048576 });
  const resource = new c.SpillingResourceAdaptor(cuda, host);
  const buffers = Array.from({ length: 8 }, (_, i) => new c.SpillableBuffer(new Uint8Array(1000).fill(i), { stream, resource }));
  const copies = () => ['cuMemcpyAsync', 'cuMemcpyBatchAsync'].map((name) => driverCallCounts().byFunction[name]);
  const before = copies();
  resource.spill();
  console.log(copies().map((count, i) => count - before[i]).join());
  const pins = await c.SpillableBuffer.pinAll(buffers);
  const contents = await Promise.all(pins.map((pin) => pin.toHost()));
  console.log(contents.filter((bytes, i) => bytes.every((byte) => byte === i)).length);
`;

test.each([
  ['CUDA 13', {}, '0,1'],
  ['CUDA 12.8, which also says what was refused', { STRICT_DRIVER_VERSION: '12080' }, '0,1'],
  // The driver's own is not called.
  ['CUDA 12.7, which has no batches', { STRICT_DRIVER_VERSION: '12070' }, '8,1'],
  ['a driver that refuses each', { STRICT_DRIVER_FAIL: 'cuMemcpyBatchAsync:0:801' }, '8,1'],
  ['a Blackwell device, of which faults of batches are known', { STRICT_DRIVER_COMPUTE_CAPABILITY: '10' }, '8,0'],
])('%s', (_, settings, copies) => {
  if (process.env['STRICT_DRIVER_CONTROL'] === undefined) skipTest('only the strict driver can be made another one');
  const { stdout, stderr } = runModule(program, { ...deviceUnderTest, STRICT_DRIVER_LOG: '/dev/null', ...settings });
  expect([stdout, stderr]).toEqual([`${copies}\n8\n`, '']);
});
