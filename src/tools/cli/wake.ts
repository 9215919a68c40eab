import { Command } from 'commander';
import { formatBytes } from '../../basics/units.js';
import { wakeProcess } from '../../serving/index.js';
import { type DeviceOptions, deviceOption, jsonOption, openDevice } from './options.js';
import { processId } from './sleep.js';
import type { Terminal } from './terminal.js';

interface WakeCommandOptions extends DeviceOptions {
  readonly json?: boolean;
}

const examples = `
Gives a process that sleeps its GPUs again, with the contents at the same addresses. If there is not enough memory, it
sleeps on, and you can try again. A process that another program has locked, or that "cistern sleep" did not finish with,
is unlocked.

Exit status: 0 if the process is awake, 1 if not, 2 for wrong arguments.

Examples:
  $ cistern wake 4711
`;

/** `cistern wake`: wakes a process. */
export function wakeCommand(terminal: Terminal): Command {
  return new Command('wake')
    .argument('<pid>', 'the id of the process', processId)
    .addOption(deviceOption())
    .addOption(jsonOption())
    .addHelpText('after', examples)
    .action(async (pid: number, options: WakeCommandOptions) => {
      openDevice(options, terminal);
      const report = await wakeProcess({ pid });
      const { takenBytes, elapsedMilliseconds } = report;
      const what = takenBytes === undefined ? 'what it had on devices' : formatBytes(takenBytes);
      const text = `process ${pid} is awake: took ${what} in ${elapsedMilliseconds.toFixed(0)} ms\n`;
      terminal.stdout.write(options.json === true ? `${JSON.stringify(report, undefined, 2)}\n` : text);
    });
}
