import { readFileSync } from 'node:fs';
import { Command, CommanderError } from 'commander';
import { CisternError } from '../errors.js';
import { doctorCommand } from './doctor.js';
import { ExitCode, exitCodeOf } from './exit-code.js';
import { replayCommand } from './replay.js';
import { resourcesCommand } from './resources.js';
import type { Terminal } from './terminal.js';

/** Runs the `cistern` command with its arguments and returns the status to exit with. */
export async function runCommand(args: readonly string[], terminal: Terminal): Promise<number> {
  let exitCode: number = ExitCode.success;
  const program = new Command('cistern')
    .description('Composable GPU memory resources: see what the machine has, and replay allocation logs through stacks of resources.')
    .version(packageVersion());
  for (const create of [doctorCommand, replayCommand, resourcesCommand]) {
    program.addCommand(
      create(terminal, (code) => {
        exitCode = code;
      }),
    );
  }
  for (const command of [program, ...program.commands]) {
    command
      .exitOverride()
      .showHelpAfterError('(see --help)')
      .configureOutput({
        writeOut: (text) => terminal.stdout.write(text),
        writeErr: (text) => terminal.stderr.write(text),
      });
  }
  try {
    await program.parseAsync(args, { from: 'user' });
    return exitCode;
  } catch (error) {
    // Commander has said already what is wrong.
    if (!(error instanceof CommanderError)) terminal.stderr.write(`error: ${describe(error)}\n`);
    return exitCodeOf(error);
  }
}

function describe(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const isExpected = error instanceof CisternError || exitCodeOf(error) === ExitCode.usage;
  return isExpected ? error.message : (error.stack ?? error.message);
}

function packageVersion(): string {
  const { version } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as { version: string };
  return version;
}
