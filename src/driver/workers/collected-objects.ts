/** Learns what the garbage collector has collected. */
import { reasonOf } from '../../basics/errors.js';
import { mailbox, native } from '../native.js';
import { check, isCapturing } from '../status.js';

/**
 * A registry that releases the native resources of an object once the object is collected. Nobody could
 * catch an error from `finalize`, and it would end the process. So it becomes a process warning with
 * `code` instead, and the release is tried again at every later collection. There is no warning if only a
 * capture forbids the release.
 */
export function finalizationRegistry<T>(what: string, code: string, finalize: (held: T) => void): FinalizationRegistry<T> {
  const release = (held: T, onError: (error: unknown) => void) => {
    try {
      finalize(held);
    } catch (error) {
      onError(error);
      // Nothing refers to this object, so the next collection finds it.
      refused.register({}, held);
    }
  };
  const refused = new FinalizationRegistry<T>((held) => release(held, () => {}));
  return new FinalizationRegistry<T>((held) =>
    release(held, (error) => {
      if (isCapturing(error)) return;
      const reason = reasonOf(error);
      process.emitWarning(`an unreachable ${what} could not be released yet: ${reason}`, { code });
    }),
  );
}

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
