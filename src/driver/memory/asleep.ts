import { CisternError, formatPointer } from '../../basics/errors.js';

/** Addresses whose memory is asleep. */
export interface SleepingRange {
  readonly begin: number;
  readonly end: number;
}

const ranges = new Set<SleepingRange>();

/** Whether any memory of this worker is asleep: one comparison on the way of everything that uses memory. */
export let isAnythingAsleep = false;

/** From now on, uses of these addresses are refused. */
export function beginSleep(range: SleepingRange): void {
  ranges.add(range);
  isAnythingAsleep = true;
}

/** The addresses can be used again. */
export function endSleep(range: SleepingRange): void {
  ranges.delete(range);
  isAnythingAsleep = ranges.size > 0;
}

/** @throws CisternError (`ERR_CISTERN_ASLEEP`) if a part of the memory is asleep. */
export function assertAwake(pointer: number, bytes: number, operation: string): void {
  if (isAsleepAt(pointer, bytes)) throw asleep(operation, `the memory at ${formatPointer(pointer)}`);
}

/** Whether a part of the memory is asleep. */
export function isAsleepAt(pointer: number, bytes: number): boolean {
  if (!isAnythingAsleep) return false;
  for (const { begin, end } of ranges) if (pointer < end && pointer + Math.max(bytes, 1) > begin) return true;
  return false;
}

/** The error of an operation that needs memory which is asleep. */
export function asleep(operation: string, subject: string): CisternError {
  return new CisternError('ERR_CISTERN_ASLEEP', `cannot ${operation}: ${subject} is asleep; await wakeResource() first`);
}
