/** Decides which buffers are spilled first when memory is short. */

/** A buffer as a {@link SpillPolicy} sees it. */
export interface SpillCandidate {
  /** At least 1: an empty buffer has nothing to spill. */
  readonly bytes: number;
  /** How often it was pinned, or prefetched. */
  readonly uses: number;
  /** The number of its last use, among all uses of the adaptor's buffers: larger is later. */
  readonly lastUse: number;
  readonly label: string | undefined;
}

/** Decides which buffers are spilled first: those with the lowest rank. */
export interface SpillPolicy {
  /**
   * The rank of a buffer, computed at each of its uses.
   * @param leftRank the highest rank of any buffer spilled so far, or 0; a policy adds it so that
   * old ranks lose their weight
   * @returns a finite number; anything else counts as 0. If it throws, the rank is unchanged, and
   * the first time a warning (`CISTERN_SPILL_POLICY`) says so
   */
  rank(buffer: SpillCandidate, leftRank: number): number;
}

/** The names of the policies that cistern has. */
export const spillPolicyWords = ['least-recently-used', 'cost-of-return'] as const;

/** The fixed cost of a copy, as the bytes copied in that time: 10 µs at 25 GB/s. */
const copyOverheadBytes = 250_000;

/** @internal The policies by name. */
export const spillPolicies: Readonly<Record<(typeof spillPolicyWords)[number], SpillPolicy>> = Object.freeze({
  'least-recently-used': Object.freeze({ rank: ({ lastUse }: SpillCandidate) => lastUse }),
  // GreedyDual-Size with frequency: the cost of a byte of room, if its buffer is used as often as
  // before.
  'cost-of-return': Object.freeze({
    rank: ({ bytes, uses }: SpillCandidate, leftRank: number) => leftRank + uses * (1 + copyOverheadBytes / bytes),
  }),
});
