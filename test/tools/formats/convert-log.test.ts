import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text as readText } from 'node:stream/consumers';
import { gunzipSync } from 'node:zlib';
import { afterAll, beforeEach, describe, expect, test } from 'vitest';
import { runCommand } from '../../../src/tools/cli/program.js';
import { type ConversionProgress, convertLog, EventKind, encodeRecording, readRecordedRun } from '../../../src/tools/formats/index.js';
import { readAllocationLog } from '../../../src/tools/replay/index.js';
import { runModule } from '../../support/run-module.js';
import { arrowEtl, logText, row } from './logs.js';
import { allocate, free, runOf } from './runs.js';

let folder = '';
const folders: string[] = [];
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'cistern-'));
  folders.push(folder);
});
afterAll(() => {
  for (const each of folders) rmSync(each, { recursive: true });
});

function file(name: string, contents: string | Uint8Array): string {
  const path = join(folder, name);
  writeFileSync(path, contents);
  return path;
}

const text = logText(row('allocate', 1, 1000), row('allocate', 2, 0), row('free', 1, 1000));
const rich = runOf(
  [
    allocate(0x1000, 64, { stack: 1, phase: 1, account: 1 }),
    allocate(0x2000, 64, { layer: 1 }),
    { kind: EventKind.growth, layer: 1, first: 0x1000, second: 4096 },
    { kind: EventKind.eventRecord, first: 1, second: 0 },
    { kind: EventKind.eventWait, first: 1, second: 0 },
    { kind: EventKind.label, first: 0x1000, second: 1 },
    free(0x1000, 64),
  ],
  {
    layers: [
      { name: 'limiting', upstream: 1 },
      { name: 'pool', upstream: undefined },
    ],
    phases: [
      { name: '', outer: 0 },
      { name: 'forward', outer: 0 },
    ],
    stacks: ['', 'f (a.js:1:2)'],
    labels: ['', 'w'],
    accounts: ['', 'tenant'],
  },
);
const recording = () => file('run.cistern', Buffer.concat([...encodeRecording(rich)]));

