/**
 * Captures on a CUDA device: graphs of kernels that write and check words, and what the device answers
 * where CUDA's documentation is silent (docs/design/031-graphs.md). The answers are printed.
 */
import koffi from 'koffi';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { CudaMemoryResource, Device, Event, Stream, set } from '../../src/index.js';
import { needMemoryPools } from '../support/device-memory.js';
import { type CaptureAnswer, Kernels } from './kernels.js';

const words = 1024;
const bytes = words * 4;
const captureStatuses = ['none', 'active', 'invalidated'];

describe('captures on the device', () => {
  const plain = new CudaMemoryResource();
  let kernels: Kernels;
  let missing: string | undefined;
  let stream: Stream;
  let other: Stream;
  let pointer: number;

  beforeAll(() => {
    const loaded = Kernels.load();
    if (typeof loaded === 'string') missing = loaded;
    else kernels = loaded;
  });
  afterAll(() => kernels?.[Symbol.dispose]());
  beforeEach(({ skip }) => {
    if (missing !== undefined) skip(missing);
    stream = new Stream({ nonBlocking: true });
    other = new Stream({ nonBlocking: true });
    pointer = plain.allocate(2 * bytes, stream);
    set(pointer, 0, 1, 2 * bytes, stream);
    stream.synchronizeSync();
  });
  afterEach(() => {
    if (missing !== undefined) return;
    kernels.release();
    for (const each of [stream, other]) {
      each.synchronizeSync();
      each.dispose();
    }
    plain.deallocate(pointer, 2 * bytes, Stream.legacyDefault());
  });

  /** How many words are not `value`. */
  function wrong(address: number, value: number): number {
    kernels.countWrong(stream, address, bytes, value);
    return kernels.wrongWords(stream);
  }

  test('a kernel is a node, which writes at each launch and not before', () => {
    using graph = stream.capture(() => kernels.fill(stream, pointer, bytes, 7));
    expect(graph.nodeCounts).toMatchObject({ kernels: 1, total: 1 });
    expect(wrong(pointer, 0)).toBe(0);
    using exec = graph.instantiate();
    for (let launch = 0; launch < 2; launch++) {
      set(pointer, 0, 1, bytes, stream);
      exec.launch(stream);
      expect(wrong(pointer, 7)).toBe(0);
    }
  });

  test('kernels of streams that join and leave run in the order of the events', () => {
    using joined = new Event();
    using left = new Event();
    using graph = stream.capture(() => {
      kernels.fill(stream, pointer, bytes, 1);
      joined.record(stream);
      other.wait(joined);
      kernels.countWrong(other, pointer, bytes, 1);
      left.record(other);
      kernels.fill(stream, pointer + bytes, bytes, 3);
      stream.wait(left);
      kernels.fill(stream, pointer, bytes, 2);
    });
    using exec = graph.instantiate();
    for (let launch = 0; launch < 20; launch++) exec.launch(stream);
    expect(kernels.wrongWords(stream)).toBe(0);
    expect(wrong(pointer, 2)).toBe(0);
    expect(wrong(pointer + bytes, 3)).toBe(0);
  });

  test('a launch waits for its stream, and for the last launch of the same graph on another one', () => {
    using graph = stream.capture(() => kernels.fill(stream, pointer, bytes, 5));
    using exec = graph.instantiate();
    kernels.hold(stream);
    exec.launch(stream);
    exec.launch(other);
    expect(other.query()).toBe(false);
    kernels.countWrong(other, pointer, bytes, 5);
    kernels.release();
    expect(kernels.wrongWords(other)).toBe(0);
  });

  test('a child graph follows a kernel whose edge says that the next one may begin early', ({ skip }) => {
    if (Device.driverVersion() < 12_030) skip('before CUDA 12.3, edges have no data');
    using child = stream.capture(() => {
      kernels.countWrong(stream, pointer, bytes, 6);
      kernels.fill(stream, pointer + bytes, bytes, 8);
    });
    using graph = stream.capture(() => {
      kernels.fill(stream, pointer, bytes, 6);
      letTheNextBeginEarly(stream);
      stream.addChildGraph(child);
    });
    using exec = graph.instantiate();
    for (let launch = 0; launch < 20; launch++) exec.launch(stream);
    expect(kernels.wrongWords(stream)).toBe(0);
    expect(wrong(pointer + bytes, 8)).toBe(0);
  });

  test('a graph that is disposed while it is held runs to its end', () => {
    const graph = stream.capture(() => {
      kernels.hold(stream);
      kernels.fill(stream, pointer, bytes, 9);
    });
    const exec = graph.instantiate();
    graph.dispose();
    exec.launch(stream);
    exec.dispose();
    kernels.release();
    expect(wrong(pointer, 9)).toBe(0);
  });

  test('an update gives kernels other addresses and values', () => {
    using first = stream.capture(() => kernels.fill(stream, pointer, bytes, 1));
    using second = stream.capture(() => kernels.fill(stream, pointer + bytes, bytes, 2));
    using exec = first.instantiate();
    expect(exec.update(second)).toBe(true);
    exec.launch(stream);
    expect(wrong(pointer, 0)).toBe(0);
    expect(wrong(pointer + bytes, 2)).toBe(0);
  });

  test('answers what the documentation leaves open, and captures go on', () => {
    needMemoryPools();
    const answers = kernels.askAboutCaptures();
    const lines = answers.map(describeAnswer);
    console.log(lines.join('\n'));
    expect(answers.length).toBeGreaterThan(100);
    for (const { question, mode, capture, end } of answers) {
      // A capture that is active has a graph; one that is not, has none.
      if (capture === 1) expect({ question, mode, end }).toEqual({ question, mode, end: 0 });
      else expect({ question, mode, end }).not.toEqual({ question, mode, end: 0 });
    }
    using graph = stream.capture(() => kernels.fill(stream, pointer, bytes, 4));
    using exec = graph.instantiate();
    exec.launch(stream);
    expect(wrong(pointer, 4)).toBe(0);
  });
});

