import { LifetimeError } from './errors.js';

/**
 * The error for using something that is disposed.
 * @param operation the operation that is refused: `allocate`
 * @param subject what is disposed: `the PoolMemoryResource`
 */
export function alreadyDisposed(operation: string, subject: string): LifetimeError {
  return new LifetimeError('ERR_CISTERN_DISPOSED', `cannot ${operation}: ${subject} is already disposed`);
}

/*
 * Errors for a free that is refused. `refusal` is the beginning of the sentence:
 * `the PoolMemoryResource cannot free 0x100`.
 */

export function alreadyFreed(refusal: string): LifetimeError {
  return new LifetimeError('ERR_CISTERN_DOUBLE_FREE', `${refusal}: it is already freed`);
}

export function wrongSize(refusal: string, bytes: number, allocatedBytes: number): LifetimeError {
  return new LifetimeError('ERR_CISTERN_WRONG_SIZE', `${refusal} with ${bytes} bytes: it was allocated with ${allocatedBytes} bytes`);
}

export function insideAllocation(refusal: string): LifetimeError {
  return new LifetimeError('ERR_CISTERN_FOREIGN_POINTER', `${refusal}: it lies inside an allocation, not at its start`);
}

export function notAllocatedHere(refusal: string): LifetimeError {
  return new LifetimeError('ERR_CISTERN_FOREIGN_POINTER', `${refusal}: it was not allocated by this resource`);
}
