import { adjustExternalMemory } from '../driver/external-memory.js';
import { MiB } from '../units.js';

/** Net change below which V8 is not told, because telling it costs as much as an allocation. */
const batchBytes = MiB;

let heldBytes = 0;
let reportedBytes = 0;

/**
 * Adds to what buffers hold outside V8's heap, and tells V8 of it once the net change is large enough: what V8 knows is less than 1 MiB off,
 * and exact when nothing is held. V8 collects sooner for it; `process.memoryUsage()` does not show it.
 */
export function accountExternalMemory(deltaBytes: number): void {
  heldBytes += deltaBytes;
  const unreportedBytes = heldBytes - reportedBytes;
  if (unreportedBytes === 0 || (Math.abs(unreportedBytes) < batchBytes && heldBytes > 0)) return;
  if (adjustExternalMemory(unreportedBytes)) reportedBytes += unreportedBytes;
}
