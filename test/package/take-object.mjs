#!/usr/bin/env node
// Stands before a compiler (CMAKE_CXX_COMPILER_LAUNCHER). If preprocessing gives what it gave for the same unit of this clone's addon, compiled with
// the same options, this takes the object that the clone has: compiling the same a second time would only take time. Otherwise it compiles.
import { spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';

const built = fileURLToPath(new URL('../../build', import.meta.url));
const most = 2 ** 28;

/** Of a command: the text that is compiled, and what makes the same of the same text. */
function compilation(command, cwd) {
  const args = command.filter((argument, i) => argument !== '-c' && argument !== '-o' && command[i - 1] !== '-o');
  const { status, stdout } = spawnSync(args[0], [...args.slice(1), '-E', '-P', '-o', '-'], { cwd, encoding: 'utf8', maxBuffer: most });
  const options = args.filter((argument) => /^-[fgmOW]|^-std/.test(argument));
  // Before it may be another launcher.
  const compiler = args[args.findIndex((argument) => argument.startsWith('-')) - 1];
  return status === 0 ? JSON.stringify([compiler, options, stdout]) : undefined;
}

const outputOf = (command) => command[command.indexOf('-o') + 1] ?? '';

/** The object of this clone that a command would make again. */
function objectOf(command) {
  const commands = join(built, 'compile_commands.json');
  const output = resolve(outputOf(command));
  if (!command.includes('-c') || !output.includes('.dir/') || !existsSync(commands)) return undefined;
  const part = output.slice(output.lastIndexOf('/CMakeFiles/'));
  const same = JSON.parse(readFileSync(commands, 'utf8')).find((entry) => entry.command.includes(`${part.slice(1)} `));
  if (same === undefined) return undefined;
  const words = spawnSync('sh', ['-c', `printf '%s\\0' ${same.command}`], { encoding: 'utf8' })
    .stdout.split('\0')
    .slice(0, -1);
  const object = resolve(same.directory, outputOf(words));
  if (!existsSync(object)) return undefined;
  const wanted = compilation(command);
  return wanted !== undefined && wanted === compilation(words, same.directory) ? object : undefined;
}

const command = process.argv.slice(2);
const object = objectOf(command);
if (object === undefined) {
  const { status } = spawnSync(command[0], command.slice(1), { stdio: 'inherit' });
  process.exit(status ?? 1);
}
copyFileSync(object, outputOf(command));
const dependencies = command.indexOf('-MF');
if (dependencies !== -1) writeFileSync(command[dependencies + 1], '');
