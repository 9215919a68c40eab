import { spawnSync } from 'node:child_process';
import {
  closeSync,
  existsSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join, relative } from 'node:path';
import { gzipSync } from 'node:zlib';
import type { Command } from 'commander';
import { afterAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { checkFiles, FileArgument, FileOption, SpecificationOption } from '../../../src/tools/cli/command-files.js';
import { createProgram } from '../../../src/tools/cli/program.js';
import { terminalOf } from '../../../src/tools/cli/terminal.js';
import { everyKind } from '../../../src/tools/every-kind.js';
import { logText, row } from '../formats/logs.js';
import { type CommandRun, runCistern } from './run-cistern.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-files-'));
const log = join(folder, 'run.csv');
const text = logText(row('allocate', 1, 512), row('allocate', 2, 256), row('free', 1, 512), row('free', 2, 256));
const out = join(folder, 'out.csv');
afterAll(() => rmSync(folder, { recursive: true }));
beforeEach(() => {
  for (const name of readdirSync(folder)) rmSync(join(folder, name), { recursive: true });
  writeFileSync(log, text);
});

/**
 * Every argument and option of a command that takes a value: what it does with the file that it
 * names, or why it names none.
 */
const uses: Readonly<Record<string, 'read' | 'overwritten' | 'recorded' | 'stacks' | 'no file' | 'a program'>> = {
  'replay log': 'read',
  'replay --resource': 'stacks',
  'replay --layer': 'no file',
  'replay --repeat': 'no file',
  'replay --timeline': 'overwritten',
  'replay --device-memory': 'no file',
  'fit log': 'read',
  'fit --resource': 'stacks',
  'fit --layer': 'no file',
  'fit --repeat': 'no file',
  'fit --device-memory': 'no file',
  'plan logs': 'read',
  'plan --output': 'overwritten',
  'plan --time-limit': 'no file',
  'plan --max': 'no file',
  'plan --alignment': 'no file',
  'plan --layer': 'no file',
  'convert input': 'read',
  'convert output': 'overwritten',
  'estimate logs': 'read',
  'estimate --at': 'no file',
  'estimate --layer': 'no file',
  'estimate --memory': 'no file',
  'estimate --output': 'overwritten',
  'estimate --values': 'no file',
  'diff after': 'read',
  'diff before': 'read',
  'diff --layer': 'no file',
  'diff --limit': 'no file',
  'convert --layer': 'no file',
  'report logs': 'read',
  'report --output': 'overwritten',
  'report --title': 'no file',
  'report --time-limit': 'no file',
  'report --plan': 'read',
  'generate --seed': 'no file',
  'keep --limit': 'no file',
  'keep --remove': 'no file',
  'keep --share': 'no file',
  'keep --socket': 'no file',
  'generate --events': 'no file',
  'generate --output': 'overwritten',
  'summary logs': 'read',
  'sleep --timeout': 'no file',
  'sleep pid': 'no file',
  'summary --fail-above': 'no file',
  'summary --layer': 'no file',
  'summary --limit': 'no file',
  'run command': 'a program',
  'run args': 'no file',
  'run --limit': 'no file',
  'run --output': 'recorded',
  'run --stacks': 'no file',
  'watch program': 'a program',
  'watch args': 'no file',
  'watch --port': 'no file',
  'wake pid': 'no file',
  'watch --interval': 'no file',
};

/** Every option of a resource that is text. */
const textOptions: Readonly<Record<string, 'read' | 'appended' | 'overwritten' | 'no file'>> = {
  'admitting shared': 'no file',
  'arena dumpFile': 'appended',
  'arena name': 'no file',
  'caching name': 'no file',
  'fixed-size name': 'no file',
  'global-arena name': 'no file',
  'thread-safe-arena name': 'no file',
  'limiting shared': 'no file',
  'logging file': 'overwritten',
  'monotonic name': 'no file',
  'planned plan': 'read',
  'pool name': 'no file',
  'recording file': 'overwritten',
  'recording layer': 'no file',
  'spilling folder': 'no file',
  'statistics name': 'no file',
  'statistics shared': 'no file',
  'virtual tag': 'no file',
};