function describeAnswer({ question, mode, status, capture, end }: CaptureAnswer): string {
  return `capture probe: ${question} (${mode}): ${status}; then ${captureStatuses[capture]}, ended with ${end}`;
}

/** Gives the edge from a kernel that was captured last the data of a programmatic launch, which another library may have used. */
function letTheNextBeginEarly({ nativeHandle }: Stream): void {
  const find = koffi
    .load(process.platform === 'win32' ? 'nvcuda.dll' : 'libcuda.so.1')
    .func('int cuGetProcAddress_v2(const char *name, _Out_ void **function, int version, uint64_t flags, _Out_ int *reason)');
  const found = (name: string, parameters: string) => {
    const address = [null];
    expect(find(name, address, 12_030, 0, [0])).toBe(0);
    return koffi.decode(address[0], koffi.proto(`int ${name}12030(${parameters})`)) as (...values: unknown[]) => number;
  };
  const ask = found(
    'cuStreamGetCaptureInfo',
    'uintptr_t stream, _Out_ int *status, void *id, void *graph, _Out_ void **nodes, void *edges, _Out_ size_t *count',
  );
  const set = found('cuStreamUpdateCaptureDependencies', 'uintptr_t stream, void *nodes, void *edges, size_t count, unsigned int flags');
  const nodes = [null];
  const count = [0];
  expect(ask(nativeHandle, [0], null, null, nodes, null, count)).toBe(0);
  expect(count).toEqual([1]);
  // CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, and CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC; the nodes replace themselves.
  const edges = Uint8Array.of(1, 0, 1, 0, 0, 0, 0, 0);
  expect(set(nativeHandle, nodes[0], edges, 1, 1)).toBe(0);
}
