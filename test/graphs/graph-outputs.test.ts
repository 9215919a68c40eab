import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { GraphMemoryResource } from '../../src/graphs/index.js';
import {
  CudaMemoryResource,
  Event,
  type Graph,
  LoggingResourceAdaptor,
  type MemoryResource,
  Stream,
  VirtualMemoryResource,
} from '../../src/index.js';
import { annotate, Recording, RecordingResourceAdaptor } from '../../src/recording/index.js';
import { convertLog } from '../../src/tools/formats/index.js';
import { readRecordedRun } from '../../src/tools/formats/read-recorded-run.js';
import { planGraphs } from '../../src/tools/planning/index.js';
import { readAllocationLog, readGraphLogs } from '../../src/tools/replay/index.js';
import { eventsOf, readRecording, rowsOf } from '../support/read-recording.js';
import { folder, newFile } from '../support/recordings.js';
import { stream } from '../support/stream.js';

/** A graph with scratch memory and, behind it, an output. Returns both, and the output's address. */
function graphOf(graphs: GraphMemoryResource, through: MemoryResource, name: string, bytes: number): { graph: Graph; output: number } {
  let output = 0;
  const record = () => {
    const scratch = through.allocate(bytes, stream);
    output = through.allocate(512, stream);
    through.deallocate(scratch, bytes, stream);
  };
  return { graph: graphs.capture(stream, record, { name }), output };
}

/** Records what a program does with a resource for graphs and with an adaptor above it, and one below. */
function recordGraphs(use: (graphs: GraphMemoryResource, resource: MemoryResource) => void, spareBytes = 65_536): string {
  const file = newFile();
  using recording = new Recording({ file });
  using leaf = new CudaMemoryResource();
  using upstream = new RecordingResourceAdaptor(leaf, { recording });
  using graphs = new GraphMemoryResource(upstream);
  using resource = new RecordingResourceAdaptor(graphs, { recording });
  // So much comes at once, and graphs of less have the same addresses.
  const makeRoom = () => graphs.deallocate(graphs.allocate(spareBytes, stream), spareBytes, stream);
  if (spareBytes > 0) graphs.capture(stream, makeRoom, { name: 'room' }).dispose();
  use(graphs, resource);
  return file;
}

/** The recording of the adaptor below a resource of `recordGraphs`. */
function recordingOf({ upstream }: GraphMemoryResource): Recording {
  return (upstream as RecordingResourceAdaptor).recording;
}

/** The names of graphs in a log, and how many allocations each has. */
async function graphsIn(file: string, layer?: string): Promise<[string, number][]> {
  const logs = await readGraphLogs(file, layer === undefined ? {} : { layer });
  return logs.map(({ source, allocationCount }) => [source.slice(file.length), allocationCount]);
}

