import { Command } from 'commander';
import { formatBytes } from '../../basics/units.js';
import { sleepProcess } from '../../serving/index.js';
import { type DeviceOptions, deviceOption, integerParser, jsonOption, openDevice } from './options.js';
import type { Terminal } from './terminal.js';

interface SleepCommandOptions extends DeviceOptions {
  readonly timeout: number;
  readonly json?: boolean;
}

const examples = `
Makes a process give its GPUs to others: all memory that any library in it has on them goes to the host's memory. The
process needs no change, and notices a pause: its calls to the driver wait until "cistern wake" is called. Linux, and a
driver of CUDA 12.8 or newer (570), only; you must be the user of the process.

If the driver refuses, the process runs on as before.

Exit status: 0 if the process is asleep, 1 if not, 2 for wrong arguments.

Examples:
  $ cistern sleep 4711
  $ cistern sleep 4711 --timeout 60       # it may have a minute of work queued
  $ cistern wake 4711
`;

/** `cistern sleep`: puts a process to sleep. */
export function sleepCommand(terminal: Terminal): Command {
  return new Command('sleep')
    .argument('<pid>', 'the id of the process', processId)
    .option('--timeout <seconds>', 'how long to wait until the process has done what it had queued', integerParser(1, 4_000_000), 10)
    .addOption(deviceOption())
    .addOption(jsonOption())
    .addHelpText('after', examples)
    .action(async (pid: number, options: SleepCommandOptions) => {
      openDevice(options, terminal);
      const report = await sleepProcess({ pid, lockTimeoutMilliseconds: options.timeout * 1000 });
      const { releasedBytes, elapsedMilliseconds } = report;
      const what = releasedBytes === undefined ? 'all it had on devices' : formatBytes(releasedBytes);
      const text = `process ${pid} is asleep: returned ${what} in ${elapsedMilliseconds.toFixed(0)} ms\n`;
      terminal.stdout.write(options.json === true ? `${JSON.stringify(report, undefined, 2)}\n` : text);
    });
}

/** Parses the id of a process. */
export const processId: (text: string) => number = integerParser(1, 2 ** 31 - 1, 'the id of a process');
