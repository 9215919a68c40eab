import { reclaimUnreachableBuffers } from '../collector/reclaim-unreachable-buffers.js';
import { freeUnreachableBuffers } from '../collector/unreachable-buffers.js';
import type { Stream } from '../driver/stream.js';
import { OutOfMemoryError, type RecoveryStage } from '../errors.js';
import type { DevicePointer, MemoryResource } from '../memory-resource.js';

/**
 * Memory from a resource; where it has none, frees unreachable buffers, in stages that cost more and more, and tries again after each that
 * gave something. A stage that the resource went through already, as its error says, is left out.
 * @throws OutOfMemoryError the resource's first, where all this did not help.
 */
export function allocateReclaiming(resource: MemoryResource, bytes: number, stream: Stream, alignment: number): DevicePointer {
  try {
    return resource.allocate(bytes, stream, alignment);
  } catch (error) {
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
}

const stages: readonly { readonly name: string; run(): number }[] = [
  { name: 'settle', run: freeUnreachableBuffers },
  { name: 'minor-collection', run: () => reclaimUnreachableBuffers('minor') },
  { name: 'major-collection', run: () => reclaimUnreachableBuffers('major') },
];

function wasTried(name: string, tried: readonly RecoveryStage[]): boolean {
  return tried.some(({ stage }) => stage === name);
}
