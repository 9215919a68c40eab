import { CisternError, formatPointer } from '../../basics/errors.js';

/** Addresses whose memory this process may read and not write. */
export interface ReadOnlyRange {
  readonly begin: number;
  readonly end: number;
}

const ranges = new Set<ReadOnlyRange>();

/** Makes writes to these addresses fail from now on. */
export function forbidWrites(range: ReadOnlyRange): void {
  ranges.add(range);
}

/** The range was made writable, or unmapped. */
export function allowWrites(range: ReadOnlyRange): void {
  ranges.delete(range);
}

/** @throws CisternError (`ERR_CISTERN_READ_ONLY`) if any part of the memory must not be written: a device would stop working. */
export function assertWritable(pointer: number, bytes: number, operation: string): void {
  if (ranges.size === 0) return;
  for (const { begin, end } of ranges) {
    if (pointer >= end || pointer + bytes <= begin) continue;
    throw new CisternError(
      'ERR_CISTERN_READ_ONLY',
      `cannot ${operation}: the memory at ${formatPointer(pointer)} is a committed region that other processes read`,
    );
  }
}
