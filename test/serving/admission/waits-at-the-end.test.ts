/** Whether a process goes on that does nothing but wait for a promise of memory. */
import { describe, expect, test } from 'vitest';
import { printed, runModule } from '../../support/run-module.js';

/** A program with a buffer that can leave the device unless it stays pinned; the first try is refused. */
const spilling = (isRefused: boolean) => `
  import { CudaMemoryResource, PinnedHostMemoryResource, Stream } from 'cistern';
  import { failCall } from 'cistern/testing';
  import { AdmittingResourceAdaptor, SpillableBuffer, SpillingResourceAdaptor } from 'cistern/serving';
  const admitting = new AdmittingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 4096 });
  const resource = new SpillingResourceAdaptor(admitting, new PinnedHostMemoryResource());
  const stream = new Stream();
  const buffer = new SpillableBuffer(4096, { resource, stream });
  const pin = buffer.pinSync();
  pin.fill(1);
  if (${isRefused}) {
    pin.dispose();
    failCall('cuMemcpyAsync', 1, 999);
  }
  const grant = await admitting.reserve(4096);
  console.log(grant.bytes, buffer.isOnDevice);
`;

describe('a process that only waits', () => {
  test('goes on while a spill that was refused is to be tried again, and then ends', () => {
    expect(runModule(spilling(true))).toEqual(printed('4096 false'));
  });

  test('ends if there is nothing to spill', () => {
    const { status, stdout } = runModule(spilling(false));
    expect([status, stdout]).toEqual([13, '']);
  });

  test('ends if only it could return the memory', () => {
    const { status, stdout } = runModule(`
      import { CudaMemoryResource } from 'cistern';
      import { AdmittingResourceAdaptor } from 'cistern/serving';
      const resource = new AdmittingResourceAdaptor(new CudaMemoryResource(), { limitBytes: 4096 });
      const grant = await resource.reserve(4096);
      await resource.reserve(4096);
      console.log(grant.bytes);
    `);
    expect([status, stdout]).toEqual([13, '']);
  });
});
