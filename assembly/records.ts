/**
 * Records of a few sizes: of 32 bytes, half a cache line, for blocks and segments; of 8 bytes for notices; and tables of
 * lists. The records of a size that are not in use form a list through their first word. New ones come in chunks, each as
 * large as all before it up to a limit, and never move.
 */
import { tableBytes } from '../src/suballocation/index-layout';
import { takeArea } from './areas';

const recordBytes: u32 = 32;
const noticeBytes: u32 = 8;
/** The binary logarithm of the bytes of the first chunk of each size, and of the largest one. */
const recordsOrder: u32 = 12;
const noticesOrder: u32 = 10;
const tablesOrder: u32 = 13;
const lastOrder: u32 = 20;

/**
 * By size: a pointer to the first record that is not in use, and the number of chunks. In memory, as a module's variables
 * take an instruction more.
 */
const spare: usize = memory.data(8, 4);
const spareNotices: usize = memory.data(8, 4);
const spareTables: usize = memory.data(8, 4);
const chunksField = 4;

/** Whether so many records, 1 or 2, can be taken; obtains a chunk if it must. */
export function hasRecords(count: u32): bool {
  return (hasSpareRecord() && (count === 1 || load<u32>(load<u32>(spare)) !== 0)) || addChunk(spare, recordBytes, recordsOrder);
}

/** Whether a record can be taken. */
export function hasSpareRecord(): bool {
  return load<u32>(spare) !== 0;
}

/** Takes a record, after `hasRecords`. */
export function takeRecord(): u32 {
  return takeFrom(spare);
}

export function returnRecord(record: u32): void {
  returnTo(spare, record);
}

/** Takes the record of a notice, or returns 0 if there is no memory. */
export function takeNotice(): u32 {
  return takeOrAdd(spareNotices, noticeBytes, noticesOrder);
}

export function returnNotice(notice: u32): void {
  returnTo(spareNotices, notice);
}

/** Returns an empty table, or 0 if there is no memory for it. */
export function takeTable(): u32 {
  const table = takeOrAdd(spareTables, tableBytes, tablesOrder);
  if (table !== 0) memory.fill(table, 0, tableBytes);
  return table;
}

export function returnTable(table: u32): void {
  returnTo(spareTables, table);
}

/** Takes a record of a size, from a new chunk if need be, or returns 0. */
function takeOrAdd(list: usize, bytes: u32, firstOrder: u32): u32 {
  if (load<u32>(list) === 0 && !addChunk(list, bytes, firstOrder)) return 0;
  return takeFrom(list);
}

function takeFrom(list: usize): u32 {
  const record = load<u32>(list);
  store<u32>(list, load<u32>(record));
  return record;
}

function returnTo(list: usize, record: u32): void {
  store<u32>(record, load<u32>(list));
  store<u32>(list, record);
}

function addChunk(list: usize, bytes: u32, firstOrder: u32): bool {
  const chunks = load<u32>(list, chunksField);
  const order = min(firstOrder + chunks, lastOrder);
  const chunk = takeArea(order);
  if (chunk === 0) return false;
  for (let left: u32 = 1 << order; left >= bytes; ) {
    left -= bytes;
    returnTo(list, chunk + left);
  }
  store<u32>(list, chunks + 1, chunksField);
  return true;
}
