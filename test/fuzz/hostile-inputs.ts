/**
 * Inputs that somebody made to hurt. In an example of each format every value in turn is replaced by
 * values that cost far more than their bytes if they are treated carelessly: lists that are nested by
 * reference (2^60 items), lists nested tens of thousands deep, objects whose members have the names
 * of methods, and long texts on which patterns go back again and again (the square of their length).
 * Nothing here looks at a clock: code whose work is in proportion to the input is through at once, and
 * other code does not end within hours.
 */
import assert from 'node:assert/strict';
import { readFileSync, writeSync } from 'node:fs';
import { CisternError, InvalidLogError, SpecificationError } from '../../src/basics/errors.js';
import { parsePlan } from '../../src/plans/plan.js';
import { checkSpecification } from '../../src/specification/check-specification.js';
import { parseSpecification } from '../../src/specification/parse-specification.js';
import { everyKind } from '../../src/tools/every-kind.js';
import { convertedFormats, convertLog } from '../../src/tools/formats/convert-log.js';
import { readRecordedRun } from '../../src/tools/formats/read-recorded-run.js';
import type { RecordedRun } from '../../src/tools/formats/recorded-run.js';
import { encodeRecording } from '../../src/tools/formats/recording/convert-to-recording.js';
import { isMinimallocCsv, readMinimallocCsv } from '../../src/tools/planning/minimalloc-csv.js';
import { readAllocationLog } from '../../src/tools/replay/read-allocation-log.js';
import { writeReport } from '../../src/tools/report/write-report.js';
import { asSqlite, nsightColumns, nsightRows, randomHistory } from '../support/foreign-logs.js';

/** No message is longer, however long the input is: the list of all kinds is the longest part of one. */
const longestMessage = 1500;

/** Enough that the square of it is hopeless for each of a few hundred inputs, and no more: most of the time goes into making and copying texts. */
const textLength = 2 ** 18;
/** Far deeper than calls can be nested: about 14,000 of the smallest function. */
const deep = 30_000;

/** Texts on which a pattern can go back from each character to each other one. */
export const longTexts: Readonly<Record<string, string>> = {
  digits: '1'.repeat(textLength),
  'digits and a letter': `${'1'.repeat(textLength)}x`,
  zeros: '0'.repeat(textLength),
  'a small share': `1.${'0'.repeat(textLength)}1%`,
  'zeros with a point': `${'0'.repeat(textLength / 2)}.${'0'.repeat(textLength / 2)}1`,
  blanks: `${' '.repeat(textLength)}x`,
  'places of calls': `f${' ('.repeat(textLength / 2)}`,
  'unfinished places of calls': `f${' (/a:1:2'.repeat(textLength / 8)}`,
  'closed places of calls': `f${' (/a:1'.repeat(textLength / 6)})`,
  colons: `f (${':1'.repeat(textLength / 2)})`,
  folders: `f (${'/a'.repeat(textLength / 2)}:1:2)`,
  dependencies: `f (${'/node_modules'.repeat(textLength / 16)}:1:2)`,
  lines: 'f (/a.js:1:2)\n'.repeat(textLength / 16),
  parentheses: '('.repeat(textLength),
  quotes: `"${'\\"'.repeat(textLength / 2)}`,
  words: 'pool-'.repeat(textLength / 8),
  hyphens: '-'.repeat(textLength),
  commas: ','.repeat(textLength),
  letters: 'A'.repeat(textLength),
};

/** The hardest of these, where patterns look at few texts. */
const fewTexts = Object.fromEntries(
  ['digits and a letter', 'unfinished places of calls', 'letters'].map((name) => [name, longTexts[name] as string]),
);

/** What JSON can hold, besides texts. */
const jsonValues: Readonly<Record<string, string>> = {
  'lists in lists': `${'['.repeat(deep)}${']'.repeat(deep)}`,
  'objects in objects': `${'{"a":'.repeat(deep)}1${'}'.repeat(deep)}`,
  'an object with methods': '{"toString":5,"valueOf":5,"constructor":{"name":[[[]]]},"length":134217728}',
  'an object without a class': '{"constructor":null,"__proto__":null}',
  'a far number': '1e400',
  'a negative number': '-1',
  nothing: 'null',
};

/** Bytes in a pickle that stand for a value. */
class Pickled {
  readonly bytes: Buffer;

  constructor(...parts: readonly (string | number | Buffer)[]) {
    this.bytes = Buffer.concat(parts.map((part) => (typeof part === 'number' ? Buffer.of(part) : Buffer.from(part as string, 'latin1'))));
  }
}

