/**
 * The buffers of a `SpillingResourceAdaptor` that have memory, and which of them leave first.
 *
 * Invariants: a member is here exactly while it has memory; each that may leave is a candidate.
 * Cost: logarithmic for each member that leaves, and for each before it that cannot, unless that is pinned.
 */
import type { Helps } from '../../adaptors/room-for-limits.js';
import { reasonOf } from '../../basics/errors.js';
import { ALLOCATION_ALIGNMENT, alignUp } from '../../basics/units.js';
import type { DevicePointer, MemoryResource } from '../../memory-resource.js';
import { type Move, moveTogether } from './moves.js';
import { type Ranked, RankHeap } from './rank-heap.js';
import type { Lane } from './spill-files.js';
import type { SpillCandidate, SpillPolicy } from './spill-policy.js';

/** The memory of a buffer that can be spilled. */
export interface Spillable extends SpillCandidate, Ranked {
  /** The address on the device; 0 while it is on the host. */
  readonly devicePointer: DevicePointer;
  /** The outermost resource that its memory is allocated from. */
  readonly stack: MemoryResource;
  readonly isPinned: boolean;
  /** Whether it has a pin that was made outside all grants. */
  readonly isPinnedOutsideGrants: boolean;
  /** Whether it is on the device, and not needed there. */
  readonly canLeave: boolean;
  /** The same without a question to the driver, whether the stream of the last use is captured. */
  readonly isIdle: boolean;
  uses: number;
  lastUse: number;
  /** The rank that the policy returned at the last use. */
  rank: number;
  /** The number of its join. */
  serial: number;
  /**
   * Memory of the host for the contents, as the beginning of a move; `undefined` if there is none.
   * @param isTentative whether the host's refusal counts for nothing
   */
  prepareToLeave(isTentative: boolean): Move | undefined;
  /** Whether it is on the host, and nothing moves it. */
  readonly isOnHost: boolean;
  readonly isInFile: boolean;
  /**
   * Writes the contents to a file, and frees the host's memory. Returns whether it did: not if it is needed meanwhile.
   * @throws CisternError (`ERR_CISTERN_SPILL_FILE`): it then stays on the host
   */
  goToFile(lane: Lane): Promise<boolean>;
}

export class SpillMembers {
  spills = 0;
  spilledBytes = 0;
  returns = 0;
  returnedBytes = 0;
  readonly #policy: SpillPolicy;
  readonly #members = new Set<Spillable>();
  /** Those that may leave: all on the device, but for pinned ones that were met at a spill. */
  readonly #candidates = new RankHeap<Spillable>();
  #joined = 0;
  #lastUse = 0;
  #leftRank = 0;
  /** That the policy has thrown. */
  #hasWarned = false;

  constructor(policy: SpillPolicy) {
    this.#policy = policy;
  }

  [Symbol.iterator](): IterableIterator<Spillable> {
    return this.#members.values();
  }

  get size(): number {
    return this.#members.size;
  }

  join(member: Spillable): void {
    this.#members.add(member);
    member.serial = ++this.#joined;
    this.used(member);
    this.#candidates.put(member);
  }

  /** The member no longer has memory. Returns whether it was here. */
  remove(member: Spillable): boolean {
    this.#candidates.remove(member);
    return this.#members.delete(member);
  }

