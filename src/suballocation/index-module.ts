/**
 * The WebAssembly module that holds every free-space index of this environment (`assembly/`). All
 * sizes are in units, and addresses in bytes; an index, a lane and a block are pointers into the linear
 * memory, whose layout is in `index-layout.ts`.
 */
import { indexBinary } from './index-binary.js';

/** The used part of the global object, which only the type definitions of browsers declare. */
declare const WebAssembly: {
  readonly Module: new (bytes: Uint8Array) => object;
  readonly Instance: new (module: object) => { readonly exports: unknown };
};

interface IndexModule {
  /** The buffer is replaced when the memory grows. */
  readonly memory: { readonly buffer: ArrayBuffer };
  /** Returns 0 if there is no memory. */
  createIndex(): number;
  destroyIndex(index: number): void;
  /** Returns 0 if there is no memory. */
  addLane(index: number): number;
  isEmpty(index: number, lane: number): number;
  shareLane(lane: number, isShared: boolean): void;
  /** Returns 0 if there is none. */
  laneWith(index: number, units: number, own: number, second: number, passed: number): number;
  fullLane(index: number, own: number, second: number, passed: number): number;
  /** Returns 0 if there is no memory. */
  addSegment(index: number, address: number, units: number, lane: number): number;
  /** Returns 0 if there is no memory. */
  extendSegment(index: number, address: number, units: number, lane: number): number;
  /** Returns the address, -1 if there are none, -2 if there is no memory. */
  removePages(index: number, lane: number, pageUnits: number, maximumUnits: number): number;
  removedUnits(): number;
  freeTail(index: number, lane: number): number;
  /** Returns the address, -1 if nothing fits, -2 if there is no memory. */
  allocate(index: number, units: number, slack: number, lane: number, owner: number): number;
  openLane(index: number, lane: number): void;
  takeLowest(index: number): void;
  keepReserve(index: number, lane: number, largestFit: number, plenty: number): void;
  isScarce(index: number): number;
  hasClose(index: number, units: number, lane: number): number;
  canAllocate(index: number, units: number, lane: number): number;
  /** The alignment is in bytes. */
  allocateAligned(index: number, units: number, slack: number, alignment: number, lane: number, owner: number): number;
  /** Returns 0 if there is none. */
  usedBlock(index: number, address: number): number;
  /** As `usedBlock`, if so many bytes were asked for. */
  usedBlockOf(index: number, address: number, bytes: number): number;
  askedBytes(block: number): number;
  ownerOf(block: number): number;
  free(index: number, block: number, lane: number): void;
  /** Returns 0 if no block of this size is used there. */
  freeAt(index: number, address: number, bytes: number, lane: number): number;
  /** An area for so many doubles, at most 2^24, for the three below. Returns 0 if there is no memory. */
  numbersFor(count: number): number;
  /** From sizes in bytes to addresses, until one finds no block or is unusual. Returns how many it did. */
  allocateMany(index: number, count: number, lane: number, owner: number): number;
  /** Of addresses followed by sizes: the place of one that is not used with its size, or comes twice; or -1. */
  firstUnused(index: number, count: number): number;
  /** Frees nothing if `firstUnused` finds one. */
  freeMany(index: number, count: number, lane: number): number;
  transfer(index: number, from: number, to: number): void;
  /** Returns 1 if the lanes have changed places. */
  join(index: number, from: number, to: number): number;
  /** Returns 1 if it moved something, 0 if nothing fits, -1 if there is no memory. */
  carve(index: number, units: number, from: number, to: number): number;
  /** Returns the only block of the segment, or 0. */
  findFreeSegment(index: number, lane: number, maximumUnits: number): number;
  removeSegment(index: number, block: number): void;
  clear(index: number): void;
  useQuickLists(index: number, isAtOnce: boolean): void;
  /** Empties the quick lists. */
  joinQuick(index: number): void;
  freeUnits(index: number, lane: number): number;
  usedUnits(index: number): number;
  largestFreeUnits(index: number, lane: number): number;
}

const compiled = new WebAssembly.Module(Buffer.from(indexBinary, 'base64'));

export const indexModule = new WebAssembly.Instance(compiled).exports as IndexModule;
