import { spawn } from 'node:child_process';
import { constants } from 'node:os';
import type { Terminal } from './terminal.js';

/**
 * Signals passed on to the program. A terminal sends its own interrupts to the program directly.
 */
const passedSignals: readonly NodeJS.Signals[] = ['SIGTERM', 'SIGHUP', 'SIGUSR2'];

/** Runs a program with this process's input and output. Returns its exit status, as a shell does if a signal ended it. */
export function runProgram(
  file: string,
  args: readonly string[],
  env: NodeJS.ProcessEnv,
  name: string,
  terminal: Terminal,
): Promise<number> {
  const isInteractive = process.stdin.isTTY || process.stdout.isTTY || process.stderr.isTTY;
  const passOn = (signal: NodeJS.Signals) => child.kill(signal);
  const ignore = () => {};
  for (const signal of passedSignals) process.on(signal, passOn);
  process.on('SIGINT', isInteractive ? ignore : passOn);
  // Behind the handlers: the program may have said that it is ready before the next line runs.
  const child = spawn(file, args, { env, stdio: 'inherit' });
  return new Promise<number>((settle, reject) => {
    child.on('error', reject);
    child.on('close', (code, signal) => {
      if (signal !== null) terminal.stderr.write(`${name} was ended by ${signal}\n`);
      settle(code ?? 128 + constants.signals[signal as NodeJS.Signals]);
    });
  }).finally(() => {
    for (const signal of passedSignals) process.off(signal, passOn);
    process.off('SIGINT', isInteractive ? ignore : passOn);
  });
}
