import { CisternError, formatPointer } from '../../basics/errors.js';

/** Addresses whose memory is asleep. */
export interface SleepingRange {
  readonly begin: number;
  readonly end: number;
}

const ranges = new Set<SleepingRange>();

/**
 * Whether any memory of this worker is asleep. Every use of memory checks it, at the cost of one comparison.
 */
export let isAnythingAsleep = false;

/** Makes uses of these addresses fail from now on. */
export function beginSleep(range: SleepingRange): void {
  ranges.add(range);
  isAnythingAsleep = true;
}

/** Makes the addresses usable again. */
export function endSleep(range: SleepingRange): void {
  ranges.delete(range);
  isAnythingAsleep = ranges.size > 0;
}

/** @throws CisternError (`ERR_CISTERN_ASLEEP`) if any part of the memory is asleep. */
export function assertAwake(pointer: number, bytes: number, operation: string): void {
  if (isAsleepAt(pointer, bytes)) throw asleep(operation, `the memory at ${formatPointer(pointer)}`);
}

/** Whether any part of the memory is asleep. */
export function isAsleepAt(pointer: number, bytes: number): boolean {
  if (!isAnythingAsleep) return false;
  for (const { begin, end } of ranges) if (pointer < end && pointer + Math.max(bytes, 1) > begin) return true;
  return false;
}

/** The error for an operation on memory that is asleep. */
export function asleep(operation: string, subject: string): CisternError {
  return new CisternError('ERR_CISTERN_ASLEEP', `cannot ${operation}: ${subject} is asleep; await wakeResource() first`);
}
