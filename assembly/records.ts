/**
 * Records of 32 bytes, half a cache line, for blocks, segments and the like. The records that are
 * not in use form a list through their first word. New ones come in chunks, each as large as all
 * before it up to a limit, and never move.
 */
import { takeArea } from './areas';

const recordBytes: u32 = 32;
const firstOrder: u32 = 12;
const lastOrder: u32 = 20;

/** A pointer to the first record that is not in use. In memory, as a module's variables take an instruction more. */
const spare: usize = memory.data(4, 4);
let nextOrder: u32 = firstOrder;

/** Whether so many records, 1 or 2, can be taken; obtains a chunk if it must. */
export function hasRecords(count: u32): bool {
  return (hasSpareRecord() && (count === 1 || load<u32>(load<u32>(spare)) !== 0)) || addChunk();
}

/** Whether a record can be taken. */
export function hasSpareRecord(): bool {
  return load<u32>(spare) !== 0;
}

/** Takes a record, after `hasRecords`. */
export function takeRecord(): u32 {
  const record = load<u32>(spare);
  store<u32>(spare, load<u32>(record));
  return record;
}

export function returnRecord(record: u32): void {
  store<u32>(record, load<u32>(spare));
  store<u32>(spare, record);
}

function addChunk(): bool {
  const chunk = takeArea(nextOrder);
  if (chunk === 0) return false;
  const last = chunk + (1 << nextOrder) - recordBytes;
  for (let record = chunk; record < last; record += recordBytes) store<u32>(record, record + recordBytes);
  store<u32>(last, load<u32>(spare));
  store<u32>(spare, chunk);
  if (nextOrder < lastOrder) nextOrder++;
  return true;
}
