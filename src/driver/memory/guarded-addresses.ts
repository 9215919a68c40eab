/** Addresses that must not be used as others are: memory that is asleep not at all, and a committed region not for writes. */
import { CisternError, formatPointer } from '../../basics/errors.js';

export interface AddressRange {
  readonly begin: number;
  readonly end: number;
}

const sleeping = new Set<AddressRange>();
const readOnly = new Set<AddressRange>();

/** Whether any memory of this worker is asleep. Every use of memory checks it, at the cost of one comparison. */
export let isAnythingAsleep = false;

/** Makes uses of these addresses fail from now on. */
export function beginSleep(range: AddressRange): void {
  sleeping.add(range);
  isAnythingAsleep = true;
}

/** Makes the addresses usable again. */
export function endSleep(range: AddressRange): void {
  sleeping.delete(range);
  isAnythingAsleep = sleeping.size > 0;
}

/** @throws CisternError (`ERR_CISTERN_ASLEEP`) if any part of the memory is asleep. */
export function assertAwake(pointer: number, bytes: number, operation: string): void {
  if (isAsleepAt(pointer, bytes)) throw asleep(operation, `the memory at ${formatPointer(pointer)}`);
}

/** Whether any part of the memory is asleep. */
export function isAsleepAt(pointer: number, bytes: number): boolean {
  return isAnythingAsleep && isAnyIn(sleeping, pointer, bytes);
}

/** The error for an operation on memory that is asleep. */
export function asleep(operation: string, subject: string): CisternError {
  return new CisternError('ERR_CISTERN_ASLEEP', `cannot ${operation}: ${subject} is asleep; await wakeResource() first`);
}

/** Makes writes to these addresses fail from now on: other processes read them, and a device that writes there would stop working. */
export function forbidWrites(range: AddressRange): void {
  readOnly.add(range);
}

/** The addresses were unmapped. */
export function allowWrites(range: AddressRange): void {
  readOnly.delete(range);
}

/** @throws CisternError (`ERR_CISTERN_READ_ONLY`) if any part of the memory must not be written. */
export function assertWritable(pointer: number, bytes: number, operation: string): void {
  if (readOnly.size === 0 || !isAnyIn(readOnly, pointer, bytes)) return;
  const place = `the memory at ${formatPointer(pointer)} is a committed region that other processes read`;
  throw new CisternError('ERR_CISTERN_READ_ONLY', `cannot ${operation}: ${place}`);
}

/** An address without bytes is where it is. */
function isAnyIn(ranges: ReadonlySet<AddressRange>, pointer: number, bytes: number): boolean {
  for (const { begin, end } of ranges) if (pointer < end && pointer + Math.max(bytes, 1) > begin) return true;
  return false;
}
