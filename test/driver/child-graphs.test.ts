/** Graphs that are nodes of other graphs: what they do, what they own, and which cannot be. */

import { readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { checkOrder } from '../../src/checking/index.js';
import { GraphMemoryResource } from '../../src/graphs/index.js';
import { CudaMemoryResource, copy, copyToHostSync, Event, type Graph, Stream, set } from '../../src/index.js';
import { failCall } from '../../src/tools/testing/index.js';
import { deviceUnderTest } from '../support/device-under-test.mjs';
import { needCaptures } from '../support/need-captures.js';
import { retainedBy } from '../support/retained-by.js';
import { runModule } from '../support/run-module.js';

const plain = new CudaMemoryResource();
let stream: Stream;
let fork: Stream;
let other: Stream;
let pointer: number;
let runs: string[];

beforeAll(() => {
  stream = new Stream({ nonBlocking: true });
  fork = new Stream({ nonBlocking: true });
  other = new Stream({ nonBlocking: true });
  pointer = plain.allocate(4096, stream);
});

beforeEach(() => {
  runs = [];
  needCaptures(stream);
});

afterAll(() => plain.deallocate(pointer, 4096, stream));

const read = (offset: number): number => {
  const array = new Uint8Array(1);
  copyToHostSync(array, pointer + offset, stream);
  return array[0] as number;
};
const run = (text: string) => runModule(text, { ...deviceUnderTest });
const fill = (value: number, offset = 0, on = stream): void => set(pointer + offset, value, 1, 4, on);
const calling = (name: string): Graph => stream.capture(() => stream.launchHostFunction(() => void runs.push(name)));

/** Waits until a thread of the driver has said something. */
async function eventually(isSo: () => boolean): Promise<void> {
  await expect.poll(() => isSo()).toBe(true);
}

describe('a child graph', () => {
  test('that nothing can be ordered after is part of no graph', () => {
    using child = stream.capture(() => fill(1));
    stream.beginCapture();
    failCall('cuStreamUpdateCaptureDependencies', 1, 999);
    expect(() => stream.addChildGraph(child)).toThrow(/add a child graph.* \(999\)/);
    expect(stream.captureStatus).toBe('invalidated');
    expect(() => stream.endCapture()).toThrow(/INVALIDATED/);
    expect(stream.captureStatus).toBe('none');
  });

  test('runs at each launch, after what was captured before it and before what was captured later', () => {
    const child = stream.capture(() => copy(pointer + 8, pointer, 4, stream));
    using graph = stream.capture(() => {
      fill(7);
      stream.addChildGraph(child);
      fill(9);
      stream.addChildGraph(child);
      copy(pointer + 16, pointer + 8, 4, stream);
    });
    child.dispose();
    expect(graph.nodeCounts).toMatchObject({ fills: 2, copies: 1, childGraphs: 2, others: 0, total: 5 });
    using exec = graph.instantiate();
    for (let launch = 0; launch < 3; launch++) {
      set(pointer, 0, 1, 4096, stream);
      exec.launch(stream);
      expect([read(0), read(8), read(16)]).toEqual([9, 9, 9]);
    }
    using first = stream.capture(() => fill(1, 32));
    using began = new Event();
    using ended = new Event();
    using onFork = stream.capture(() => {
      began.record(stream);
      fork.wait(began);
      fork.addChildGraph(first);
      copy(pointer + 40, pointer + 32, 4, fork);
      ended.record(fork);
      stream.wait(ended);
    });
    using forked = onFork.instantiate();
    forked.launch(stream);
    expect(read(40)).toBe(1);
  });

  test('can have child graphs, and be launched by itself', () => {
    using innermost = stream.capture(() => fill(3));
    using inner = stream.capture(() => {
      stream.addChildGraph(innermost);
      copy(pointer + 8, pointer, 4, stream);
    });
    using outer = stream.capture(() => {
      stream.addChildGraph(inner);
      fill(0);
    });
    using exec = outer.instantiate();
    using alone = innermost.instantiate();
    set(pointer, 0, 1, 4096, stream);
    exec.launch(stream);
    expect([read(0), read(8)]).toEqual([0, 3]);
    alone.launch(stream);
    expect(read(0)).toBe(3);
    const path = join(tmpdir(), `cistern-child-graphs-${process.pid}.dot`);
    outer.writeDot(path);
    expect(readFileSync(path, 'utf8')).toContain('digraph');
    rmSync(path);
  });

  test('is updated with its parent', () => {
    const nested = (value: number, fills = 1): Graph => {
      using child = stream.capture(() => {
        for (let i = 0; i < fills; i++) fill(value);
      });
      return stream.capture(() => stream.addChildGraph(child));
    };
    using first = nested(1);
    using second = nested(2);
    using longer = nested(3, 2);
    using exec = first.instantiate();
    expect(exec.update(longer)).toBe(false);
    expect(exec.update(second)).toBe(true);
    exec.launch(stream);
    expect(read(0)).toBe(2);
  });

  test('has host functions that run in its place at each launch, once for each time that it was added', () => {
    const child = calling('child');
    const graph = stream.capture(() => {
      stream.launchHostFunction(() => void runs.push('before'));
      stream.addChildGraph(child);
      stream.addChildGraph(child);
      stream.launchHostFunction(() => void runs.push('after'));
    });
    child.dispose();
    using exec = graph.instantiate();
    graph.dispose();
    for (let launch = 1; launch <= 5; launch++) {
      exec.launch(stream);
      stream.synchronizeSync();
      expect(runs.length).toBe(4 * launch);
    }
    expect(runs.slice(0, 4)).toEqual(['before', 'child', 'child', 'after']);
  });

  test('keeps what its graph had retained when it was added', async () => {
    const child = stream.capture(() => fill(5));
    const isRetained = retainedBy(child);
    const graph = stream.capture(() => stream.addChildGraph(child));
    const isRetainedLater = retainedBy(child);
    child.dispose();
    await eventually(() => !isRetainedLater());
    const exec = graph.instantiate();
    graph.dispose();
    using hold = stream.hold();
    exec.launch(stream);
    exec.dispose();
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(isRetained()).toBe(true);
    hold.release();
    stream.synchronizeSync();
    await eventually(() => !isRetained());
    expect(read(0)).toBe(5);
  });

  test('keeps a process alive until its host functions have run', () => {
    const { status, stdout, stderr } = run(`
      import { Stream } from 'cistern';
      const stream = new Stream({ nonBlocking: true });
      const child = stream.capture(() => stream.launchHostFunction(() => console.log('ran')));
      const exec = stream.capture(() => {
        stream.addChildGraph(child);
        stream.addChildGraph(child);
      }).instantiate();
      exec.launch(stream);
    `);
    expect({ status, stdout, stderr }).toEqual({ status: 0, stdout: 'ran\nran\n', stderr: '' });
  });
});

describe('no child graph is', () => {
  test.each([
    ['nothing', undefined],
    ['an executable graph', 'exec'],
    ['an object', {}],
  ])('%s', (_, value) => {
    using graph = stream.capture(() => {});
    using exec = graph.instantiate();
    using captured = stream.capture(() => {
      const added = (value === 'exec' ? exec : value) as Graph;
      expect(() => stream.addChildGraph(added)).toThrow(expect.objectContaining({ code: 'ERR_INVALID_ARG_TYPE' }));
    });
    expect(captured.nodeCounts.total).toBe(0);
  });

  test('one that is disposed, nor is one added on a disposed stream', () => {
    using graph = stream.capture(() => {});
    const ended = stream.capture(() => {});
    ended.dispose();
    const gone = new Stream();
    gone.dispose();
    const disposed = expect.objectContaining({ code: 'ERR_CISTERN_DISPOSED' });
    using captured = stream.capture(() => {
      expect(() => stream.addChildGraph(ended)).toThrow(disposed);
      expect(() => gone.addChildGraph(graph)).toThrow(disposed);
    });
    expect(captured.nodeCounts.total).toBe(0);
  });

  test('added outside of a capture', () => {
    using graph = stream.capture(() => {});
    expect(() => stream.addChildGraph(graph)).toThrow('CUDA_ERROR_ILLEGAL_STATE');
    using called = calling('never');
    expect(() => stream.addChildGraph(called)).toThrow('CUDA_ERROR_ILLEGAL_STATE');
  });

  test('one with memory that graphs share', () => {
    using resource = new GraphMemoryResource(plain);
    using graph = resource.capture(stream, () => {
      const memory = resource.allocate(4096, stream);
      set(memory, 1, 1, 4096, stream);
      resource.deallocate(memory, 4096, stream);
    });
    using captured = stream.capture(() => {
      expect(() => stream.addChildGraph(graph)).toThrow(expect.objectContaining({ code: 'ERR_CISTERN_NOT_SUPPORTED' }));
    });
    expect(captured.nodeCounts.total).toBe(0);
  });

  test('added if the driver refuses, and the capture can be given up', () => {
    const { status, stdout, stderr } = run(`
      import { Stream } from 'cistern';
      import { failCall } from 'cistern/testing';
      const stream = new Stream({ nonBlocking: true });
      const child = stream.capture(() => stream.launchHostFunction(() => console.log('ran')));
      for (const name of ['cuGraphAddChildGraphNode', 'cuStreamUpdateCaptureDependencies']) {
        failCall(name, 1, 1);
        try { stream.capture(() => stream.addChildGraph(child)); } catch (error) { console.log(error.driverStatus, stream.captureStatus); }
      }
      const exec = stream.capture(() => stream.addChildGraph(child)).instantiate();
      exec.launch(stream);
      stream.synchronizeSync();
    `);
    expect({ status, stdout, stderr }).toEqual({ status: 0, stdout: '1 none\n1 none\nran\n', stderr: '' });
  });
});

describe('the order checker', () => {
  test('sees the work of child graphs in their place', () => {
    using checker = checkOrder();
    using child = stream.capture(() => fill(1));
    using graph = stream.capture(() => {
      stream.addChildGraph(child);
      fill(2, 8);
    });
    using exec = graph.instantiate();
    exec.launch(stream);
    expect(checker.violations).toEqual([]);
    fill(3, 0, other);
    expect(checker.violations).toMatchObject([{ earlier: { streamId: stream.id }, later: { streamId: other.id } }]);
    stream.synchronizeSync();
    other.synchronizeSync();
    exec.launch(stream);
    using event = new Event();
    event.record(stream);
    other.wait(event);
    fill(3, 0, other);
    expect(checker.violations.length).toBe(1);
    other.synchronizeSync();
  });

  test('keeps the events of a child graph apart from those of its parent', () => {
    using checker = checkOrder();
    using inner = new Event();
    using back = new Event();
    using child = stream.capture(() => {
      fill(1);
      inner.record(stream);
      fork.wait(inner);
      fill(1, 8, fork);
      back.record(fork);
      stream.wait(back);
    });
    using graph = stream.capture(() => {
      inner.record(stream);
      stream.addChildGraph(child);
      // After what was captured before the child graph, and beside that.
      fork.wait(inner);
      fill(2, 0, fork);
      back.record(fork);
      stream.wait(back);
    });
    using exec = graph.instantiate();
    exec.launch(stream);
    expect(checker.violations.length).toBe(1);
    stream.synchronizeSync();
  });

  test('believes that what comes before a host function has run, whichever parent runs it', () => {
    using checker = checkOrder();
    using child = stream.capture(() => stream.launchHostFunction(() => fill(9, written, fork)));
    const parent = (offset: number): Graph =>
      stream.capture(() => {
        fill(1, offset);
        stream.addChildGraph(child);
      });
    using one = parent(0);
    using two = parent(64);
    using first = one.instantiate();
    using second = two.instantiate();
    let written = 64;
    using hold = stream.hold();
    first.launch(stream);
    second.launch(other);
    other.synchronizeSync();
    expect(checker.violations).toEqual([]);
    fork.synchronizeSync();
    written = 0;
    hold.release();
    stream.synchronizeSync();
    expect(checker.violations).toEqual([]);
    fork.synchronizeSync();
  });
});
