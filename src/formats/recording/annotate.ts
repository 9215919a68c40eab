import { ArgumentTypeError, formatValue } from '../../errors.js';
import { enterScope, innermostFrame, isThenable } from '../../resource-scope.js';
import { assertFunction } from '../../validation.js';
import { innermostPhase, Phase } from './phases.js';
import { liveRecordings, type Recording } from './recording.js';
import { isRecording } from './shared-recordings.js';

/**
 * Runs a function as a named phase: recordings say of each of their events which phase it is in, and when phases begin and end. It holds for
 * everything that the function calls, and for what it continues asynchronously, also where phases overlap. A phase within another is a
 * part of it, and phases of the same name within the same phase are one. For an asynchronous function the phase ends when its promise is
 * settled.
 *
 * Where nothing is recorded the function is just called; a recording that begins within it knows no phase. Phases are kept by name for the
 * life of the process, so names should be few: `'step'`, not `'step 17'`. From 65,535 on they are one phase, `(more phases)`.
 *
 * Counterpart of `nvtx3::scoped_range`, for recordings.
 * @param name what reports call it
 * @param fn a function, asynchronous or not
 * @returns what `fn` returns; for an asynchronous function a promise of that
 * @throws ArgumentTypeError for what is no name or no function, and whatever `fn` throws.
 * @throws CisternError (`ERR_CISTERN_LOG_WRITE`) where `CISTERN_LOG_FILE` names a file that cannot be opened.
 * @example
 * ```ts
 * using stream = new Stream();
 * const bytes = await annotate('step', async () => {
 *   const output = annotate('forward', () => new DeviceBuffer(4 * MiB, { stream }));
 *   return annotate('backward', () => output.toHost());
 * });
 * ```
 */
export function annotate<T>(name: string, fn: () => T): T {
  if (typeof name !== 'string') throw new ArgumentTypeError(`name must be a string, got ${formatValue(name)}`);
  assertFunction(fn, 'fn');
  if (!isRecording()) return fn();
  const phase = Phase.of(name, innermostPhase(innermostFrame()));
  const recordings = [...liveRecordings()];
  for (const recording of recordings) recording.beginPhase(phase);
  let result: T;
  let goesOn: boolean;
  try {
    result = enterScope({ kind: 'phase', phase }, fn);
    // Reads a property of the result, which may be a getter that throws.
    goesOn = isThenable(result);
  } catch (error) {
    end(recordings, phase);
    throw error;
  }
  if (goesOn) return endOnceSettled(recordings, phase, result as PromiseLike<unknown>) as T;
  end(recordings, phase);
  return result;
}

function end(recordings: readonly Recording[], phase: Phase): void {
  for (const recording of recordings) recording.endPhase(phase);
}

async function endOnceSettled<T>(recordings: readonly Recording[], phase: Phase, result: PromiseLike<T>): Promise<T> {
  try {
    return await result;
  } finally {
    end(recordings, phase);
  }
}
