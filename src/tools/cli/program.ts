import { existsSync } from 'node:fs';
import { Command, CommanderError } from 'commander';
import { packageVersion } from '../../package/root.js';
import { ExitCode } from './exit-code.js';
import { hint, note, type RawStreams, type Terminal, terminalOf } from './terminal.js';

type CreateCommand = (terminal: Terminal, exitWith: (code: number) => void) => Command;

/**
 * The commands: the purpose of each, and a function that creates it. The modules of a command are
 * loaded only when it is called, so that `--version` and `--help` load next to nothing.
 */
const commands: Readonly<Record<string, { readonly description: string; readonly load: () => Promise<CreateCommand> }>> = {
  doctor: {
    description: 'Print which device is used, with its driver and memory; if it is not a CUDA device, say why.',
    load: async () => (await import('./doctor.js')).doctorCommand,
  },
  replay: {
    description:
      'Replay an allocation log (RMM CSV, recording, PyTorch snapshot or report, plain or gzip) through stacks of resources, and compare them.',
    load: async () => (await import('./replay.js')).replayCommand,
  },
  fit: {
    description: 'Find the smallest maximum with which stacks of resources complete a log, and the time it costs.',
    load: async () => (await import('./fit.js')).fitCommand,
  },
  plan: {
    description: 'Compute a fixed place for each allocation of a log, so that nothing is searched at run time.',
    load: async () => (await import('./plan.js')).planCommand,
  },
  convert: {
    description: "Write a log in another format: RMM's CSV, a recording, a snapshot for PyTorch's viewer, or a trace for Perfetto.",
    load: async () => (await import('./convert.js')).convertCommand,
  },
  report: {
    description: 'Write a page that shows where memory went: curves, a map of addresses over time, fragmentation, call sites.',
    load: async () => (await import('./report.js')).reportCommand,
  },
  summary: {
    description: 'Print the figures of one log: its peak, what was never freed, fragmentation; fails above thresholds, for CI.',
    load: async () => (await import('./summary.js')).summaryCommand,
  },
  diff: {
    description: 'Show what grew from one log to another: by function, label, account, phase or size.',
    load: async () => (await import('./diff.js')).diffCommand,
  },
  estimate: {
    description: 'Estimate what a program needs at another batch size, or the largest that fits, from several of its logs.',
    load: async () => (await import('./estimate.js')).estimateCommand,
  },
  generate: {
    description: 'Generate an allocation log of a typical workload, to a file or to standard output.',
    load: async () => (await import('./generate.js')).generateCommand,
  },
  resources: {
    description: 'List the kinds of resources that --resource understands, and their options.',
    load: async () => (await import('./resources.js')).resourcesCommand,
  },
  watch: {
    description: "Run a Node program, and serve a live page about its memory to this machine's browsers.",
    load: async () => (await import('./watch.js')).watchCommand,
  },
  run: {
    description: 'Run any program, and record and limit what every library in it allocates from CUDA.',
    load: async () => (await import('./run.js')).runOutsideCommand,
  },
  sleep: {
    description: 'Make a process give its GPUs to others, with all that any library in it has there, until it is woken.',
    load: async () => (await import('./sleep.js')).sleepCommand,
  },
  wake: {
    description: 'Give a process that sleeps its GPUs again.',
    load: async () => (await import('./wake.js')).wakeCommand,
  },
  keep: {
    description: 'Hold memory that outlives the processes which made it; list the regions that there are, or remove one.',
    load: async () => (await import('./keep.js')).keepCommand,
  },
  build: {
    description: 'Compile the native addon, if no package with a compiled one for this platform was installed.',
    load: async () => (await import('./build.js')).buildCommand,
  },
  completion: {
    description: 'Print a script that makes a shell complete the commands, options and choices of cistern.',
    load: async () => (await import('./completion.js')).completionCommand,
  },
};

/** The names of all commands. */
const commandNames: readonly string[] = Object.keys(commands);

const examples = `
Examples:
  $ cistern doctor                                            # which device there is
  $ cistern replay trace.csv.gz                               # compare stacks of resources
  $ cistern fit trace.csv.gz --resource 'pool(cuda)'          # how much memory a stack needs
  $ cistern report trace.csv.gz -o report.html                # a page that shows where memory went
  $ cistern replay --help                                     # what a command can do, with examples
`;

/** Runs the `cistern` command with its arguments, on the streams of a process. Returns the exit status. */
export async function runCommand(args: readonly string[], streams: RawStreams): Promise<number> {
  const terminal = terminalOf(streams);
  let exitCode: number = ExitCode.success;
  const exitWith = (code: number) => {
    exitCode = code;
  };
  try {
    // "help replay" needs the command that it names, and completion needs all commands.
    const named = args.includes('completion') ? commandNames : commandNames.filter((name) => args.includes(name));
    const program = await createProgram(terminal, exitWith, named);
    // Commander answers "help nope" with the general help; passing only the name gets its error for unknown
    // commands.
    const [first, topic] = args;
    const isUnknownTopic = first === 'help' && topic !== undefined && !commandNames.includes(topic);
    await program.parseAsync(isUnknownTopic ? [topic] : args, { from: 'user' });
    return exitCode;
  } catch (error) {
    // Commander has already printed the error.
    const [file] = args;
    if (error instanceof CommanderError && error.code === 'commander.unknownCommand' && file !== undefined && existsSync(file))
      hint(terminal, `"cistern report ${file}" shows a log as a page, "cistern summary ${file}" its figures`);
    if (error instanceof CommanderError) return error.exitCode === 0 ? ExitCode.success : ExitCode.usage;
    const { printError } = await import('./print-error.js');
    return printError(error, terminal);
  }
}

/**
 * The `cistern` command. Files are checked before one of its commands begins.
 * @param complete the commands that can be run; of the others, only the descriptions are loaded
 */
export async function createProgram(terminal: Terminal, exitWith: (code: number) => void, complete = commandNames): Promise<Command> {
  let replaced: readonly string[] = [];
  const program = new Command('cistern')
    .description('Composable GPU memory resources: see what the machine has, and replay allocation logs through stacks of resources.')
    .version(packageVersion())
    .addHelpText('after', examples)
    // Every command has options, and its own help says which arguments.
    .configureHelp({ subcommandTerm: (command) => command.name() })
    // Options after the program of `watch` or `run` belong to that program.
    .enablePositionalOptions()
    .hook('preAction', async (_, command) => {
      const { checkFiles } = await import('./command-files.js');
      replaced = await checkFiles(command);
    })
    .hook('postAction', async () => {
      for (const path of replaced) note(terminal, `replaced the existing file ${path}`);
    });
  for (const [name, { description, load }] of Object.entries(commands)) {
    const command = complete.includes(name) ? (await load())(terminal, exitWith) : new Command(name);
    program.addCommand(command.description(description));
  }
  for (const command of [program, ...program.commands]) {
    command
      .exitOverride()
      .showHelpAfterError('(see --help)')
      .configureOutput({
        writeOut: (text) => terminal.stdout.write(text),
        writeErr: (text) => terminal.stderr.write(text),
        outputError: (text, write) => {
          write(text.replace('command-argument value ', ''));
          const [, word] = /^error: unknown option '(.+)'$/m.exec(text) ?? [];
          if (word !== undefined && existsSync(word)) hint(terminal, `write ./${word} if you mean the file of that name`);
        },
      });
  }
  return program;
}
