import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { inspect } from 'node:util';
import { MessageChannel } from 'node:worker_threads';
import { afterAll, describe, expect, test } from 'vitest';
import { detachBuffer } from '../../src/workers/index.js';
import { exampleOf } from '../support/kind-stacks.js';
import * as cistern from '../support/package.js';
import { skipTest } from '../support/skip-test.js';

const { MiB } = cistern;
const folder = mkdtempSync(join(tmpdir(), 'cistern-local-'));
afterAll(() => rmSync(folder, { recursive: true }));

const stream = new cistern.Stream();
const hold = stream.hold();
hold.release();
const cuda = new cistern.CudaMemoryResource();
const monotonic = new cistern.MonotonicMemoryResource(cuda);

/** The kinds that this driver has not: pools, or pools of managed memory. */
const missing: string[] = [];

function resourceOf(kind: cistern.ResourceKind): cistern.MemoryResource[] {
  try {
    return [cistern.createResource(exampleOf(kind))];
  } catch (error) {
    if (
      !(error instanceof cistern.UnsupportedError || (error instanceof cistern.DriverError && error.operation === 'create a memory pool'))
    )
      throw error;
    missing.push(kind.name);
    return [];
  }
}

/** A graph and what launches it; none on a driver that does not capture. */
function graphs(): readonly object[] {
  const own = new cistern.Stream({ nonBlocking: true });
  try {
    const graph = own.capture(() => {});
    return [graph, graph.instantiate()];
  } catch (error) {
    if (error instanceof cistern.DriverError && error.driverName === 'CUDA_ERROR_NOT_SUPPORTED') return [];
    throw error;
  }
}
const ownGraphs = graphs();

const spillable = new cistern.SpillableBuffer(4096, { resource: cistern.createResource('spilling(cuda, host=pinned-host)'), stream });

/** One object of every exported class that stands for something of this environment. */
const objects: readonly object[] = [
  cistern.Device.get(),
  stream,
  hold,
  new cistern.StreamPool({ size: 2 }),
  new cistern.Event(),
  ...ownGraphs,
  new cistern.DeviceBuffer(4096, { resource: cuda, stream }),
  ...cistern.resourceKinds.flatMap((kind) => resourceOf(kind)),
  new cistern.CallbackMemoryResource(
    () => 0,
    () => {},
  ),
  new cistern.FailureCallbackResourceAdaptor(cuda, () => false),
  new cistern.Account({ name: 'tenant' }),
  await new cistern.AdmittingResourceAdaptor(cuda, { limitBytes: MiB }).reserve(4096),
  spillable,
  spillable.pinSync(),
  monotonic.mark(),
  cistern.wrapMemory({ ptr: cuda.allocate(4096, stream), byteLength: 4096, stream }).resource,
  cistern.attachBuffer(detachBuffer(new cistern.DeviceBuffer(4096, { resource: cuda, stream })), { stream }).resource,
  new cistern.Recording({ file: join(folder, 'run.cistern') }),
  cistern.createResourceStack('pool(cuda)'),
  await cistern.readAllocationLog(cistern.generateLog('small-hot', { events: 10 })),
  await cistern.readReportRun(cistern.generateLog('small-hot', { events: 10 })),
  cistern.checkOrder(),
];
const named = objects.map((object) => [object.constructor.name, object] as const);

afterAll(() => {
  for (const object of [...objects].reverse()) (object as Partial<Disposable>)[Symbol.dispose]?.();
});

test('every exported class that owns something is tested', () => {
  if (missing.length > 0) skipTest(`the driver has no ${missing.join(', ')}`);
  const untried = Object.values(cistern).filter(
    (value) =>
      typeof value === 'function' &&
      /^class /.test(Function.prototype.toString.call(value)) &&
      !(value.prototype instanceof Error) &&
      // A part of a resource, and figures of logs: they own nothing of this environment.
      value !== cistern.Tries &&
      value !== cistern.RunEstimator &&
      // It needs a `cistern keep`; what it has in common with other leaves is tested with them.
      value !== cistern.LastingMemoryResource &&
      !objects.some((object) => object instanceof value),
  );
  expect(untried).toEqual(ownGraphs.length > 0 ? [] : [cistern.Graph, cistern.GraphExec]);
});

describe('a clone would be a dead object, so cloning is refused', () => {
  test.each(named)('%s', (_, object) => {
    const { port1, port2 } = new MessageChannel();
    try {
      expect(() => structuredClone(object)).toThrow(expect.objectContaining({ name: 'DataCloneError' }));
      expect(() => structuredClone({ nested: [object] })).toThrow(expect.objectContaining({ name: 'DataCloneError' }));
      expect(() => port1.postMessage(object)).toThrow(expect.objectContaining({ name: 'DataCloneError' }));
    } finally {
      port1.close();
      port2.close();
    }
  });
});

test('the error of cloning a buffer says what to send instead', () => {
  const buffer = objects.find((object) => object instanceof cistern.DeviceBuffer);
  expect(() => structuredClone(buffer)).toThrow(/a DeviceBuffer: send what detachBuffer\(\) returns to a worker/);
});

describe('console.log', () => {
  test.each(named.filter(([name]) => !['AllocationLog', 'OrderChecker', 'PackedReportRun'].includes(name)))(
    'of a %s calls no driver',
    (name, object) => {
      const before = cistern.driverCallCounts();
      const text = inspect(object);
      expect(cistern.driverCallCounts()).toEqual(before);
      expect(text).toMatch(new RegExp(`^${name} \\{`));
      expect(text).not.toMatch(/cannotBeCloned|isDisposed|undefined|\[Function/);
    },
  );

  test('of a buffer shows its address, size, kind, stream and resource', () => {
    const pool = new cistern.PoolMemoryResource(cuda, { initialBytes: MiB });
    const buffer = new cistern.DeviceBuffer(1000, { resource: pool, stream, label: 'weights' });
    expect(inspect(buffer, { breakLength: Number.POSITIVE_INFINITY, depth: 0 })).toBe(
      `DeviceBuffer { ptr: 0x${buffer.ptr.toString(16)}, byteLength: 1000, capacityBytes: 1000, memoryKind: 'device', ` +
        `label: 'weights', stream: [Stream], resource: [PoolMemoryResource] }`,
    );
    buffer.dispose();
    expect(inspect(buffer)).toBe(`DeviceBuffer { isDisposed: true, label: 'weights' }`);
    pool.dispose();
  });

  test('of a pool shows what it holds, and its upstream', () => {
    const pool = new cistern.PoolMemoryResource(cuda, { initialBytes: MiB, deallocationEvents: 'off' });
    const text = inspect(pool, { breakLength: Number.POSITIVE_INFINITY });
    expect(text).toMatch(
      /^PoolMemoryResource \{ device: 0, memoryKind: 'device', deallocationEvents: 'off', reservedBytes: 1048576, .*upstream: CudaMemoryResource \{/,
    );
    pool.dispose();
    expect(inspect(pool)).toContain('isDisposed: true');
  });

  test('of an adaptor shows its counts and limits', () => {
    const limit = new cistern.LimitingResourceAdaptor(cuda, { limitBytes: 5 * MiB });
    const pointer = limit.allocate(1000, stream);
    expect(inspect(limit, { breakLength: Number.POSITIVE_INFINITY, depth: 0 })).toBe(
      `LimitingResourceAdaptor { device: 0, memoryKind: 'device', limitBytes: 5242880, allocatedBytes: 1024, upstream: [CudaMemoryResource] }`,
    );
    limit.deallocate(pointer, 1000, stream);
  });
});
