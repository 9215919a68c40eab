import { afterAll, afterEach, describe, expect, test } from 'vitest';
import { watchedBuffers } from '../../src/collector/free-unreachable-buffers.js';
import {
  CallbackMemoryResource,
  CudaMemoryResource,
  createResourceStack,
  Device,
  DeviceBuffer,
  FailureCallbackResourceAdaptor,
  type MemoryResource,
  MiB,
  type ResourceKind,
  type Specification,
  Stream,
  TrackingResourceAdaptor,
} from '../../src/index.js';
import { everyKind } from '../../src/tools/every-kind.js';
import { exampleOf } from '../support/kind-stacks.js';
import { collectGarbageUntil } from './collection.js';

interface Subject {
  readonly name: string;
  make(upstream: MemoryResource): MemoryResource & { readonly reservedBytes?: number };
}

function subjectOf(kind: ResourceKind): Subject {
  const { options = {} } = exampleOf(kind);
  const values = Object.entries(options).map(([name, value]) => {
    return [name, kind.options[name]?.type === 'resource' ? createResourceStack(value as Specification).resource : value];
  });
  const make = (upstream: MemoryResource) => {
    const upstreamOf = (device: Device) => new CudaMemoryResource({ device });
    return kind.create({ upstream, device: upstream.device, upstreamOf, options: Object.fromEntries(values) as never });
  };
  return { name: kind.name, make };
}

const subjects: readonly Subject[] = [
  ...everyKind.map(subjectOf),
  {
    name: 'callback',
    make: (upstream) => new CallbackMemoryResource(upstream.allocate.bind(upstream), upstream.deallocate.bind(upstream)),
  },
  { name: 'failure-callback', make: (upstream) => new FailureCallbackResourceAdaptor(upstream, () => false) },
];

const stream = new Stream();
const warnings: Error[] = [];
const onWarning = (warning: Error & { readonly code?: string }) => {
  if (warning.code === 'CISTERN_UNREACHABLE_BUFFER') warnings.push(warning);
};
process.on('warning', onWarning);
afterEach(() => {
  warnings.length = 0;
});
afterAll(() => {
  process.off('warning', onWarning);
  stream.dispose();
});

describe.each(subjects)('a buffer of $name that is dropped', ({ name, make }) => {
  test.each(['before', 'after'])('%s the resource is disposed is freed', async (when) => {
    const device = Device.get();
    device.synchronizeSync();
    const { freeBytes } = device.memoryInfo();
    using upstream = new TrackingResourceAdaptor(new CudaMemoryResource());
    const resource = make(upstream);
    const kept: unknown[] = [];
    (() => void kept.push(new DeviceBuffer(MiB, { resource, stream })))();
    if (when === 'before') kept.length = 0;
    resource[Symbol.dispose]();
    kept.length = 0;
    await collectGarbageUntil(() => watchedBuffers().count === 0);
    expect(watchedBuffers().count).toBe(0);
    // A driver's pool keeps freed memory until the device is known to be idle.
    device.synchronizeSync();
    expect([upstream.allocatedBytes, device.memoryInfo().freeBytes]).toEqual([0, freeBytes]);
    // The other kinds of the host's memory are not the device's.
    if (name.endsWith('host')) expect(resource.reservedBytes).toBe(0);
    expect(warnings).toEqual([]);
  });
});
