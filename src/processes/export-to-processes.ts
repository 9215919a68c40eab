import { setTimeout as sleep } from 'node:timers/promises';
import { formatPointer, UnsupportedError } from '../basics/errors.js';
import type { BufferMemory } from '../buffers/buffer-memory.js';
import { originOf } from '../buffers/origins/allocated.js';
import type { MemoryResource } from '../memory-resource.js';
import { ProcessExport } from './process-export.js';
import { noticeEndedImporters } from './process-memory.js';

/** Implements `export` of a buffer. */
export function exportToProcesses(memory: BufferMemory): Uint8Array {
  const operation = 'export a buffer';
  memory.assertUsable(operation);
  memory.assertNotShared(operation);
  const leaf = leafOf(memory.resource);
  const name = leaf.constructor.name;
  const { notToProcesses } = originOf(leaf);
  if (notToProcesses !== undefined) throw new UnsupportedError(`cannot ${operation}: ${notToProcesses}`);
  if (leaf.memoryKind !== 'device') {
    throw new UnsupportedError(
      `cannot ${operation}: the ${leaf.memoryKind} memory of a ${name} cannot be shared with other processes; recast it to a CudaMemoryResource`,
    );
  }
  const handle = handleOf(memory);
  if (handle !== undefined) return handle;
  throw new UnsupportedError(
    `cannot ${operation}: the driver cannot share ${formatPointer(memory.pointer)}, memory of a ${name}, with other processes; recast it to a CudaMemoryResource, or to a CudaAsyncMemoryResource with exportable: true`,
  );
}

/**
 * Lets other processes open the memory, ordered after the work queued on its stream so far.
 * `undefined` if the driver cannot share it.
 */
function handleOf(memory: BufferMemory): Buffer | undefined {
  const { pointer, bytes, byteLength, alignment, stream } = memory;
  const before = memory.outsideUse(ProcessExport);
  if (before !== undefined) {
    before.refresh(byteLength, stream);
    return before.handle;
  }
  const begun = ProcessExport.begin({ pointer, bytes, byteLength, alignment }, stream);
  if (begun !== undefined) memory.addOutsideUse(begun);
  return begun?.handle;
}

const longestDelay = 16;

/** Resolves once no other process uses exported memory. Keeps this process alive. */
export async function untilUnused(processExport: ProcessExport): Promise<void> {
  noticeEndedImporters();
  for (let delay = 1; processExport.isUsed; delay = Math.min(2 * delay, longestDelay)) {
    await sleep(delay);
    noticeEndedImporters();
  }
}

/** The resource at the bottom of a stack. */
function leafOf(resource: MemoryResource): MemoryResource {
  let leaf = resource;
  while ('upstream' in leaf && typeof leaf.upstream === 'object' && leaf.upstream !== null) leaf = leaf.upstream as MemoryResource;
  return leaf;
}
