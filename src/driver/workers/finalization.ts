import { reasonOf } from '../../basics/errors.js';
import { isCapturing } from '../status.js';

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
