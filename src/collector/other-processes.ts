/**
 * What waits until other processes, or work for them, are done: nobody announces that, so it is looked
 * at again after 1 to 64 ms, and whenever memory runs out. The wait does not keep the process alive.
 *
 *     a buffer is disposed ──► an importer uses its memory ──► free it once none does
 *     a buffer of another process is disposed ──► its work runs ──► unmap it once that has run
 */

/** Waits for something. */
export interface Waiting {
  /** Ends the wait if it is over. Must not throw. Returns whether it is. */
  endIfOver(): boolean;
}

const waiting = new Set<Waiting>();
/** Milliseconds until the next look, and at most. */
const firstDelay = 1;
const longestDelay = 64;
let delay = firstDelay;
let timer: NodeJS.Timeout | undefined;

/** Ends a wait as soon as it is over. */
export function endLater(wait: Waiting): void {
  waiting.add(wait);
  clearTimeout(timer);
  delay = firstDelay;
  schedule();
}

/** Ends all waits that are over. */
export function endWaits(): void {
  for (const wait of waiting) {
    if (!wait.endIfOver()) continue;
    waiting.delete(wait);
    delay = firstDelay;
  }
}

function schedule(): void {
  timer = setTimeout(() => {
    endWaits();
    if (waiting.size > 0) schedule();
  }, delay).unref();
  delay = Math.min(2 * delay, longestDelay);
}
