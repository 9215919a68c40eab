import { stat } from 'node:fs/promises';
import { styleText } from 'node:util';
import { formatCount } from '../basics/units.js';
import type { RecordingDamage } from '../formats/recorded-run.js';
import { setting } from '../settings.js';

/** Where text goes: the part of `process.stdout` that commands use. */
export interface OutputStream extends NodeJS.WritableStream {
  readonly isTTY?: boolean;
  /** The width of a terminal. */
  readonly columns?: number;
}

/** The streams that a command writes to. Standard output gets the result and nothing else. */
export interface Terminal {
  readonly stdout: OutputStream;
  readonly stderr: OutputStream;
}

/** Whether a stream is a terminal that understands more than text. */
export function isTerminal(stream: OutputStream): boolean {
  return stream.isTTY === true && setting('TERM') !== 'dumb';
}

/** Makes text bold if the stream is a terminal that shows it and `NO_COLOR` is not set. */
export function bold(text: string, stream: OutputStream): string {
  return isTerminal(stream) && setting('NO_COLOR') === undefined ? styleText('bold', text) : text;
}

/** Prints something that a user should know but that is not part of the result. */
export function warn(terminal: Terminal, message: string): void {
  terminal.stderr.write(`warning: ${message}\n`);
}

/**
 * Warns that a log cannot be read to its end.
 * @param consequence says what happens to the events before that
 */
export function warnOfDamage(terminal: Terminal, source: string, damage: RecordingDamage, consequence: string): void {
  const { offset, fault, isTruncation } = damage;
  warn(terminal, `${source} ${isTruncation ? 'ends early' : 'is damaged'}, at byte ${formatCount(offset)}: ${fault}; ${consequence}`);
}

/** Warns that records of a log, which a newer cistern wrote, were left out. */
export function warnOfSkipped(terminal: Terminal, source: string, skippedRecordCount: number): void {
  if (skippedRecordCount === 0) return;
  warn(terminal, `${source} has ${formatCount(skippedRecordCount)} records of a kind that only a newer cistern knows; they are left out`);
}

/** Prints a side effect of a command. */
export function note(terminal: Terminal, message: string): void {
  terminal.stderr.write(`note: ${message}\n`);
}

/** Prints advice about the error or warning just printed. */
export function hint(terminal: Terminal, message: string): void {
  terminal.stderr.write(`hint: ${message}\n`);
}

/** Prints a message about a written file: see {@link streamBeside}. */
export async function tellOfFile(terminal: Terminal, path: string, text: string): Promise<void> {
  (await streamBeside(terminal, path)).write(text);
}

/**
 * The stream for the text of a command that also writes a file: standard output, unless that may be the file itself, as
 * with `/dev/stdout`.
 * @param path the file, once it is written; `undefined` if there is none
 */
export async function streamBeside(terminal: Terminal, path: string | undefined): Promise<OutputStream> {
  return path === undefined || (await stat(path)).isFile() ? terminal.stdout : terminal.stderr;
}