/** For each pair of a file that is read and one that is written: a command line that names both. */
const pairs: Readonly<Record<string, (read: string, written: string) => string[]>> = {
  'replay log, replay --timeline': (read, written) => ['replay', read, '--resource', 'cuda', '--timeline', written],
  'plan logs, plan --output': (read, written) => ['plan', read, '-o', written],
  'estimate logs, estimate --output': (read, written) => [
    'estimate',
    read,
    log,
    '--values',
    '1,2',
    '--at',
    '3',
    '-o',
    written,
    '--to',
    'rmm-csv',
  ],
  'convert input, convert output': (read, written) => ['convert', read, written, '--to', 'recording'],
  'report logs, report --output': (read, written) => ['report', read, '-o', written, '--time-limit', '0s'],
  'report --plan, report --output': (read, written) => ['report', log, '--plan', read, '-o', written],
  'replay log, logging file': (read, written) => ['replay', read, '--resource', `logging(cuda, file="${written}")`],
  'replay log, recording file': (read, written) => ['replay', read, '--resource', `recording(cuda, file="${written}")`],
  'replay log, arena dumpFile': (read, written) => ['replay', read, '--resource', `arena(cuda, dumpFile="${written}")`],
  'fit log, logging file': (read, written) => ['fit', read, '--resource', `pool(logging(cuda, file="${written}"))`],
  'fit log, recording file': (read, written) => ['fit', read, '--resource', `pool(recording(cuda, file="${written}"))`],
  'fit log, arena dumpFile': (read, written) => ['fit', read, '--resource', `arena(cuda, dumpFile="${written}")`],
  'planned plan, replay --timeline': (read, written) => [
    'replay',
    log,
    '--resource',
    `planned(cuda, plan="${read}")`,
    '--timeline',
    written,
  ],
};

const names = Object.keys(pairs);

const terminal = terminalOf(process);
const { commands }: { readonly commands: readonly Command[] } = await createProgram(terminal, () => {});

test('every argument and option of every command that takes a value says whether it names a file', () => {
  const found: Record<string, string> = {};
  for (const command of commands) {
    for (const argument of command.registeredArguments) {
      if (argument.argChoices !== undefined) continue;
      const name = `${command.name()} ${argument.name()}`;
      found[name] =
        argument instanceof FileArgument ? argument.use : name === 'watch program' || name === 'run command' ? 'a program' : 'no file';
    }
    for (const option of command.options) {
      if ((!option.required && !option.optional) || option.argChoices !== undefined) continue;
      const use = option instanceof FileOption ? option.use : option instanceof SpecificationOption ? 'stacks' : 'no file';
      found[`${command.name()} ${option.long}`] = use;
    }
  }
  expect(found).toEqual(uses);
});

test('every option of a resource that is text says whether it names a file', () => {
  const found = everyKind.flatMap(({ name, options }) =>
    Object.entries(options).flatMap(([option, { type, file }]) => (type === 'text' ? [[`${name} ${option}`, file ?? 'no file']] : [])),
  );
  expect(Object.fromEntries(found)).toEqual(textOptions);
});

test('there is a command line for every file that is written beside one that is read', () => {
  const written = Object.entries(uses).flatMap(([name, use]) => (use === 'overwritten' && name !== 'generate --output' ? [name] : []));
  const ofStacks = Object.entries(textOptions).flatMap(([name, use]) => (use === 'overwritten' || use === 'appended' ? [name] : []));
  const tested = new Set(names.map((name) => name.split(', ')[1]));
  expect([...tested].toSorted()).toEqual([...written, ...ofStacks].toSorted());
});

/** The check alone, as it runs before a command. */
async function check(...args: readonly string[]): Promise<readonly string[]> {
  let replaced: readonly string[] = [];
  const program = await createProgram(terminal, () => {});
  for (const command of program.commands) {
    command.action(async (..._: unknown[]) => {
      replaced = await checkFiles(command);
    });
  }
  await program.parseAsync(args, { from: 'user' });
  return replaced;
}

function expectRefusal({ code, stdout, stderr }: CommandRun, wanted: RegExp): void {
  expect(stderr).toMatch(wanted);
  expect(stderr.split('\n').filter((line) => !/^(error|hint): |^$/.test(line))).toEqual([]);
  expect([code, stdout]).toEqual([2, '']);
}

