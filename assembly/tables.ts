/**
 * Hands out tables of lists: the lanes, and the notices of an index. They come in chunks, each as
 * large as all before it up to a limit. A table is an odd number of cache lines long, so that the
 * same fields of many lanes do not compete for the same few sets of a processor's cache.
 */
import { tableBytes } from '../src/suballocation/index-layout';
import { takeArea } from './areas';

const firstOrder: u32 = 13;
const lastOrder: u32 = 20;

let spare: u32 = 0;
let nextOrder: u32 = firstOrder;

/** Returns an empty table, or 0 if there is no memory for it. */
export function takeTable(): u32 {
  if (spare === 0 && !addChunk()) return 0;
  const table = spare;
  spare = load<u32>(table);
  memory.fill(table, 0, tableBytes);
  return table;
}

export function returnTable(table: u32): void {
  store<u32>(table, spare);
  spare = table;
}

function addChunk(): bool {
  const chunk = takeArea(nextOrder);
  if (chunk === 0) return false;
  const last = chunk + (1 << nextOrder) - tableBytes;
  for (let table = chunk; table <= last; table += tableBytes) returnTable(table);
  if (nextOrder < lastOrder) nextOrder++;
  return true;
}
