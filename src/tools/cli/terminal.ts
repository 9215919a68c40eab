import { stat } from 'node:fs/promises';
import { formatCount } from '../../basics/units.js';
import type { RecordingDamage } from '../formats/recorded-run.js';
import { Output, type RawStream, visibleInLine } from './output.js';

/** The streams that a command writes to. Standard output gets the result and nothing else. */
export interface Terminal {
  readonly stdout: Output;
  readonly stderr: Output;
}

/** Two streams as Node has them, such as those of `process`. */
export interface RawStreams {
  readonly stdout: RawStream;
  readonly stderr: RawStream;
}

export function terminalOf({ stdout, stderr }: RawStreams): Terminal {
  return { stdout: new Output(stdout), stderr: new Output(stderr) };
}

/** Prints something that a user should know but that is not part of the result. */
export function warn(terminal: Terminal, message: string): void {
  terminal.stderr.write(`warning: ${visibleInLine(message)}\n`);
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
  terminal.stderr.write(`note: ${visibleInLine(message)}\n`);
}

/** Prints advice about the error or warning just printed. */
export function hint(terminal: Terminal, message: string): void {
  terminal.stderr.write(`hint: ${visibleInLine(message)}\n`);
}

/** Prints a message about a written file, and more lines: see {@link streamBeside}. */
export async function tellOfFile(terminal: Terminal, path: string, message: string, more: readonly string[] = []): Promise<void> {
  const lines = [`${path}: ${message}`, ...more].map((line) => `${visibleInLine(line)}\n`);
  (await streamBeside(terminal, path)).write(lines.join(''));
}

/**
 * The stream for the text of a command that also writes a file: standard output, unless that may be the file itself, as
 * with `/dev/stdout`.
 * @param path the file, once it is written; `undefined` if there is none
 */
export async function streamBeside(terminal: Terminal, path: string | undefined): Promise<Output> {
  return path === undefined || (await stat(path)).isFile() ? terminal.stdout : terminal.stderr;
}
