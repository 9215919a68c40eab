/**
 * Moves of managed memory on the software device. Stream threads record them, and this thread reads
 * them. At most one thread of the process can.
 */
import { mailbox, native } from '../driver/native.js';
import { check } from '../driver/status.js';

/** `pendingMoves[0]` is not 0 while there are moves to read. Native code writes it at any time. */
export const pendingMoves = new Int32Array(1);

/**
 * Why a page is at a place, in the order of native code's `MoveReason`. `left`: it no longer is.
 * `fault, not moved`: it `left` just before, because a fault did not move it. `lost`: not a page;
 * moves were lost, and `bytes` is their number.
 */
const reasons = [
  'left',
  'already there',
  'first use',
  'fault',
  'thrash',
  'host view',
  'prefetch, first use',
  'prefetch',
  'eviction',
  'fault, not moved',
  'lost',
] as const;

/** A page that came to a place or left it, or the number of lost moves. */
export interface ManagedMove {
  /** Since {@link beginManagedMoves}. */
  readonly nanoseconds: number;
  readonly pointer: number;
  readonly bytes: number;
  /** A device's index, or -1 for the host. */
  readonly place: number;
  readonly reason: (typeof reasons)[number];
  /** The device and the driver's handle of the stream whose work caused it; 0 if none did. */
  readonly device: number;
  readonly stream: number;
}

const cellsOfMove = 7;
const movesAtOnce = 256;
const cells = new Float64Array(movesAtOnce * cellsOfMove);

/**
 * Begins to record moves, with an arrival for each page that already has a place. Returns `false`
 * if another thread reads them.
 */
export function beginManagedMoves(): boolean {
  native().beginManagedMoves(pendingMoves);
  check('note the moves of managed memory');
  return mailbox[1] === 1;
}

/**
 * Takes the recorded moves, oldest first.
 * @param until nanoseconds since {@link beginManagedMoves}: later moves may be left over, because
 * streams may record moves faster than they can be taken
 * @param most how many to take, rounded up to a multiple of 256
 */
export function* takeManagedMoves(until: number, most: number): Generator<ManagedMove> {
  let time = 0;
  for (let taken = 0; pendingMoves[0] !== 0 && time <= until && taken < most; taken += movesAtOnce) {
    native().takeManagedMoves(cells);
    check('take the moves of managed memory');
    const count = mailbox[1] as number;
    // Moves were lost, but there is no memory to record that.
    if (count === 0) return;
    for (let at = 0; at < count * cellsOfMove; at += cellsOfMove) {
      time = cells[at] as number;
      yield {
        nanoseconds: time,
        pointer: cells[at + 1] as number,
        bytes: cells[at + 2] as number,
        place: cells[at + 3] as number,
        reason: reasons[cells[at + 4] as number] as ManagedMove['reason'],
        device: cells[at + 5] as number,
        stream: cells[at + 6] as number,
      };
    }
  }
}

/** Stops recording moves, and drops those not yet taken. */
export function endManagedMoves(): void {
  native().endManagedMoves();
  check('end the noting of moves of managed memory');
}
