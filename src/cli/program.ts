import { Command, CommanderError } from 'commander';
import { CisternError } from '../basics/errors.js';
import { packageVersion } from '../package/root.js';
import { adviceFor } from './advice.js';
import { buildCommand } from './build.js';
import { checkFiles } from './command-files.js';
import { completionCommand } from './completion.js';
import { convertCommand } from './convert.js';
import { doctorCommand } from './doctor.js';
import { ExitCode, exitCodeOf } from './exit-code.js';
import { fitCommand } from './fit.js';
import { generateCommand } from './generate.js';
import { planCommand } from './plan.js';
import { replayCommand } from './replay.js';
import { reportCommand } from './report.js';
import { resourcesCommand } from './resources.js';
import { hint, note, type Terminal } from './terminal.js';
import { watchCommand } from './watch.js';

const examples = `
Examples:
  $ cistern doctor                                            # which device there is
  $ cistern replay trace.csv.gz                               # compare stacks of resources
  $ cistern fit trace.csv.gz --resource 'pool(cuda)'          # how much memory a stack needs
  $ cistern report trace.csv.gz -o report.html                # a page that shows where memory went
  $ cistern replay --help                                     # what a command can do, with examples
`;

/** Runs the `cistern` command with its arguments. Returns the exit status. */
export async function runCommand(args: readonly string[], terminal: Terminal): Promise<number> {
  let exitCode: number = ExitCode.success;
  const program = createProgram(terminal, (code) => {
    exitCode = code;
  });
  try {
    await program.parseAsync(args, { from: 'user' });
    return exitCode;
  } catch (error) {
    // Commander has already printed the error.
    if (error instanceof CommanderError) return exitCodeOf(error);
    terminal.stderr.write(`error: ${describe(error)}\n`);
    const advice = adviceFor(error);
    if (advice !== undefined) hint(terminal, advice);
    return exitCodeOf(error);
  }
}

/** The `cistern` command with all of its commands, whose files are checked before one begins. */
export function createProgram(terminal: Terminal, exitWith: (code: number) => void): Command {
  let replaced: readonly string[] = [];
  const program = new Command('cistern')
    .description('Composable GPU memory resources: see what the machine has, and replay allocation logs through stacks of resources.')
    .version(packageVersion())
    .addHelpText('after', examples)
    // Options after the program of `watch` belong to that program.
    .enablePositionalOptions()
    .hook('preAction', async (_, command) => {
      replaced = await checkFiles(command);
    })
    .hook('postAction', () => {
      for (const path of replaced) note(terminal, `${path} took the place of an older file`);
    });
  for (const create of [
    doctorCommand,
    replayCommand,
    fitCommand,
    planCommand,
    convertCommand,
    reportCommand,
    generateCommand,
    resourcesCommand,
    watchCommand,
    buildCommand,
    completionCommand,
  ]) {
    program.addCommand(create(terminal, exitWith));
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
  return program;
}

function describe(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const isExpected = error instanceof CisternError || exitCodeOf(error) === ExitCode.usage;
  return isExpected ? error.message : (error.stack ?? error.message);
}
