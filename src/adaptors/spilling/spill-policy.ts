/** Which buffers leave first when memory is short. */

/** A buffer as a {@link SpillPolicy} sees it. */
export interface SpillCandidate {
  readonly bytes: number;
  /** How often it was pinned, or prefetched. */
  readonly uses: number;
  /** The number of its last use, among all uses of buffers of the adaptor: larger is later. */
  readonly lastUse: number;
  readonly label: string | undefined;
}

/** Decides which buffers leave first: those with the least rank. */
export interface SpillPolicy {
  /**
   * The rank of a buffer, asked for at each of its uses.
   * @param leftRank the greatest rank of any buffer that has left so far, or 0: what a policy adds so that ranks of long ago
   * do not last for ever
   * @returns a finite number; anything else counts as 0. If it throws, the rank stays as it was; the first time, a warning
   * (`CISTERN_SPILL_POLICY`) says so
   */
  rank(buffer: SpillCandidate, leftRank: number): number;
}

/** The names of the policies that cistern has. */
export const spillPolicyWords = ['least-recently-used', 'cost-of-return'] as const;

/** What a copy takes, however short it is, in the time of so many bytes: 10 µs at 25 GB/s. */
const copyOverheadBytes = 250_000;

/** @internal The policies by name. */
export const spillPolicies: Readonly<Record<(typeof spillPolicyWords)[number], SpillPolicy>> = Object.freeze({
  'least-recently-used': Object.freeze({ rank: ({ lastUse }: SpillCandidate) => lastUse }),
  // GreedyDual-Size with frequency: what a byte of room costs, if its buffer is used as often as before.
  'cost-of-return': Object.freeze({
    rank: ({ bytes, uses }: SpillCandidate, leftRank: number) => leftRank + uses * (1 + copyOverheadBytes / Math.max(bytes, 1)),
  }),
});
