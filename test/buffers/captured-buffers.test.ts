/**
 * Everything that a buffer does, on a stream that is captured: it works, or is refused with one error and adds
 * nothing to the graph; the capture stays valid, and no memory is lost.
 */

import '../../src/tools/every-kind.js';
import { setImmediate } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { freeUnreachableBuffers } from '../../src/collector/free-unreachable-buffers.js';
import { mailbox, native } from '../../src/driver/native.js';
import { GraphMemoryResource } from '../../src/graphs/index.js';
import {
  CisternError,
  CudaMemoryResource,
  copySync,
  createResourceStack,
  Device,
  DeviceBuffer,
  Event,
  type MemoryResource,
  Stream,
  set,
  setSync,
} from '../../src/index.js';
import { fromCudaArrayInterface, fromDLPack, toCudaArrayInterface, toDLPack } from '../../src/interchange/index.js';
import { exportBuffer } from '../../src/processes/index.js';
import { attachBuffer, detachBuffer, shareBuffer } from '../../src/workers/index.js';
import { checkOrderInEachTest } from '../support/order-checked-tests.js';

const bytes = 4096;

interface Situation {
  readonly resource: MemoryResource;
  readonly captured: Stream;
  readonly other: Stream;
  /** Of the captured stream, from before the capture. */
  readonly buffer: DeviceBuffer;
  readonly target: DeviceBuffer;
  /** Of the captured stream, with more capacity than it needs. */
  readonly loose: DeviceBuffer;
  /** Of the other stream. */
  readonly others: DeviceBuffer;
  /** What has to be disposed in the end. */
  readonly ends: Disposable[];
}

/** What becomes of each: a node means that it works and is a part of the graph. */
const uses: Record<string, readonly [outcome: string, use: (situation: Situation) => unknown]> = {
  'a new one': ['works if served', ({ resource, captured, ends }) => ends.push(new DeviceBuffer(bytes, { resource, stream: captured }))],
  'one of an array': [
    'a node if served',
    ({ resource, captured, ends }) => ends.push(new DeviceBuffer(new Uint8Array(bytes), { resource, stream: captured })),
  ],
  'one of a buffer': [
    'a node if served',
    ({ resource, captured, buffer, ends }) => ends.push(new DeviceBuffer(buffer, { resource, stream: captured })),
  ],
  'resize within the capacity': ['works', ({ buffer }) => buffer.resize(bytes / 2)],
  'resize beyond the capacity': ['refused', ({ buffer }) => buffer.resize(2 * bytes)],
  reserve: ['refused', ({ buffer }) => buffer.reserve(2 * bytes)],
  shrinkToFit: ['refused', ({ loose }) => loose.shrinkToFit()],
  fill: ['a node', ({ buffer }) => buffer.fill(1)],
  'copyFrom an array': ['a node', ({ buffer }) => buffer.copyFrom(new Uint8Array(bytes))],
  'copyFrom a buffer of the stream': ['a node', ({ buffer, target }) => target.copyFrom(buffer)],
  'copyFrom a buffer of another stream': ['refused', ({ buffer, others }) => buffer.copyFrom(others)],
  'copyTo a buffer of another stream': ['refused', ({ buffer, others }) => buffer.copyTo(others)],
  copyFromSync: ['refused', ({ buffer }) => buffer.copyFromSync(new Uint8Array(bytes))],
  copySync: ['refused', ({ buffer, target, captured }) => copySync(target.ptr, buffer.ptr, bytes, captured)],
  setSync: ['refused', ({ buffer, captured }) => setSync(buffer.ptr, 1, 1, bytes, captured)],
  toHost: ['refused', ({ buffer }) => buffer.toHost()],
  toHostSync: ['refused', ({ buffer }) => buffer.toHostSync()],
  'to the host': ['refused', ({ buffer }) => void buffer.to('host')],
  'toAsync the host': ['refused', ({ buffer }) => buffer.toAsync('host')],
  recast: [
    'refused',
    ({ buffer, ends }) => {
      const stack = createResourceStack('pool(cuda)');
      ends.push(stack);
      buffer.recast(stack.resource);
    },
  ],
  setStream: ['works', ({ buffer, other }) => buffer.setStream(other)],
  'recast to another stream': ['refused', ({ buffer, resource, other }) => buffer.recast(resource, { stream: other })],
  toCudaArrayInterface: ['works', ({ buffer }) => toCudaArrayInterface(buffer, { typestr: '|u1', shape: [bytes] })],
  fromCudaArrayInterface: [
    'refused',
    ({ captured, others, ends }) => {
      const array = toCudaArrayInterface(others, { typestr: '|u1', shape: [bytes] });
      ends.push(fromCudaArrayInterface(array, { stream: captured }));
    },
  ],
  'toDLPack and fromDLPack': [
    'works',
    ({ buffer, captured, ends }) => {
      const tensor = toDLPack(buffer, { dtype: 'uint8', shape: [bytes], stream: captured });
      ends.push(fromDLPack(tensor, { stream: captured }).buffer);
    },
  ],
  'toDLPack for another stream': [
    'refused',
    ({ buffer, other }) => void toDLPack(buffer, { dtype: 'uint8', shape: [bytes], stream: other }),
  ],
  'toDLPack of another stream': [
    'refused',
    ({ others, captured }) => void toDLPack(others, { dtype: 'uint8', shape: [bytes], stream: captured }),
  ],
  fromDLPack: [
    'refused',
    ({ captured, others, ends }) => {
      const { buffer } = fromDLPack(toDLPack(others, { dtype: 'uint8', shape: [bytes], stream: captured }), { stream: captured });
      ends.push(buffer);
    },
  ],
  export: ['refused', ({ buffer }) => exportBuffer(buffer)],
  'detach and attach': ['refused', ({ buffer, captured, ends }) => ends.push(attachBuffer(detachBuffer(buffer), { stream: captured }))],
  'detach and attach on another stream': [
    'refused',
    ({ buffer, other, ends }) => ends.push(attachBuffer(detachBuffer(buffer), { stream: other })),
  ],
  share: ['refused', ({ buffer, captured, ends }) => ends.push(attachBuffer(shareBuffer(buffer), { stream: captured }))],
  'release and adopt': ['works', ({ buffer, ends }) => ends.push(DeviceBuffer.adopt(buffer.release()))],
  dispose: ['refused', ({ buffer }) => buffer.dispose()],
};

