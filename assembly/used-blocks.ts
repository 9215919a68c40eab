/**
 * Maps the addresses of used blocks to their records.
 *
 * Data structure: open addressing with linear probing, at most half full. A removal shifts the
 * following entries back, so there are no tombstones, and a map that never holds more than n entries
 * does not degrade. A cell of 8 bytes holds the record and 32 bits of the address, which decide
 * where the cell's home is, and nearly always whether it is the one that is sought, so other
 * blocks' records are not touched.
 *
 *     home(a) = the topmost bits of the 32 bits of a / 256 · 2^32 / φ
 *     cells     [ . | a | b | . | c | . ]      b's home may be a's cell; no empty cell lies between b's home and b
 *
 * Blocks start at multiples of 256, so the low eight bits carry no information. The topmost bits of
 * the product (Fibonacci hashing) are far apart for neighbouring addresses, and for most other
 * series.
 *
 * Cost: expected constant time; 2 to 3 probes when fullest.
 */
import { addressField, cellShiftField, cellsField, cellsOrderField, unitBits, usedCountField } from '../src/suballocation/index-layout';
import { returnArea, takeArea } from './areas';

const cellBytes: u32 = 8;
const tagField: usize = 4;
/** The map of a new index has 64 cells. */
const firstOrder: u32 = 9;

/** Makes an index's map an empty one. Returns whether there was memory for it. */
export function createCells(index: u32): bool {
  const cells = takeArea(firstOrder);
  if (cells === 0) return false;
  memory.fill(cells, 0, 1 << firstOrder);
  store<u32>(index, cells, cellsField);
  store<u32>(index, firstOrder, cellsOrderField);
  store<u32>(index, 32 + 3 - firstOrder, cellShiftField);
  return true;
}

export function returnCells(index: u32): void {
  returnArea(load<u32>(index, cellsField), load<u32>(index, cellsOrderField));
}

/** Makes room for one more block. Returns false if there is no memory. */
export function hasCell(index: u32): bool {
  const order = load<u32>(index, cellsOrderField);
  return (load<u32>(index, usedCountField) + 1) << 4 <= u32(1) << order || grow(index, order);
}

/** Adds a block, after `hasCell`. */
export function addUsed(index: u32, address: f64, block: u32): void {
  const cells = load<u32>(index, cellsField);
  const mask = maskOf(index);
  const tag = tagOf(address);
  let cell = homeOf(tag, load<u32>(index, cellShiftField));
  while (load<u32>(cells + cell) !== 0) cell = (cell + cellBytes) & mask;
  store<u64>(cells + cell, (u64(tag) << 32) | u64(block));
  store<u32>(index, load<u32>(index, usedCountField) + 1, usedCountField);
}

/** Returns the position of the cell of an address, or -1. */
export function cellOf(index: u32, address: f64): i32 {
  const cells = load<u32>(index, cellsField);
  const mask = maskOf(index);
  const tag = tagOf(address);
  let cell = homeOf(tag, load<u32>(index, cellShiftField));
  let block = load<u32>(cells + cell);
  while (block !== 0) {
    if (load<u32>(cells + cell, tagField) === tag && load<f64>(block, addressField) === address) return cell;
    cell = (cell + cellBytes) & mask;
    block = load<u32>(cells + cell);
  }
  return -1;
}

/** The block in a cell. */
export function blockIn(index: u32, cell: i32): u32 {
  return load<u32>(load<u32>(index, cellsField) + cell);
}

/** Empties a cell, and moves back the entries that could no longer be found. */
export function removeCell(index: u32, cell: u32): void {
  const cells = load<u32>(index, cellsField);
  const mask = maskOf(index);
  const shift = load<u32>(index, cellShiftField);
  let hole = cell;
  for (let next = (hole + cellBytes) & mask; load<u32>(cells + next) !== 0; next = (next + cellBytes) & mask) {
    // An entry may move into the hole only if that does not put it before its home.
    const home = homeOf(load<u32>(cells + next, tagField), shift);
    if (((next - home) & mask) < ((next - hole) & mask)) continue;
    store<u64>(cells + hole, load<u64>(cells + next));
    hole = next;
  }
  store<u64>(cells + hole, 0);
  store<u32>(index, load<u32>(index, usedCountField) - 1, usedCountField);
}

function grow(index: u32, order: u32): bool {
  const larger = takeArea(order + 1);
  if (larger === 0) return false;
  const bytes: u32 = 2 << order;
  memory.fill(larger, 0, bytes);
  const cells = load<u32>(index, cellsField);
  const shift = load<u32>(index, cellShiftField) - 1;
  for (let old: u32 = 0; old < bytes >>> 1; old += cellBytes) {
    if (load<u32>(cells + old) === 0) continue;
    let cell = homeOf(load<u32>(cells + old, tagField), shift);
    while (load<u32>(larger + cell) !== 0) cell = (cell + cellBytes) & (bytes - 1);
    store<u64>(larger + cell, load<u64>(cells + old));
  }
  returnArea(cells, order);
  store<u32>(index, larger, cellsField);
  store<u32>(index, order + 1, cellsOrderField);
  store<u32>(index, shift, cellShiftField);
  return true;
}

/** What a position in the map is masked with. */
function maskOf(index: u32): u32 {
  return (u32(1) << load<u32>(index, cellsOrderField)) - cellBytes;
}

function tagOf(address: f64): u32 {
  return u32(i64(address) >> unitBits);
}

function homeOf(tag: u32, shift: u32): u32 {
  return ((tag * 0x9e3779b1) >>> shift) * cellBytes;
}
