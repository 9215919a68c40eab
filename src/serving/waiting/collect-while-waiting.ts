/**
 * Collects garbage while calls wait for memory, since buffers or grants that are garbage may have it: once a second, unless somebody of each line was
 * served meanwhile. One timer serves all lines, and keeps no process alive unless one of them wants that.
 */
import { runCollectionStage } from '../../collector/when-memory-is-short.js';

/** Calls that wait for memory. */
export interface WaitingCalls {
  /** Whether the process should not end while they wait. */
  keepProcessAlive(): boolean;
  /** A number that changes when one of them was served. */
  served(): number;
  /** A second has passed. @param isStalled whether nobody was served in it; garbage was then collected */
  onSecond(isStalled: boolean): void;
}

const millisecondsBetween = 1000;

/** What was served at the last look, or when the first call began to wait. */
interface LastLook {
  readonly served: number;
  readonly at: number;
}

const waiting = new Map<WaitingCalls, LastLook>();
let timer: NodeJS.Timeout | undefined;

/** Collects garbage now and then, until {@link stopCollectingFor}: buffers or grants that are garbage may have the memory that calls wait for. */
export function collectWhileWaiting(calls: WaitingCalls): void {
  if (!waiting.has(calls)) look(calls);
  timer ??= setInterval(lookAtAll, millisecondsBetween);
  keepAliveIfAsked();
}

export function stopCollectingFor(calls: WaitingCalls): void {
  waiting.delete(calls);
  keepAliveIfAsked();
  if (waiting.size > 0) return;
  clearInterval(timer);
  timer = undefined;
}

/** To be called when the answer of some `keepProcessAlive` has changed. */
export function keepAliveIfAsked(): void {
  if ([...waiting.keys()].some((calls) => calls.keepProcessAlive())) timer?.ref();
  else timer?.unref();
}

function look(calls: WaitingCalls): void {
  waiting.set(calls, { served: calls.served(), at: performance.now() });
}

/** Those that began to wait since the last time have not waited for a second. */
function lookAtAll(): void {
  const due = performance.now() - 0.9 * millisecondsBetween;
  const looked = [...waiting]
    .filter(([, { at }]) => at <= due)
    .map(([calls, { served }]) => ({ calls, isStalled: calls.served() === served }));
  if (looked.some(({ isStalled }) => isStalled)) runCollectionStage('major-collection');
  for (const { calls, isStalled } of looked) {
    if (!waiting.has(calls)) continue;
    calls.onSecond(isStalled);
    if (waiting.has(calls)) look(calls);
  }
}
