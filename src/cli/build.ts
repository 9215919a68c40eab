import { accessSync, constants, mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { Command } from 'commander';
import { cacheFolder } from '../package/addon.js';
import { packageRoot } from '../package/root.js';
import { ExitCode } from './exit-code.js';
import type { Terminal } from './terminal.js';

/** What `scripts/build-addon.mjs` exports, which the published package has too. */
interface AddonBuilder {
  buildAddon(options: { folder: string; terminal: Terminal['stderr'] }): Promise<{ addon: string; compiled: number; seconds: number }>;
  readonly BuildError: new () => Error;
}

const details = `
Needs a C++17 compiler: CXX, or the first of c++, clang++ and g++ that is found. Flags in CXXFLAGS
and LDFLAGS are added. The addon goes into the package, or into the user's cache if the package
cannot be written to. A second run compiles what changed.

Exit status: 0 if the addon is built, 1 if not.

Examples:
  $ cistern build
  $ CXX=clang++ cistern build
`;

/** `cistern build`: compiles the addon from the sources in the package. */
export function buildCommand(terminal: Terminal, exitWith: (code: number) => void): Command {
  return new Command('build')
    .description('Compile the native addon, on a platform for which no package with a compiled one was installed.')
    .addHelpText('after', details)
    .action(async () => {
      const { buildAddon, BuildError } = (await import(new URL('scripts/build-addon.mjs', packageRoot).href)) as AddonBuilder;
      try {
        const { addon, compiled, seconds } = await buildAddon({ folder: buildFolder(), terminal: terminal.stderr });
        terminal.stdout.write(compiled === 0 ? `${addon} is up to date\n` : `built ${addon} in ${seconds.toFixed(0)} s\n`);
      } catch (error) {
        if (!(error instanceof BuildError)) throw error;
        terminal.stderr.write(`error: ${error.message}\n`);
        exitWith(ExitCode.failure);
      }
    });
}

function buildFolder(): string {
  const folder = fileURLToPath(new URL('build/', packageRoot));
  try {
    mkdirSync(folder, { recursive: true });
    accessSync(folder, constants.W_OK);
    return folder;
  } catch {
    return `${cacheFolder()}/build`;
  }
}
