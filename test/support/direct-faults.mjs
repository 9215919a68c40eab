/**
 * Tests ask for failures, delays and sizes by the functions of the software device (`failCall`, `setCallLatency`, `configureSoftwareDevice`).
 * Over another device these go where that device takes them, by replacing functions of the addon's binding.
 */
import { createRequire } from 'node:module';

const [success, invalidValue] = [0, 1];

/** The addon that controls the strict driver, if that is the device under test. */
const controlPath = process.env.STRICT_DRIVER_CONTROL;

/**
 * @param {object} binding what `native()` returns
 * @param {Float64Array} mailbox where its functions leave what they return
 * @param {(reason: string) => void} skip ends a test that asks for what the device cannot do
 */
export function directFaults(binding, mailbox, skip) {
  if (process.env.CISTERN_DEVICE !== 'cuda') return;
  const answer = (status, result = 0) => {
    mailbox[0] = status;
    mailbox[1] = result;
  };
  if (controlPath === undefined) {
    const refuse = () => skip('a GPU cannot be made to fail, or to be slow or small');
    Object.assign(binding, { failCall: refuse, failCallAfter: refuse, setLatency: refuse, configureSoftware: refuse });
    return;
  }
  const control = createRequire(import.meta.url)(controlPath);
  // Loads the driver, in which the failures are.
  binding.cudaUnavailableReason();
  Object.assign(binding, {
    failCall: (name, nth, status) => answer(success, control.failCall(name, nth, status) ? 1 : 0),
    failCallAfter: (first, name, nth, status) => {
      control.failCallAfter(first, name, nth, status);
      answer(success);
    },
    setLatency: (name, nanoseconds) => {
      control.setLatency(name, nanoseconds);
      answer(success);
    },
    // The number of devices is fixed when the driver is loaded.
    configureSoftware: (totalBytes, devices) =>
      answer(devices > 0 || (totalBytes > 0 && !control.setTotalMemory(totalBytes)) ? invalidValue : success),
  });
}
