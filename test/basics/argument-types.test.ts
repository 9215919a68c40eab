import { afterAll, describe, expect, test } from 'vitest';
import { planAllocations } from '../../src/tools/planning/index.js';
import * as cistern from '../support/package.js';

const {
  AdmittingResourceAdaptor,
  BinningMemoryResource,
  CudaMemoryResource,
  DeviceBuffer,
  Event,
  KiB,
  PlannedMemoryResource,
  PoolMemoryResource,
} = cistern;
const { PinnedHostMemoryResource, Stream, StreamPool } = cistern;

/** As of ES2024. */
type ResizableArrayBufferConstructor = new (bytes: number, options: object) => ArrayBuffer & { resize(bytes: number): void };

const upstream = new CudaMemoryResource();
const stream = new Stream({ nonBlocking: true });
const graph = stream.capture(() => {});
afterAll(() => {
  graph.dispose();
  stream.dispose();
});

const notABoolean = expect.objectContaining({
  code: 'ERR_INVALID_ARG_TYPE',
  message: expect.stringMatching(/^\w+ must be a boolean, got /),
});

test.each<[string, (value: never) => unknown]>([
  ['nonBlocking', (nonBlocking) => new Stream({ nonBlocking })],
  ['nonBlocking of a pool', (nonBlocking) => new StreamPool({ nonBlocking })],
  ['announcesEnd', (announcesEnd) => Stream.fromHandle(stream.nativeHandle, { announcesEnd })],
  ['timing', (timing) => new Event({ timing })],
  ['freesOnLaunch', (freesOnLaunch) => graph.instantiate({ freesOnLaunch })],
  ['throwOnViolation', (throwOnViolation) => cistern.checkOrder({ throwOnViolation })],
  ['stacks', (stacks) => cistern.checkOrder({ stacks })],
  ['repeats', (repeats) => new PlannedMemoryResource(upstream, undefined, { planner: planAllocations, repeats })],
])('%s takes booleans only', (_name, use) => {
  for (const value of [1, 0, 'yes', null, {}]) expect(() => use(value as never)).toThrow(notABoolean);
});

test('what is no number is of the wrong type, and a number outside of its range is out of range', async () => {
  using admission = new AdmittingResourceAdaptor(upstream, { limitBytes: 16 * KiB });
  const type = expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE' });
  const range = expect.objectContaining({ code: 'ERR_OUT_OF_RANGE' });
  await expect(admission.reserve(1, { priority: '1' as never })).rejects.toThrow(type);
  await expect(admission.reserve(1, { priority: Number.NaN })).rejects.toThrow(range);
  await expect(admission.reserve(1, { timeoutMilliseconds: '1' as never })).rejects.toThrow(type);
});

test.each<[string, number, (value: never) => unknown]>([
  ['devices', 0, (devices) => cistern.configureSoftwareDevice({ devices })],
  ['totalBytes', 2 ** 43, (totalBytes) => cistern.configureSoftwareDevice({ totalBytes })],
  ['migrationNanoseconds', -1, (migrationNanoseconds) => cistern.configureSoftwareDevice({ migrationNanoseconds })],
  ['nanoseconds', -1, (nanoseconds) => cistern.setCallLatency('cuMemAlloc', nanoseconds)],
  ['nth', 0.5, (nth) => cistern.failCall('cuMemAlloc', nth)],
  ['status', 1000, (status) => cistern.failCall('cuMemAlloc', 1, status)],
  ['size', 0, (size) => new StreamPool({ size })],
  ['priority', 2 ** 31, (priority) => new Stream({ priority })],
  ['waitMilliseconds', -1, (waitMilliseconds) => new cistern.GlobalArenaMemoryResource({ waitMilliseconds })],
  ['recordedPasses', 0, (recordedPasses) => new PlannedMemoryResource(upstream, undefined, { planner: planAllocations, recordedPasses })],
  ['minimumExponent', 1, (minimumExponent) => new BinningMemoryResource(upstream, { minimumExponent, maximumExponent: 20 })],
])('%s: what is no number is of the wrong type', (name, outside, use) => {
  for (const value of ['1', 1n, true, null, {}]) {
    expect(() => use(value as never)).toThrow(
      expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE', message: expect.stringContaining(`${name} must be a number, got `) }),
    );
  }
  expect(() => use(outside as never)).toThrow(expect.objectContaining({ code: 'ERR_OUT_OF_RANGE' }));
});

test('a size as text is a string', () => {
  for (const value of [5, 5n, undefined, null, {}]) {
    expect(() => cistern.parseBytes(value as never)).toThrow(
      expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE', message: expect.stringMatching(/^text must be a string, got /) }),
    );
  }
  expect(cistern.formatBytes('many' as never)).toBe('NaN B');
});

