// A library takes the resource and the stream from its caller, and has no pool of its own. cistern is a
// peer dependency, so that the program and its libraries use one copy.
import { currentResource, DeviceBuffer } from 'cistern';

/**
 * The running total of some numbers, on the device. The caller owns the buffer.
 * @param {Float64Array} values
 * @param {{ stream: import('cistern').Stream, resource?: import('cistern').MemoryResource }} options
 */
export function runningTotal(values, { stream, resource = currentResource() }) {
  const scratch = new DeviceBuffer(values, { resource, stream, label: 'running total, scratch' });
  try {
    const totals = Float64Array.from(values);
    for (let i = 1; i < totals.length; i++) totals[i] += totals[i - 1];
    return new DeviceBuffer(totals, { resource, stream, label: 'running total' });
  } finally {
    // In stream order: work that was queued with it runs first.
    scratch.dispose();
  }
}
