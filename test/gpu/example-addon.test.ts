/** The example addon that launches a kernel of its own, on a stream and while that is captured. */

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { beforeAll, beforeEach, expect, test } from 'vitest';
import { GraphMemoryResource } from '../../src/graphs/index.js';
import { CudaMemoryResource, Device, type DeviceBuffer, type MemoryResource, PoolMemoryResource, Stream } from '../../src/index.js';
import { type AddonInterface, addonInterface } from '../../src/interchange/index.js';
import { planAllocations } from '../../src/tools/planning/index.js';
import { builtForTests } from '../support/built-for-tests.js';
import { code } from '../support/errors.js';

interface Step {
  open(cistern: AddonInterface, module: string): void;
  step(resource: MemoryResource, stream: number, words: number, value: number): DeviceBuffer;
}

const words = 1000;
const bytes = 4096;
let addon: Step;
let missing: string | undefined;

beforeAll(async () => {
  if (process.env['CISTERN_DEVICE'] !== 'cuda') {
    missing = 'the device has no kernels';
    return;
  }
  const built = await builtForTests('buildExampleAddons', 'the example addons');
  ({ missing } = built);
  if (built.path === undefined) return;
  // Makes cistern load the driver.
  Device.get().synchronizeSync();
  addon = createRequire(import.meta.url)(join(built.path, 'step.node')) as Step;
  expect(() => addon.step(new CudaMemoryResource(), 1, 1, 1)).toThrow('open was not called');
  try {
    addon.open(addonInterface, readFileSync(new URL('../../examples/addons/step.ptx', import.meta.url), 'utf8'));
  } catch (error) {
    if (!`${error}`.includes('CUDA error 801')) throw error;
    missing = 'the driver has no modules';
  }
}, 240_000);
beforeEach(({ skip }) => {
  if (missing !== undefined) skip(missing);
});

const contents = (buffer: DeviceBuffer) => new Set(new Uint32Array(buffer.toHostSync().buffer));

test('it queues its kernels on a stream, with memory of a resource', () => {
  using resource = new CudaMemoryResource();
  using stream = new Stream({ nonBlocking: true });
  using buffer = addon.step(resource, stream.nativeHandle, words, 5);
  expect([buffer.byteLength, buffer.resource, buffer.stream.id, contents(buffer)]).toEqual([words * 4, resource, stream.id, new Set([5])]);
  expect(() => addon.step(resource, stream.nativeHandle, 0, 5)).toThrow(TypeError);
});

test('captured, they are nodes of the graph, and one takes the memory that the other has freed', () => {
  using upstream = new CudaMemoryResource();
  using graphs = new GraphMemoryResource(upstream, { planner: planAllocations });
  using stream = new Stream({ nonBlocking: true });
  const step = (value: number) => addon.step(graphs, stream.nativeHandle, words, value);
  graphs.warmUp('step', () => step(6).dispose());
  let output: DeviceBuffer | undefined;
  const record = () => {
    output = step(7);
  };
  using graph = graphs.capture(stream, record, { name: 'step' });
  using buffer = output as DeviceBuffer;
  expect(graph.nodeCounts).toMatchObject({ kernels: 2, total: 2 });
  expect(graphs.statistics()).toMatchObject({ plannedCaptures: 1, regionBytes: bytes });
  using exec = graph.instantiate();
  for (let launch = 0; launch < 2; launch++) {
    buffer.fill(0);
    exec.launch(stream);
    expect(contents(buffer)).toEqual(new Set([7]));
  }
});

test('captured with another resource, it passes the refusal on, and the capture goes on', () => {
  using upstream = new CudaMemoryResource();
  using pool = new PoolMemoryResource(upstream);
  using stream = new Stream({ nonBlocking: true });
  using graph = stream.capture(() => {
    expect(() => addon.step(pool, stream.nativeHandle, words, 5)).toThrow(code('ERR_CISTERN_CAPTURING'));
    expect(stream.captureStatus).toBe('active');
  });
  expect(graph.nodeCounts.total).toBe(0);
});
