import { setTimeout as sleep } from 'node:timers/promises';
import { formatPointer, UnsupportedError } from '../basics/errors.js';
import { type BufferMemory, type ExportableBuffer, exportableMemory, memoryOf } from '../buffers/buffer-memory.js';
import { DeviceBuffer } from '../buffers/device-buffer.js';
import { originOf } from '../buffers/origin.js';
import type { MemoryResource } from '../memory-resource.js';
import { ProcessExport } from './process-export.js';
import { noticeEndedImporters } from './process-memory.js';

/**
 * Lets other processes of the same user use the buffer: returns a handle of 56 bytes, which you can
 * send through any channel, and pass to {@link openBuffer} there. The handle contains no memory,
 * and the buffer is unchanged. A second call returns the same handle.
 *
 * The handle can be opened as long as the buffer has its memory: until the buffer is disposed,
 * collected, moved or handed over, or this process ends. So keep the buffer until the other process
 * has answered. Memory that other processes still use then stays allocated until the last of them has
 * disposed it, or has ended, and is then freed in stream order from this process's event loop. Until
 * then, resources that own it cannot be disposed or rewound (`ERR_CISTERN_INVALID_STATE`), and the
 * buffer can be neither released nor handed over to another worker.
 *
 * You can export device memory of a {@link CudaMemoryResource}, and of a {@link
 * CudaAsyncMemoryResource} that is `exportable`, also through pools and other adaptors on top of
 * them. CUDA shares whole driver allocations, so the other process could access everything in the
 * same allocation. The software device shares whole pages.
 *
 * Stream order: the streams of other processes wait for everything queued on the buffer's stream at
 * the latest call. The call does not wait for a stream. On the software device, the first export of
 * memory copies its contents, which takes about half a second for 1 GiB, while copies and fills
 * pause. Writes of other processes are ordered before work that is queued here after {@link
 * importersDone}. RMM has no counterpart, except that its pools can be created with a
 * handle type.
 * @throws UnsupportedError for any other memory; the message names the resource, and what to use
 * instead.
 * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the buffer or its stream is disposed; CisternError
 * (`ERR_CISTERN_INVALID_STATE`) if it is shared with workers, or 65,536 buffers are exported;
 * DriverError if the driver refuses. The buffer is then unchanged.
 * @example
 * ```ts
 * using stream = new Stream();
 * using buffer = new DeviceBuffer(Float32Array.of(1, 2, 3), { resource: new CudaMemoryResource(), stream });
 * const handle = exportBuffer(buffer);
 * process.send?.(handle);
 * ```
 */
export function exportBuffer(buffer: ExportableBuffer): Uint8Array {
  const operation = 'export a buffer';
  const memory = exportableMemory(buffer);
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

/**
 * Resolves once no other process uses the memory of an exported buffer: each has disposed its buffer
 * and run its queued work, or has ended. Work that is queued here afterwards, on any stream, is
 * ordered after theirs. Resolves immediately if no process has opened the buffer yet. Processes may
 * open it again later. If the buffer is disposed or moved meanwhile, the call still waits for the
 * users of the memory that it had.
 * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if the buffer is disposed.
 * @example
 * ```ts
 * using stream = new Stream();
 * using buffer = new DeviceBuffer(4096, { resource: new CudaMemoryResource(), stream });
 * const handle = exportBuffer(buffer); // send it, and wait until the other process has opened it
 * await importersDone(buffer);
 * console.log(await buffer.toHost()); // with what the other process has written
 * ```
 */
export async function importersDone(buffer: DeviceBuffer): Promise<void> {
  DeviceBuffer.assert(buffer, 'buffer');
  const memory = buffer[memoryOf];
  const processExport = memory.outsideUse(ProcessExport);
  memory.assertLive('wait for other processes');
  if (processExport !== undefined) await untilUnused(processExport);
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
