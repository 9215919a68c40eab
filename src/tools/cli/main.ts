#!/usr/bin/env node
import { ExitCode } from './exit-code.js';
import { runCommand } from './program.js';
import { terminalOf } from './terminal.js';

process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  // If a reader such as head closes the pipe, end quietly.
  if (error.code === 'EPIPE') process.exit();
  terminalOf(process).stderr.write(`error: the output cannot be written: ${error.message}\n`);
  process.exit(ExitCode.failure);
});
// If standard error fails, nothing can be reported; the exit status still counts.
process.stderr.on('error', () => {});

process.exitCode = await runCommand(process.argv.slice(2), process);
