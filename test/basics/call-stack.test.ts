import { describe, expect, test } from 'vitest';
import { callStack, captureStack } from '../../src/basics/call-stack.js';
import { SanitizingResourceAdaptor } from '../../src/checking/index.js';
import {
  CudaMemoryResource,
  DeviceBuffer,
  Event,
  MiB,
  PoolMemoryResource,
  Stream,
  TrackingResourceAdaptor,
  withResource,
} from '../../src/index.js';

/** A frame of cistern, or of Node's modules through which it runs other code. */
const own = new RegExp(`${new URL('..', import.meta.url).pathname}(src|dist)/|node:async_hooks|async_local_storage`);

describe('the stacks of', () => {
  test('tracked allocations have no frames of cistern, wherever the tracking lies', () => {
    using upstream = new CudaMemoryResource();
    using tracking = new TrackingResourceAdaptor(upstream, { captureStacks: true, stackDepth: 2 });
    using pool = new PoolMemoryResource(tracking, { initialBytes: 0 });
    using stream = new Stream();
    withResource(pool, function allocateIt() {
      new DeviceBuffer(1 * MiB, { stream }).dispose();
    });
    const [first, ...others] = tracking.outstandingAllocations()[0]?.stack?.split('\n') ?? [];
    expect(first).toMatch(/^ *at allocateIt \(.*call-stack\.test\.ts:\d+:\d+\)$/);
    expect(others).toHaveLength(1);
    expect(others[0]).not.toMatch(own);
  });

  test('the findings of a sanitizing resource have none either', () => {
    using upstream = new CudaMemoryResource();
    using resource = new SanitizingResourceAdaptor(upstream);
    using stream = new Stream();
    using event = new Event();
    const [first, second] = [resource.allocate(256, stream), resource.allocate(256, stream)];
    resource.deallocate(first, 256, stream);
    expect(() => resource.deallocate(first, 256, stream)).toThrow(/already freed/);
    event.record(stream);
    resource.deallocate(second, 256, stream, event);
    expect(() => resource.deallocate(second, 256, stream)).toThrow(/already freed/);
    const stacks = resource.violations.flatMap(({ earlier, later }) => [earlier?.stack, later?.stack]);
    expect(stacks).toHaveLength(4);
    for (const stack of stacks) {
      expect(stack).toMatch(/^ {4}at .*call-stack\.test\.ts/);
      expect(stack).not.toMatch(own);
    }
  });
});

test('a stack that has only frames of cistern keeps them', () => {
  const limit = Error.stackTraceLimit;
  const capture = () => callStack(capture);
  expect(capture()).toMatch(/^.*\(.*:\d+:\d+\)$/m);
  expect(captureStack(undefined, 1).split('\n')).toHaveLength(1);
  expect(captureStack(undefined, 0)).toBe('');
  expect(Error.stackTraceLimit).toBe(limit);
});
