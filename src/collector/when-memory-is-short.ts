/**
 * Where everything asks the garbage collector that is short of memory:
 *
 *     an allocation failed              tryAgainCollecting     settle ► minor ► major, and again after each that freed something
 *     buffers would hold too much       collectUntil           minor ► major, until they hold less
 *     calls wait for memory             collectWhileWaiting    major, each second in which nobody of some line was served
 *
 * `settle` frees what the collector has found already. One timer serves all who wait, and keeps no process alive unless one of them wants that.
 */
import { OutOfMemoryError, type RecoveryStage } from '../basics/errors.js';
import { freeUnreachableBuffers } from './free-unreachable-buffers.js';
import { reclaimUnreachableBuffers } from './reclaim-unreachable-buffers.js';

/** Of rising cost. */
const stages = ['settle', 'minor-collection', 'major-collection'] as const;

export type CollectionStage = (typeof stages)[number];

/** Frees what is unreachable, after a collection unless it only settles. Returns the freed bytes. */
export function runCollectionStage(stage: CollectionStage): number {
  if (stage === 'settle') return freeUnreachableBuffers();
  return reclaimUnreachableBuffers(stage === 'minor-collection' ? 'minor' : 'major');
}

/**
 * Repeats what has just thrown an error, if it ran out of memory, after each stage that freed some. Skips stages that, according to the error, were tried.
 * @throws OutOfMemoryError, the first one, if no stage helped; any other error unchanged.
 */
export function tryAgainCollecting<T>(error: unknown, attempt: () => T): T {
  if (!(error instanceof OutOfMemoryError)) throw error;
  for (const stage of stages) {
    if (wasTried(stage, error.stages) || runCollectionStage(stage) === 0) continue;
    try {
      return attempt();
    } catch (nextError) {
      if (!(nextError instanceof OutOfMemoryError)) throw nextError;
    }
  }
  throw error;
}

function wasTried(stage: CollectionStage, tried: readonly RecoveryStage[]): boolean {
  return tried.some((each) => each.stage === stage);
}

/** Collects garbage: recent objects first, and then, unless that was enough, all of it. @param run runs one stage */
export function collectUntil(
  isEnough: () => boolean,
  collections: readonly CollectionStage[] = ['minor-collection', 'major-collection'],
  run: (stage: CollectionStage) => void = runCollectionStage,
): void {
  for (const stage of collections) {
    run(stage);
    if (isEnough()) return;
  }
}

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
/** With what was served at the last look. */
const waiting = new Map<WaitingCalls, number>();
let timer: NodeJS.Timeout | undefined;

/** Collects garbage now and then, until {@link stopCollectingFor}: buffers or grants that are garbage may have the memory that calls wait for. */
export function collectWhileWaiting(calls: WaitingCalls): void {
  if (!waiting.has(calls)) waiting.set(calls, calls.served());
  timer ??= setInterval(lookAtAll, millisecondsBetween);
  keepAliveIfAsked();
}

export function stopCollectingFor(calls: WaitingCalls): void {
  if (!waiting.delete(calls)) return;
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

function lookAtAll(): void {
  const looked = [...waiting].map(([calls, before]) => ({ calls, isStalled: calls.served() === before }));
  if (looked.some(({ isStalled }) => isStalled)) runCollectionStage('major-collection');
  for (const { calls, isStalled } of looked) {
    if (!waiting.has(calls)) continue;
    calls.onSecond(isStalled);
    if (waiting.has(calls)) waiting.set(calls, calls.served());
  }
}
