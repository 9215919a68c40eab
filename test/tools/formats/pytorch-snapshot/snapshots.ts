import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { afterAll } from 'vitest';
import { EventKind, type RecordedRun } from '../../../../src/tools/formats/index.js';

/** A snapshot, as Python loads it. */
export interface Snapshot {
  readonly segments: readonly Segment[];
  readonly device_traces: readonly (readonly TraceEntry[])[];
  readonly allocator_settings: object;
  readonly external_annotations: readonly { device: number; time_us: number; name: string; stage: string }[];
}

interface Segment {
  readonly device: number;
  readonly address: number;
  readonly total_size: number;
  readonly allocated_size: number;
  readonly active_size: number;
  readonly requested_size: number;
  readonly stream: number;
  readonly segment_type: string;
  readonly segment_pool_id: readonly number[];
  readonly is_expandable: boolean;
  readonly frames: readonly Frame[];
  readonly blocks: readonly Block[];
}

interface Frame {
  readonly name: string;
  readonly filename: string;
  readonly line: number;
}

interface Block {
  readonly address: number;
  readonly size: number;
  readonly requested_size: number;
  readonly state: string;
  readonly frames: readonly Frame[];
}

interface TraceEntry {
  readonly action: string;
  readonly addr?: number;
  readonly device_free?: number;
  readonly size: number;
  readonly stream: number;
  readonly time_us: number;
  readonly frames: readonly Frame[];
  readonly user_metadata?: string;
}

/** Runs scripts, which come as lines of JSON with a path, and answers each with a line: what it left in `answer`, or its error. */
const loop = `
import json, sys, traceback
print('ready', flush=True)
for line in sys.stdin:
    script, path = json.loads(line)
    names = {'path': path}
    try:
        exec(script, names)
        answer = {'answer': names.get('answer')}
    except BaseException:
        answer = {'error': traceback.format_exc()}
    print(json.dumps(answer), flush=True)
`;

/** One Python for all scripts of a file of tests: its start takes longer than any of them. */
const interpreter = spawn('python3', ['-c', loop], { stdio: ['pipe', 'pipe', 'inherit'] });
const answers = createInterface(interpreter.stdout)[Symbol.asyncIterator]();
afterAll(async () => {
  interpreter.stdin.end();
  if (interpreter.exitCode === null && interpreter.pid !== undefined) await once(interpreter, 'exit');
});

export const hasPython = await Promise.race([
  answers.next().then(({ value }) => value === 'ready'),
  once(interpreter, 'error').then(() => false),
]);

/** The note in the names of tests that are skipped without Python. */
export const pythonNote = hasPython ? '' : ' (skipped: there is no python3)';

/** Opcodes known to the unpickler of PyTorch's viewer, by their Python names. */
const viewerOpcodes = [
  ...['PROTO', 'FRAME', 'STOP', 'MARK', 'EMPTY_DICT', 'EMPTY_LIST', 'EMPTY_TUPLE', 'TUPLE', 'TUPLE1', 'TUPLE2', 'TUPLE3', 'LIST', 'DICT'],
  ...['SETITEM', 'SETITEMS', 'APPEND', 'APPENDS', 'NONE', 'NEWTRUE', 'NEWFALSE', 'BININT', 'BININT1', 'BININT2', 'LONG1', 'BINFLOAT'],
  ...['SHORT_BINUNICODE', 'BINUNICODE', 'BINPUT', 'LONG_BINPUT', 'BINGET', 'LONG_BINGET', 'MEMOIZE'],
];

async function python(script: string, path: string): Promise<unknown> {
  interpreter.stdin.write(`${JSON.stringify([script, path])}\n`);
  const { value } = await answers.next();
  const { answer, error } = JSON.parse(value);
  if (error !== undefined) throw new Error(`python3 failed: ${error}`);
  return answer;
}

/**
 * Loads a snapshot with Python's pickle module, and checks its opcodes against those that PyTorch's
 * viewer understands.
 */
export async function loadWithPython(path: string): Promise<Snapshot> {
  const script = `
import pickle, pickletools
data = open(path, 'rb').read()
unknown = {opcode.name for opcode, _, _ in pickletools.genops(data)} - set(${JSON.stringify(viewerOpcodes)})
assert not unknown, unknown
answer = pickle.loads(data)`;
  return (await python(script, path)) as Snapshot;
}

/** Pickles the value of a Python expression into a file. */
export async function pickleWithPython(path: string, expression: string, protocol: number): Promise<void> {
  await python(`import pickle\nwith open(path, 'wb') as file: pickle.dump(${expression}, file, ${protocol})`, path);
}

