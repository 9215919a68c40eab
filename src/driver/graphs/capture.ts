import { ArgumentTypeError, formatValue } from '../../basics/errors.js';
import { assertOneOf } from '../../basics/validation.js';
import { mailbox, native } from '../native.js';
import { check } from '../status.js';

/**
 * Which potentially unsafe calls a capture forbids, such as an allocation by another library, which a
 * launch would not repeat: `'thread-local'`, calls of this thread; `'global'`, calls of every thread of
 * the process; `'relaxed'`, none. In each mode, cistern's own calls are safe, or are refused with
 * `ERR_CISTERN_CAPTURING`.
 *
 * Counterpart of `CUstreamCaptureMode`.
 */
export type CaptureMode = 'global' | 'thread-local' | 'relaxed';

/**
 * `'none'`; `'active'` while the work queued on a stream is recorded; `'invalidated'` if an error
 * has ended the recording, until you end the capture on the stream where it began.
 */
export type CaptureStatus = 'none' | 'active' | 'invalidated';

/** In CUDA's order. */
const modes: readonly CaptureMode[] = ['global', 'thread-local', 'relaxed'];
const statuses: readonly CaptureStatus[] = ['none', 'active', 'invalidated'];

/** Begins to record the work queued on a stream. */
export function beginCapture(stream: number, mode: CaptureMode): void {
  if (typeof mode !== 'string') throw new ArgumentTypeError(`mode must be a string, got ${formatValue(mode)}`);
  assertOneOf(mode, modes, 'mode');
  native().beginCapture(stream, modes.indexOf(mode));
  check('begin a capture');
}

/** Ends cistern's capture that began on this stream, if there is one, and drops its graph. */
export function abandonCapture(stream: number): void {
  native().abandonCapture(stream);
  check('give up a capture');
}

/**
 * Whether two streams are in the same valid capture, even if other code made the second one join
 * it.
 */
export function areInOneCapture(stream: number, other: number): boolean {
  const id = captureIdOf(stream);
  return id !== 0 && captureIdOf(other) === id;
}

/** The driver's id of the valid capture that a stream is in; 0: it is in none. */
export function captureIdOf(stream: number): number {
  captureStatusOf(stream);
  return mailbox[2] as number;
}

export function captureStatusOf(stream: number): CaptureStatus {
  native().captureStatus(stream);
  check('ask whether a stream is captured');
  return statuses[mailbox[1] as number] as CaptureStatus;
}
