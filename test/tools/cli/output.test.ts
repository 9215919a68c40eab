import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { afterAll, describe, expect, test, vi } from 'vitest';
import { Output, visible, visibleInLine } from '../../../src/tools/cli/output.js';
import { runCommand } from '../../../src/tools/cli/program.js';
import { formatHeading, formatTable } from '../../../src/tools/cli/table.js';
import { encodeRecording } from '../../../src/tools/formats/recording/convert-to-recording.js';
import { RunWriter } from '../report/runs.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-output-'));
afterAll(() => rmSync(folder, { recursive: true }));

/** What a terminal obeys: a colour, a title, an erased screen, codes of one byte, marks of direction, and a line that pretends to be cistern's. */
const hostile = (name: string) =>
  `${name}\x1b[31m\x1b]0;title\x07\x1b[2J\x9b1m\x90\u202egnp.exe\u2066\u2028\r\x7f\x1b[1m\x1b[1;1234;5678;9012m\u{e0041}\nerror: forged`;
/** Newlines separate what cistern prints; its own texts have no tabs. */
const obeyed = /(?!\n)[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/u;

describe('text', () => {
  test('is shown with each character that a terminal would obey as its number', () => {
    expect(visible('a\x1b[2J\x07\x9b\x7f\u202e\u2028\ufeff\u{e0041}\ud800')).toBe(
      'a\\u001b[2J\\u0007\\u009b\\u007f\\u202e\\u2028\\ufeff\\udb40\\udc41\\ud800',
    );
    expect(visible('line\n\tline é 日本 👩‍🚀')).toBe('line\n\tline é 日本 👩‍🚀');
    expect(visibleInLine('a\n\tb')).toBe('a\\n\\tb');
    const json = JSON.stringify({ name: hostile('name') });
    expect(JSON.parse(visible(json))).toEqual(JSON.parse(json));
  });

  test('is bold only where cistern makes it so', () => {
    vi.stubEnv('NO_COLOR', undefined);
    vi.stubEnv('TERM', 'xterm');
    const stream = Object.assign(new PassThrough(), { isTTY: true, columns: 300 });
    const output = new Output(stream);
    const columns = ['name', hostile('title')].map((title) => ({ title, align: 'left' as const }));
    output.write(formatHeading(hostile('heading'), 'table', output) + formatTable(columns, [[hostile('cell'), '1']], 'table', output));
    vi.unstubAllEnvs();
    const text = String(stream.read());
    expect(text.split('\x1b[1m').length - 1).toBeGreaterThanOrEqual(3);
    expect(text.replaceAll('\x1b[1m', '').replaceAll('\x1b[22m', '')).not.toMatch(obeyed);
  });
});

/** All that a command prints to both streams. */
async function printed(...args: readonly string[]): Promise<string> {
  const stream = new PassThrough();
  await runCommand(args, { stdout: stream, stderr: stream });
  return String(stream.read() ?? '');
}

describe('a log with hostile names', async () => {
  const names = {
    layer: hostile('upper'),
    stream: hostile('0x1'),
    thread: hostile('7'),
    phase: hostile('phase'),
    account: hostile('account'),
  };
  const writer = new RunWriter(hostile('upper'), hostile('lower'));
  for (let i = 1; i <= 4; i++)
    writer
      .allocate(256 * i, 100 * i, { ...names, stack: `${hostile('run')} (${hostile('/app/main.js')}:1:2)` })
      .label(256 * i, hostile('label'));
  writer
    .grow(2 ** 20, 4096, { layer: hostile('lower') })
    .free(256, 100, names)
    .fail(2 ** 50, names);
  const run = writer.finish();
  const log = join(folder, `${hostile('log').replaceAll('/', '')}.cistern`);
  const other = join(folder, 'other.cistern');
  writeFileSync(log, Buffer.concat([...encodeRecording({ ...run, notes: [hostile('note')] })]));
  writeFileSync(other, Buffer.concat([...encodeRecording(new RunWriter(hostile('upper')).allocate(256, 8).finish())]));
  const cut = join(folder, `${hostile('cut')}.cistern`);
  writeFileSync(cut, readFileSync(log).subarray(0, -24));

  test.each<[string, ...(readonly string[])]>([
    ['replay', log, '--resource', 'pool(cuda)', '--repeat', '1'],
    ['replay', log, '--resource', 'pool(cuda)', '--repeat', '1', '--format', 'markdown'],
    ['replay', log, '--resource', 'pool(cuda)', '--repeat', '1', '--json'],
    ['replay', log, '--layer', hostile('nothing')],
    ['replay', log, '--explain', '--resource', 'limiting(cuda, maximumBytes=256)'],
    ['replay', log, '--resource', hostile('pool')],
    ['replay', join(folder, hostile('missing'))],
    ['fit', log, '--resource', 'pool(cuda)'],
    ['plan', log],
    ['plan', log, '--graphs'],
    ['convert', log, join(folder, 'out.csv')],
    ['convert', log, join(folder, `${hostile('out')}.pickle`)],
    ['convert', log, join(folder, 'out.json')],
    ['convert', log, join(folder, 'nowhere', hostile('folder'), 'out.csv')],
    ['convert', log, join(folder, 'out.csv'), '--layer', hostile('nothing')],
    ['convert', cut, join(folder, 'cut.csv')],
    ['report', log, other, '-o', join(folder, `${hostile('page')}.html`), '--time-limit', '0s'],
    ...['function', 'line', 'label', 'account', 'phase', 'size'].map((by): [string, ...string[]] => ['diff', log, other, '--by', by]),
    ['diff', log, other, '--by', 'label', '--format', 'markdown'],
    ['diff', log, other, '--json'],
    ['diff', log, cut],
    ['estimate', `1=${log}`, `2=${other}`, '--at', '4'],
    ['watch', join(folder, hostile('program.js'))],
    [hostile('command')],
    ['replay', `--${hostile('option')}`],
  ])('prints nothing that a terminal obeys: command %#', async (...args) => {
    const text = await printed(...args);
    expect(text).not.toBe('');
    expect(text).not.toMatch(obeyed);
    // Commander shows an argument as it was given.
    if (args[0] !== hostile('command') && !args[1]?.startsWith('--')) expect(text).not.toMatch(/^error: forged/m);
  });
});

test('nothing in src/tools/cli prints except through Output', () => {
  const around = /\bconsole\b|\bemitWarning\b|process\.(?:stdout|stderr)(?!\.(?:isTTY|on)\b)|\.unescaped\b|\.getOwnPropertyDescriptor\b/g;
  const found = readdirSync('src/tools/cli').flatMap((file) =>
    (readFileSync(join('src/tools/cli', file), 'utf8').match(around) ?? []).map((match) => `${file}: ${match}`),
  );
  // A progress bar moves the cursor; its texts are made visible there.
  expect(found).toEqual(['progress-bar.ts: .unescaped']);
});
