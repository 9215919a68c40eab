import { ArgumentTypeError, formatValue } from '../basics/errors.js';
import { assertFunction } from '../basics/validation.js';
import { enterScope, innermostFrame, untilSettled } from '../scopes/resource-scope.js';
import { innermostPhase, Phase } from './phases.js';
import { liveRecordings } from './recording.js';
import { isRecording } from './shared-recordings.js';

/**
 * Runs a function as a named phase. Recordings contain the beginning and end of each phase, and the
 * phase of each event. The phase covers everything that the function calls, and its asynchronous
 * continuations, even if phases overlap. A phase within another is part of it; phases of the same
 * name within the same phase count as one. For an asynchronous function, the phase ends when its
 * promise settles.
 *
 * If there is no recording, this only calls the function; a recording that begins within it does
 * not contain the phase. Phases are kept by name for the life of the process, so use few names:
 * `'step'`, not `'step 17'`. From number 65,535 on, all further phases count as one, `(more
 * phases)`.
 *
 * Counterpart of `nvtx3::scoped_range`, for recordings.
 * @param name the phase's name in reports
 * @param fn a function, asynchronous or not
 * @returns what `fn` returns; for an asynchronous function, a promise of its result
 * @throws ArgumentTypeError if `name` is not a string or `fn` not a function; any error that `fn`
 * throws.
 * @throws CisternError (`ERR_CISTERN_LOG_WRITE`) if `CISTERN_LOG_FILE` names a file that cannot be
 * opened.
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
  return inPhase(name, false, fn);
}

/** @internal Runs the capture of a graph with memory as a phase, which has failed if the function throws. */
export function annotateGraph<T>(name: string, capture: () => T): T {
  return inPhase(name, true, capture);
}

/**
 * @internal If the code is within the capture of a graph with memory, runs a function as part of the phase around
 * the capture.
 */
export function outsideGraph<T>(fn: () => T): T {
  let phase = innermostPhase(innermostFrame());
  while (phase !== undefined && !phase.isGraph) phase = phase.outer;
  return phase === undefined ? fn() : enterScope({ kind: 'phase', phase: phase.outer }, fn);
}

function inPhase<T>(name: string, isGraph: boolean, fn: () => T): T {
  if (!isRecording()) return fn();
  const phase = Phase.of(name, innermostPhase(innermostFrame()), isGraph);
  const recordings = [...liveRecordings()];
  for (const recording of recordings) recording.beginPhase(phase);
  return untilSettled(
    () => enterScope({ kind: 'phase', phase }, fn),
    (hasFailed) => {
      for (const recording of recordings) recording.endPhase(phase, hasFailed);
    },
  );
}
