/** The exit statuses of all commands. */
export const ExitCode = {
  success: 0,
  /** The command was understood but did not succeed. */
  failure: 1,
  /** The arguments, or the file that they name, are invalid. */
  usage: 2,
} as const;
