import { assertOneOf } from '../basics/validation.js';
import { askToCollect, awaitCollections, onCollectionRequest, patienceMilliseconds } from '../driver/workers/collection-requests.js';
import { freeUnreachableBuffers, mayBeWithWorkers } from './free-unreachable-buffers.js';

/**
 * The kind of a garbage collection: `minor` collects recent objects, in a fraction of a
 * millisecond; `major` collects everything, in a few milliseconds or more.
 */
export type CollectionKind = 'minor' | 'major';

type Collect = (options?: { readonly type: 'minor' }) => void;

const collectionKinds: readonly CollectionKind[] = ['minor', 'major'];
const mostWorkers = 1000;
let collect: Collect | undefined;
let isListening = false;

/**
 * Collects garbage and, before it returns, frees the memory of every collected buffer, in the order
 * of the buffer's stream and through its resource. Buffers do this themselves before they throw an
 * out-of-memory error; call it if other code needs memory. In a runtime that does not allow
 * starting a collection (frozen flags of V8, another engine), it only frees buffers that are
 * already collected.
 *
 * If other workers have attached buffers of this one, a major collection also asks them to collect,
 * at their next turn of the event loop, and waits up to 20 ms for that. Each worker is asked at most
 * ten times a second.
 *
 * If a resource refuses a free, a process warning (`CISTERN_UNREACHABLE_BUFFER`) reports it, and
 * the rest is freed.
 * @returns the freed bytes
 * @throws ArgumentRangeError for any other kind.
 * @example
 * ```ts
 * if (device.memoryInfo().freeBytes < 1 * GiB) reclaimUnreachableBuffers('major');
 * ```
 */
export function reclaimUnreachableBuffers(kind: CollectionKind): number {
  assertOneOf(kind, collectionKinds, 'kind');
  // The others collect at the same time.
  const isAnyAsked = kind === 'major' && mayBeWithWorkers() && askToCollect();
  collectGarbage(kind);
  const freedBytes = freeUnreachableBuffers();
  if (!isAnyAsked) return freedBytes;
  // A worker that waits has already returned memory that others may wait for.
  awaitCollections(patienceMilliseconds);
  return freedBytes + freeUnreachableBuffers();
}

/** From now on, collects garbage whenever a worker whose memory this one has attached is short of memory. */
export function collectForOthers(): void {
  if (isListening) return;
  onCollectionRequest(() => {
    collectGarbage('major');
    freeUnreachableBuffers();
  });
  isListening = true;
}

function collectGarbage(kind: CollectionKind): void {
  collect ??= findCollect();
  // Given any options, V8 runs a minor collection.
  if (kind === 'minor') collect({ type: 'minor' });
  else collect();
}

function findCollect(): Collect {
  const exposed: unknown = Reflect.get(globalThis, 'gc');
  if (typeof exposed === 'function') return exposed as Collect;
  const { setFlagsFromString } = process.getBuiltinModule('node:v8');
  const { runInNewContext } = process.getBuiltinModule('node:vm');
  // A context that is created while the flag is set has its own function; this context's global
  // object is unchanged. All workers share the flag, and one that has its function may unset it
  // before another one's context exists. Only a worker that found it unsets it, and each does so
  // once, so that nobody tries more often than there are workers.
  for (let tries = 0; tries < mostWorkers; tries++) {
    setFlagsFromString('--expose-gc');
    const found: unknown = runInNewContext('globalThis.gc');
    if (typeof found !== 'function') continue;
    setFlagsFromString('--no-expose-gc');
    return found as Collect;
  }
  return () => {};
}
