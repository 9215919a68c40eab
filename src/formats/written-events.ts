/** How far the writing of a run has come; what writes it keeps this up to date whenever it hands on a piece. */
export interface WrittenEvents {
  count: number;
}
