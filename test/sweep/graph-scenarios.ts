import { devNull } from 'node:os';
import { GraphMemoryResource } from '../../src/graphs/index.js';
import {
  CudaMemoryResource,
  copy,
  copyFromHost,
  copyToHostSync,
  type DeallocationEvents,
  DeviceBuffer,
  Event,
  type Graph,
  type GraphExec,
  type MemoryResource,
  PoolMemoryResource,
  Stream,
  set,
  VirtualMemoryResource,
} from '../../src/index.js';
import { planAllocations } from '../../src/tools/planning/index.js';
import type { Scenario, ScenarioRun } from './scenario-run.js';

const policies: readonly DeallocationEvents[] = ['eager', 'deferred', 'off'];
const upstreams: Readonly<Record<string, () => MemoryResource>> = {
  cuda: () => new CudaMemoryResource(),
  virtual: () => new VirtualMemoryResource(),
  // It serves others with what goes back.
  pool: () => new PoolMemoryResource(new CudaMemoryResource()),
};

/** Captures, graphs, and memory for them. */
export function graphScenarios(): Scenario[] {
  return [
    { name: 'captures and graphs', play: playGraphs },
    { name: 'a capture in steps', play: playCaptureSteps },
    ...policies.flatMap((events) =>
      Object.keys(upstreams).map((upstream) => ({
        name: `memory of graphs over ${upstream}, events=${events}`,
        play: (run: ScenarioRun) => playGraphMemory(run, upstream, events),
      })),
    ),
  ];
}

const bytes = 4096;

/** The value of memory, which must be the same everywhere. */
function contentOf(pointer: number, stream: Stream): number {
  const found = new Uint8Array(bytes);
  copyToHostSync(found, pointer, stream);
  return found.every((value) => value === found[0]) ? (found[0] as number) : -1;
}

/** A function that makes a stream wait for another, with events of its own. */
function orderWith(run: ScenarioRun): (earlier: Stream, later: Stream) => void {
  const events = [0, 1].map(() => run.make('an event', () => new Event()));
  let next = 0;
  return (earlier, later) => {
    const event = events[next++ % events.length] as Event;
    event.record(earlier);
    later.wait(event);
  };
}

/** A graph is captured in one step: if a call in it fails, nothing of it is left, and it is captured again. */
function makeGraph(run: ScenarioRun, name: string, stream: Stream, record: () => void): Graph {
  return run.make(name, () => stream.capture(record));
}

async function playGraphs(run: ScenarioRun): Promise<void> {
  const resource = run.make('a resource', () => new CudaMemoryResource());
  const stream = run.make('a stream', () => new Stream({ nonBlocking: true }));
  const other = run.make('another stream', () => new Stream({ nonBlocking: true }));
  const [a, b] = [0, 1].map(() => run.do('allocate', () => resource.allocate(bytes, stream))) as [number, number];
  const order = orderWith(run);
  let calls = 0;
  const child = makeGraph(run, 'a child', stream, () => {
    set(a, 1, 1, bytes, stream);
    stream.launchHostFunction(() => calls++);
  });
  const graph = makeGraph(run, 'a graph', stream, () => {
    stream.addChildGraph(child);
    order(stream, other);
    copy(b, a, bytes, other);
    other.launchHostFunction(() => calls++);
    order(other, stream);
    copyFromHost(a, new Uint8Array(bytes).fill(2), stream);
  });
  run.do('retain', () => graph.retain({}));
  run.check(run.do('count nodes', () => graph.nodeCounts).total === 4, 'the graph has four nodes');
  run.do('write', () => graph.writeDot(devNull));
  const exec = run.make('an executable graph', () => graph.instantiate());
  run.do('upload', () => exec.upload(stream));
  for (const on of [stream, other, stream]) run.do('launch', () => exec.launch(on));
  await run.doAsync('synchronize', () => stream.synchronize());
  await run.doAsync('synchronize the other', () => other.synchronize());
  run.check(calls === 6, `host functions have run six times, not ${calls}`);
  const values = [a, b].map((pointer) => run.do('read', () => contentOf(pointer, stream)));
  run.check(values[0] === 2 && values[1] === 1, `the launches have written 2 and 1, not ${values}`);
  const fill = (value: number) =>
    makeGraph(run, `a fill of ${value}`, stream, () => {
      set(a, value, 1, bytes, stream);
    });
  const updated = run.make('an executable fill', () => fill(3).instantiate());
  const four = fill(4);
  run.check(
    run.do('update', () => updated.update(four)),
    'the graph can be updated',
  );
  run.do('launch the update', () => updated.launch(stream));
  run.do('synchronize', () => stream.synchronizeSync());
  run.check(run.do('read', () => contentOf(a, stream)) === 4, 'the update has run');
  for (const pointer of [a, b]) run.do('free', () => resource.deallocate(pointer, bytes, stream));
}

