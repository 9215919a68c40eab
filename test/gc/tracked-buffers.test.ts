import { expect, it } from 'vitest';
import { checkOrder, SanitizingResourceAdaptor } from '../../src/checking/index.js';
import {
  CudaMemoryResource,
  DeviceBuffer,
  type MemoryResource,
  type PassThroughAdaptor,
  Stream,
  TrackingResourceAdaptor,
} from '../../src/index.js';
import { collectGarbageUntil } from './collection.js';

function drop(resource: MemoryResource, stream: Stream): void {
  new DeviceBuffer(1000, { resource, stream });
  new DeviceBuffer(1000, { resource, stream }).resize(5000);
}

/** A stack in a table holds every buffer; V8 itself may keep the last one for long, on a busy machine. */
const dropped = 20;

// Until V8 has made its text, a stack holds the receivers of its frames.
it.each<[string, (upstream: MemoryResource) => PassThroughAdaptor & { readonly allocatedBytes: number }]>([
  ['a tracking adaptor', (upstream) => new TrackingResourceAdaptor(upstream, { captureStacks: true })],
  ['a sanitizing adaptor', (upstream) => new SanitizingResourceAdaptor(upstream)],
])('%s keeps the stacks of allocations, but not their buffers', async (_, make) => {
  using upstream = new CudaMemoryResource();
  using resource = make(upstream);
  using stream = new Stream();
  for (let i = 0; i < dropped; i++) drop(resource, stream);
  expect(resource.allocatedBytes).toBe(dropped * 6000);
  await collectGarbageUntil(() => resource.allocatedBytes <= 6000);
  expect(resource.allocatedBytes).toBeLessThanOrEqual(6000);
  await collectGarbageUntil(() => resource.allocatedBytes === 0);
});

it('the order checker keeps the stacks of uses, but not the buffers', async () => {
  using checker = checkOrder();
  using resource = new CudaMemoryResource();
  using stream = new Stream();
  const before = resource.reservedBytes;
  const use = () => new DeviceBuffer(1000, { resource, stream }).fill(1);
  for (let i = 0; i < dropped; i++) use();
  expect(resource.reservedBytes).toBeGreaterThanOrEqual(before + dropped * 1000);
  await collectGarbageUntil(() => resource.reservedBytes <= before + 1024);
  expect(resource.reservedBytes).toBeLessThanOrEqual(before + 1024);
  expect(checker.violations).toEqual([]);
});
