import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { workloadNames } from '../../../src/tools/replay/index.js';
import { runCistern, startCistern } from './run-cistern.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-'));
afterAll(() => rmSync(folder, { recursive: true }));

const commands = ['doctor', 'replay', 'fit', 'generate', 'resources', 'completion'];
const isThere = (shell: string) => spawnSync(shell, ['--version']).status === 0;

async function scriptFor(shell: string): Promise<string> {
  const { code, stdout, stderr } = await startCistern(['completion', shell]);
  expect([code, stderr]).toEqual([0, '']);
  const path = join(folder, shell);
  writeFileSync(path, stdout);
  return path;
}

describe.skipIf(!isThere('bash'))('in bash (skipped if it is not installed)', () => {
  let script = '';
  beforeAll(async () => {
    script = await scriptFor('bash');
  });

  /** The completions that bash offers for the last word. */
  function offered(...words: string[]): string[] {
    const program = `source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _cistern; printf '%s\\n' "\${COMPREPLY[@]}"`;
    const { stdout, stderr, status } = spawnSync('bash', ['--norc', '-uc', program, 'bash', script, 'cistern', ...words], {
      encoding: 'utf8',
    });
    expect([stderr, status]).toEqual(['', 0]);
    return stdout.split('\n').filter((word) => word !== '');
  }

  test('commands are completed', () => {
    expect(offered('')).toEqual(expect.arrayContaining([...commands, '--help', '--version']));
    expect(offered('gen')).toEqual(['generate']);
  });

  test('options of the command are completed', () => {
    expect(offered('replay', '--')).toEqual(expect.arrayContaining(['--resource', '--streams', '--until-failure', '--json']));
    expect(offered('generate', '--')).toEqual(['--seed', '--events', '--output', '--force', '--help']);
  });

  test('choices of options and arguments are completed', () => {
    expect(offered('fit', 'trace.csv', '--streams', '')).toEqual(['log', 'thread', 'single']);
    expect(offered('fit', 'trace.csv', '--streams', '=', 't')).toEqual(['thread']);
    expect(offered('fit', 'trace.csv', '--streams', '=')).toEqual(['log', 'thread', 'single']);
    expect(offered('generate', '')).toEqual([...workloadNames]);
    expect(offered('completion', 'z')).toEqual(['zsh']);
  });

  test('file names are left to bash', () => {
    expect(offered('replay', '')).toEqual([]);
    expect(offered('generate', '-o', '')).toEqual([]);
    const { stdout } = spawnSync('bash', ['-c', `source ${script}; complete -p cistern`], { encoding: 'utf8' });
    expect(stdout).toBe('complete -o default -F _cistern cistern\n');
  });
});

describe.skipIf(!isThere('fish'))('in fish (skipped if it is not installed)', () => {
  let script = '';
  beforeAll(async () => {
    script = await scriptFor('fish');
  });

  function offered(line: string): string[] {
    const program = `source ${script}; complete -C "${line}"`;
    const { stdout, stderr, status } = spawnSync('fish', ['--no-config', '-c', program], { encoding: 'utf8', cwd: folder });
    expect([stderr, status]).toEqual(['', 0]);
    return stdout.split('\n').flatMap((text) => text.split('\t')[0] || []);
  }

  test('commands, options, choices and file names are completed', () => {
    expect(offered('cistern ')).toEqual(expect.arrayContaining(commands));
    expect(offered('cistern replay --until')).toEqual(['--until-failure']);
    expect(offered('cistern replay --streams ').sort()).toEqual(['log', 'single', 'thread']);
    expect(offered('cistern generate ').sort()).toEqual([...workloadNames].sort());
    expect(offered('cistern replay ')).toContain('fish');
  });
});

describe.skipIf(!isThere('zsh'))('in zsh (skipped if it is not installed)', () => {
  test('the script loads, and names every command', async () => {
    const script = await scriptFor('zsh');
    expect(spawnSync('zsh', ['-n', script], { encoding: 'utf8' })).toMatchObject({ status: 0, stderr: '' });
    const program = `autoload -Uz compinit; compinit -u -D; source ${script}; print -r -- $_comps[cistern]; which _cistern`;
    const { stdout } = spawnSync('zsh', ['-fc', program], { encoding: 'utf8' });
    expect(stdout).toMatch(/^_cistern\n/);
    for (const command of commands) expect(stdout).toContain(command);
  });
});

test('the shell must be one of three', async () => {
  const { code, stderr } = await runCistern(['completion', 'csh']);
  expect(code).toBe(2);
  expect(stderr).toMatch(/Allowed choices are bash, zsh, fish/);
});
