/** What holds bytes back that belong into a file. */
export interface Flushable {
  /** Writes them. */
  flush(): void;
}

const flushables = new Set<Flushable>();

/** Has it flushed when the process or worker exits by itself, until {@link cancelFlushAtExit}. A failure makes the process fail. */
export function flushAtExit(flushable: Flushable): void {
  if (flushables.size === 0) process.on('exit', flushAll);
  flushables.add(flushable);
}

/** Ends what {@link flushAtExit} began. */
export function cancelFlushAtExit(flushable: Flushable): void {
  flushables.delete(flushable);
  if (flushables.size === 0) process.off('exit', flushAll);
}

/** Flushes all, whatever happens, and throws the first error. */
function flushAll(): void {
  const failures: unknown[] = [];
  for (const flushable of flushables) {
    try {
      flushable.flush();
    } catch (error) {
      failures.push(error);
    }
  }
  if (failures.length > 0) throw failures[0];
}
