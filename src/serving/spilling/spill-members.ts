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
  uses: number;
  lastUse: number;
  /** The rank that the policy returned at the last use. */
  rank: number;
  /** The number of its join. */
  serial: number;
  /** Copies the contents to the host, and frees the memory, in stream order. Returns false if the host has no memory. */
  leave(): boolean;
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
    return sum >= bytes;
  }

  /** Lets members leave, those of the least rank first, until so many bytes are free. Returns the bytes that became free. */
  spill(bytes: number, helps: Helps): number {
    let left = 0;
    let tooLarge = Number.POSITIVE_INFINITY;
    const met: Spillable[] = [];
    try {
      while (left < bytes) {
        const member = this.#candidates.take();
        if (member === undefined) break;
        // It comes back when the last pin ends.
        if (member.isPinned) continue;
        met.push(member);
        if (member.bytes >= tooLarge || !member.canLeave || !helps(member.devicePointer, member.stack)) continue;
        if (!member.leave()) {
          tooLarge = member.bytes;
          continue;
        }
        left += roundedBytes(member);
        this.#leftRank = Math.max(this.#leftRank, member.rank);
        this.spills++;
        this.spilledBytes += member.bytes;
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

/** What resources below count for a member, as they round sizes up. */
function roundedBytes({ bytes }: Spillable): number {
  return alignUp(bytes, ALLOCATION_ALIGNMENT);
}
