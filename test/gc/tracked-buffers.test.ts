import { afterEach, beforeEach, expect, it } from 'vitest';
import {
  CudaMemoryResource,
  checkOrder,
  DeviceBuffer,
  type MemoryResource,
  type PassThroughAdaptor,
  SanitizingResourceAdaptor,
  Stream,
  TrackingResourceAdaptor,
} from '../../src/index.js';
import { collectGarbageUntil } from './collection.js';

const warnings: Error[] = [];
const onWarning = (warning: Error) => void warnings.push(warning);

beforeEach(() => {
  warnings.length = 0;
  process.on('warning', onWarning);
});

afterEach(() => {
  process.off('warning', onWarning);
});

function drop(resource: MemoryResource, stream: Stream): void {
  new DeviceBuffer(1000, { resource, stream });
  new DeviceBuffer(1000, { resource, stream }).resize(5000);
}

// Until V8 has made its text, a stack holds the receivers of its frames.
it.each<[string, (upstream: MemoryResource) => PassThroughAdaptor & { readonly allocatedBytes: number }]>([
  ['a tracking adaptor', (upstream) => new TrackingResourceAdaptor(upstream, { captureStacks: true })],
  ['a sanitizing adaptor', (upstream) => new SanitizingResourceAdaptor(upstream)],
])('%s keeps the stacks of allocations, but not their buffers', async (_, make) => {
  using upstream = new CudaMemoryResource();
  using resource = make(upstream);
  using stream = new Stream();
  drop(resource, stream);
  expect(resource.allocatedBytes).toBe(6000);
  await collectGarbageUntil(() => resource.allocatedBytes === 0);
  expect(resource.allocatedBytes).toBe(0);
  resource.dispose();
  expect(warnings).toEqual([]);
});

it('the order checker keeps the stacks of uses, but not the buffers', async () => {
  using checker = checkOrder();
  using resource = new CudaMemoryResource();
  using stream = new Stream();
  const before = resource.reservedBytes;
  (() => new DeviceBuffer(1000, { resource, stream }).fill(1))();
  expect(resource.reservedBytes).toBeGreaterThan(before);
  await collectGarbageUntil(() => resource.reservedBytes === before);
  expect(resource.reservedBytes).toBe(before);
  expect(checker.reports).toEqual([]);
});