describe('a log of graphs', () => {
  test('has no address that is live twice, and each output is freed once: at the end of its capture', async () => {
    let outputs: number[] = [];
    const file = recordGraphs((graphs, resource) => {
      const both = [graphOf(graphs, resource, 'one', 1024), graphOf(graphs, resource, 'two', 1024)];
      outputs = both.map(({ output }) => output);
      for (const output of outputs) resource.deallocate(output, 512, stream);
      const beside = resource.allocate(512, stream);
      resource.deallocate(beside, 512, stream);
      for (const { graph } of both) graph.dispose();
    });
    const [output] = outputs as [number, number];
    expect(outputs).toEqual([output, output]);
    const run = await readRecording(file);
    const events = eventsOf(run).filter(({ layer, first }) => layer === 'graph' && first === output);
    expect(events.map(({ kind, phase }) => [kind, phase])).toEqual([
      ['allocate', 'one'],
      ['free', 'one'],
      ['allocate', 'two'],
      ['free', 'two'],
    ]);
    expect(run.phases.slice(1)).toEqual([
      { name: 'room', outer: 0, isGraph: true },
      { name: 'one', outer: 0, isGraph: true },
      { name: 'two', outer: 0, isGraph: true },
    ]);
    const log = await readAllocationLog(file);
    expect([log.allocationCount, log.unfreedCount]).toEqual([5, 0]);
  });

  test('keeps what the resource took for its graphs in the layers below', async () => {
    // The output is all that the graph has, so that the memory taken for it has the same address and size.
    const file = recordGraphs((graphs, resource) => {
      using graph = graphs.capture(stream, () => resource.allocate(512, stream));
      expect(graph.isDisposed).toBe(false);
    }, 0);
    const rows = rowsOf(await readRecording(file));
    const [pointer] = /(?<=allocate graph )\d+/.exec(rows.join()) as RegExpExecArray;
    const of = (what: string) => `${what} ${pointer} 512`;
    expect(rows.filter((row) => /^(allocate|free)/.test(row))).toEqual(
      ['allocate cuda', 'allocate graph', 'free graph', 'free cuda'].map(of),
    );
    // What comes for a graph is no memory of its capture, and goes back with the resource.
    const below = eventsOf(await readRecording(file)).filter(({ kind, layer }) => layer === 'cuda' && !kind.startsWith('phase'));
    expect(below.map(({ kind, phase }) => `${kind} ${phase}`)).toEqual(['allocate ', 'free ']);
  });

  test('has memory that a graph keeps until it is freed, or its graph is gone', async () => {
    let kept: number[] = [];
    const file = recordGraphs((graphs) => {
      using resource = new RecordingResourceAdaptor(graphs.kept, { recording: recordingOf(graphs), layer: 'kept' });
      const record = () => {
        kept = [resource.allocate(512, stream), resource.allocate(512, stream)];
      };
      using graph = graphs.capture(stream, record, { name: 'one' });
      annotate('later', () => resource.deallocate(kept[0] as number, 512, stream));
      annotate('end', () => graph.dispose());
    });
    const events = eventsOf(await readRecording(file)).filter(({ layer, kind }) => layer === 'kept' && !kind.startsWith('phase'));
    expect(events.map(({ kind, first, phase }) => [kind, first, phase])).toEqual([
      ['allocate', kept[0], 'one'],
      ['allocate', kept[1], 'one'],
      ['free', kept[0], 'later'],
      ['free', kept[1], 'end'],
    ]);
    expect((await readAllocationLog(file, { layer: 'kept' })).unfreedCount).toBe(0);
  });

  test('may have an output freed while another capture has its bytes', async () => {
    const file = recordGraphs((graphs, resource) => {
      const first = graphOf(graphs, resource, 'one', 1024);
      const second = graphs.capture(stream, () => {
        const scratch = resource.allocate(1024, stream);
        const own = resource.allocate(512, stream);
        expect(own).toBe(first.output);
        resource.deallocate(first.output, 512, stream);
        resource.deallocate(own, 512, stream);
        resource.deallocate(scratch, 1024, stream);
      });
      for (const graph of [first.graph, second]) graph.dispose();
    });
    const log = await readAllocationLog(file, { layer: 'graph' });
    expect([log.allocationCount, log.unfreedCount]).toEqual([4, 0]);
  });

  test('has what was allocated beside a capture until it is freed', async () => {
    let beside = 0;
    const file = recordGraphs((graphs, resource) => {
      using other = new Stream({ nonBlocking: true });
      const record = () => {
        beside = resource.allocate(2048, other);
      };
      graphs.capture(stream, record, { name: 'one' }).dispose();
      annotate('later', () => resource.deallocate(beside, 2048, other));
    });
    const events = eventsOf(await readRecording(file)).filter(({ kind, first }) => kind === 'free' && first === beside);
    expect(events.filter(({ layer }) => layer === 'graph').map(({ phase }) => phase)).toEqual(['later']);
  });

  test('has what is allocated at the address of an output after the graphs are gone', async () => {
    const file = newFile();
    {
      using recording = new Recording({ file });
      using leaf = new CudaMemoryResource();
      using graphs = new GraphMemoryResource(leaf);
      using resource = new RecordingResourceAdaptor(graphs, { recording });
      const { graph, output } = graphOf(graphs, resource, 'one', 1024);
      // The log does not hear of this.
      graphs.deallocate(output, 512, stream);
      graph.dispose();
      graphs.trim(stream);
      stream.synchronizeSync();
      // The fallback is the same device memory, which is free again.
      const others = Array.from({ length: 8 }, () => resource.allocate(512, stream));
      expect(others).toContain(output);
      for (const pointer of others) resource.deallocate(pointer, 512, stream);
    }
    const log = await readAllocationLog(file);
    expect([log.allocationCount, log.unfreedCount]).toEqual([10, 0]);
  });

  test('in the format of RMM can be read, too', async () => {
    const file = join(folder, 'graphs.csv');
    {
      using upstream = new VirtualMemoryResource();
      using graphs = new GraphMemoryResource(upstream);
      using resource = new LoggingResourceAdaptor(graphs, { file });
      const both = [graphOf(graphs, resource, 'one', 1024), graphOf(graphs, resource, 'two', 1024)];
      for (const { output } of both) resource.deallocate(output, 512, stream);
      for (const { graph } of both) graph.dispose();
    }
    const log = await readAllocationLog(file);
    expect([log.allocationCount, log.unfreedCount]).toEqual([4, 0]);
  });
});