type Tree = null | boolean | number | string | Pickled | readonly Tree[] | { readonly [key: string]: Tree };

/** A value as protocol 2 writes it. */
function pickle(value: Tree): Buffer {
  if (value instanceof Pickled) return value.bytes;
  if (value === null) return Buffer.from('N');
  if (typeof value === 'boolean') return Buffer.of(value ? 0x88 : 0x89);
  if (typeof value === 'string') {
    const text = Buffer.from(value);
    const head = Buffer.from('X0000');
    head.writeUInt32LE(text.length, 1);
    return Buffer.concat([head, text]);
  }
  if (typeof value === 'number') {
    const bytes = Buffer.alloc(10, 0);
    bytes.set([0x8a, 8]);
    bytes.writeBigInt64LE(BigInt(value), 2);
    return bytes;
  }
  const items = Array.isArray(value) ? (value as readonly Tree[]) : Object.entries(value as { readonly [key: string]: Tree }).flat();
  return Buffer.concat([Buffer.from('('), ...items.map(pickle), Buffer.from(Array.isArray(value) ? 'l' : 'd')]);
}

/** The memo's numbers for what hostile values refer to. */
const memo = 100;

function doubled(depth: number): Pickled {
  const levels = Array.from({ length: depth }, (_, i) => ['(h', memo + i, 'h', memo + i, 'lq', memo + i + 1, '0']);
  return new Pickled(')q', memo, '0', ...levels.flat(), 'h', memo + depth);
}

const frame = { name: 'forward', filename: 'model.py', line: 12 };

const pickledValues: Readonly<Record<string, Tree>> = {
  'lists nested by reference': doubled(60),
  'lists in lists': new Pickled(')', Buffer.alloc(deep, 0x85)),
  'a list of itself': new Pickled(']q', memo, 'h', memo, 'a'),
  'an object with methods': { toString: 5, valueOf: 5, constructor: { name: doubled(60) }, length: 3 },
  'an object without a class': { constructor: null },
  'a far entry of the memo': new Pickled('Nr\xfe\xff\xff\xff0N'),
  'one more entry of the memo after a far one': new Pickled('Nr\xfe\xff\xff\xff\x94'),
  'the frames of a long stack': new Pickled(
    pickle({ ...frame, name: 'A'.repeat(2 ** 16) }),
    'q',
    memo,
    '0(',
    // 8 GiB of names: far more than a text may have, and than a process gets.
    Buffer.from(`h${String.fromCharCode(memo)}`.repeat(2 ** 17), 'latin1'),
    'l',
  ),
  'many stacks of long frames': new Pickled(
    pickle({ ...frame, name: 'A'.repeat(2 ** 16) }),
    ...['q', memo, '0('],
    Buffer.from(`(h${String.fromCharCode(memo)}l`.repeat(2 ** 16), 'latin1'),
    'l',
  ),
  'a long number': new Pickled(0x8a, 32, Buffer.alloc(32, 0x7f)),
  'a fraction': new Pickled('G\x3f\xf8\0\0\0\0\0\0'),
  'no number': new Pickled('G\x7f\xf8\0\0\0\0\0\0'),
  'a far number': 2 ** 53,
  'a negative number': -1,
  'a text': 'text',
  'an empty text': '',
  'an empty list': [],
  nothing: null,
  truth: true,
};

const block = { address: 65_536, size: 4096, requested_size: 4000, state: 'active_allocated', frames: [frame] };
const entry = { action: 'alloc', addr: 65_536, size: 4096, stream: 0, time_us: 5, frames: [frame], user_metadata: 'weights' };
const snapshot: Tree = {
  segments: [{ device: 0, address: 65_536, total_size: 8192, stream: 0, segment_type: 'large', frames: [frame], blocks: [block] }],
  device_traces: [[entry, { ...entry, action: 'free_completed' }, { ...entry, time_us: 7 }]],
  external_annotations: [
    { name: 'step', stage: 'START', time_us: 4 },
    { name: 'step', stage: 'END', time_us: 8 },
  ],
};

/** The tree once for each of its values, with that value replaced; of a list, the first. */
function* replacements(tree: Tree, value: Tree): Generator<Tree> {
  yield value;
  if (typeof tree !== 'object' || tree === null) return;
  const members = Object.entries(tree);
  for (const [key, member] of Array.isArray(tree) ? members.slice(0, 1) : members) {
    for (const replaced of replacements(member as Tree, value)) {
      yield Array.isArray(tree) ? tree.with(Number(key), replaced) : { ...(tree as object), [key]: replaced };
    }
  }
}

