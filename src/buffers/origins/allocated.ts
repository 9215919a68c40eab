import type { MemoryResource } from '../../memory-resource.js';
import { shareAttached } from '../../workers/attached-memory.js';
import { giveToWorker } from '../../workers/give-to-workers.js';
import { type Origin, origin, type ResourceWithOrigin } from '../origin.js';

/** Memory that its resource allocated. */
export const allocated: Origin = {
  isCounted: true,
  isShared: false,
  toWorkers: { give: (memory) => giveToWorker(memory, false).message, share: shareAttached },
  notToProcesses: undefined,
};

/** The origin of the memory of a resource. */
export function originOf(resource: MemoryResource): Origin {
  return (resource as Partial<ResourceWithOrigin>)[origin] ?? allocated;
}
