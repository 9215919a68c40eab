import {
  alreadyFreed,
  CisternError,
  DriverError,
  formatPointer,
  LifetimeError,
  notAllocatedHere,
  OutOfMemoryError,
  wrongSize,
} from '../basics/errors.js';
import { formatBytes } from '../basics/units.js';
import { mailbox, NativeStatus, native } from './native.js';

/** CUDA_ERROR_INVALID_VALUE. */
export const invalidValueStatus = 1;
/** CUDA_ERROR_OUT_OF_MEMORY. */
export const outOfMemoryStatus = 2;
/** CUDA_ERROR_PEER_ACCESS_UNSUPPORTED. */
export const peerAccessUnsupportedStatus = 217;
/** CUDA_ERROR_INVALID_DEVICE. */
export const invalidDeviceStatus = 101;
/** CUDA_ERROR_NOT_READY. */
export const notReadyStatus = 600;
/** CUDA_ERROR_NOT_SUPPORTED. */
export const notSupportedStatus = 801;
/** CUDA_ERROR_CAPTURED_EVENT. */
const capturedEventStatus = 907;
/** CUDA_ERROR_NOT_PERMITTED: the status of a wait inside a host function. */
const notPermittedStatus = 800;

/** Throws the error for the last native call's status, unless it succeeded. */
export function check(operation: string): void {
  const status = mailbox[0] as number;
  if (status !== NativeStatus.success) throw statusError(operation, status);
}

/**
 * Repeats a blocking native call, running host functions whenever it stops for them, until it is
 * done; then checks its status.
 */
export function checkBlocking(operation: string, call: () => void): void {
  repeatWhileStopped(call);
  check(operation);
}

/** Repeats a native call, running host functions whenever it stops for them, until it is done. */
export function repeatWhileStopped(call: () => void): void {
  do call();
  while (runHostFunctionsIfReady());
}

/**
 * Runs host functions if the last native call stopped for them. Returns whether it did; the caller
 * must then repeat the call.
 */
export function runHostFunctionsIfReady(): boolean {
  if (mailbox[0] !== NativeStatus.hostFunctionReady) return false;
  native().runHostFunctions();
  return true;
}

/** The error for a status that is not success. */
export function statusError(operation: string, status: number): Error {
  if (status === NativeStatus.staleHandle) {
    return new LifetimeError('ERR_CISTERN_DISPOSED', `cannot ${operation}: a stream, event or pool it needs is already disposed`);
  }
  if (status === NativeStatus.noBackend) {
    return new CisternError('ERR_CISTERN_INVALID_STATE', `cannot ${operation}: no device was opened, or another kind is already open`);
  }
  if (status === NativeStatus.capturing) {
    return new CisternError(
      'ERR_CISTERN_CAPTURING',
      `cannot ${operation}: a stream is captured into a graph, which cannot contain this; do it before the capture begins, after it has ended, or on another stream`,
    );
  }
  if (status === NativeStatus.capturedEvent || status === capturedEventStatus) {
    return new CisternError(
      'ERR_CISTERN_CAPTURING',
      `cannot ${operation}: the event was last recorded in a capture, so it marks no queued work; first record it outside the capture`,
    );
  }
  if (status === NativeStatus.asleep) {
    return new CisternError('ERR_CISTERN_ASLEEP', `cannot ${operation}: this process is asleep; await wakeProcess() first`);
  }
  const name = native().statusName(status) || 'CUDA_ERROR_UNNAMED';
  return new DriverError(operation, name, status, native().statusDescription(status) || 'which the driver does not describe');
}

/** Whether an error says that a host function must not wait. */
export function isNotPermitted(error: unknown): boolean {
  return error instanceof DriverError && error.driverStatus === notPermittedStatus;
}

/** Whether an error says that a capture forbids the call, which can be made after the capture. */
export function isCapturing(error: unknown): boolean {
  return error instanceof CisternError && error.code === 'ERR_CISTERN_CAPTURING';
}

/** The error for a failed allocation: out of memory if that is the reason. */
export function allocationError(resource: string, bytes: number, status: number, availableBytes?: number): Error {
  if (status !== outOfMemoryStatus && status !== NativeStatus.hostOutOfMemory) return statusError(`allocate ${bytes} bytes`, status);
  const available = availableBytes === undefined ? '' : `, ${formatBytes(availableBytes)} are free`;
  return new OutOfMemoryError(`${resource} is out of memory: ${formatBytes(bytes)} (${bytes} bytes) were asked for${available}`, {
    requestedBytes: bytes,
    availableBytes,
    path: [resource],
  });
}

/** The error for a refused free. Nothing was freed. */
export function deallocationError(resource: string, pointer: number, bytes: number, status: number): Error {
  const refusal = `${resource} cannot free ${formatPointer(pointer)}`;
  switch (status) {
    case NativeStatus.foreignPointer:
      return notAllocatedHere(refusal);
    case NativeStatus.doubleFree:
      return alreadyFreed(refusal);
    case NativeStatus.wrongSize:
      return wrongSize(refusal, bytes, mailbox[1] as number);
    default:
      return statusError(`free ${formatPointer(pointer)}`, status);
  }
}

/** Warns that host functions are lost because the device has failed. */
export function warnOfLost(what: string, status: number): void {
  const name = native().statusName(status) || `status ${status}`;
  process.emitWarning(`${what} will never run: ${name}`, { code: 'CISTERN_LOST_HOST_FUNCTION' });
}
