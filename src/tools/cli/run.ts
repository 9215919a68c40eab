import { existsSync, realpathSync } from 'node:fs';
import { resolve } from 'node:path';
import { Command, InvalidArgumentError, Option } from 'commander';
import { invalidValue } from '../../basics/errors.js';
import { formatBytes, formatCount } from '../../basics/units.js';
import { mostLimits, type OutsideEnd, type OutsideLimit } from '../outside/control-file.js';
import { prepareOutsideRun } from '../outside/run-outside.js';
import { FileOption, forceOption } from './command-files.js';
import { parseSize } from './options.js';
import { runProgram } from './run-program.js';
import { note, type Terminal } from './terminal.js';

interface RunCommandOptions {
  readonly output: string;
  readonly limit?: readonly OutsideLimit[];
  readonly stacks: number | false;
  readonly quiet?: boolean;
}

const examples = `
Records what every library in the program allocates from the CUDA driver, by library, with the line of JavaScript
that made it allocate. The program needs no change, and need not be a Node program. Linux with glibc only. Processes
that the program starts are recorded, too, in files beside the first: run.cistern, run.4711.cistern.

With a limit, a library that asks for more than is left is told that the device is out of memory. Limits hold for
memory of devices and managed memory, and for all processes together. A limit with a name holds for one library: the name of its npm
package, or of its file. What the process held at that moment is written to out-of-memory-4711-4711-1.cistern beside the
recording, or in the folder that CISTERN_DUMP_ON_OUT_OF_MEMORY names; the first ten times.

Nothing is printed, and no file written, if the program does not use a device.

Exit status: that of the program; 128 plus the signal's number if a signal ended it.

Examples:
  $ cistern run -- node app.js                    # then: cistern report run.cistern
  $ cistern run --limit 8GiB -- node app.js
  $ cistern run --limit node-llama-cpp=6GiB -o llama.cistern -- npm start
`;

/** `cistern run`: records and limits a program from outside. */
export function runOutsideCommand(terminal: Terminal, exitWith: (code: number) => void): Command {
  return new Command('run')
    .argument('<command>', 'the program')
    .argument('[args...]', 'its arguments')
    .addOption(new FileOption('-o, --output <file>', 'the recording', 'recorded').default('run.cistern'))
    .addOption(
      new Option('--limit <limit>', 'the most memory of devices, such as 8GiB, or NAME=6GiB for one library; repeatable').argParser(
        parseLimit,
      ),
    )
    .addOption(
      new Option('--stacks <size>', 'record a stack whenever this much was allocated since the last; 0: always')
        .argParser((text) => (text === '0' ? 0 : parseSize(text)))
        .default(0, '0'),
    )
    .addOption(new Option('--no-stacks', 'record no stacks'))
    .addOption(new Option('-q, --quiet', 'do not tell what was recorded'))
    .addOption(forceOption())
    .passThroughOptions()
    .addHelpText('after', examples)
    .action(async (command: string, args: readonly string[], { output, limit = [], stacks, quiet }: RunCommandOptions) => {
      // The file is replaced, and a link to it stays.
      const file = existsSync(output) ? realpathSync(output) : resolve(output);
      const run = prepareOutsideRun({ file, limits: limit, stackBytes: stacks === false ? undefined : stacks });
      let ended: OutsideEnd | undefined;
      try {
        exitWith(await runProgram(command, args, run.environment, command, terminal));
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
        throw invalidValue(`${command} is not a program that was found`);
      } finally {
        ended = run.end();
      }
      if (quiet !== true) tell(ended, output, terminal);
    });
}

function parseLimit(text: string, previous: readonly OutsideLimit[] = []): readonly OutsideLimit[] {
  const equals = text.lastIndexOf('=');
  if (equals === 0) throw new InvalidArgumentError('It must be a size such as 8GiB, or NAME=6GiB.');
  if (previous.length === mostLimits) throw new InvalidArgumentError(`There can be ${mostLimits} limits.`);
  const name = text.slice(0, Math.max(0, equals)).replace(/^@/, '');
  return [...previous, { name, bytes: parseSize(text.slice(equals + 1)) }];
}

/** Tells what was recorded, if anything was. */
function tell({ processes, unusedLimits, libraries }: OutsideEnd, output: string, terminal: Terminal): void {
  for (const { process, hasMainFile, peakBytes, allocations, refusals, dumps } of processes) {
    const refused = refusals === 0 ? '' : `, ${formatCount(refusals)} refused`;
    const file = hasMainFile ? output : output.replace(/(\.[^./]*)?$/, `.${process}$1`);
    note(
      terminal,
      `process ${process}: ${formatCount(allocations)} allocations, ${formatBytes(peakBytes)} of device memory at the peak${refused}; recorded in ${file}`,
    );
    if (dumps > 0) note(terminal, `what it held when it was refused is in out-of-memory-${process}-*.cistern, for cistern report`);
  }
  if (libraries.length === 0) return;
  for (const name of unusedLimits)
    note(terminal, `the limit of ${name} held for nothing: what allocated is called ${libraries.join(', ')}`);
}
