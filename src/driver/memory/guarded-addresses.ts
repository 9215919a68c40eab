/** Addresses that are not used as others are: memory that is asleep not at all, and some is not written, or not unnoticed. */
import { CisternError, formatPointer } from '../../basics/errors.js';

export interface AddressRange {
  readonly begin: number;
  readonly end: number;
}

/** Learns of each copy or fill that is about to write to its addresses, and refuses it by throwing. */
export interface WriteGuard extends AddressRange {
  readonly beforeWrite: (pointer: number, bytes: number, operation: string) => void;
}

const sleeping = new Set<AddressRange>();
const writeGuards = new Set<WriteGuard>();

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

/** Asks a guard before each write from now on. */
export function guardWrites(guard: WriteGuard): void {
  writeGuards.add(guard);
}

/** Does not ask it any more. */
export function endWriteGuard(guard: WriteGuard): void {
  writeGuards.delete(guard);
}

/** Whatever writes to memory calls this first, if only with a copy or a fill of cistern's own. */
export function beforeWrite(pointer: number, bytes: number, operation: string): void {
  if (writeGuards.size === 0) return;
  for (const guard of writeGuards) if (isIn(guard, pointer, bytes)) guard.beforeWrite(pointer, bytes, operation);
}

function isAnyIn(ranges: ReadonlySet<AddressRange>, pointer: number, bytes: number): boolean {
  for (const range of ranges) if (isIn(range, pointer, bytes)) return true;
  return false;
}

/** An address without bytes is where it is. */
function isIn({ begin, end }: AddressRange, pointer: number, bytes: number): boolean {
  return pointer < end && pointer + Math.max(bytes, 1) > begin;
}
