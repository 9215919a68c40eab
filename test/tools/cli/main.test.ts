import { closeSync, mkdtempSync, openSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { logText, row } from '../formats/logs.js';
import { runCistern } from './run-cistern.js';

const folder = mkdtempSync(join(tmpdir(), 'cistern-'));
const log = join(folder, 'small.csv');
writeFileSync(log, logText(row('allocate', 1, 1000), row('free', 1, 1000)));
afterAll(() => rmSync(folder, { recursive: true }));

describe('to show its version or its help', () => {
  const preload = join(folder, 'preload.mjs');
  const hooks = `
    import { writeSync } from 'node:fs';
    export function load(url, context, next) {
      writeSync(2, url + '\\n');
      return next(url, context);
    }`;
  beforeAll(() =>
    writeFileSync(
      preload,
      `import { writeSync } from 'node:fs';
       import { register } from 'node:module';
       Number.prototype.toLocaleString = () => { throw new Error('this loads the tables of ICU'); };
       process.on('exit', () => writeSync(2, process.report.getReport().sharedObjects.join('\\n')));
       register(${JSON.stringify(`data:text/javascript,${encodeURIComponent(hooks)}`)});`,
    ),
  );

  /** The package's files, addons included, that the command loads. */
  async function loadedBy(args: readonly string[]): Promise<readonly string[]> {
    const { code, stderr } = await runCistern(args, undefined, { NODE_OPTIONS: `--import=${pathToFileURL(preload)}` });
    expect(code, stderr).toBe(0);
    return [...stderr.matchAll(/^file:.*\/dist\/(.*\.js)$|^.*\/(.*\.node)$/gm)].map(([, file, addon]) => file ?? addon ?? '').sort();
  }

  test.each(['--version', '--help', 'help'])('cistern %s reads no addon, no parser and no resource', async (line) => {
    expect(await loadedBy([line])).toEqual(['chunks/command.js', 'chunks/package.js', 'chunks/rolldown-runtime.js', 'tools/cli/main.js']);
  });

  test('what is named is what is read', async () => {
    const [doctor, replay] = [await loadedBy(['doctor']), await loadedBy(['replay', '--help'])];
    expect(doctor).toContain('cistern.node');
    expect(doctor).not.toContain('chunks/replay.js');
    expect(replay).toContain('chunks/replay.js');
    expect(replay).not.toContain('cistern.node');
  });
});

describe('on a full disk', () => {
  let full = 0;
  beforeAll(() => {
    full = openSync('/dev/full', 'w');
  });
  afterAll(() => closeSync(full));

  test.each([
    ['resources'],
    ['resources --json'],
    ['doctor'],
    ['doctor --json'],
    [`replay ${log} --resource host --repeat 1`],
    [`replay ${log} --resource host --repeat 1 --json`],
    ['--help'],
    ['--version'],
    ['replay --help'],
  ])('cistern %s reports in one line that it cannot write, and fails', async (line) => {
    const { code, signal, stderr } = await runCistern(line.split(' '), undefined, {}, { stdout: full });
    expect(stderr).toMatch(/^error: the output cannot be written: ENOSPC.*\n$/);
    expect([code, signal]).toEqual([1, null]);
  });

  test('errors that cannot be printed leave the exit status unchanged', async () => {
    const { code, stdout } = await runCistern(['replay', join(folder, 'missing.csv')], undefined, {}, { stderr: full });
    expect([code, stdout]).toEqual([2, '']);
  });
});
