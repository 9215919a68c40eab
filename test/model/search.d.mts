/** What a search has found: the steps to the first fault, if there is one. */
export interface Found {
  readonly states: number;
  readonly steps: number;
  readonly fault: readonly string[] | undefined;
}