const ifServed = ' if served';
const captures = ['own', 'joined', 'foreign'] as const;
type Capture = (typeof captures)[number];

checkOrderInEachTest();

/** What became of a use; everything that must hold whatever that is, is looked at here. */
async function outcomeOf(specification: string, capture: Capture, use: (situation: Situation) => unknown): Promise<string> {
  using stack = createResourceStack(specification);
  using first = new Stream({ nonBlocking: true });
  using joined = new Stream({ nonBlocking: true });
  using other = new Stream({ nonBlocking: true });
  using event = new Event();
  const captured = capture === 'joined' ? joined : first;
  const { resource } = stack;
  const make = (stream: Stream) => new DeviceBuffer(new Uint8Array(bytes).fill(1), { resource, stream });
  const [buffer, target, loose, others] = [make(captured), make(captured), make(captured), make(other)];
  const ends: Disposable[] = [buffer, target, loose, others];
  loose.resize(bytes / 2);
  // Whoever gives memory to another stream has ordered the two.
  event.record(captured);
  other.wait(event);
  const stateOf = ({ ptr, byteLength, capacityBytes, stream, resource: owner }: DeviceBuffer) => [
    ptr,
    byteLength,
    capacityBytes,
    stream,
    owner,
  ];
  const states = () => [buffer, target, loose, others].map(stateOf);
  const before = states();
  if (capture === 'foreign') beginUnnoticed(first);
  else first.beginCapture('global');
  event.record(first);
  if (capture === 'joined') captured.wait(event);
  let outcome = 'works';
  try {
    await use({ resource, captured, other, buffer, target, loose, others, ends });
  } catch (error) {
    if (!(error instanceof CisternError) || error.code !== 'ERR_CISTERN_CAPTURING') throw error;
    expect(states()).toEqual(before);
    outcome = 'refused';
  }
  expect([captured.captureStatus, other.captureStatus]).toEqual(['active', 'none']);
  if (capture === 'joined') {
    event.record(captured);
    first.wait(event);
  }
  using graph = first.endCapture();
  const { total } = graph.nodeCounts;
  if (total > 0) outcome = outcome === 'works' && total === 1 ? 'a node' : `${outcome}, ${total} nodes`;
  for (const each of ends) each[Symbol.dispose]();
  return outcome;
}

