import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { StatisticsSample } from '../../../src/tools/watch/index.js';
import { runCistern } from './run-cistern.js';

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'cistern-watch-'));
  writeFileSync(join(folder, 'package.json'), '{ "name": "watched" }');
});
afterAll(() => rmSync(folder, { recursive: true }));

/** The path of a program, which may import cistern as `cistern`. */
function program(name: string, text: string): string {
  const path = join(folder, name);
  const module = JSON.stringify(new URL('../../../dist/index.js', import.meta.url).href);
  writeFileSync(path, text.replaceAll("'cistern'", module));
  return path;
}

describe('cistern watch', () => {
  test('runs a program with its arguments, input and output, and exits with its status', async () => {
    const path = program('arguments.mjs', 'console.log(JSON.stringify(process.argv.slice(2))); process.exitCode = 5;');
    const { code, stdout, stderr } = await runCistern(['watch', '--interval', '100', path, '--port', 'a b', '-h', '--']);
    expect([code, stdout]).toEqual([5, '["--port","a b","-h","--"]\n']);
    expect(stderr).toMatch(/^cistern: watch process \d+ at http:\/\/127\.0\.0\.1:\d+\/[\w-]{22}\/\n$/);
  });

  test('serves the page before the program begins', async () => {
    const path = program(
      'busy.mjs',
      `import { HostMemoryResource, StatisticsResourceAdaptor, Stream } from 'cistern';
      const resource = new StatisticsResourceAdaptor(new HostMemoryResource(), { name: 'watched' });
      resource.allocate(1234, new Stream());
      process.on('SIGTERM', () => process.exit(9));
      setInterval(() => {}, 1000);`,
    );
    let sample: StatisticsSample | undefined;
    const { code } = await runCistern(['watch', path], (child) => {
      child.stderr?.on('data', async (text) => {
        const url = /http:\S+/.exec(String(text))?.[0];
        if (url === undefined) return;
        while (sample === undefined || sample.resources.length === 0) {
          sample = (await (await fetch(`${url}sample`)).json()) as StatisticsSample;
        }
        child.kill('SIGTERM');
      });
    });
    expect(sample?.resources).toMatchObject([{ name: 'watched', liveBytes: 1234 }]);
    expect(code, 'signals are passed on, and the status comes back').toBe(9);
  });

  test('exits as shells do if a signal ended the program', async () => {
    const path = program('killed.mjs', "process.kill(process.pid, 'SIGKILL'); setInterval(() => {}, 1000);");
    const { code, stderr } = await runCistern(['watch', path]);
    expect(code).toBe(128 + 9);
    expect(stderr).toMatch(/was ended by SIGKILL\n$/);
  });

  test('imports the copy of cistern that the program imports', async () => {
    const copy = join(folder, 'node_modules', 'cistern');
    mkdirSync(join(copy, 'dist', 'tools', 'watch'), { recursive: true });
    writeFileSync(
      join(copy, 'package.json'),
      JSON.stringify({ name: 'cistern', type: 'module', exports: { './package.json': './package.json' } }),
    );
    writeFileSync(join(copy, 'dist', 'tools', 'watch', 'preload.js'), "console.log('the copy');");
    const { stdout } = await runCistern(['watch', program('with-copy.mjs', "console.log('the program');")]);
    rmSync(join(folder, 'node_modules'), { recursive: true });
    expect(stdout).toBe('the copy\nthe program\n');
  });

  test('opens the page in a browser when asked', async () => {
    const bin = join(folder, 'bin');
    const opened = join(folder, 'opened');
    mkdirSync(bin);
    writeFileSync(join(bin, 'xdg-open'), `#!/bin/sh\necho "$1" > ${opened}\n`);
    chmodSync(join(bin, 'xdg-open'), 0o755);
    const path = program('short.mjs', "setTimeout(() => console.log(process.env.CISTERN_WATCH_OPEN ?? 'not set'), 500);");
    const { stdout, stderr } = await runCistern(['watch', '--open', path], undefined, { PATH: `${bin}:${process.env['PATH']}` });
    expect(stdout).toBe('not set\n');
    expect(readFileSync(opened, 'utf8')).toBe(/http:\S+\n/.exec(stderr)?.[0]);
  });

  test('says that a program does not exist before it starts one', async () => {
    const { code, stderr } = await runCistern(['watch', join(folder, 'none.mjs')]);
    expect(code).toBe(2);
    expect(stderr).toMatch(/^error: .*none\.mjs does not exist\nhint: .*\n$/);
  });

  test('refuses a folder that is no program', async () => {
    const { code, stderr } = await runCistern(['watch', tmpdir()]);
    expect([code, stderr]).toEqual([2, `error: ${tmpdir()} is not a program that Node can run\n`]);
  });

  test('runs a program that is named without its extension', async () => {
    program('bare.js', "console.log('runs');");
    expect(await runCistern(['watch', join(folder, 'bare')])).toMatchObject({ code: 0, stdout: 'runs\n' });
  });

  test.each([
    [['watch'], "missing required argument 'program'"],
    [['watch', '--port', '1', 'x.mjs'], 'It must be a port, an integer from 2 to 65535.'],
    [['watch', '--port', 'abc', 'x.mjs'], 'It must be a port, an integer from 2 to 65535.'],
    [['watch', '--port', '70000', 'x.mjs'], 'It must be a port, an integer from 2 to 65535.'],
    [['watch', '--interval', '5', 'x.mjs'], 'It must be an integer from 10 to 2147483647.'],
    [['watch', '--colour', 'x.mjs'], "unknown option '--colour'"],
  ])('refuses %j', async (args, message) => {
    const { code, stderr } = await runCistern(args);
    expect(code).toBe(2);
    expect(stderr).toContain(message);
  });

  test('has help with examples', async () => {
    const { code, stdout } = await runCistern(['watch', '--help']);
    expect(code).toBe(0);
    expect(stdout).toContain('$ cistern watch --open --interval 250 train.mjs');
  });
});
