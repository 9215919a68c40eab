/** The steps by which a process gives its devices away and takes them again, for this process and others. */
import { DriverError } from '../basics/errors.js';
import { currentBackend, missingDriverFunctions } from './backend.js';
import { mailbox, NativeStatus, native } from './native.js';
import { check, statusError } from './status.js';

/** The state of a process, as the driver names it. */
export type ProcessState = 'running' | 'locked' | 'checkpointed' | 'failed';

/** A call of the driver about a process. */
export type ProcessStep = 'getState' | 'lock' | 'checkpoint' | 'restore' | 'unlock';

/** What came of a step. */
export interface StepResult {
  /** Why the driver refused; `undefined` if it did not. */
  readonly refusal: DriverError | undefined;
  /** The state afterwards; `undefined` if the driver does not tell. */
  readonly state: ProcessState | undefined;
}

const steps: readonly ProcessStep[] = ['getState', 'lock', 'checkpoint', 'restore', 'unlock'];
const states: readonly ProcessState[] = ['running', 'locked', 'checkpointed', 'failed'];

/** Why processes cannot sleep here, or `undefined` if they can. Opens the backend. */
export function lackForProcessSleep(): string | undefined {
  if (process.platform !== 'linux') return 'the driver can put processes to sleep only on Linux';
  const isMissing = currentBackend() === 'cuda' && missingDriverFunctions().some(({ name }) => name === 'cuCheckpointProcessLock');
  return isMissing ? 'the driver has no cuCheckpointProcessLock, which came with CUDA 12.8 (driver 570)' : undefined;
}

/**
 * Makes a step, on a thread of its own: it may wait for work of the process, or for ever, for another process that is locked. The
 * promise alone does not keep this process alive.
 * @param timeoutMilliseconds of a lock
 */
export async function stepProcess(step: ProcessStep, pid: number, timeoutMilliseconds = 0): Promise<StepResult> {
  const result = native().stepProcess(steps.indexOf(step), pid, timeoutMilliseconds);
  check(`make a step of process ${pid}`);
  const [status, state] = await result;
  const error = status === NativeStatus.success ? undefined : statusError(`${step} process ${pid}`, status);
  if (error !== undefined && !(error instanceof DriverError)) throw error;
  return { refusal: error, state: states[state] };
}

/**
 * From now on, calls of this process no longer reach the driver: they would wait for it. Returns false if that is so already.
 * See native/cuda/asleep_table.h.
 */
export function beginProcessSleep(): boolean {
  native().beginProcessSleep();
  if (mailbox[0] === NativeStatus.inUse) return false;
  check('put this process to sleep');
  return true;
}

/** The driver has locked this process: everything that was queued is done. */
export function noteProcessAsleep(): void {
  native().noteProcessAsleep();
}

/** Calls of this process reach the driver again. Frees that were made meanwhile are made first. */
export function endProcessSleep(): void {
  native().endProcessSleep();
  check('wake this process');
}
