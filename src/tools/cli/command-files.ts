/**
 * The files that a command reads and writes. Arguments and options declare whether they name a file,
 * as do the options of the resources in a specification. One check before a command begins covers
 * all of them, because an output that is also an input would be lost, under whichever name.
 */
import { type BigIntStats, fstatSync, realpathSync, statSync } from 'node:fs';
import { stat } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import { Argument, type Command, Option } from 'commander';
import { invalidValue } from '../../basics/errors.js';
import { setting } from '../../settings.js';
import { resourceKind } from '../../specification/kinds-by-name.js';
import { parseSpecification } from '../../specification/parse-specification.js';
import type { Specification } from '../../specification/specification.js';
import { assertWritable } from '../files/write-whole.js';
import { detectLog } from '../formats/log-source.js';

/**
 * What a command does with a file: reads it, appends to it, or overwrites it; `recorded`: a program that it runs
 * overwrites it, once it uses a device.
 */
export type FileUse = 'read' | 'appended' | 'overwritten' | 'recorded';

/** A file that a command uses. */
interface UsedFile {
  readonly use: FileUse;
  /** The path as it was given, or a descriptor. */
  readonly file: string | number;
  /** The argument or option that names it, for messages. */
  readonly origin: string;
  /** Whether the command itself uses it, rather than a resource of a stack. */
  readonly isResult: boolean;
}

/** The values of a command's options by name. */
type OptionValues = Readonly<Record<string, unknown>>;

/** The argument that stands for standard input. */
export const dash = '-';

/** An argument that names a file, or several. */
export class FileArgument extends Argument {
  readonly use: FileUse;

  constructor(name: string, description: string, use: FileUse) {
    super(name, description);
    this.use = use;
  }
}

/** An option that names a file. */
export class FileOption extends Option {
  readonly use: FileUse;
  /** The paths that a value stands for, given all options of the command. */
  readonly pathsOf: (value: string, options: OptionValues) => readonly string[];

  constructor(flags: string, description: string, use: FileUse, pathsOf: FileOption['pathsOf'] = (value) => [value]) {
    super(flags, description);
    this.use = use;
    this.pathsOf = pathsOf;
  }
}

/** An option whose values are specifications of stacks. */
export class SpecificationOption extends Option {}

/** `--force`, for every command that writes a file. */
export function forceOption(): Option {
  return new Option('-f, --force', 'replace a file even if it is a log');
}

/**
 * Checks the files of a command that is about to begin. Returns the files that it will replace.
 * @throws ArgumentRangeError if it would write a file that it also reads, write one file twice, write `-`, or
 * replace a log without `--force`; a system error of Node if an input is missing or an output cannot
 * be written.
 */
export async function checkFiles(command: Command): Promise<readonly string[]> {
  const files = filesOf(command);
  const writes = files.filter(({ use }) => use !== 'read');
  // A stack's resources report what they cannot read themselves.
  for (const { use, file, isResult } of files) if (use === 'read' && isResult && typeof file === 'string') await stat(file);
  // Node reads nothing from a folder, without an error.
  if (files.some(({ use, file }) => use === 'read' && file === 0) && statOf(0)?.isDirectory())
    throw invalidValue('standard input is a folder');
  // Checks every path before it opens any output.
  for (const write of writes) assertUsedOnce(write, files);
  assertNotStandardOutput(files);
  const replaced: string[] = [];
  for (const { use, file, origin } of writes.filter(({ isResult }) => isResult)) {
    if (file === dash)
      throw invalidValue(`${origin} must be a file, and - is standard input; /dev/stdout is standard output, ./- a file of that name`);
    const before = await assertWritable(String(file));
    if (before?.isBlockDevice()) throw invalidValue(`${file} is a disk`);
    if (!before?.isFile() || before.size === 0) continue;
    const format = command.opts()['force'] === true ? undefined : await detectLog(String(file));
    if (format !== undefined) {
      throw invalidValue(`${file} already exists and is a log (${format}), perhaps the only one of its run; use --force to replace it`);
    }
    if (use !== 'recorded') replaced.push(String(file));
  }
  return replaced;
}

