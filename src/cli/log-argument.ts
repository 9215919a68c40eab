import { stdin } from 'node:process';
import type { LogSource } from '../formats/log-source.js';

/** The argument that stands for standard input. */
const dash = '-';

/** What an argument that names a log says about it. */
export const logArgumentHelp = 'the path of the log; - is standard input';

/** A log named by an argument, and its name in messages. */
export function logArgument(argument: string): { readonly source: LogSource; readonly name: string } {
  return argument === dash ? { source: stdin, name: 'standard input' } : { source: argument, name: argument };
}
