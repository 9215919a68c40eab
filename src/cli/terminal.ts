import { stat } from 'node:fs/promises';
import { styleText } from 'node:util';

/** Where text goes: what `process` has of it. */
export interface OutputStream extends NodeJS.WritableStream {
  readonly isTTY?: boolean;
}

/** Where a command writes to. Standard output gets the result and nothing else. */
export interface Terminal {
  readonly stdout: OutputStream;
  readonly stderr: OutputStream;
}

/** Bold where the stream is a terminal that shows it, unless `NO_COLOR` is set to anything. */
export function bold(text: string, stream: OutputStream): string {
  return stream.isTTY === true && !process.env['NO_COLOR'] ? styleText('bold', text) : text;
}

/** Something a user should know that is not the result. */
export function warn(terminal: Terminal, message: string): void {
  terminal.stderr.write(`warning: ${message}\n`);
}

/** What a user can do about an error or a warning that was just told. */
export function hint(terminal: Terminal, message: string): void {
  terminal.stderr.write(`hint: ${message}\n`);
}

/** `194854` as `194,854`. */
export function formatCount(count: number): string {
  return count.toLocaleString('en-US');
}

/** Tells what was written to a file: on standard output, unless that may be what it was written to, as `/dev/stdout` is. */
export async function tellOfFile(terminal: Terminal, path: string, text: string): Promise<void> {
  const isFile = (await stat(path)).isFile();
  (isFile ? terminal.stdout : terminal.stderr).write(text);
}
