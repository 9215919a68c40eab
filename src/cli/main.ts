#!/usr/bin/env node
import { runCommand } from './program.js';

// A reader that goes away, such as head, ends the program quietly.
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code === 'EPIPE') process.exit();
  throw error;
});

process.exitCode = await runCommand(process.argv.slice(2), process);