describe('readGraphLogs', () => {
  test('tells the graphs of a program apart, with what phases within them allocate, and without what is beside them', async () => {
    const file = recordGraphs((graphs, resource) => {
      const weights = resource.allocate(4096, stream);
      const layers = (count: number) => () => {
        for (let i = 0; i < count; i++) {
          annotate('layer', () => resource.deallocate(resource.allocate(1024, stream), 1024, stream));
        }
      };
      for (const count of [3, 1, 2]) graphs.capture(stream, layers(count), { name: `${count} layers` }).dispose();
      resource.deallocate(weights, 4096, stream);
    });
    expect(await graphsIn(file)).toEqual([
      [': 3 layers', 3],
      [': 1 layers', 1],
      [': 2 layers', 2],
    ]);
    expect(await graphsIn(file, 'graph')).toEqual([
      [': 3 layers', 3],
      [': 1 layers', 1],
      [': 2 layers', 2],
    ]);
    expect((await readAllocationLog(file)).allocationCount).toBe(7);
    const copy = newFile();
    await convertLog(file, copy);
    expect((await graphsIn(copy)).length).toBe(3);
    expect((await readRecordedRun(copy)).phases).toEqual((await readRecordedRun(file)).phases);
  });

  test('takes the last capture of a name, and none that was given up', async () => {
    const failure = new Error('on purpose');
    const file = recordGraphs((graphs, resource) => {
      const allocate =
        (count: number, fails = false) =>
        () => {
          for (let i = 0; i < count; i++) resource.allocate(256, stream);
          if (fails) throw failure;
        };
      graphs.capture(stream, allocate(1), { name: 'first' }).dispose();
      graphs.capture(stream, allocate(2), { name: 'second' }).dispose();
      graphs.capture(stream, allocate(3), { name: 'first' }).dispose();
      expect(() => graphs.capture(stream, allocate(4, true), { name: 'second' })).toThrow(failure);
      expect(() => graphs.capture(stream, allocate(5, true), { name: 'third' })).toThrow(failure);
    });
    expect(await graphsIn(file)).toEqual([
      [': second', 2],
      [': first', 3],
    ]);
    expect((await readAllocationLog(file, { layer: 'graph' })).unfreedCount).toBe(0);
  });

  test('does not take a phase of the program for a graph of its name', async () => {
    const file = recordGraphs((graphs, resource) => {
      annotate('step', () => resource.deallocate(resource.allocate(256, stream), 256, stream));
      annotate('step', () => graphOf(graphs, resource, 'step', 1024).graph.dispose());
    });
    expect(await graphsIn(file)).toEqual([[': step', 2]]);
    const phases = eventsOf(await readRecording(file)).map(({ phase }) => phase);
    expect(phases).toContain('step/step');
  });
});

test('reads the order of streams within a capture', async () => {
  const bytesOf = async (isOrdered: boolean) => {
    const file = recordGraphs((graphs, resource) => {
      const other = new Stream({ nonBlocking: true });
      const events: Event[] = [];
      const order = (earlier: Stream, later: Stream) => {
        const event = new Event();
        event.record(earlier);
        later.wait(event);
        events.push(event);
      };
      graphs
        .capture(stream, () => {
          order(stream, other);
          const first = resource.allocate(4096, stream);
          resource.deallocate(first, 4096, stream);
          if (isOrdered) order(stream, other);
          resource.deallocate(resource.allocate(4096, other), 4096, other);
          order(other, stream);
        })
        .dispose();
      for (const event of events) event.dispose();
      other.dispose();
    });
    return planGraphs(await readGraphLogs(file)).plannedBytes;
  };
  expect([await bytesOf(true), await bytesOf(false)]).toEqual([4096, 8192]);
});
