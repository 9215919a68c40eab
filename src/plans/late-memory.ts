/**
 * Memory of a pass that did not come back as planned. While there is some, every request takes the slow path:
 *
 *  - places whose free is due but has not come are overdue: a request whose place overlaps one is a deviation;
 *  - bytes that were freed on another stream than planned, or after they were overdue and with several streams, are unordered: only
 *    the stream that freed them may have them, until the next pass.
 */
import type { StreamIdentity } from '../driver/streams/stream-identity.js';
import type { PlannedBlock } from './planned-block.js';

/** Freed bytes that only one stream may have. */
interface UnorderedRange {
  readonly start: number;
  readonly end: number;
  readonly identity: StreamIdentity;
}

export class LateMemory {
  /** Places whose frees are due. */
  readonly overdue = new Set<number>();
  #unordered: UnorderedRange[] = [];

  get isEmpty(): boolean {
    return this.overdue.size === 0 && this.#unordered.length === 0;
  }

  /** A pass begins: what is live is overdue. */
  begin(block: PlannedBlock): void {
    this.#unordered = [];
    this.overdue.clear();
    block.asked.forEach((bytes, place) => {
      if (bytes > 0) this.overdue.add(place);
    });
  }

  /** Only a stream may have these bytes. */
  leaveTo(identity: StreamIdentity, start: number, bytes: number): void {
    this.#unordered.push({ start, end: start + bytes, identity });
  }

  /** Whether bytes are in use, or freed without order to a stream. */
  isTaken(block: PlannedBlock, start: number, bytes: number, identity: StreamIdentity): boolean {
    const end = start + bytes;
    for (const place of this.overdue) {
      const from = block.offsets[place] as number;
      if (from < end && start < from + (block.asked[place] as number)) return true;
    }
    return this.#unordered.some((range) => range.start < end && start < range.end && range.identity !== identity);
  }

  /** Forgets what became overdue after there were so many. */
  forgetLast(before: number): void {
    for (const place of [...this.overdue].slice(before)) this.overdue.delete(place);
  }
}
