import { UnsupportedError } from '../../basics/errors.js';
import { currentBackend } from '../backend.js';
import { mailbox, native } from '../native.js';
import { check, notSupportedStatus } from '../status.js';

/** A transferred array cannot be detached, and its successor would outlive the memory. */
const refusedTransfers = Object.fromEntries(
  ['transfer', 'transferToFixedLength'].map((name) => [
    name,
    {
      value: () => {
        throw new UnsupportedError('an array over the memory of a resource cannot be transferred: copy it instead');
      },
    },
  ]),
);

/**
 * An array over memory that the host can access, without a copy. It does not keep the memory alive:
 * call {@link endView} before the memory is freed.
 * @param bytes at least 1
 * @throws UnsupportedError if the runtime does not allow arrays over foreign memory, because of
 * V8's sandbox.
 * @throws DriverError if the range is not managed, pinned or ordinary host memory of a resource.
 */
export function viewFromHost(pointer: number, bytes: number): ArrayBuffer {
  const view = native().viewFromHost(pointer, bytes);
  if (mailbox[0] === notSupportedStatus) {
    throw new UnsupportedError('this runtime does not allow arrays over memory that is not its own: copy the memory instead');
  }
  check(`view ${bytes} bytes from the host`);
  // Node itself refuses to transfer it to another thread. Since Node 24, `markAsUntransferable`
  // would also make it impossible to detach.
  return Object.defineProperties(view, refusedTransfers);
}

/** Detaches the array: from now on it has no bytes, and neither do typed arrays over it. */
export function endView(view: ArrayBuffer): void {
  native().endView(view);
  check('end a view of memory');
}

/**
 * Tells the software device that the host is about to use managed memory directly. A GPU notices by
 * itself.
 */
export function accessFromHost(pointer: number, bytes: number, isWrite: boolean): void {
  if (currentBackend() !== 'software') return;
  native().accessFromHost(pointer, bytes, isWrite);
  check('use memory from the host');
}