/** Each call of the capture is a step: one that fails leaves the capture valid. */
function playCaptureSteps(run: ScenarioRun): void {
  const resource = run.make('a resource', () => new CudaMemoryResource());
  const pool = run.make('a pool', () => new PoolMemoryResource(resource));
  const stream = run.make('a stream', () => new Stream({ nonBlocking: true }));
  const other = run.make('another stream', () => new Stream({ nonBlocking: true }));
  const events = [0, 1].map(() => run.make('an event', () => new Event()));
  const [fork, join] = events as [Event, Event];
  const a = run.do('allocate', () => resource.allocate(bytes, stream));
  run.do('begin', () => stream.beginCapture());
  run.do('set', () => set(a, 6, 1, bytes, stream));
  run.do('record', () => fork.record(stream));
  run.do('wait', () => other.wait(fork));
  run.do('set on the fork', () => set(a, 5, 1, bytes, other));
  run.refused('allocate', 'ERR_CISTERN_CAPTURING', () => pool.allocate(bytes, stream));
  run.refused('query', 'ERR_CISTERN_CAPTURING', () => other.query());
  run.refused('synchronize', 'ERR_CISTERN_CAPTURING', () => stream.synchronizeSync());
  run.do('record the fork', () => join.record(other));
  run.do('join', () => stream.wait(join));
  run.do('ask', () => stream.captureStatus);
  run.check(run.do('ask', () => stream.captureStatus) === 'active', 'the capture is valid, whatever failed in it');
  const graph = run.make('a graph', () => stream.endCapture());
  run.check(run.do('count nodes', () => graph.nodeCounts).total === 2, 'the graph has two nodes');
  const exec = run.make('an executable graph', () => graph.instantiate());
  run.do('launch', () => exec.launch(stream));
  run.do('synchronize', () => stream.synchronizeSync());
  run.check(run.do('read', () => contentOf(a, stream)) === 5, 'the fork has run last');
  run.do('free', () => resource.deallocate(a, bytes, stream));
}

function playGraphMemory(run: ScenarioRun, upstream: string, deallocationEvents: DeallocationEvents): void {
  const leaf = run.make('a leaf', upstreams[upstream] as () => MemoryResource);
  const pool = run.make('a pool', () => new PoolMemoryResource(run.make('a resource', () => new CudaMemoryResource())));
  const options = { planner: planAllocations, planningMilliseconds: 0, fallback: pool, deallocationEvents };
  const graphs = run.make('memory for graphs', () => new GraphMemoryResource(leaf, options));
  const stream = run.make('a stream', () => new Stream({ nonBlocking: true }));
  const other = run.make('another stream', () => new Stream({ nonBlocking: true }));
  const order = orderWith(run);
  let output = 0;
  let kept = 0;
  const capture = (name: string, scratchBytes: number, value: number): GraphExec => {
    const record = () => {
      const scratch = graphs.allocate(scratchBytes, stream);
      set(scratch, value, 1, bytes, stream);
      order(stream, other);
      output = graphs.allocate(bytes, other);
      kept = graphs.kept.allocate(bytes, stream);
      copy(output, scratch, bytes, other);
      copy(kept, scratch, bytes, stream);
      order(other, stream);
      graphs.deallocate(scratch, scratchBytes, stream);
      new DeviceBuffer(scratchBytes, { resource: graphs, stream }).dispose();
    };
    const graph = run.do(`capture ${name}`, () => graphs.capture(stream, record, { name }));
    const exec = run.make(`the executable graph ${name}`, () => graph.instantiate());
    run.do(`dispose the graph ${name}`, () => graph.dispose());
    return exec;
  };
  const step = () => {
    const pointers = [50_000, bytes].map((count) => [graphs.allocate(count, stream), count] as const);
    for (const [pointer, count] of pointers) graphs.deallocate(pointer, count, stream);
  };
  run.do('warm up', () => graphs.warmUp('small', step));
  const small = capture('small', 50_000, 7);
  const [smallOutput, smallKept] = [output, kept];
  const large = capture('large', 3_000_000, 8);
  const again = capture('small', 50_000, 9);
  for (const [exec, on] of [
    [small, stream],
    [large, other],
    [again, stream],
    [small, stream],
  ] as const)
    run.do('launch', () => exec.launch(on));
  run.do('synchronize', () => stream.synchronizeSync());
  run.check(run.do('read the output', () => contentOf(smallOutput, stream)) === 7, 'the output is that of the last launch');
  run.check(run.do('read what is kept', () => contentOf(smallKept, stream)) === 7, 'kept memory is that of its graph');
  run.check(run.do('read what is kept', () => contentOf(kept, stream)) === 9, 'kept memory is that of its graph');
  run.do('give an output up', () => graphs.deallocate(output, bytes, other));
  run.do('launch', () => large.launch(other));
  run.do('dispose in flight', () => large.dispose());
  run.do('trim', () => graphs.trim(stream));
  run.do('launch', () => again.launch(other));
  run.do('synchronize', () => other.synchronizeSync());
  run.check(graphs.statistics().graphs.length === 2, 'the memory of two graphs is left');
  run.do('launch', () => again.launch(stream));
  run.do('dispose the memory in flight', () => graphs.dispose());
  const next = run.do('allocate what went back', () => leaf.allocate(bytes, other));
  run.do('set', () => set(next, 1, 1, bytes, other));
  run.do('free', () => leaf.deallocate(next, bytes, other));
}
