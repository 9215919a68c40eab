import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { EventKind, type RecordedRun, readRecordedRun } from '../../../../src/tools/formats/index.js';
import { pieces } from '../logs.js';
import { hasPython, pickleWithPython, pythonNote } from './snapshots.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-snapshots-'));
afterAll(() => rmSync(folder, { recursive: true }));

const frames = (line: string) => `[{'name': 'forward', 'filename': '/m/net.py', 'line': ${line}}]`;
const base = 0x7f00_0000_0000;

/** A snapshot in Python, with parts that can be replaced. */
function snapshot(parts: Record<string, string> = {}): string {
  const { segment = "'segment_pool_id': (0, 0)", entry = '', stream = '0', time = '1750000000000001', stack = frames('3') } = parts;
  return `{'segments': [{'device': 0, 'address': ${base}, 'total_size': 4096, 'stream': 0, 'frames': [], ${segment},
    'blocks': [{'size': 4096, 'requested_size': 4000, 'state': 'active_allocated', 'frames': ${stack}}]}],
  'device_traces': [[
    {'action': 'segment_alloc', 'addr': ${base}, 'size': 4096, 'stream': 0, 'time_us': 1750000000000000, 'frames': [] ${entry}},
    {'action': 'alloc', 'addr': ${base}, 'size': 4000, 'stream': ${stream}, 'time_us': ${time}, 'frames': ${stack} ${entry}}]]}`;
}

let files = 0;
async function write(python: string, protocol = 4): Promise<string> {
  const file = join(folder, `${files++}.pickle`);
  await pickleWithPython(file, python, protocol);
  return file;
}

const allocations = ({ kinds, layerOf, layers, seconds }: RecordedRun) =>
  [...kinds].flatMap((kind, i) => (kind === EventKind.allocate ? [`${layers[layerOf[i] as number]?.name}: ${seconds[i]}`] : []));

