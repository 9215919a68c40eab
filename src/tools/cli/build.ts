import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { accessSync, constants, copyFileSync, existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Command } from 'commander';
import { newPath } from '../../files/new-file.js';
import { cacheFolder } from '../../package/addon.js';
import { packageRoot } from '../../package/root.js';
import { setting } from '../../settings.js';
import { runLibraryName } from '../outside/run-library.js';
import { ExitCode } from './exit-code.js';
import type { Terminal } from './terminal.js';

const details = `
Needs CMake 3.18, a C++17 compiler (CXX, or the one that CMake finds; on Windows MinGW-w64 or
LLVM-MinGW), and make or ninja. CMake takes CXXFLAGS, LDFLAGS and CMAKE_GENERATOR into account. The
addon is written to the package, or to the user's cache if the package is not writable.

Exit status: 0 if the addon is built, 1 if not.

Examples:
  $ cistern build
  $ CXX=clang++ cistern build
`;

/** They must not leave half a build behind. */
const signals = ['SIGHUP', 'SIGINT', 'SIGTERM'] as const;

/** `cistern build`: compiles the addon from the sources in the package. */
export function buildCommand(terminal: Terminal, exitWith: (code: number) => void): Command {
  return new Command('build').addHelpText('after', details).action(async () => {
    const failure = await build(terminal);
    if (failure === undefined) return;
    terminal.stderr.write(`error: ${failure}\n`);
    exitWith(ExitCode.failure);
  });
}

/**
 * Builds in its own folder, so that simultaneous builds do not disturb each other, and replaces the
 * addon only once the new one is complete.
 * @returns why there is no new addon
 */
async function build({ stdout, stderr }: Terminal): Promise<string | undefined> {
  if (spawnSync('cmake', ['--version']).status !== 0) return `CMake is not on PATH: install it and a C++17 compiler (${remedy()})`;
  const started = performance.now();
  const scratch = mkdtempSync(join(tmpdir(), 'cistern-build-'));
  let child: ChildProcess | undefined;
  const interrupted = (signal: NodeJS.Signals) => {
    child?.kill(signal);
    rmSync(scratch, { recursive: true, force: true });
    for (const each of signals) process.off(each, interrupted);
    process.kill(process.pid, signal);
  };
  for (const signal of signals) process.on(signal, interrupted);
  const cmake = async (...args: readonly string[]): Promise<boolean> => {
    child = spawn('cmake', args, { stdio: ['ignore', 'pipe', 'pipe'] });
    const { stdout: out, stderr: errors } = child;
    for (const stream of [out, errors]) stream?.setEncoding('utf8').on('data', (text: string) => stderr.write(text));
    const ended = child;
    return (await new Promise((resolve) => ended.once('close', resolve))) === 0;
  };
  try {
    const generator = process.platform === 'win32' && setting('CMAKE_GENERATOR') === undefined ? ['-G', 'MinGW Makefiles'] : [];
    const options = [...generator, '--log-level=WARNING', `-DCMAKE_LIBRARY_OUTPUT_DIRECTORY=${join(scratch, 'built')}`];
    if (!(await cmake('-S', fileURLToPath(packageRoot), '-B', scratch, ...options)))
      return `CMake cannot configure the build, for the reason above; it needs a C++17 compiler, and make or ninja (${remedy()})`;
    if (!(await cmake('--build', scratch, '--target', 'addon', '--parallel', String(availableParallelism()))))
      return 'the addon cannot be compiled, for the reason above; a C++17 compiler is needed';
    const folder = join(buildFolder(), 'Release');
    const addon = join(folder, 'cistern.node');
    mkdirSync(folder, { recursive: true });
    for (const name of ['cistern.node', runLibraryName]) {
      const built = join(scratch, 'built', name);
      // Only some systems have the library.
      if (name === runLibraryName && !existsSync(built)) continue;
      const part = newPath(folder, `${name}.`, '.part');
      copyFileSync(built, part, constants.COPYFILE_EXCL);
      renameSync(part, join(folder, name));
    }
    stdout.write(`built ${addon} in ${((performance.now() - started) / 1000).toFixed(0)} s\n`);
    return undefined;
  } finally {
    for (const signal of signals) process.off(signal, interrupted);
    rmSync(scratch, { recursive: true, force: true });
  }
}

function remedy(): string {
  if (process.platform === 'darwin') return 'xcode-select --install, and brew install cmake';
  return process.platform === 'win32' ? 'MinGW-w64 or LLVM-MinGW, and CMake' : 'Debian: apt install cmake g++ make';
}

function buildFolder(): string {
  const folder = fileURLToPath(new URL('build/', packageRoot));
  try {
    mkdirSync(folder, { recursive: true });
    accessSync(folder, constants.W_OK);
    return folder;
  } catch {
    return join(cacheFolder(), 'build');
  }
}