/**
 * Throws if a snapshot does not hold what PyTorch's tools rely on: the totals of its segments, and
 * what the viewer needs to undo the trace from its last entry to its first.
 */
export function checkSnapshot({ segments, device_traces }: Snapshot): void {
  const fail = (what: string): never => {
    throw new Error(`snapshot: ${what}`);
  };
  const extents = new Map<number, number>();
  const blocks = new Map<number, { size: number; isRequested: boolean }>();
  for (const segment of segments) {
    let at = segment.address;
    let active = 0;
    let requested = 0;
    for (const block of segment.blocks) {
      if (block.address !== at) fail(`block at ${block.address} instead of ${at}`);
      if (block.size <= 0) fail(`block of ${block.size} bytes`);
      at += block.size;
      if (block.state === 'inactive') continue;
      active += block.size;
      requested += block.requested_size;
      blocks.set(block.address, { size: block.size, isRequested: block.state === 'active_pending_free' });
    }
    if (at !== segment.address + segment.total_size) fail(`blocks of the segment ${segment.address} end at ${at}`);
    if (active !== segment.allocated_size || active !== segment.active_size) fail(`active bytes ${active}`);
    if (requested !== segment.requested_size) fail(`requested bytes ${requested}`);
    extents.set(segment.address, segment.total_size);
  }
  let starts: Float64Array | undefined;
  /** The segment that holds these bytes. */
  const segmentOf = (address: number, size: number): number | undefined => {
    starts ??= Float64Array.from(extents.keys()).sort();
    let low = 0;
    for (let high = starts.length; low < high; ) {
      const middle = (low + high) >>> 1;
      if ((starts[middle] as number) <= address) low = middle + 1;
      else high = middle;
    }
    const start = starts[low - 1];
    return start !== undefined && address + size <= start + (extents.get(start) as number) ? start : undefined;
  };
  const ordered = [...extents].sort(([a], [b]) => a - b);
  for (const [i, [start]] of ordered.entries()) {
    const before = ordered[i - 1];
    if (before !== undefined && before[0] + before[1] > start) fail(`segments overlap at ${start}`);
  }
  if (device_traces.length !== 1) fail(`${device_traces.length} devices`);
  for (const entry of [...(device_traces[0] as TraceEntry[])].reverse()) {
    const { action, addr = -1, size } = entry;
    const block = blocks.get(addr);
    switch (action) {
      case 'free_completed':
        if (block !== undefined) fail(`${addr} is freed and live`);
        if (segmentOf(addr, size) === undefined) fail(`${addr} is freed outside of all segments`);
        blocks.set(addr, { size, isRequested: true });
        break;
      case 'free_requested':
        if (block === undefined || !block.isRequested) fail(`${addr} is requested to be freed, and is not freed then`);
        else block.isRequested = false;
        break;
      case 'alloc':
        if (block === undefined || block.size !== size || block.isRequested) fail(`${addr} is allocated and not live after that`);
        if (segmentOf(addr, size) === undefined) fail(`${addr} is allocated outside of all segments`);
        blocks.delete(addr);
        break;
      case 'segment_free':
        if (segmentOf(addr, size) !== undefined) fail(`segment ${addr} is freed but still there`);
        extents.set(addr, size);
        starts = undefined;
        break;
      case 'segment_alloc':
        if (extents.get(addr) !== size) fail(`segment ${addr} is allocated but not there`);
        for (const [start] of blocks)
          if (start >= addr && start < addr + size) fail(`segment ${addr} is allocated after the block ${start}`);
        extents.delete(addr);
        starts = undefined;
        break;
      case 'oom':
        if (entry.device_free === undefined || entry.addr !== undefined) fail('oom with an address');
        break;
      default:
        fail(`unknown action ${action}`);
    }
  }
  if (blocks.size > 0) fail(`${blocks.size} blocks exist before the trace, which covers everything`);
}

/**
 * The allocations and frees of a layer, in order, except those of zero bytes: they determine what
 * is live at every step.
 */
export function liveRangeSteps(run: RecordedRun, layer = 0): string[] {
  const steps: string[] = [];
  for (let i = 0; i < run.eventCount; i++) {
    const kind = run.kinds[i] as number;
    if (kind > EventKind.free || run.layerOf[i] !== layer || run.seconds[i] === 0) continue;
    const sign = kind === EventKind.allocate ? '+' : '-';
    steps.push(`${sign}${run.firsts[i]}+${run.seconds[i]} on ${Number(run.streams[run.streamOf[i] as number])}`);
  }
  return steps;
}