/** A capture that the streams are not told of. */
function beginUnnoticed(stream: Stream): void {
  native().beginCapture(stream.handle, 0);
  expect(mailbox[0]).toBe(0);
}

describe.each<[specification: string, serves: readonly Capture[]]>([
  // It has free memory of the stream, and does not know of the capture.
  ['pool(cuda)', ['foreign']],
  ['cuda-async', []],
  ['cuda', captures],
  // Outside of its own captures, its upstream serves.
  ['graph(cuda)', captures],
])('%s, on a captured stream', (specification, serves) => {
  test.each(Object.entries(uses).map(([name, [outcome, use]]) => ({ name, outcome, use })))('$name', async ({ outcome, use }) => {
    const { freeBytes } = Device.get().memoryInfo();
    for (const capture of captures) {
      const expected = outcome.endsWith(ifServed) ? (serves.includes(capture) ? outcome.slice(0, -ifServed.length) : 'refused') : outcome;
      expect([capture, await outcomeOf(specification, capture, use)]).toEqual([capture, expected]);
    }
    Device.get().synchronizeSync();
    // What could not be freed in a capture is freed in the first turn after it, or if it was not seen to end, when
    // the collector next has something to do.
    await setImmediate();
    freeUnreachableBuffers();
    expect(Device.get().memoryInfo().freeBytes).toBe(freeBytes);
  });
});

describe('buffers of a GraphMemoryResource, in its capture', () => {
  test('grow and shrink, with their contents', () => {
    using upstream = new CudaMemoryResource();
    using graphs = new GraphMemoryResource(upstream);
    using stream = new Stream({ nonBlocking: true });
    let buffer: DeviceBuffer | undefined;
    using graph = graphs.capture(stream, () => {
      buffer = new DeviceBuffer(bytes, { resource: graphs, stream });
      buffer.fill(7);
      buffer.resize(4 * bytes);
      buffer.resize(bytes);
      buffer.shrinkToFit();
      // Takes what the second move has freed.
      const next = graphs.allocate(4 * bytes, stream);
      set(next, 9, 1, 4 * bytes, stream);
      graphs.deallocate(next, 4 * bytes, stream);
    });
    expect(graph.nodeCounts).toMatchObject({ copies: 2, fills: 2, total: 4 });
    using exec = graph.instantiate();
    exec.launch(stream);
    expect((buffer as DeviceBuffer).toHostSync()).toEqual(new Uint8Array(bytes).fill(7));
    (buffer as DeviceBuffer).dispose();
  });

  test('are copied from one stream of the capture to another', () => {
    using upstream = new CudaMemoryResource();
    using graphs = new GraphMemoryResource(upstream);
    using stream = new Stream({ nonBlocking: true });
    using second = new Stream({ nonBlocking: true });
    using event = new Event();
    let copied: DeviceBuffer | undefined;
    using graph = graphs.capture(stream, () => {
      event.record(stream);
      second.wait(event);
      using source = new DeviceBuffer(bytes, { resource: graphs, stream: second });
      source.fill(3);
      copied = new DeviceBuffer(bytes, { resource: graphs, stream });
      source.copyTo(copied);
    });
    using exec = graph.instantiate();
    exec.launch(stream);
    expect((copied as DeviceBuffer).toHostSync()).toEqual(new Uint8Array(bytes).fill(3));
    (copied as DeviceBuffer).dispose();
  });
});