/** Every file that the arguments and options of a command name, and the one that the environment names. */
function filesOf(command: Command): UsedFile[] {
  const options: OptionValues = command.opts();
  const files: UsedFile[] = [];
  for (const [i, argument] of command.registeredArguments.entries()) {
    if (!(argument instanceof FileArgument)) continue;
    for (const path of [command.processedArgs[i] as string | readonly string[]].flat()) {
      const file = argument.use === 'read' && path === dash ? 0 : path;
      files.push({ use: argument.use, file, origin: `<${argument.name()}>`, isResult: true });
    }
  }
  for (const option of command.options) {
    const value = options[option.attributeName()];
    if (option instanceof FileOption && typeof value === 'string') {
      for (const file of option.pathsOf(value, options)) {
        files.push({ use: option.use, file, origin: String(option.long), isResult: true });
      }
    } else if (option instanceof SpecificationOption && value !== undefined) {
      for (const text of value as readonly string[]) files.push(...filesOfStack(parseSpecification(text)));
    }
  }
  const recording = setting('CISTERN_LOG_FILE');
  if (recording !== undefined && files.length > 0) {
    const file = recording.replaceAll('%p', String(process.pid));
    files.push({ use: 'overwritten', file, origin: 'CISTERN_LOG_FILE', isResult: false });
  }
  return files;
}

/** The files of a stack. Its layers may share a file, and check that themselves. */
function filesOfStack(specification: Specification): UsedFile[] {
  const files = new Map<string, UsedFile>();
  const visit = ({ kind, upstream, options = {} }: Specification) => {
    if (upstream !== undefined) visit(upstream);
    for (const [name, value] of Object.entries(options)) {
      const use = resourceKind(kind)?.options[name]?.file;
      if (use !== undefined) files.set(`${use} ${value}`, { use, file: String(value), origin: `${name} of ${kind}`, isResult: false });
      else if (typeof value === 'object' && 'kind' in value) visit(value);
    }
  };
  visit(specification);
  return [...files.values()];
}

/** @throws ArgumentRangeError if a file that is written is used a second time. */
function assertUsedOnce(write: UsedFile, files: readonly UsedFile[]): void {
  const identity = identityOf(write.file);
  for (const other of files) {
    const isHarmless = other === write || (write.use === 'appended' && other.use === 'appended');
    if (identity === undefined || isHarmless || identityOf(other.file) !== identity) continue;
    const name = other.file === 0 ? 'standard input' : other.file;
    const alias = name === write.file ? '' : `, the same file as ${name}`;
    const conflict = other.use === 'read' ? `read (${other.origin})` : `written by ${other.origin}`;
    throw invalidValue(`${write.origin} would overwrite ${write.file}${alias}, which is also ${conflict}; name another file`);
  }
}

/** A shell can append a command's output to its own input, which would then no longer be a log. */
function assertNotStandardOutput(files: readonly UsedFile[]): void {
  const output = statOf(1);
  // The shell has already emptied it, or it was empty.
  if (output === undefined || !output.isFile() || output.size === 0n) return;
  const identity = identityOf(1);
  const read = files.find(({ use, file }) => use === 'read' && identityOf(file) === identity);
  if (read !== undefined)
    throw invalidValue(`standard output is ${read.file === 0 ? 'standard input' : read.file}, which is read (${read.origin})`);
}

/**
 * An identity that all names of a file share, even links and names in another case; `undefined` for
 * a device or a pipe, which can be written without a loss.
 */
function identityOf(file: string | number): string | undefined {
  const stats = statOf(file);
  if (stats !== undefined) return stats.isFile() ? `${stats.dev}:${stats.ino}` : undefined;
  if (typeof file === 'number') return undefined;
  const path = resolve(file);
  const name = ignoresCase() ? basename(path).toLowerCase() : basename(path);
  try {
    return join(realpathSync(dirname(path)), name);
  } catch {
    return path;
  }
}

function ignoresCase(): boolean {
  return process.platform === 'win32' || process.platform === 'darwin';
}

function statOf(file: string | number): BigIntStats | undefined {
  try {
    return typeof file === 'number' ? fstatSync(file, { bigint: true }) : statSync(file, { bigint: true });
  } catch {
    // A missing file cannot be lost, and an unreadable one is reported when it is read.
    return undefined;
  }
}
