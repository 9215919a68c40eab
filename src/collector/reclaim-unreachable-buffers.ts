import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { assertOneOf } from '../validation.js';
import { freeUnreachableBuffers } from './unreachable-buffers.js';

/** What V8 collects: `minor` what was made lately, in a fraction of a millisecond; `major` everything, in some milliseconds and more. */
export type CollectionKind = 'minor' | 'major';

type Collect = (options?: { readonly type: 'minor' }) => void;

const collectionKinds: readonly CollectionKind[] = ['minor', 'major'];
let collect: Collect | undefined;

/**
 * Collects garbage and frees the memory of every buffer that died, before it returns: in the order of each buffer's stream, through its
 * resource. Buffers do this themselves before they give up with an out-of-memory error; call it where memory is needed by something else.
 *
 * A resource that refuses to free is reported as a process warning (`CISTERN_UNREACHABLE_BUFFER`), and the rest is freed.
 * @returns how many bytes were freed
 * @throws ArgumentRangeError for another word.
 * @example
 * ```ts
 * if (device.memoryInfo().freeBytes < 1 * GiB) reclaimUnreachableBuffers('major');
 * ```
 */
export function reclaimUnreachableBuffers(kind: CollectionKind): number {
  assertOneOf(kind, collectionKinds, 'kind');
  collect ??= findCollect();
  // V8 takes whatever options it is given for a wish for a minor collection.
  if (kind === 'minor') collect({ type: 'minor' });
  else collect();
  return freeUnreachableBuffers();
}

function findCollect(): Collect {
  const exposed: unknown = Reflect.get(globalThis, 'gc');
  if (typeof exposed === 'function') return exposed as Collect;
  // A context made while the flag is set has a function of its own; this one's global object stays as it was.
  setFlagsFromString('--expose-gc');
  const found = runInNewContext('gc') as Collect;
  setFlagsFromString('--no-expose-gc');
  return found;
}