/** The cells of a table once for each cell, with that cell replaced. */
function* tables(rows: readonly string[], value: string): Generator<string> {
  for (const [i, line] of rows.entries()) {
    const cells = line.split(',');
    for (const j of cells.keys()) yield [...rows.slice(0, i), cells.toSpliced(j, 1, value).join(','), ...rows.slice(i + 1), ''].join('\n');
  }
}

/** Trees in each of which one value is replaced, and how to write them as JSON. */
function* jsonReplacements(
  trees: readonly Tree[],
  texts: Readonly<Record<string, string>> = longTexts,
): Generator<readonly [name: string, json: (tree: Tree) => string, tree: Tree]> {
  const values = { ...jsonValues, ...Object.fromEntries(Object.entries(texts).map(([name, text]) => [name, JSON.stringify(text)])) };
  const mark = 'replaced here';
  for (const [name, value] of Object.entries(values)) {
    const json = (tree: Tree) => JSON.stringify(tree).replace(JSON.stringify(mark), () => value);
    for (const tree of trees) for (const replaced of replacements(tree, mark)) yield [name, json, replaced];
  }
}

interface HostileInput {
  readonly name: string;
  readonly check: () => unknown;
}

/** By format: its inputs. */
export const formats: Readonly<Record<string, () => Generator<HostileInput>>> = {
  *snapshot() {
    for (const [name, value] of Object.entries(pickledValues)) {
      for (const tree of replacements(snapshot, value)) {
        yield { name, check: () => checkLog(Buffer.concat([Buffer.of(0x80, 2), pickle(tree), Buffer.from('.'), Buffer.alloc(256)])) };
      }
    }
    // Names reach the files that a log is converted to; they need not be at every place.
    for (const [name, text] of Object.entries(longTexts)) {
      for (const frames of [[{ ...frame, name: text, filename: '' }], [{ ...frame, filename: text }]]) {
        const tree = { ...snapshot, device_traces: [[{ ...entry, action: text }], [{ ...entry, frames, user_metadata: text }]] };
        yield {
          name,
          check: () =>
            checkLog(
              Buffer.concat([Buffer.of(0x80, 2), pickle({ ...tree, device_traces: [tree.device_traces[1] as Tree] }), Buffer.from('.')]),
            ),
        };
        yield { name, check: () => checkLog(Buffer.concat([Buffer.of(0x80, 2), pickle(tree), Buffer.from('.')])) };
      }
    }
  },

  *'rmm-csv'() {
    const rows = [
      'Thread,Time,Action,Pointer,Size,Stream',
      '1,14:03:22.123456,allocate,0x100,256,0x0',
      '1,14:03:22.123457,free,0x100,256,0x0',
    ];
    for (const [name, text] of Object.entries(longTexts)) {
      for (const table of tables(rows, text)) yield { name, check: () => checkLog(Buffer.from(table)) };
    }
  },

  *'chrome-trace'() {
    const where = { ph: 'i', s: 't', pid: 1, tid: 2, ts: 10.5 };
    const slice = { ...where, cat: 'allocation', id: 'a1', args: { pointer: '0x1000', bytes: 512, stream: '0x0', stack: 'f (/a.js:1:2)' } };
    const kinetos = [{ ...where, name: '[memory]', args: { Bytes: 512, Addr: 4096, 'Device Id': 0, 'Device Type': 1 } }];
    const own = [
      { ...where, ph: 'M', name: 'process_name', args: { name: 'rmm' } },
      { ...slice, ph: 'b', name: '512 B' },
      { ...slice, ph: 'e', name: '512 B' },
      { ...where, name: 'label: weights', args: { pointer: '0x1000' } },
      { ...where, name: 'growth: 4 KiB', args: { pointer: '0x1000', bytes: 4096 } },
    ];
    const traces: Tree[] = [kinetos, ...own.map((event) => [event, ...own])].map((traceEvents) => ({
      traceEvents,
      otherData: { startedAt: '2026-01-01' },
    }));
    for (const [name, json, trace] of jsonReplacements(traces, fewTexts))
      yield { name, check: () => checkReading(Buffer.from(json(trace))) };
  },

  *umpire() {
    const events: Tree[] = [
      { kind: 'replay', timestamp: 1, event: 'allocate', payload: { allocator_ref: '0x1', size: 64 }, result: { memory_ptr: '0x1000' } },
      { kind: 'replay', timestamp: 1, event: 'makeAllocator', payload: { allocator_name: 'pool' }, result: { allocator_ref: '0x1' } },
      {
        category: 'operation',
        name: 'allocate',
        numeric_args: { size: 64 },
        string_args: { allocator_ref: '0x1', pointer: '0x1000' },
        tags: { allocator_name: 'pool', replay: 'true' },
        timestamp: 1,
      },
    ];
    const lines = events.map((event) => JSON.stringify(event)).join('\n');
    for (const [name, json, event] of jsonReplacements(events, fewTexts)) {
      yield { name, check: () => checkReading(Buffer.from(`${lines}\n${json(event)}\n${lines}`)) };
    }
  },

  *'rmm-debug'() {
    const line = ['[ 12345]', '[14:03:22:123456]', '[trace ] ', '[A]', '[stream 0x55d0]', '[1024B]', '[0x7f3e8c000000]'];
    for (const [name, text] of Object.entries(longTexts)) {
      for (const i of line.keys()) {
        for (const replaced of [text, `[${text}]`, `[stream ${text}]`, `[${text}B]`]) {
          const hostile = line.with(i, replaced).join('');
          yield { name, check: () => checkReading(Buffer.from(`${line.join('')}\n${hostile}\n${line.join('')}\n`)) };
        }
      }
    }
  },

  *'raft-csv'() {
    const header = 'timestamp_us,device_current,device_peak,device_total_alloc,device_total_freed,nvtx_depth,nvtx_range';
    const samples = [header, '10,100,100,100,0,0,"fit"'];
    const event = ['device', '512', '"a > b"'];
    for (const [name, text] of Object.entries(longTexts)) {
      for (const table of tables(samples, text)) yield { name, check: () => checkReading(Buffer.from(table)) };
      for (const i of event.keys()) {
        const log = `${header},event_source,event_bytes,alloc_range\n10,512,512,512,0,1,"fit",${event.with(i, text).join(',')}\n`;
        yield { name, check: () => checkReading(Buffer.from(log)) };
      }
    }
  },

  *'nsight-sqlite'() {
    const pageBytes = 4096;
    const rows = nsightRows(randomHistory(1, 60, 1));
    const database = asSqlite('CUDA_GPU_MEMORY_USAGE_EVENTS', nsightColumns, rows, pageBytes);
    const count = database.length / pageBytes;
    // In the header of a page: its kind, how many cells it has, and the last child. After it: where each cell is.
    const places = [...Array(count).keys()].flatMap((page) =>
      [0, 3, 4, 8, 9, 10, 11, 12, 13, 14].map((at) => page * pageBytes + at + (page === 0 ? 100 : 0)),
    );
    // In the cells, which end at the end of the page: children, lengths, ids, types and values.
    for (let page = 1; page <= count; page++) for (let back = 1; back <= 40; back++) places.push(page * pageBytes - back);
    for (const at of [...places, 16, 17, 20, 56, 57, 58, 59]) {
      for (const byte of [0, 2, 0x80, 0xff]) {
        const bytes = Buffer.from(database);
        bytes[at] = byte;
        yield { name: `${byte} at ${at}`, check: () => checkReading(bytes) };
      }
    }
    for (const [name, text] of Object.entries(longTexts)) {
      const hostile = asSqlite('CUDA_GPU_MEMORY_USAGE_EVENTS', ['start', text.slice(0, 3000)], [[1, 2]], pageBytes);
      yield { name, check: () => checkReading(hostile) };
    }
  },

  *recording() {
    for (const [name, text] of Object.entries(longTexts)) {
      for (const key of ['stacks', 'labels', 'threads', 'streams', 'layers', 'phases'] as const) {
        yield { name: `${key}: ${name}`, check: () => checkRun(key, text) };
      }
    }
  },

  *specification() {
    // One option of each type: the rules are those of the type.
    const options = [
      ...new Map(
        everyKind.flatMap(({ name: kind, role, options }) =>
          Object.entries(options).map(([option, { type }]) => [type, { kind, option, upstream: role === 'upstream' ? '' : 'cuda, ' }]),
        ),
      ).values(),
    ];
    for (const [name, text] of Object.entries(longTexts)) {
      const texts = [
        text,
        `pool(${text}`,
        `pool(cuda, ${text}`,
        `cuda${text}`,
        ...options.map(({ kind, option, upstream }) => `${kind}(${upstream}${option}=${text})`),
      ];
      for (const specification of texts) yield { name, check: () => checkSpecificationOf(() => parseSpecification(specification)) };
      for (const { kind, option, upstream } of options) {
        const object = { kind, ...(upstream === '' ? {} : { upstream: { kind: 'cuda' } }), options: { [option]: text } };
        yield { name, check: () => checkSpecificationOf(() => checkSpecification(object)) };
      }
    }
    for (const [name, json] of [...Object.entries(jsonValues), ['a long name', JSON.stringify(longTexts['letters'])]] as const) {
      const value: unknown = JSON.parse(json);
      const objects = [
        value,
        { kind: value },
        { kind: 'pool', upstream: value },
        { kind: 'pool', upstream: { kind: 'cuda' }, options: value },
      ];
      for (const { kind, option } of options) objects.push({ kind, options: { [option]: value } });
      objects.push(
        { kind: 'pool', [String(longTexts['letters'])]: value },
        { kind: 'pool', options: { [String(longTexts['hyphens'])]: value } },
      );
      for (const object of objects) yield { name, check: () => checkSpecificationOf(() => checkSpecification(object)) };
    }
  },

  *plan() {
    const plan = JSON.parse(readFileSync('examples/plans/two-streams.json', 'utf8')) as Tree;
    for (const [name, json, tree] of jsonReplacements([plan])) yield { name, check: () => checkPlan(() => parsePlan(json(tree))) };
    const rows = ['id,lower,upper,size', 'a,0,5,4', 'b,2,9,8'];
    for (const [name, text] of Object.entries(longTexts)) {
      for (const table of tables(rows, text)) {
        yield { name, check: () => checkPlan(() => isMinimallocCsv(table) && readMinimallocCsv(table)) };
      }
    }
  },
};

