import { assertOneOf } from '../validation.js';
import { freeUnreachableBuffers } from './free-unreachable-buffers.js';

/**
 * What V8 collects: `minor` collects recent objects, in a fraction of a millisecond; `major`
 * everything, in some milliseconds or more.
 */
export type CollectionKind = 'minor' | 'major';

type Collect = (options?: { readonly type: 'minor' }) => void;

const collectionKinds: readonly CollectionKind[] = ['minor', 'major'];
const mostWorkers = 1000;
let collect: Collect | undefined;

/**
 * Collects garbage and, before it returns, frees the memory of every collected buffer, in the order
 * of the buffer's stream and through its resource. Buffers do this themselves before they throw an
 * out-of-memory error; call it if something else needs memory. A runtime that lets nobody collect
 * garbage (flags of V8 that are frozen, another engine) frees what it has collected itself.
 *
 * If a resource refuses a free, a process warning (`CISTERN_UNREACHABLE_BUFFER`) reports it, and
 * the rest is freed.
 * @returns the bytes that were freed
 * @throws ArgumentRangeError for any other kind.
 * @example
 * ```ts
 * if (device.memoryInfo().freeBytes < 1 * GiB) reclaimUnreachableBuffers('major');
 * ```
 */
export function reclaimUnreachableBuffers(kind: CollectionKind): number {
  assertOneOf(kind, collectionKinds, 'kind');
  collect ??= findCollect();
  // Given any options, V8 runs a minor collection.
  if (kind === 'minor') collect({ type: 'minor' });
  else collect();
  return freeUnreachableBuffers();
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
