import { AsyncLocalStorage, createHook } from 'node:async_hooks';
import { ArgumentRangeError, formatValue } from '../../basics/errors.js';
import { assertFunction, assertName } from '../../basics/validation.js';
import { native } from '../../driver/native.js';
import { setting } from '../../settings.js';

/** Longer names of accounts would be cut off. */
const mostNameBytes = 127;

/** The account of what runs now, through awaits and callbacks. */
let accounts: AsyncLocalStorage<string> | undefined;

/**
 * Under `cistern run`, what any library allocates from CUDA for the function belongs to the account with this name, such as
 * that of a model, instead of the library. Limits hold for the name as for a library (`--limit model-a=2GiB`), and those of the library hold
 * still. Without `cistern run`, the function is only called.
 *
 * This holds for all that the function does, also after an `await` and in callbacks, as with `AsyncLocalStorage`; and
 * for work that addons create for it to be done on another thread (`napi_create_async_work`, `Napi::AsyncWorker`). Threads that
 * a library has of its own are not covered: they can name an account themselves, with `cistern_run.h` of `cistern/include`. From the first
 * call on, an `await` costs more, as with `async_hooks`.
 *
 * The accounts of `cistern/serving` are others: they count what cistern's own resources allocate.
 * @returns what the function returns
 * @throws ArgumentTypeError, ArgumentRangeError for invalid arguments, and what the function throws.
 * @example
 * ```ts
 * const loadModel = (path: string) => console.log(path); // of a library that knows nothing of cistern
 * withAccount('model-a', () => loadModel('a.gguf'));
 * ```
 */
export function withAccount<T>(name: string, fn: () => T): T {
  assertName(name, 'name');
  if (Buffer.byteLength(name) > mostNameBytes || name.includes('\0'))
    throw new ArgumentRangeError(
      `name must have at most ${mostNameBytes} bytes and no zeros, got ${formatValue(name)}`,
      'ERR_OUT_OF_RANGE',
    );
  assertFunction(fn, 'fn');
  if (setting('CISTERN_RUN') === undefined) return fn();
  const before = native().enterAccountOutside(name);
  accounts ??= followCallbacks();
  try {
    return accounts.run(name, fn);
  } finally {
    native().leaveAccountOutside(before);
  }
}

/** Native code has one account for a thread: each callback enters that of what it belongs to, and leaves it when it returns. */
function followCallbacks(): AsyncLocalStorage<string> {
  const storage = new AsyncLocalStorage<string>();
  const entered: number[] = [];
  createHook({
    before() {
      entered.push(native().enterAccountOutside(storage.getStore() ?? ''));
    },
    after() {
      const before = entered.pop();
      if (before !== undefined) native().leaveAccountOutside(before);
    },
  }).enable();
  return storage;
}