describe.skipIf(!hasPython)(`snapshots of PyTorch${pythonNote}`, () => {
  test.each([
    ['line', { stack: frames('2**64 - 1') }],
    ['line', { stack: frames('-1') }],
    ['file', { stack: "[{'name': 'f', 'filename': None, 'line': None}]" }],
    ['name', { stack: "[{'filename': 'a.py', 'line': 1}]" }],
    ['stream', { stream: '-1' }],
    ['stream', { stream: '2**64 - 1' }],
    ['time', { time: '2**70' }],
    ['time', { time: 'None' }],
    ['pool', { segment: "'segment_pool_id': None" }],
    ['pool', { segment: "'segment_pool_id': (-1, 'x')" }],
    ['pool of an entry', { entry: ", 'pool_id': None" }],
  ])('a %s that cannot be understood does not end the reading: %j', async (_, parts) => {
    expect(allocations(await readRecordedRun(await write(snapshot(parts))))).toEqual(['pytorch: 4000']);
  });

  test.each([0, 1, 2, 3, 4, 5])('are read in protocol %i', async (protocol) => {
    const run = await readRecordedRun(
      await write(snapshot({ entry: ", 'user_metadata': 'caf\\u00e9 \\\\n', 'compiled': True, 'x': 1.5" }), protocol),
    );
    expect(allocations(run)).toEqual(['pytorch: 4000']);
    expect(run.stacks[1]).toBe('forward (/m/net.py:3)');
    expect(run.labels[1]).toBe('caf\u00e9 \\n');
  });

  test('name a pool of the program, and the graph that a pool belongs to', async () => {
    const own = await readRecordedRun(await write(snapshot({ segment: "'segment_pool_id': (0, 1)" })));
    expect(own.layers.find(({ name }) => name === 'pool 0,1')?.isGraph).toBeUndefined();
    expect(own.layers.map(({ name }) => name)).toContain('pool 0,1');
    const graph = await readRecordedRun(await write(snapshot({ segment: "'segment_pool_id': (3, 0)" })));
    expect(graph.layers.find(({ name }) => name === 'private pool 3,0')?.isGraph).toBe(true);
  });

  test('have the pools that entries name, even of segments that are gone', async () => {
    const gone = `{'segments': [], 'device_traces': [[
      {'action': 'segment_alloc', 'addr': 4096, 'size': 4096, 'stream': 0, 'time_us': 1, 'pool_id': (0, 2), 'frames': []},
      {'action': 'alloc', 'addr': 4096, 'size': 100, 'stream': 0, 'time_us': 2, 'pool_id': (0, 2), 'frames': []},
      {'action': 'free_completed', 'addr': 4096, 'size': 100, 'stream': 0, 'time_us': 3, 'pool_id': (0, 2), 'frames': []},
      {'action': 'segment_free', 'addr': 4096, 'size': 4096, 'stream': 0, 'time_us': 4, 'pool_id': (0, 2), 'frames': []}]]}`;
    expect(allocations(await readRecordedRun(await write(gone))).sort()).toEqual(['pool 0,2: 100', 'pytorch: 100']);
  });

  test('are read as a list of segments, and as snapshots by rank', async () => {
    expect(allocations(await readRecordedRun(await write(`${snapshot()}['segments']`)))).toEqual(['pytorch: 4000']);
    const ranks = await readRecordedRun(await write(`{0: ${snapshot()}, 1: ${snapshot({ segment: "'segment_pool_id': (0, 1)" })}}`));
    expect(allocations(ranks).sort()).toEqual(['pool 0,1 of rank 1: 4000', 'pytorch of rank 0: 4000', 'pytorch of rank 1: 4000']);
    const list = await readRecordedRun(await write(`[${snapshot()}, ${snapshot()}]`));
    expect(allocations(list).sort()).toEqual(['pytorch of rank 0: 4000', 'pytorch of rank 1: 4000']);
  });

  test('are the same in pieces of any size', async () => {
    for (const protocol of [0, 4]) {
      const bytes = readFileSync(await write(snapshot({ entry: ", 'pool_id': (0, 1), 'user_metadata': 'a'" }), protocol));
      const whole = await readRecordedRun(pieces(bytes), { name: 'a' });
      expect(whole.eventCount).toBe(6);
      for (const size of [1, 2, 3, 7, 64]) expect(await readRecordedRun(pieces(bytes, size), { name: 'a' })).toEqual(whole);
    }
  });

  test('have the same stacks and pools whether their entries share objects or have copies', async () => {
    const entries = (stack: string, pool: string) => `(lambda stack, pool: {'segments': [], 'device_traces': [[{'action': 'alloc',
      'addr': i * 4096, 'size': 8, 'stream': 0, 'time_us': i, 'frames': ${stack}, 'pool_id': ${pool}} for i in range(5000)]]})(${frames('3')}, (0, int('2')))`;
    const shared = await readRecordedRun(await write(entries('stack', 'pool')), { name: 'a' });
    const copied = await readRecordedRun(await write(entries('[dict(stack[0])]', '(0, int(str(2 + i * 0)))')), { name: 'a' });
    expect(shared.eventCount).toBe(10_000);
    expect(shared.stacks).toEqual(['', 'forward (/m/net.py:3)']);
    expect(copied).toEqual(shared);
  });

  test('may refer to an entry from outside of its trace, but not from another trace', async () => {
    const with2 = (result: string) => `(lambda snapshot: ${result})(${snapshot()})`;
    const apart = await write(with2("{**snapshot, 'last': [snapshot['device_traces'][0][-1]]}"));
    expect(allocations(await readRecordedRun(apart))).toEqual(['pytorch: 4000']);
    const twice = await write(with2("{**snapshot, 'device_traces': snapshot['device_traces'] + [[snapshot['device_traces'][0][-1]]]}"));
    await expect(readRecordedRun(twice)).rejects.toThrow('has the same entry of a trace in two places');
  });

  /** Reads a file in a process whose heap has 48 MiB, and says what comes of it. */
  function readInSmallHeap(file: string): string {
    const program = `import { readRecordedRun } from 'cistern/logs';
      console.log(await readRecordedRun(${JSON.stringify(file)}).then(({ eventCount }) => eventCount, ({ code, message }) => code + ' ' + message));`;
    const { status, stdout, stderr } = spawnSync(process.execPath, ['--max-old-space-size=48', '--input-type=module', '--eval', program], {
      encoding: 'utf8',
    });
    expect(stderr).toBe('');
    expect(status).toBe(0);
    return stdout;
  }

  test('have traces that need not fit into memory as objects', { timeout: 60_000 }, async () => {
    const file = await write(
      "{'segments': [], 'device_traces': [[{'action': action, 'addr': 4096, 'size': 1, 'stream': 0, 'time_us': i, 'a': 1, 'b': 2, 'c': 3} for i in range(150000) for action in ('alloc', 'free_completed')]]}",
    );
    expect(readInSmallHeap(file)).toBe('300000\n');
  });

  test.each([
    ['segments', "{'segments': [{'address': i, 'total_size': 1, 'a': 1, 'b': 2, 'blocks': []} for i in range(300000)]}"],
    [
      'live blocks',
      "{'segments': [], 'device_traces': [[{'action': 'alloc', 'addr': i, 'size': 1, 'stream': 0, 'time_us': i} for i in range(600000)]]}",
    ],
  ])('that need more memory than Node has are refused with a sentence: %s', { timeout: 60_000 }, async (_, python) => {
    const file = await write(python);
    expect(readInSmallHeap(file)).toMatch(
      /^ERR_CISTERN_INVALID_LOG .* is too large: its \d+(\.\d)? MiB need more memory than Node may use here \(.*--max-old-space-size/,
    );
  });
});

test.each(['(', '(d', '(dI\n', '(dV', '(lp', '(lp0\n', 'g0\n', '(dp0\nVa\np1\n(lp2\ns.', `(dV${'\\u0041'.repeat(100)}\nN.`])(
  'a text of an old protocol that is none, %j, is refused with a sentence',
  async (text) => {
    await expect(readRecordedRun(pieces(Buffer.from(text)), { name: 'a.pickle' })).rejects.toThrow(/^a\.pickle/);
  },
);
