/**
 * A registry that releases what belonged to an object once the object is collected. An error from
 * `finalize` would end the process, since nobody could catch it; it becomes a process warning with
 * `code` instead.
 */
export function finalizationRegistry<T>(what: string, code: string, finalize: (held: T) => void): FinalizationRegistry<T> {
  return new FinalizationRegistry<T>((held) => {
    try {
      finalize(held);
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      process.emitWarning(`an unreachable ${what} could not be released: ${reason}`, { code });
    }
  });
}
