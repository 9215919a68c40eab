import { mailbox, native } from '../native.js';
import { check } from '../status.js';

/**
 * Watches an object without keeping it alive. Returns a slot: a small integer from 0 that is reused
 * after {@link unwatchObject}.
 */
export function watchObject(object: object): number {
  native().watch(object);
  check('watch an object');
  return mailbox[1] as number;
}

/** Stops watching a slot, whether or not its object is alive. */
export function unwatchObject(slot: number): void {
  native().unwatch(slot);
  check('end the watch of an object');
}

/**
 * Writes the slots whose objects were collected into `slots`, and returns how many it wrote. It
 * sees a collection as soon as it is over, even within the same job. The slots stay watched.
 */
export function collectedSlots(slots: Int32Array): number {
  native().collectedSlots(slots);
  check('look for collected objects');
  return mailbox[1] as number;
}