describe('an output that is also an input', () => {
  test.each(names)('is refused, and left as it is, however it is spelled: %s', async (name) => {
    const line = pairs[name] as (read: string, written: string) => string[];
    symlinkSync(log, join(folder, 'symbolic'));
    linkSync(log, join(folder, 'hard'));
    mkdirSync(join(folder, 'inner'));
    symlinkSync(folder, join(folder, 'inner', 'folder'));
    const spellings = [
      log,
      relative(process.cwd(), log),
      join(folder, 'inner', '..', 'run.csv').replace('run.csv', './run.csv'),
      join(folder, 'symbolic'),
      join(folder, 'hard'),
      join(folder, 'inner', 'folder', 'run.csv'),
    ];
    for (const spelling of spellings) {
      await expect(check(...line(log, spelling))).rejects.toMatchObject({
        code: 'ERR_INVALID_ARG_VALUE',
        message: expect.stringContaining('is also read'),
      });
      await expect(check(...line(spelling, log))).rejects.toThrow('is also read');
    }
    expectRefusal(
      await runCistern(line(log, join(folder, 'symbolic'))),
      /^error: .* would overwrite .*symbolic, the same file as .*run\.csv, which is also read/,
    );
    expect(readFileSync(log, 'utf8')).toBe(text);
  });

  test.each(['-', '/dev/stdin'])('is refused if it is standard input, as %s', async (input) => {
    const descriptor = openSync(log, 'r');
    try {
      const { status, stderr } = spawnSync(process.execPath, ['dist/tools/cli/main.js', 'report', input, '-o', log], {
        stdio: [descriptor, 'pipe', 'pipe'],
        encoding: 'utf8',
      });
      expect(stderr).toMatch(
        /^error: --output would overwrite .*, the same file as (standard input|\/dev\/stdin), which is also read \(<logs>\); name another file\n$/,
      );
      expect(status).toBe(2);
    } finally {
      closeSync(descriptor);
    }
    expect(readFileSync(log, 'utf8')).toBe(text);
  });

  test('is refused if standard output is added to it', () => {
    const descriptor = openSync(log, 'a');
    try {
      const { status, stderr } = spawnSync(process.execPath, ['dist/tools/cli/main.js', 'replay', log, '--resource', 'cuda'], {
        stdio: ['ignore', descriptor, 'pipe'],
        encoding: 'utf8',
      });
      expect(stderr).toMatch(/^error: standard output is .*run\.csv, which is read \(<log>\)\n$/);
      expect(status).toBe(2);
    } finally {
      closeSync(descriptor);
    }
    expect(readFileSync(log, 'utf8')).toBe(text);
  });

  test('is refused if it is the recording of the environment', async () => {
    for (const args of [
      ['report', log, '-o', out],
      ['replay', log, '--resource', 'cuda'],
      ['fit', log],
    ]) {
      expectRefusal(
        await runCistern(args, undefined, { CISTERN_LOG_FILE: log }),
        /^error: CISTERN_LOG_FILE would overwrite .*run\.csv, which is also read/,
      );
    }
    expect(readFileSync(log, 'utf8')).toBe(text);
    expect(existsSync(out)).toBe(false);
  });
});

describe('two outputs that are one file', () => {
  const line = (first: string, second: string) => ['replay', log, '--resource', `logging(cuda, file="${first}")`, '--timeline', second];

  test('are refused, whether the file exists or not', async () => {
    await expect(check(...line(out, out))).rejects.toThrow(/^file of logging would overwrite .*, which is also written by --timeline/);
    mkdirSync(join(folder, 'inner'));
    symlinkSync(folder, join(folder, 'inner', 'folder'));
    await expect(check(...line(out, join(folder, 'inner', 'folder', 'out.csv')))).rejects.toThrow('which is also written by');
    writeFileSync(out, '');
    linkSync(out, join(folder, 'hard'));
    await expect(check(...line(out, join(folder, 'hard')))).rejects.toThrow('which is also written by');
    await expect(check(...line(out, join(folder, 'another.csv')))).resolves.toEqual([]);
  });

  test('are refused if they differ in case only, where that makes no difference', async () => {
    const upper = join(folder, 'OUT.csv');
    await expect(check(...line(out, upper))).resolves.toEqual([]);
    const platform = vi.spyOn(process, 'platform', 'get').mockReturnValue('darwin');
    try {
      await expect(check(...line(out, upper))).rejects.toThrow('which is also written by');
    } finally {
      platform.mockRestore();
    }
  });

  test('are refused if they are of two stacks, or numbered; layers of one stack may share a recording', async () => {
    const stack = `recording(pool(recording(cuda, file="${out}")), file="${out}")`;
    await expect(check('replay', log, '--resource', stack)).resolves.toEqual([]);
    await expect(check('replay', log, '--resource', stack, '--resource', stack)).rejects.toThrow(
      'which is also written by file of recording',
    );
    const numbered = join(folder, 'out-2.csv');
    await expect(check(...line(numbered, out), '--resource', 'cuda')).rejects.toThrow('out-2.csv');
    const dump = `arena(cuda, dumpFile="${out}")`;
    await expect(check('replay', log, '--resource', dump, '--resource', dump)).resolves.toEqual([]);
  });
});

/** For each output of a command: a command line that writes to it. */
const outputs: Readonly<Record<string, (written: string) => string[]>> = {
  'replay --timeline': (written) => ['replay', log, '--resource', 'cuda', '--timeline', written],
  'plan --output': (written) => ['plan', log, '-o', written],
  'convert output': (written) => ['convert', log, written, '--to', 'rmm-csv'],
  'estimate --output': (written) => ['estimate', log, log, '--values', '1,2', '--at', '3', '-o', written, '--to', 'rmm-csv'],
  'report --output': (written) => ['report', log, '-o', written, '--time-limit', '0s'],
  'generate --output': (written) => ['generate', 'rmm-random', '--events', '10', '-o', written],
};

