/**
 * Where everything asks the garbage collector that is short of memory:
 *
 *     an allocation failed              tryAgainCollecting     settle ► minor ► major, and again after each that freed something
 *     buffers would hold too much       runCollectionStage     minor ► major, until they hold less: `early-collection.ts`
 *     calls wait for memory             runCollectionStage     once a second: `serving/waiting/collect-while-waiting.ts`
 *
 * `settle` frees what the collector has found already.
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
