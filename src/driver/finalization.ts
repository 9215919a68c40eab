/**
 * A registry that gives up what belonged to an object once that is collected. What `finalize` throws would end the process, as nobody could
 * catch it; it becomes a process warning with `code`.
 */
export function finalizationRegistry<T>(what: string, code: string, finalize: (held: T) => void): FinalizationRegistry<T> {
  return new FinalizationRegistry<T>((held) => {
    try {
      finalize(held);
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      process.emitWarning(`an unreachable ${what} could not be given back: ${reason}`, { code });
    }
  });
}
