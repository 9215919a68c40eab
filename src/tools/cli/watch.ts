import { existsSync, statSync } from 'node:fs';
import { createRequire } from 'node:module';
import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { Command, Option } from 'commander';
import { invalidValue } from '../../basics/errors.js';
import { packageRoot } from '../../package/root.js';
import { environmentWith } from '../../settings.js';
import { integerParser } from './options.js';
import { runProgram } from './run-program.js';
import type { Terminal } from './terminal.js';

interface WatchCommandOptions {
  readonly port?: number | undefined;
  readonly interval?: number | undefined;
  readonly open?: true | undefined;
}

const examples = `
The address of the page is printed on standard error. It works on this machine only, until the program
ends. The page shows every resource of the program's main thread, the pools below it, and the lines that
created its buffers. Prometheus can scrape "metrics" below the address. Without this command, set CISTERN_WATCH=1 (or a
port) in the environment of any program that imports cistern.

Exit status: that of the program; 128 plus the signal's number if a signal ended it.

Examples:
  $ cistern watch server.js --threads 4
  $ cistern watch --open --interval 250 train.mjs
  $ cistern watch --port 9464 train.mjs
`;

/** The module to import first, in a copy of the package. */
const preload = 'dist/tools/watch/preload.js';

/** `cistern watch`: runs a program with a page that shows its memory. */
export function watchCommand(terminal: Terminal, exitWith: (code: number) => void): Command {
  return new Command('watch')
    .argument('<program>', "the program's file")
    .argument('[args...]', 'its arguments')
    .addOption(
      new Option('--port <port>', 'the port of the page (default: any free port)').argParser(
        integerParser(2, 65_535, 'a port, an integer from 2 to 65535'),
      ),
    )
    .addOption(
      new Option('--interval <ms>', 'the time between two samples in milliseconds, from 10 (default: 1000)').argParser(
        integerParser(10, 2 ** 31 - 1, 'an integer from 10 to 2147483647'),
      ),
    )
    .addOption(new Option('--open', 'open the page in a browser'))
    .passThroughOptions()
    .addHelpText('after', examples)
    .action(async (program: string, args: readonly string[], options: WatchCommandOptions) => {
      assertProgram(program);
      exitWith(await run(program, args, options, terminal));
    });
}

function run(program: string, args: readonly string[], options: WatchCommandOptions, terminal: Terminal): Promise<number> {
  const env = environmentWith({
    CISTERN_WATCH: String(options.port ?? 1),
    ...(options.interval === undefined ? {} : { CISTERN_WATCH_INTERVAL: String(options.interval) }),
    ...(options.open === true ? { CISTERN_WATCH_OPEN: '1' } : {}),
  });
  return runProgram(process.execPath, ['--import', preloadFor(program), program, ...args], env, program, terminal);
}

/**
 * The module to import first, from the copy of cistern that the program itself imports, because
 * each copy knows only its own resources.
 */
function preloadFor(program: string): string {
  const own = new URL(preload, packageRoot).href;
  try {
    const manifest = createRequire(resolve(program)).resolve('cistern/package.json');
    const copy = new URL(preload, pathToFileURL(manifest));
    return existsSync(copy) ? copy.href : own;
  } catch {
    return own;
  }
}

/** @throws a system error of Node if Node would not find a program there. */
function assertProgram(program: string): void {
  const path = resolve(program);
  try {
    // A program may be named without its extension, or by its folder.
    createRequire(path).resolve(path);
  } catch {
    statSync(program);
    throw invalidValue(`${program} is not a program that Node can run`);
  }
}
