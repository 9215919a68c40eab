// Takes a job's buffer, and answers with a buffer of twice its size that has its contents twice. A
// program for a GPU launches a kernel here; the order of the streams follows the buffers either way.
import { parentPort } from 'node:worker_threads';
import { DeviceBuffer, OutOfMemoryError } from 'cistern';
import { attachBuffer, detachBuffer } from 'cistern/workers';
import { disposeMemory, stack, stream } from './memory.js';

parentPort.on('message', ({ id, message }) => {
  if (message === undefined) {
    disposeMemory();
    return parentPort.close();
  }
  const input = attachBuffer(message, { stream });
  try {
    const output = new DeviceBuffer(2 * input.byteLength, { resource: stack.resource, stream });
    output.copyFrom(input);
    output.copyFrom(input, { byteOffset: input.byteLength });
    input.dispose();
    parentPort.postMessage({ id, message: detachBuffer(output) });
  } catch (error) {
    if (!(error instanceof OutOfMemoryError)) throw error;
    // Other jobs have the memory: this one comes again.
    parentPort.postMessage({ id, message: detachBuffer(input), isRefused: true });
  }
});