/** @param input the name of a format: the process that runs inputs takes them from files */
export async function run(input: Uint8Array): Promise<void> {
  const format = formats[Buffer.from(input).toString()];
  assert.ok(format, 'there is such a format');
  let count = 0;
  let last = '';
  writeSync(2, `${Buffer.from(input).toString()}\n`);
  for (const { name, check } of format()) {
    // If the process has to be ended, this says at what.
    if (name !== last) writeSync(2, `${name}\n`);
    last = name;
    await check();
    count++;
  }
  writeSync(2, `${count} inputs\n`);
}

async function* pieces(...bytes: readonly Uint8Array[]): AsyncGenerator<Uint8Array> {
  yield* bytes;
}

/** A log is read, or refused in one short line. */
async function checkReading(bytes: Uint8Array): Promise<RecordedRun | undefined> {
  await orRefusal(() => readAllocationLog(pieces(bytes)));
  return await orRefusal(() => readRecordedRun(pieces(bytes)));
}

/** Whatever can be done with a log is done, or refused in one short line. */
async function checkLog(bytes: Uint8Array): Promise<void> {
  if ((await checkReading(bytes)) === undefined) return;
  for (const to of convertedFormats) await orRefusal(() => convertLog(pieces(bytes), '/dev/null', { to }));
}

