import { CommanderError } from 'commander';
import { ArgumentRangeError, ArgumentTypeError, InvalidLogError, SpecificationError } from '../basics/errors.js';

/** The exit statuses of all commands. */
export const ExitCode = {
  success: 0,
  /** The command was understood but did not succeed. */
  failure: 1,
  /** The arguments, or the file that they name, are invalid. */
  usage: 2,
} as const;

/** The exit status for an error. */
export function exitCodeOf(error: unknown): number {
  if (error instanceof CommanderError) return error.exitCode === 0 ? ExitCode.success : ExitCode.usage;
  const isWrongInput =
    error instanceof SpecificationError ||
    error instanceof InvalidLogError ||
    error instanceof ArgumentRangeError ||
    error instanceof ArgumentTypeError ||
    isFileError(error);
  return isWrongInput ? ExitCode.usage : ExitCode.failure;
}

/** Whether the file system refused a path that the user named. */
function isFileError(error: unknown): boolean {
  return error instanceof Error && 'syscall' in error;
}
