/** Waits that a signal or the time can end. */
import { ArgumentTypeError, formatValue } from '../../basics/errors.js';
import { assertMilliseconds, optionNames } from '../../basics/validation.js';

/** How long to wait for memory. */
export interface WaitOptions {
  /**
   * Ends the wait; the promise is then rejected with the signal's reason.
   * @defaultValue not set
   */
  readonly signal?: AbortSignal | undefined;
  /**
   * The longest time to wait, in milliseconds; with 0, the wait ends with this turn of the event
   * loop.
   * @defaultValue not set: waits without a limit
   */
  readonly timeoutMilliseconds?: number | undefined;
}

/** @internal */
export const waitOptionNames = optionNames<WaitOptions>({ signal: true, timeoutMilliseconds: true });

/** Node's timers accept no longer times; this is 24 days. */
const longestTimer = 2 ** 31 - 1;

/**
 * @throws ArgumentTypeError, ArgumentRangeError for invalid options; the reason of the signal if it
 * is already aborted.
 */
export function assertWait({ signal, timeoutMilliseconds }: WaitOptions): void {
  if (signal !== undefined && !(signal instanceof AbortSignal))
    throw new ArgumentTypeError(`signal must be an AbortSignal, got ${formatValue(signal)}`);
  if (timeoutMilliseconds !== undefined) assertMilliseconds(timeoutMilliseconds, 'timeoutMilliseconds');
  signal?.throwIfAborted();
}

/**
 * Ends a wait when the time is over or the signal is aborted. Returns a function that cancels this.
 */
export function endingWait({ signal, timeoutMilliseconds }: WaitOptions, end: (failure: 'timeout' | 'aborted') => void): () => void {
  const onAbort = () => end('aborted');
  if (signal !== undefined) listen(signal, onAbort);
  const timer =
    timeoutMilliseconds === undefined || timeoutMilliseconds > longestTimer
      ? undefined
      : setTimeout(end, timeoutMilliseconds, 'timeout' as const);
  return () => {
    if (signal !== undefined) stopListening(signal, onAbort);
    clearTimeout(timer);
  };
}

/**
 * What waits for each signal. They share one listener: Node warns of more than ten, and takes longer to remove one
 * the more there are.
 */
const listening = new WeakMap<AbortSignal, Set<() => void>>();

function listen(signal: AbortSignal, onAbort: () => void): void {
  const known = listening.get(signal);
  if (known !== undefined) {
    known.add(onAbort);
    return;
  }
  listening.set(signal, new Set([onAbort]));
  signal.addEventListener('abort', wakeAll, { once: true });
}

function stopListening(signal: AbortSignal, onAbort: () => void): void {
  const all = listening.get(signal);
  if (all?.delete(onAbort) !== true || all.size > 0) return;
  listening.delete(signal);
  signal.removeEventListener('abort', wakeAll);
}

function wakeAll(this: AbortSignal): void {
  for (const onAbort of listening.get(this) ?? []) onAbort();
}
