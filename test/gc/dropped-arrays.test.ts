import { setImmediate } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { CudaMemoryResource, DeviceBuffer, Stream } from '../../src/index.js';
import { fromCudaArrayInterface, toCudaArrayInterface } from '../../src/interchange/index.js';
import { collectGarbage, collectGarbageUntil } from './collection.js';

/** An array of a resource, with an object that the array refers to, and a buffer over it. */
function useArray(resource: CudaMemoryResource, stream: Stream): { readonly owner: WeakRef<object>; readonly view: DeviceBuffer } {
  const buffer = new DeviceBuffer(4096, { resource, stream });
  const owner = { buffer };
  const array = { ...toCudaArrayInterface(buffer, { shape: [4096], typestr: '|u1' }), owner };
  return { owner: new WeakRef(owner), view: fromCudaArrayInterface(array, { stream }) };
}

it('an array lives until its buffer was dropped, and the work on it has run', async () => {
  using resource = new CudaMemoryResource();
  using stream = new Stream({ nonBlocking: true });
  const used: { owner?: WeakRef<object>; view?: DeviceBuffer | undefined } = useArray(resource, stream);
  // The target of a `WeakRef` lives until the end of the job that created it.
  await setImmediate();
  const isCollected = () => used.owner?.deref() === undefined;
  const state = () => [isCollected(), resource.reservedBytes];
  const hold = stream.hold();
  used.view?.fill(1);
  await collectGarbage();
  const whileUsed = state();
  used.view = undefined;
  await collectGarbage();
  const whileHeld = state();
  hold.release();
  await collectGarbageUntil(() => resource.reservedBytes === 0);
  expect([whileUsed, whileHeld, state()]).toEqual([
    [false, 4096],
    [false, 4096],
    [true, 0],
  ]);
});

it('an array whose buffer was disposed is collected', async () => {
  using resource = new CudaMemoryResource();
  using stream = new Stream({ nonBlocking: true });
  const { owner, view } = useArray(resource, stream);
  await setImmediate();
  view.dispose();
  await collectGarbageUntil(() => resource.reservedBytes === 0);
  expect([owner.deref(), resource.reservedBytes]).toEqual([undefined, 0]);
});
