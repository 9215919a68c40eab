/** The progress of writing a run; the writer updates it with each piece that it yields. */
export interface WrittenEvents {
  count: number;
}
