import { stdin } from 'node:process';
import type { LogSource } from '../formats/log-source.js';
import { dash, FileArgument } from './command-files.js';

/** The help of an argument that names a log. */
const logArgumentHelp = 'the path of the log; - is standard input';

/** The argument that names a log, or several if its name ends in dots. */
export function logArgument(name = '<log>', help = logArgumentHelp): FileArgument {
  return new FileArgument(name, help, 'read');
}

/** A log named by an argument, and its name in messages. */
export function logNamed(argument: string): { readonly source: LogSource; readonly name: string } {
  return argument === dash ? { source: stdin, name: 'standard input' } : { source: argument, name: argument };
}
