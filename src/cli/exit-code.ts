import { CommanderError } from 'commander';
import { ArgumentRangeError, ArgumentTypeError, InvalidLogError, SpecificationError } from '../errors.js';

/** The exit statuses of every command. */
export const ExitCode = {
  success: 0,
  /** The command was understood and did not succeed. */
  failure: 1,
  /** The arguments or the file they name are wrong. */
  usage: 2,
} as const;

/** The status to exit with after an error. */
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

/** Whether the file system refused what the user named. */
function isFileError(error: unknown): boolean {
  return error instanceof Error && 'syscall' in error;
}