  used(member: Spillable): void {
    member.uses++;
    member.lastUse = ++this.#lastUse;
    try {
      const rank = this.#policy.rank(member, this.#leftRank);
      member.rank = Number.isFinite(rank) ? rank : 0;
      if (this.#candidates.has(member)) this.#candidates.put(member);
    } catch (error) {
      // The use has succeeded, even if the policy fails.
      if (this.#hasWarned) return;
      this.#hasWarned = true;
      process.emitWarning(`the policy of a SpillingResourceAdaptor threw: ${reasonOf(error)}`, { code: 'CISTERN_SPILL_POLICY' });
    }
  }

  cameBack(member: Spillable): void {
    this.returns++;
    this.returnedBytes += member.bytes;
    this.#candidates.put(member);
  }

  /** A member is on the device, and not pinned any more. */
  mayLeave(member: Spillable): void {
    if (this.#members.has(member) && member.devicePointer !== 0) this.#candidates.put(member);
  }

  /** Whether those that can leave, and help, have so many bytes. */
  canGive(bytes: number, helps: Helps): boolean {
    let sum = 0;
    for (const member of this.#members) {
      if (member.canLeave && helps(member.devicePointer, member.stack)) sum += roundedBytes(member);
      if (sum >= bytes) return true;
    }
    return false;
  }

  /** Lets members leave, those of the least rank first, until so many bytes are free. Returns the bytes that became free. */
  spill(bytes: number, helps: Helps): number {
    let left = 0;
    const met: Spillable[] = [];
    const group = new LeavingGroup();
    try {
      while (left < bytes) {
        let chosen = left;
        while (chosen < bytes) {
          const member = this.#candidates.take();
          if (member === undefined) break;
          // It comes back when the last pin ends.
          if (member.isPinned) continue;
          met.push(member);
          if (member.bytes >= group.tooLarge || !member.canLeave || !helps(member.devicePointer, member.stack)) continue;
          group.members.push(member);
          chosen += roundedBytes(member);
        }
        if (chosen === left) break;
        group.leave((member) => {
          left += roundedBytes(member);
          this.#leftRank = Math.max(this.#leftRank, member.rank);
          this.spills++;
          this.spilledBytes += member.bytes;
        });
      }
    } finally {
      // Host functions may have run in between.
      for (const member of met) this.mayLeave(member);
    }
    return left;
  }

  /** Whether memory may come back: that of a member which somebody uses in this way, or of others, who have the rest of the live bytes. */
  mayComeBack(liveBytes: number, isUsed: (member: Spillable) => boolean): boolean {
    let others = liveBytes;
    for (const member of this.#members) {
      if (isUsed(member)) return true;
      if (member.devicePointer !== 0) others -= member.bytes;
    }
    return others > 0;
  }
}

/** Members that leave together. */
class LeavingGroup {
  /** In the order of their ranks. All can leave, unless foreign code has run since they were chosen. */
  members: Spillable[] = [];
  /** The host has no memory for so many bytes. */
  tooLarge = Number.POSITIVE_INFINITY;

  /** @param left called for each that has left */
  leave(left: (member: Spillable) => void): void {
    const members = this.members;
    this.members = [];
    const moves = new Map<Move, Spillable>();
    let failure: { readonly error: unknown } | undefined;
    if (!(members.length > 1 && this.#prepareNeighbours(members, moves))) {
      try {
        this.#prepareByRank(members, moves);
      } catch (error) {
        failure = { error };
      }
    }
    moveTogether([...moves.keys()], (move) => left(moves.get(move) as Spillable));
    if (failure !== undefined) throw failure.error;
  }

  /**
   * Takes memory of the host in the order of the addresses, so that neighbours on the device are likely to be neighbours there, too. Takes
   * none and returns false if that is not enough for all: who leaves then is for the ranks to say.
   */
  #prepareNeighbours(members: readonly Spillable[], moves: Map<Move, Spillable>): boolean {
    try {
      for (const member of members.toSorted((a, b) => a.devicePointer - b.devicePointer)) {
        if (!member.isIdle) continue;
        const move = member.prepareToLeave(true);
        if (move === undefined) break;
        moves.set(move, member);
      }
      if (moves.size === members.length) return true;
    } catch {
      // It is thrown again, if it still is one.
    }
    for (const move of moves.keys()) move.moves.abandon(move);
    moves.clear();
    return false;
  }

  #prepareByRank(members: readonly Spillable[], moves: Map<Move, Spillable>): void {
    for (const member of members) {
      if (member.bytes >= this.tooLarge || !member.isIdle) continue;
      const move = member.prepareToLeave(false);
      if (move !== undefined) moves.set(move, member);
      else this.tooLarge = member.bytes;
    }
  }
}

/** What resources below count for a member, as they round sizes up. */
function roundedBytes({ bytes }: Spillable): number {
  return alignUp(bytes, ALLOCATION_ALIGNMENT);
}
