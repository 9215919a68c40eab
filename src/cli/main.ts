#!/usr/bin/env node
import { ExitCode } from './exit-code.js';
import { runCommand } from './program.js';

process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  // A reader that goes away, such as head, ends the program quietly.
  if (error.code === 'EPIPE') process.exit();
  process.stderr.write(`error: the output cannot be written: ${error.message}\n`);
  process.exit(ExitCode.failure);
});
// What cannot be told there cannot be told anywhere; the exit status stands.
process.stderr.on('error', () => {});

process.exitCode = await runCommand(process.argv.slice(2), process);
