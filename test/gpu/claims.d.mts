export interface Claim {
  readonly claim: string;
  readonly page: string;
  /** Test files, folders of them, and `probe NAME`. */
  readonly by: readonly string[];
  /** Where it was seen before seen.json was kept. */
  readonly before?: string;
}

export declare const claims: readonly Claim[];
