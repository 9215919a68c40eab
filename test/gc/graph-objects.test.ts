/** What belongs to a graph lives until its last graph, executable graph and launch have ended, and no longer. */

import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { CudaMemoryResource, type Graph, type GraphExec, Stream, set } from '../../src/index.js';
import { deviceUnderTest } from '../support/device-under-test.mjs';
import { needCaptures } from '../support/need-captures.js';
import { retainedBy } from '../support/retained-by.js';
import { runModule, wholePackage } from '../support/run-module.js';
import { collectGarbage } from './collection.js';

const plain = new CudaMemoryResource();
let stream: Stream;
let pointer: number;

beforeAll(() => {
  stream = new Stream({ nonBlocking: true });
  pointer = plain.allocate(4096, stream);
});
beforeEach(() => {
  needCaptures(stream);
});
afterAll(() => plain.deallocate(pointer, 4096, stream));

const capture = (): Graph => stream.capture(() => set(pointer, 1, 1, 4, stream));

/** Waits until the driver has said what ended, which it does at some time. */
async function eventually(condition: () => boolean): Promise<void> {
  for (let i = 0; i < 2000 && !condition(); i++) await new Promise((resolve) => setTimeout(resolve, 5));
  expect(condition()).toBe(true);
}

/** What would have ended by now has. */
async function settle(): Promise<void> {
  const marker = capture();
  const isRetained = retainedBy(marker);
  marker.dispose();
  await eventually(() => !isRetained());
}

describe('an object that a graph retains', () => {
  /** Not in the test itself, whose frame may keep what it has made. */
  const retainSomething = (graph: Graph): WeakRef<object> => {
    const object = { some: 'object' };
    graph.retain(object);
    return new WeakRef(object);
  };

  it('is reachable until the graph, its executable graph and their launches are gone', async () => {
    const graph = capture();
    const reference = retainSomething(graph);
    const exec = graph.instantiate();
    graph.dispose();
    using hold = stream.hold();
    exec.launch(stream);
    exec.dispose();
    await settle();
    await collectGarbage();
    expect(reference.deref()).toEqual({ some: 'object' });
    hold.release();
    await stream.synchronize();
    await settle();
    await collectGarbage();
    expect(reference.deref()).toBeUndefined();
  });

  it('goes with a graph that is collected', async () => {
    const drop = () => {
      const graph = capture();
      const isRetained = retainedBy(graph);
      const exec: GraphExec = graph.instantiate();
      exec.launch(stream);
      return isRetained;
    };
    const isRetained = drop();
    for (let i = 0; i < 50 && isRetained(); i++) await collectGarbage();
    await eventually(() => !isRetained());
  });

  it('must be one', () => {
    using graph = capture();
    for (const value of [null, undefined, 1, 'text']) expect(() => graph.retain(value as unknown as object)).toThrow(TypeError);
    graph.retain(() => {});
    const disposed = capture();
    disposed.dispose();
    expect(() => disposed.retain({})).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' }));
  });
});

describe('what a graph retains is let go', () => {
  it('after the last launch has run', async () => {
    const graph = capture();
    const objects = [retainedBy(graph), retainedBy(graph)];
    const execs = [graph.instantiate(), graph.instantiate()];
    graph.dispose();
    using hold = stream.hold();
    for (const exec of execs) exec.launch(stream);
    for (const exec of execs) exec.dispose();
    await settle();
    expect(objects.map((isRetained) => isRetained())).toEqual([true, true]);
    hold.release();
    await eventually(() => objects.every((isRetained) => !isRetained()));
  });

  it('within calls that wait', () => {
    const graph = capture();
    const isRetained = retainedBy(graph);
    graph.dispose();
    // The driver does not say when.
    for (let i = 0; i < 1e6 && isRetained(); i++) stream.synchronizeSync();
    expect(isRetained()).toBe(false);
  });

  it('with its own executable graphs, not with those made before', async () => {
    const graph = capture();
    using before = graph.instantiate();
    const isRetained = retainedBy(graph);
    graph.dispose();
    await eventually(() => !isRetained());
    before.launch(stream);
    stream.synchronizeSync();
  });

  it('with an update, if the executable graph had it, once that has run', async () => {
    const [first, second] = [capture(), capture()];
    const isOfFirst = retainedBy(first);
    const isOfSecond = retainedBy(second);
    const exec = first.instantiate();
    first.dispose();
    using hold = stream.hold();
    exec.launch(stream);
    expect(exec.update(second)).toBe(true);
    second.dispose();
    await settle();
    expect([isOfFirst(), isOfSecond()]).toEqual([true, true]);
    hold.release();
    await eventually(() => !isOfFirst());
    expect(isOfSecond()).toBe(true);
    exec.launch(stream);
    exec.dispose();
    await eventually(() => !isOfSecond());
  });
});

describe('an environment', () => {
  const run = (text: string) => runModule(text, { ...deviceUnderTest, NODE_OPTIONS: '--expose-gc' });
  const worker = `
    import * as cistern from '${wholePackage}';
    const stream = new cistern.Stream({ nonBlocking: true });
    const buffer = new cistern.DeviceBuffer(64, { stream });
    const graph = stream.capture(() => cistern.set(buffer.ptr, 1, 1, 4, stream));
    for (let i = 0; i < 100; i++) graph.retain({ buffer });
    const exec = graph.instantiate();
    const hold = stream.hold();
    exec.launch(stream);
    globalThis.kept = [graph, exec, hold];
  `;

  it('is not kept alive by graphs, nor by what they retain', () => {
    expect(run(worker)).toEqual({ status: 0, signal: null, stdout: '', stderr: '' });
  });

  it('can end while graphs retain its objects, and others destroy them', () => {
    const { status, stdout, stderr } = run(`
      import { Worker } from 'node:worker_threads';
      import * as cistern from '${wholePackage}';
      const program = ${JSON.stringify(worker)}.replaceAll("'cistern'", JSON.stringify(import.meta.resolve('cistern')));
      const before = cistern.Device.get().memoryInfo().freeBytes;
      for (let i = 0; i < 4; i++) {
        const worker = new Worker(new URL('data:text/javascript,' + encodeURIComponent(program + (i % 2 ? 'process.exit()' : ''))));
        await new Promise((resolve) => worker.on('exit', resolve));
        const stream = new cistern.Stream();
        new cistern.CudaMemoryResource().deallocate(new cistern.CudaMemoryResource().allocate(64, stream), 64, stream);
        cistern.Device.get().synchronizeSync();
      }
      console.log(cistern.Device.get().memoryInfo().freeBytes === before);
    `);
    expect({ status, stdout, stderr }).toEqual({ status: 0, stdout: 'true\n', stderr: '' });
  });
});