async function checkRun(key: 'stacks' | 'labels' | 'threads' | 'streams' | 'layers' | 'phases', text: string): Promise<void> {
  const csv = 'Thread,Time,Action,Pointer,Size,Stream\n1,14:03:22.123456,allocate,0x100,256,0x0\n';
  const run = await readRecordedRun(pieces(Buffer.from(csv)));
  const texts = {
    stacks: ['', text],
    labels: ['', text],
    threads: [text],
    streams: [text],
    layers: [{ name: text, upstream: undefined }],
    phases: [
      { name: '', outer: 0 },
      { name: text, outer: 0 },
    ],
  };
  const stackOf = key === 'stacks' ? Uint32Array.of(1) : run.stackOf;
  const phaseOf = key === 'phases' ? Uint16Array.of(1) : run.phaseOf;
  const hostile = { ...run, [key]: texts[key], stackOf, phaseOf };
  const recording = await orRefusal(async () => Buffer.concat([...encodeRecording(hostile)]));
  if (recording === undefined) return;
  await checkLog(recording);
  await writeReport([hostile], '/dev/null', {});
}

async function orRefusal<T>(act: () => Promise<T>): Promise<T | undefined> {
  try {
    return await act();
  } catch (error) {
    if (!(error instanceof InvalidLogError)) throw error;
    assertShort(error.message);
    return undefined;
  }
}

function checkSpecificationOf(act: () => unknown): void {
  try {
    act();
  } catch (error) {
    if (!(error instanceof SpecificationError)) throw error;
    assertShort(error.message);
  }
}

function checkPlan(act: () => unknown): void {
  try {
    act();
  } catch (error) {
    if (!(error instanceof CisternError)) throw error;
    assertShort(error.message);
  }
}

function assertShort(message: string): void {
  assert.ok(message.length <= longestMessage, `a message of ${message.length} characters begins: ${message.slice(0, 200)}`);
}
