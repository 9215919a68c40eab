import { attemptEach, throwFirst } from '../basics/errors.js';

/** Has bytes that must still be written to a file. */
export interface Flushable {
  /** Writes the bytes. */
  flush(): void;
}

const flushables = new Set<Flushable>();

/**
 * Flushes it when the process or worker exits by itself, until {@link cancelFlushAtExit}. A failure
 * makes the process fail.
 */
export function flushAtExit(flushable: Flushable): void {
  if (flushables.size === 0) process.on('exit', flushAll);
  flushables.add(flushable);
}

/** Ends what {@link flushAtExit} began. */
export function cancelFlushAtExit(flushable: Flushable): void {
  flushables.delete(flushable);
  if (flushables.size === 0) process.off('exit', flushAll);
}

/** Flushes after the exit listeners that were added since: they may still record something. */
export function flushLast(): void {
  if (flushables.size === 0) return;
  process.off('exit', flushAll);
  process.on('exit', flushAll);
}

/** Flushes all of them even if some fail, and throws the first error. */
function flushAll(): void {
  throwFirst(attemptEach(flushables, (flushable) => flushable.flush()));
}