describe('an output', () => {
  test('has a command line here, whichever it is', () => {
    expect(Object.keys(outputs)).toEqual(Object.entries(uses).flatMap(([name, use]) => (use === 'overwritten' ? [name] : [])));
  });

  test.each(Object.keys(outputs))('that is a log is replaced with --force only: %s', async (name) => {
    const line = outputs[name] as (written: string) => string[];
    const others: readonly (readonly [string, string | Buffer])[] = [
      ['rmm-csv', text],
      ['rmm-csv', `\ufeff${text}`],
      ['rmm-csv', gzipSync(text)],
      ['recording', 'cistern\n and more'],
      ['pytorch-snapshot', Buffer.of(0x80, 4, 0x4e, 0x2e)],
    ];
    for (const [format, contents] of others) {
      writeFileSync(out, contents);
      await expect(check(...line(out))).rejects.toMatchObject({
        code: 'ERR_INVALID_ARG_VALUE',
        message: `${out} already exists and is a log (${format}), perhaps the only one of its run; use --force to replace it`,
      });
    }
    expectRefusal(await runCistern(line(out)), /^error: .*out\.csv already exists and is a log \(pytorch-snapshot\)/);
    expect(readFileSync(out)).toEqual(others[4]?.[1]);
    const forced = await runCistern([...line(out), '--force']);
    expect([forced.code, forced.stderr]).toEqual([0, `note: replaced the existing file ${out}\n`]);
    expect(readFileSync(out)).not.toEqual(others[4]?.[1]);
  });

  test.each(Object.keys(outputs))('that is any other file is replaced, which the command says: %s', async (name) => {
    writeFileSync(out, 'old');
    const { code, stderr } = await runCistern((outputs[name] as (written: string) => string[])(out));
    expect([code, stderr]).toEqual([0, `note: replaced the existing file ${out}\n`]);
    expect(readFileSync(out, 'utf8')).not.toBe('old');
  });

  test.each(Object.keys(outputs))(
    'that is a folder, or in a folder that is missing, is refused before anything is read: %s',
    async (name) => {
      const line = (written: string) =>
        (outputs[name] as (written: string) => string[])(written).map((word) => (word === log ? '/dev/zero' : word));
      expectRefusal(await runCistern(line(folder)), /^error: .* is a folder$/m);
      expectRefusal(await runCistern(line(join(folder, 'none', 'out'))), /^error: the folder .*none does not exist; create it first$/m);
    },
  );

  test.skipIf(process.platform === 'win32').each(Object.keys(outputs))(
    'that is standard output has nothing but the file in it: %s',
    async (name) => {
      const line = outputs[name] as (written: string) => string[];
      const file = await runCistern(line(out));
      const lines = file.stdout.trimEnd().split('\n');
      // Node's own pipes are sockets, which cannot be opened by a name.
      const device = spawnSync('sh', ['-c', '"$@" | cat', 'sh', process.execPath, 'dist/tools/cli/main.js', ...line('/dev/stdout')], {
        encoding: 'utf8',
        env: { ...process.env, CISTERN_DEVICE: 'software' },
      });
      expect([device.status, device.stderr]).toEqual([0, expect.stringContaining('/dev/stdout: ')]);
      expect(device.stderr, 'the size of a pipe').not.toContain(' in 0 B');
      expect(device.stdout.length).toBeGreaterThan(0);
      for (const each of lines.filter((text) => text !== '')) expect(device.stdout).not.toContain(each);
    },
  );

  test.each(Object.keys(outputs))('is not -, which is standard input: %s', async (name) => {
    const line = outputs[name] as (written: string) => string[];
    await expect(check(...line('-'))).rejects.toMatchObject({
      code: 'ERR_INVALID_ARG_VALUE',
      message: expect.stringMatching(
        / must be a file, and - is standard input; \/dev\/stdout is standard output, \.\/- a file of that name$/,
      ),
    });
    await expect(check(...line(join(folder, '-')))).resolves.toEqual([]);
  });

  test('that is a disk is refused', async ({ skip }) => {
    // No device has this number, so that a fault writes to nothing.
    const disk = join(folder, 'disk');
    if (spawnSync('mknod', [disk, 'b', '240', '7']).status !== 0) skip('this user may not make device nodes');
    await expect(check('generate', 'rmm-random', '-o', disk)).rejects.toThrow('is a disk');
  });

  test.each(Object.keys(outputs))('may be a device such as /dev/null, a pipe, or new, without a word: %s', async (name) => {
    const line = outputs[name] as (written: string) => string[];
    for (const written of ['/dev/null', '/dev/stderr', out]) await expect(check(...line(written))).resolves.toEqual([]);
  });
});
