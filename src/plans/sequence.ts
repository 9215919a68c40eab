import { CisternError, formatValue } from '../basics/errors.js';

/**
 * The allocations and frees of one pass of a program, in order. Allocations have numbers from 0, in
 * the order in which they are requested; streams have numbers from 0, in the order in which they
 * first allocate or free.
 */
export interface AllocationSequence {
  /** The number of an allocation that is requested, or `~number` of one that is freed. */
  readonly operations: ArrayLike<number>;
  /** By allocation: the bytes requested, at least 1. */
  readonly sizes: ArrayLike<number>;
  /** By allocation: the stream that it is requested on. */
  readonly streams: ArrayLike<number>;
  /** By allocation: the stream that it is freed on, or -1 if it is never freed. */
  readonly freeStreams: ArrayLike<number>;
  /**
   * By operation: its time, an integer in any unit. It does not affect which allocations may share
   * bytes, but the search for a plan prefers allocations that live long.
   * @defaultValue the number of the operation
   */
  readonly times?: ArrayLike<number> | undefined;
}

/** A stream waits for an event that another stream recorded. */
export interface StreamWait {
  /** How many operations come before the wait. */
  readonly at: number;
  /** The stream that waits. Streams that neither allocate nor free have numbers above all others. */
  readonly stream: number;
  /** The stream that recorded. */
  readonly recordedOn: number;
  /** How many operations come before the record. */
  readonly recordedAt: number;
  /**
   * How many waits come before the record.
   * @defaultValue 0: waits between the same two operations as the record count as later
   */
  readonly recordedAfter?: number | undefined;
}

/** The operations of a pass, and the waits between its streams. */
export interface OrderedSequence extends AllocationSequence {
  /**
   * In order.
   * @defaultValue none: nothing orders the streams
   */
  readonly waits?: readonly StreamWait[] | undefined;
}

/** More operations, with the data computed from them, would not fit into memory. */
const mostOperations = 2 ** 27;
/** Numbers of streams index arrays, and more streams than this do not exist. */
const mostStreams = 2 ** 16;

/**
 * @throws CisternError (`ERR_CISTERN_INVALID_PLAN`) if a column is missing or has values other than
 * integers.
 */
export function checkedColumn(values: ArrayLike<number> | undefined, field: string, name: string): Float64Array {
  const isColumn = typeof values === 'object' && values !== null && Number.isSafeInteger(values.length) && values.length >= 0;
  if (!isColumn || values.length > mostOperations) throw invalidPlan(`${name} has no valid ${field}`);
  // Checked before memory is allocated, because something that is not an array can claim any
  // length.
  for (let i = 0; i < values.length; i++) {
    const value: unknown = values[i];
    if (!Number.isSafeInteger(value)) throw invalidPlan(`${name}: ${field} has ${formatValue(value)} at ${i}`);
  }
  return Float64Array.from(values);
}

/**
 * A private copy of a sequence, after checking it.
 * @throws CisternError (`ERR_CISTERN_INVALID_PLAN`) if a column is missing or has values other than
 * integers, or if an allocation is freed before it is requested, or twice.
 */
export function checkedSequence(sequence: AllocationSequence, name: string): AllocationSequence {
  const checked = {
    operations: checkedColumn(sequence.operations, 'operations', name),
    sizes: checkedColumn(sequence.sizes, 'sizes', name),
    streams: checkedColumn(sequence.streams, 'streams', name),
    freeStreams: checkedColumn(sequence.freeStreams, 'freeStreams', name),
  };
  assertSequence(checked, name);
  if (sequence.times === undefined) return checked;
  const times = checkedColumn(sequence.times, 'times', name);
  if (times.length !== checked.operations.length) {
    throw invalidPlan(`${name} has ${checked.operations.length} operations, but ${times.length} times`);
  }
  return { ...checked, times };
}

/**
 * A private copy of the waits of a sequence, after checking them.
 * @throws CisternError (`ERR_CISTERN_INVALID_PLAN`) if a wait is out of order, or precedes its
 * record.
 */
export function checkedWaits({ waits = [], operations }: OrderedSequence, name: string): readonly StreamWait[] {
  if (!Array.isArray(waits)) throw invalidPlan(`${name} has no valid waits`);
  const isStream = (value: number) => Number.isSafeInteger(value) && value >= 0 && value < mostStreams;
  const isUpTo = (value: number, most: number) => Number.isSafeInteger(value) && value >= 0 && value <= most;
  let before = 0;
  return waits.map((wait: Partial<StreamWait> | undefined, i) => {
    const { at = -1, stream = -1, recordedOn = -1, recordedAt = -1, recordedAfter = 0 } = wait ?? {};
    const isOrdered = at >= before && isUpTo(at, operations.length) && isUpTo(recordedAt, at) && isUpTo(recordedAfter, i);
    if (!isOrdered || !isStream(stream) || !isStream(recordedOn)) throw invalidPlan(`${name}: wait ${i} is invalid`);
    before = at;
    return { at, stream, recordedOn, recordedAt, recordedAfter };
  });
}

/** Where the operations of two passes first differ, such as `operations, at 5`; undefined if nowhere. */
export function differenceOf(a: AllocationSequence, b: AllocationSequence): string | undefined {
  for (const column of ['operations', 'streams', 'freeStreams'] as const) {
    const { length } = a[column].length > b[column].length ? a[column] : b[column];
    for (let i = 0; i < length; i++) if (a[column][i] !== b[column][i]) return `${column}, at ${i}`;
  }
  return undefined;
}

function assertSequence({ operations, sizes, streams, freeStreams }: AllocationSequence, name: string): void {
  const count = sizes.length;
  for (const [field, { length }] of Object.entries({ streams, freeStreams })) {
    if (length !== count) throw invalidPlan(`${name} has ${count} sizes, but ${length} ${field}`);
  }
  const isFreed = new Uint8Array(count);
  let requested = 0;
  let frees = 0;
  for (let i = 0; i < operations.length; i++) {
    const operation = operations[i] as number;
    if (operation >= 0 && operation !== requested++) throw invalidPlan(`${name}: operation ${i} requests ${operation} out of order`);
    if (operation >= 0) continue;
    const freed = ~operation;
    frees++;
    if (freed >= requested || isFreed[freed] === 1) throw invalidPlan(`${name}: operation ${i} frees ${freed}, which is not live`);
    isFreed[freed] = 1;
  }
  if (requested !== count) throw invalidPlan(`${name} has ${count} sizes, but ${requested} requests`);
  for (let i = 0; i < count; i++) {
    if ((sizes[i] as number) < 1) throw invalidPlan(`${name}: allocation ${i} has ${sizes[i]} bytes`);
    const isBounded = (streams[i] as number) < mostStreams && (freeStreams[i] as number) < mostStreams;
    const hasStreams = isBounded && (streams[i] as number) >= 0 && (freeStreams[i] as number) >= -1;
    if (!hasStreams || (isFreed[i] === 1) !== (freeStreams[i] as number) >= 0) {
      throw invalidPlan(`${name}: the streams of allocation ${i} are invalid`);
    }
  }
  if (frees > count) throw invalidPlan(`${name} has more frees than allocations`);
}

/** The error for a plan or a sequence that is inconsistent. */
export function invalidPlan(message: string, options?: ErrorOptions): CisternError {
  return new CisternError('ERR_CISTERN_INVALID_PLAN', message, options);
}