describe('converting a log', () => {
  test.each([
    ['out.csv', 'rmm-csv', 'Thread,Time'],
    ['out.csv.gz', 'rmm-csv', 'Thread,Time'],
    ['out.cistern', 'recording', 'cistern\n'],
    ['out.cistern.gz', 'recording', 'cistern\n'],
    ['out.pickle', 'pytorch-snapshot', '\x80\x02'],
    ['out.json', 'chrome-trace', '{"displayTimeUnit"'],
    ['out.json.gz', 'chrome-trace', '{"displayTimeUnit"'],
  ])('writes the format that the name %s gives', async (name, format, beginning) => {
    const output = join(folder, name);
    const conversion = await convertLog(file('in', text), output);
    expect(conversion).toMatchObject({ format, eventCount: 3, truncation: undefined });
    const bytes = readFileSync(output);
    const plain = name.endsWith('.gz') ? gunzipSync(bytes) : bytes;
    expect(plain.toString('latin1').startsWith(beginning)).toBe(true);
  });

  test('converts through every readable format and back', async () => {
    const input = file('in', text);
    const [a, b, c] = ['a.cistern.gz', 'b.csv.gz', 'c.cistern'].map((name) => join(folder, name)) as [string, string, string];
    await convertLog(input, a);
    await convertLog(a, b);
    await convertLog(b, c);
    expect(gunzipSync(readFileSync(b)).toString()).toBe(text);
    expect(gunzipSync(readFileSync(a)).equals(readFileSync(c))).toBe(true);
  });

  test('writes the requested format, whatever the names', async () => {
    const output = join(folder, 'out');
    await convertLog(file('in.json', text), output, { from: 'rmm-csv', to: 'rmm-csv' });
    expect(readFileSync(output, 'utf8')).toBe(text);
  });

  test('may replace its own input', async () => {
    const input = file('in.csv', text);
    await convertLog(input, input, { to: 'recording' });
    expect((await readRecordedRun(input)).eventCount).toBe(3);
  });

  test('lists what the format cannot hold', async () => {
    const { omissions } = await convertLog(recording(), join(folder, 'out.csv'));
    expect(omissions).toEqual([
      'events of the layer pool: 1',
      'stacks of events: 1',
      'phases of events: 1',
      'accounts of events: 1',
      'blocks that a layer took from its upstream or returned: 1',
      'event records and waits: 2',
      'labels: 1',
    ]);
    expect((await convertLog(recording(), join(folder, 'out.cistern'))).omissions).toEqual([]);
  });

  test('takes the named layer', async () => {
    const output = join(folder, 'out.csv');
    await convertLog(recording(), output, { layer: 'pool' });
    expect(readFileSync(output, 'utf8').split('\n')[1]).toContain('0x2000');
    await expect(convertLog(recording(), output, { layer: 'arena' })).rejects.toThrow(/has no layer "arena"; there are: limiting, pool$/);
    await expect(convertLog(recording(), join(folder, 'x.json'), { layer: 'pool' })).rejects.toThrow(
      /^layer cannot be chosen for chrome-trace/,
    );
  });

  test('converts the readable part of a log that ends early, and nothing of a damaged one', async () => {
    const bytes = readFileSync(recording());
    const output = join(folder, 'out.csv');
    const cut = await convertLog(file('cut', bytes.subarray(0, -1)), output);
    expect(cut).toMatchObject({ eventCount: 6, truncation: { isTruncation: true } });
    const before = readFileSync(output);
    bytes.writeUInt8(77, bytes.length - 1);
    await expect(convertLog(file('damaged', bytes), output)).rejects.toThrow(
      /damaged: is damaged at byte \d+: the CRC of a block is wrong$/,
    );
    expect(readFileSync(output).equals(before)).toBe(true);
    expect(readdirSync(folder).filter((name) => name.includes('partial'))).toEqual([]);
  });

  test('reports its progress', async () => {
    const seen: ConversionProgress[] = [];
    await convertLog(arrowEtl, join(folder, 'out.csv'), { onProgress: (progress) => seen.push(progress) });
    expect(seen.filter(({ step }) => step === 'reading').at(-1)).toMatchObject({ done: readFileSync(arrowEtl).length });
    const writing = seen.filter(({ step }) => step === 'writing');
    expect(writing.length).toBeGreaterThan(10);
    expect(writing.every(({ done, total }, i) => done >= (writing[i - 1]?.done ?? 0) && total === 194_854)).toBe(true);
  });

  test('requires a format to write', async () => {
    await expect(convertLog(file('in', text), join(folder, 'out.txt'))).rejects.toMatchObject({ code: 'ERR_INVALID_ARG_VALUE' });
    await expect(convertLog(file('in', text), 'x', { to: 'xml' as 'rmm-csv' })).rejects.toThrow(/^to must be 'rmm-csv', 'recording'/);
    await expect(convertLog(file('in', text), 'x.csv', { from: 'perfetto' as 'rmm-csv' })).rejects.toThrow(/^from must be 'rmm-csv'/);
    expect(existsSync('x.csv')).toBe(false);
  });
});

describe('a recording of a process that was killed', () => {
  test('can be read, replayed and converted up to its last record', async () => {
    const path = join(folder, 'killed.cistern');
    const { signal } = runModule(
      `import { HostMemoryResource, Stream } from 'cistern'; import { RecordingResourceAdaptor } from 'cistern/recording';
       const resource = new RecordingResourceAdaptor(new HostMemoryResource(), { file: ${JSON.stringify(path)} });
       const stream = new Stream();
       for (let i = 0; i < 20_000; i++) resource.deallocate(resource.allocate(512, stream), 512, stream);
       process.kill(process.pid, 'SIGKILL');`,
    );
    expect(signal).toBe('SIGKILL');
    const run = await readRecordedRun(path);
    // At most one block of 64 KiB was not yet written.
    expect(run.eventCount).toBeGreaterThan(40_000 - 2730);
    expect((await readAllocationLog(path)).eventCount).toBe(run.eventCount);
    expect((await convertLog(path, join(folder, 'killed.csv'))).eventCount).toBe(run.eventCount);
  });
});

