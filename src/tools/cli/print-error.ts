import { ArgumentRangeError, ArgumentTypeError, CisternError, InvalidLogError, SpecificationError } from '../../basics/errors.js';
import { adviceFor } from './error-advice.js';
import { ExitCode } from './exit-code.js';
import { visibleInLine } from './output.js';
import { hint, type Terminal } from './terminal.js';

/** Prints why a command failed, and what to do about it. Returns the exit status. */
export function printError(error: unknown, terminal: Terminal): number {
  terminal.stderr.write(`error: ${describe(error)}\n`);
  const advice = adviceFor(error);
  if (advice !== undefined) hint(terminal, advice);
  return exitCodeOf(error);
}

/** The exit status for an error. */
export function exitCodeOf(error: unknown): number {
  const isWrongInput =
    error instanceof SpecificationError ||
    error instanceof InvalidLogError ||
    error instanceof ArgumentRangeError ||
    error instanceof ArgumentTypeError ||
    isFileError(error);
  return isWrongInput ? ExitCode.usage : ExitCode.failure;
}

/** Whether the file system refused a path that the user named. */
function isFileError(error: unknown): error is NodeJS.ErrnoException {
  return error instanceof Error && 'syscall' in error;
}

function describe(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  if (isFileError(error)) return describeFileError(error);
  const isExpected = error instanceof CisternError || exitCodeOf(error) === ExitCode.usage;
  if (error instanceof InvalidLogError) return visibleInLine(error.message);
  return isExpected ? error.message : (error.stack ?? error.message);
}

/** Describes a file system error for the path that the user named. */
function describeFileError({ code, syscall, path: named, message }: NodeJS.ErrnoException): string {
  const path = named === undefined ? undefined : visibleInLine(named);
  switch (path === undefined ? undefined : code) {
    case 'ENOENT':
      // `access` is only called for the folder of an output, which may be missing.
      return syscall === 'access' ? `the folder ${path} does not exist; create it first` : `${path} does not exist`;
    case 'ENOTDIR':
      return `${path} does not exist: part of the path is a file, not a folder`;
    case 'EISDIR':
      return `${path} is a folder`;
    case 'ELOOP':
      return `${path} cannot be followed: symbolic links there lead to one another, or are too many`;
    case 'EACCES':
    case 'EPERM':
      return `permission denied: ${path}`;
    case 'ENOSPC':
      return `no space left to write ${path}`;
    default:
      return message;
  }
}