describe('a Proxy has no private fields, so that it cannot stand for', () => {
  const pool = new PoolMemoryResource(upstream);
  const itself = expect.objectContaining({
    code: 'ERR_INVALID_ARG_TYPE',
    message: expect.stringMatching(/ must be the \w+ itself, got a Proxy of it/),
  });
  const uses: [string, (resource: cistern.MemoryResource) => unknown][] = [
    ['an upstream of a pool', (resource) => new PoolMemoryResource(resource)],
    ['an upstream of an adaptor', (resource) => new cistern.LimitingResourceAdaptor(resource, { limitBytes: 1 })],
    ['the resource of a buffer', (resource) => new DeviceBuffer(16, { resource, stream })],
    ['the current resource', (resource) => cistern.setCurrentResource(resource)],
    ['the resource of a scope', (resource) => cistern.withResource(resource, () => {})],
    ['a fallback', (resource) => new cistern.FallbackResourceAdaptor(upstream, resource)],
  ];

  test.each(uses)('%s', (_, use) => {
    for (const resource of [upstream, pool, new cistern.StatisticsResourceAdaptor(pool)])
      expect(() => use(new Proxy(resource, {}))).toThrow(itself);
  });

  test('what an object that inherits from it could not either', () => {
    for (const resource of [upstream, pool]) expect(() => new cistern.StatisticsResourceAdaptor(Object.create(resource))).toThrow(itself);
  });

  test('a buffer', () => {
    using buffer = new DeviceBuffer(16, { resource: upstream, stream });
    const proxy = new Proxy(buffer, {});
    expect(() => buffer.copyTo(proxy)).toThrow(itself);
    expect(() => buffer.copyFrom(proxy)).toThrow(itself);
    expect(() => buffer.copyTo({} as never)).toThrow('destination must be a DeviceBuffer, got an instance of Object');
    expect(() => cistern.addonInterface.describeBuffer(proxy)).toThrow(itself);
  });

  test('but a resource of the program may be one', () => {
    const resource: cistern.MemoryResource = {
      memoryKind: upstream.memoryKind,
      device: upstream.device,
      allocate: (bytes, on) => upstream.allocate(bytes, on),
      deallocate: (pointer, bytes, on) => upstream.deallocate(pointer, bytes, on),
      isEqual: () => false,
      [Symbol.dispose]: () => {},
    };
    using buffer = new DeviceBuffer(16, { resource: new Proxy(resource, {}), stream });
    expect(buffer.byteLength).toBe(16);
  });
});

test.each<[abstract new (...args: never) => unknown, string]>([
  [cistern.Graph, 'Stream.capture'],
  [cistern.GraphExec, 'Graph.instantiate'],
  [cistern.Grant, 'AdmittingResourceAdaptor.reserve'],
  [cistern.MonotonicMark, 'MonotonicMemoryResource.mark'],
  [cistern.SpillPin, 'SpillableBuffer.pin'],
  [cistern.StreamHold, 'Stream.hold'],
])('an object of %o is made by cistern only', (Class, source) => {
  expect(() => Reflect.construct(Class, [])).toThrow(` cannot be constructed: ${source} returns one`);
});

test('a range names the option that is wrong', () => {
  using buffer = new DeviceBuffer(16, { resource: new PinnedHostMemoryResource(), stream });
  expect(() => buffer.copyFrom(new Uint8Array(8), { sourceByteOffset: 2 ** 53 })).toThrow('sourceByteOffset must be');
  expect(() => buffer.hostView(Int32Array, { byteOffset: 20 })).toThrow('byteOffset must be at most 16, the length of the buffer, got 20');
});

test('an array whose memory has become too short for it is refused', () => {
  using buffer = new DeviceBuffer(16, { resource: upstream, stream });
  const memory = new (ArrayBuffer as unknown as ResizableArrayBufferConstructor)(16, { maxByteLength: 16 });
  const array = new Uint8Array(memory, 8, 8);
  memory.resize(8);
  expect(() => buffer.copyFrom(array)).toThrow('transferred or shortened');
  expect(() => new DeviceBuffer(array, { resource: upstream, stream })).toThrow('transferred or shortened');
  buffer.copyFrom(new Uint8Array(0));
});

test('a bin is not built on the resource that it would be a bin of', () => {
  using binning = new BinningMemoryResource(upstream);
  using above = new PoolMemoryResource(binning);
  for (const resource of [binning, above]) {
    expect(() => binning.addBin({ bytes: KiB, resource })).toThrow('bin.resource must not be built on this resource');
  }
  expect(binning.bins).toEqual([]);
});

test('a stream is not detached in a capture, which goes on', () => {
  using captured = new Stream({ nonBlocking: true });
  captured.beginCapture();
  expect(() => cistern.detachStream(captured)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_CAPTURING' }));
  captured.endCapture().dispose();
});