describe('cistern convert', () => {
  class Sink {
    text = '';
    isTTY = false;
    write(chunk: string): boolean {
      this.text += chunk;
      return true;
    }
  }

  async function run(...args: string[]): Promise<{ code: number; stdout: string; stderr: string }> {
    const stdout = new Sink();
    const stderr = new Sink();
    const terminal = { stdout, stderr } as unknown as Parameters<typeof runCommand>[1];
    const code = await runCommand(args, terminal);
    return { code, stdout: stdout.text, stderr: stderr.text };
  }

  test('prints what it wrote and what it left out', async () => {
    const output = join(folder, 'out.csv');
    expect(await run('convert', recording(), output, '--layer', 'pool')).toEqual({
      code: 0,
      stderr: '',
      stdout: [
        `${output}: 7 events as rmm-csv`,
        'left out: events of the layer limiting: 2',
        'left out: blocks that a layer took from its upstream or returned: 1',
        'left out: event records and waits: 2',
        'left out: labels: 1',
        '',
      ].join('\n'),
    });
  });

  test('keeps its messages out of the pipe that it writes to', async () => {
    const output = join(folder, 'out.fifo');
    expect(spawnSync('mkfifo', [output]).status).toBe(0);
    const reader = spawn('cat', [output]);
    const read = readText(reader.stdout);
    const { code, stdout, stderr } = await run('convert', file('in', text), output, '--to', 'rmm-csv');
    expect([code, stdout, stderr]).toEqual([0, '', expect.stringMatching(/^.*out\.fifo: \d+ events as rmm-csv\n$/)]);
    expect(await read).toBe(text);
  });

  test('warns of a log that ends early', async () => {
    const input = file('cut', readFileSync(recording()).subarray(0, -1));
    const { code, stderr } = await run('convert', input, join(folder, 'out.json'));
    expect(code).toBe(0);
    expect(stderr).toMatch(
      /^warning: .*cut ends early, at byte \d+: the recording ends in the middle of a block; only the events before that are converted\n$/,
    );
  });

  test.each<[string, (input: string) => string[], RegExp]>([
    [
      'an output whose name gives no format',
      (input) => [input, 'out.txt'],
      /^error: the name "out\.txt" does not say what to write: end it in \.csv,/,
    ],
    [
      'an unknown format',
      (input) => [input, 'out', '--to', 'xml'],
      /Allowed choices are rmm-csv, recording, pytorch-snapshot, chrome-trace/,
    ],
    ['no output', (input) => [input], /missing required argument 'output'/],
    ['a missing input', () => ['missing.csv', 'out.csv'], /^error: missing\.csv does not exist/],
  ])('exits with 2 for %s', async (_, args, message) => {
    const { code, stdout, stderr } = await run('convert', ...args(file('in', text)));
    expect(stderr).toMatch(message);
    expect([code, stdout]).toEqual([2, '']);
  });

  test('gives advice about an input only if it helps', async () => {
    const output = join(folder, 'out.csv');
    const bytes = readFileSync(recording());
    bytes.writeUInt8(77, bytes.length - 1);
    const damaged = await run('convert', file('damaged', bytes), output);
    expect(damaged.stderr).toMatch(/wrong\nhint: "cistern report" shows the part of a recording before the damage\n$/);
    const noLayer = await run('convert', recording(), output, '--layer', 'arena');
    expect(noLayer.stderr).toMatch(/^error: .* has no layer "arena"; there are: limiting, pool\n$/);
    symlinkSync('nowhere', join(folder, 'link'));
    expect((await run('convert', join(folder, 'link'), output)).stderr).not.toContain('did you mean');
  });

  test('writes recordings that can be replayed, with a warning if they end early', async () => {
    const input = file('cut', readFileSync(recording()).subarray(0, -1));
    const { code, stderr } = await run('replay', input, '--resource', 'host', '--repeat', '1', '--layer', 'limiting');
    expect(code).toBe(0);
    expect(stderr).toMatch(
      /^warning: .*cut ends early, at byte \d+: the recording ends in the middle of a block; only the events before that are used$/m,
    );
  });
});
