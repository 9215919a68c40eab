/**
 * Waits until other processes, or work for them, are done. Nothing announces that, so it is checked
 * after 1 to 64 ms, and whenever memory runs out. A wait does not keep the process alive.
 *
 *     a buffer is disposed ──► an importer uses its memory ──► free it once none does
 *     a buffer of another process is disposed ──► its work runs ──► unmap it once that has run
 */
import { freeAtSweeps } from '../collector/free-unreachable-buffers.js';
import { noticeEndedImporters } from './process-memory.js';

/** A wait. */
export interface Waiting {
  /** Ends the wait if it is over. Must not throw. Returns whether it is. */
  endIfOver(): boolean;
}

const waiting = new Set<Waiting>();
const firstDelay = 1;
const longestDelay = 64;
/** Milliseconds until the next check after a change: at least as long as a check takes. */
let shortestDelay = firstDelay;
/** The next check, and its delay in milliseconds. */
let timer: NodeJS.Timeout | undefined;
let delay = firstDelay;
let isRegistered = false;

/** Ends a wait as soon as it is over. */
export function endLater(wait: Waiting): void {
  waiting.add(wait);
  if (!isRegistered) freeAtSweeps({ mayBeWithWorkers: () => false, free: freeNow });
  isRegistered = true;
  schedule(shortestDelay);
}

/**
 * Called at a sweep. The ended waits have freed their memory themselves, which counts for no one.
 */
function freeNow(): number {
  endWaits();
  return 0;
}

/** Ends all waits that are over. Returns whether any was. */
function endWaits(): boolean {
  if (waiting.size === 0) return false;
  noticeEndedImporters();
  let isAnyOver = false;
  for (const wait of waiting) {
    if (!wait.endIfOver()) continue;
    waiting.delete(wait);
    isAnyOver = true;
  }
  return isAnyOver;
}

/** Keeps the next check if its delay is not longer; otherwise frequent calls would postpone it forever. */
function schedule(milliseconds: number): void {
  if (timer !== undefined && delay <= milliseconds) return;
  clearTimeout(timer);
  delay = milliseconds;
  timer = setTimeout(look, milliseconds).unref();
}

function look(): void {
  timer = undefined;
  const start = performance.now();
  const isAnyOver = endWaits();
  shortestDelay = Math.min(Math.max(firstDelay, performance.now() - start), longestDelay);
  if (waiting.size > 0) schedule(isAnyOver ? shortestDelay : Math.min(Math.max(shortestDelay, 2 * delay), longestDelay));
}
