/** What belongs to a graph lives until its last graph, executable graph and launch have ended, and no longer. */
import { setImmediate } from 'node:timers/promises';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { runGraphEnds, whenGraphEnds } from '../../src/driver/graphs/user-objects.js';
import { CudaMemoryResource, type Graph, type GraphExec, Stream, set } from '../../src/index.js';
import { deviceUnderTest } from '../support/device-under-test.mjs';
import { runModule } from '../support/run-module.js';
import { skipTest } from '../support/skip-test.js';
import { collectGarbage } from './collection.js';

const plain = new CudaMemoryResource();
let stream: Stream;
let pointer: number;

beforeAll(() => {
  stream = new Stream({ nonBlocking: true });
  pointer = plain.allocate(4096, stream);
});
beforeEach(() => {
  try {
    capture().dispose();
  } catch {
    skipTest('needs a driver that captures');
  }
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
  let hasEnded = false;
  const marker = capture();
  whenGraphEnds(marker, () => {
    hasEnded = true;
  });
  marker.dispose();
  await eventually(() => hasEnded);
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
    const ends: string[] = [];
    const drop = () => {
      const graph = capture();
      whenGraphEnds(graph, () => ends.push('graph'));
      const exec: GraphExec = graph.instantiate();
      exec.launch(stream);
    };
    drop();
    for (let i = 0; i < 50 && ends.length === 0; i++) await collectGarbage();
    await eventually(() => ends.length === 1);
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

describe('the end of a graph', () => {
  it('is told once, after the last launch has run, and not within the call that ends it', async () => {
    const ends: string[] = [];
    const graph = capture();
    whenGraphEnds(graph, () => ends.push('first'));
    whenGraphEnds(graph, () => ends.push('second'));
    const execs = [graph.instantiate(), graph.instantiate()];
    graph.dispose();
    using hold = stream.hold();
    for (const exec of execs) exec.launch(stream);
    for (const exec of execs) exec.dispose();
    await settle();
    expect(ends).toEqual([]);
    hold.release();
    await eventually(() => ends.length === 2);
    await settle();
    expect(ends.toSorted()).toEqual(['first', 'second']);
  });

  it('is told within calls that wait', async () => {
    let isTold = false;
    const graph = capture();
    whenGraphEnds(graph, () => {
      isTold = true;
    });
    graph.dispose();
    // The driver does not say when.
    for (let i = 0; i < 1e6 && !isTold; i++) stream.synchronizeSync();
    expect(isTold).toBe(true);
  });

  it('is that of its own executable graphs, not of those made before', async () => {
    const ends: string[] = [];
    const graph = capture();
    using before = graph.instantiate();
    whenGraphEnds(graph, () => ends.push('later'));
    graph.dispose();
    await eventually(() => ends.length === 1);
    before.launch(stream);
    stream.synchronizeSync();
  });

  it('comes with an update for what the executable graph had, once that has run', async () => {
    const ends: string[] = [];
    const first = capture();
    whenGraphEnds(first, () => ends.push('first'));
    const exec = first.instantiate();
    first.dispose();
    const second = capture();
    whenGraphEnds(second, () => ends.push('second'));
    using hold = stream.hold();
    exec.launch(stream);
    expect(exec.update(second)).toBe(true);
    second.dispose();
    await settle();
    expect(ends).toEqual([]);
    hold.release();
    await eventually(() => ends.length === 1);
    expect(ends).toEqual(['first']);
    exec.launch(stream);
    exec.dispose();
    await eventually(() => ends.length === 2);
    expect(ends).toEqual(['first', 'second']);
  });

  it('is told although a function for another one fails', async () => {
    const warnings: Error[] = [];
    const note = (warning: Error) => void warnings.push(warning);
    process.on('warning', note);
    let isTold = false;
    const graph = capture();
    for (let i = 0; i < 2; i++) {
      whenGraphEnds(graph, () => {
        isTold = true;
        throw new Error('mine');
      });
    }
    graph.dispose();
    await eventually(() => isTold);
    await settle();
    await setImmediate();
    process.off('warning', note);
    expect(warnings.map(({ message }) => message)).toEqual(Array(2).fill('a function for the end of a graph failed: Error: mine'));
  });

  it('may come during it: what ends within a function is told, too', async () => {
    const ends: string[] = [];
    const [outer, inner] = [capture(), capture()];
    whenGraphEnds(inner, () => ends.push('inner'));
    whenGraphEnds(outer, () => {
      ends.push('outer');
      inner.dispose();
      runGraphEnds();
    });
    outer.dispose();
    await eventually(() => ends.length === 2);
    expect(ends).toEqual(['outer', 'inner']);
  });
});

describe('an environment', () => {
  const run = (text: string) => runModule(text, { ...deviceUnderTest, NODE_OPTIONS: '--expose-gc' });
  const worker = `
    import * as cistern from 'cistern';
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
      import * as cistern from 'cistern';
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
