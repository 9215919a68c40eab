// A pipeline of workers: each takes a buffer up, works on it on its own stream, and hands it on.
// Nothing is copied and nobody waits on the host: the order of the streams follows the buffers.
//
//     node examples/worker-pipeline.mjs [buffers]
import { once } from 'node:events';
import process from 'node:process';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import { CudaMemoryResource, DeviceBuffer, formatBytes, KiB, MiB, OutOfMemoryError, PoolMemoryResource, Stream } from 'cistern';
import { attachBuffer, detachBuffer } from 'cistern/workers';

const stages = 4;
const bufferBytes = 256 * KiB;

/** The work on a buffer: on a GPU a kernel. */
const work = (buffer, stage) => buffer.fill(stage);

if (isMainThread) {
  const count = Number(process.argv[2] ?? 200);
  const pool = new PoolMemoryResource(new CudaMemoryResource(), { initialBytes: 4 * MiB, maximumBytes: 4 * MiB });
  const stream = new Stream({ nonBlocking: true });
  const workers = Array.from({ length: stages }, (_, i) => new Worker(new URL(import.meta.url), { workerData: i + 1 }));
  let finished = 0;
  let correct = 0;
  for (const [i, worker] of workers.entries()) {
    worker.on('message', (message) => {
      if (i + 1 < stages) return workers[i + 1].postMessage(message);
      // The last stage returns the buffer.
      const buffer = attachBuffer(message, { stream });
      if (buffer.toHostSync().every((value) => value === stages)) correct++;
      buffer.dispose();
      finished++;
    });
  }

  for (let i = 0; i < count; i++) {
    let buffer;
    while (buffer === undefined) {
      try {
        buffer = new DeviceBuffer(bufferBytes, { resource: pool, stream });
      } catch (error) {
        if (!(error instanceof OutOfMemoryError)) throw error;
        // All memory is in the pipeline. What comes home is free at the next turn of the event loop.
        await new Promise(setImmediate);
      }
    }
    work(buffer, 0);
    workers[0].postMessage(detachBuffer(buffer));
  }
  while (finished < count) await new Promise(setImmediate);
  while (pool.statistics().allocatedBytes > 0) await new Promise(setImmediate);

  console.log(`${count} buffers of ${formatBytes(bufferBytes)} through ${stages} workers, ${correct} of them right`);
  console.log(`memory: ${formatBytes(pool.reservedBytes)}, copied: nothing`);
  for (const worker of workers) {
    worker.postMessage('end');
    await once(worker, 'exit');
  }
  pool.dispose();
} else {
  const stream = new Stream({ nonBlocking: true });
  parentPort.on('message', (message) => {
    if (message === 'end') return parentPort.close();
    const buffer = attachBuffer(message, { stream });
    work(buffer, workerData);
    parentPort.postMessage(detachBuffer(buffer));
  });
}
