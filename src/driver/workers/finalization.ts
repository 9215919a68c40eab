import { reasonOf } from '../../basics/errors.js';
import { isCapturing } from '../status.js';

/**
 * A registry that releases what belonged to an object once the object is collected. An error from
 * `finalize` would end the process, since nobody could catch it; it becomes a process warning with
 * `code` instead, and what was not released is tried again at every later collection. There is no warning
 * if only a capture forbids the release.
 */
export function finalizationRegistry<T>(what: string, code: string, finalize: (held: T) => void): FinalizationRegistry<T> {
  const release = (held: T, onError: (error: unknown) => void) => {
    try {
      finalize(held);
    } catch (error) {
      onError(error);
      // An object that nothing refers to is found by the next collection.
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
