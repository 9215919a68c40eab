import { OutOfMemoryError, type RecoveryStage } from '../basics/errors.js';
import { freeUnreachableBuffers } from '../collector/free-unreachable-buffers.js';
import { reclaimUnreachableBuffers } from '../collector/reclaim-unreachable-buffers.js';
import type { Stream } from '../driver/streams/stream.js';
import type { DevicePointer, MemoryResource } from '../memory-resource.js';

/**
 * Allocates from a resource that has just thrown an error. If it ran out of memory, frees unreachable
 * buffers in stages of rising cost, and tries again after each stage that freed memory. Skips stages that,
 * according to the error, the resource has already tried.
 * @throws OutOfMemoryError, the resource's first one, if no stage helped; any other error
 * unchanged.
 */
export function allocateReclaiming(
  error: unknown,
  resource: MemoryResource,
  bytes: number,
  stream: Stream,
  alignment: number,
): DevicePointer {
  if (!(error instanceof OutOfMemoryError)) throw error;
  for (const { name, run } of stages) {
    if (wasTried(name, error.stages) || run() === 0) continue;
    try {
      return resource.allocate(bytes, stream, alignment);
    } catch (nextError) {
      if (!(nextError instanceof OutOfMemoryError)) throw nextError;
    }
  }
  throw error;
}

const stages: readonly { readonly name: string; run(): number }[] = [
  { name: 'settle', run: freeUnreachableBuffers },
  { name: 'minor-collection', run: () => reclaimUnreachableBuffers('minor') },
  { name: 'major-collection', run: () => reclaimUnreachableBuffers('major') },
];

function wasTried(name: string, tried: readonly RecoveryStage[]): boolean {
  return tried.some(({ stage }) => stage === name);
}
