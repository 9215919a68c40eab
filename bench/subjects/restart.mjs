/** A server that starts: with its weights in place, in a region of `cistern keep`, or without any. */
import { loadCistern } from '../support/cistern.mjs';
import { parameters, report } from '../support/processes.mjs';

const { bytes, has } = /** @type {{ bytes: number; has: 'weights' | 'nothing' }} */ (parameters());
const cistern = /** @type {any} */ (await loadCistern());
cistern.Device.get().synchronizeSync();
const stream = new cistern.Stream();
let value = 0;
let wasWritten = false;
if (has === 'weights') {
  const weights = await cistern.LastingMemoryResource.open({ region: 'bench', bytes, layout: 'a' });
  const buffer = new cistern.DeviceBuffer(bytes, { resource: weights, stream });
  wasWritten = weights.isWriting;
  if (wasWritten) {
    buffer.fill(7);
    weights.commit();
  }
  [value] = buffer.toHostSync(new Uint8Array(1), { byteOffset: bytes - 1 });
}
const { userCPUTime, systemCPUTime } = process.resourceUsage();
report({ wasWritten, value, sinceStart: performance.now(), cpu: (userCPUTime + systemCPUTime) / 1000 });
process.exit(0);
