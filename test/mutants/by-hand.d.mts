/** A fault that replaces a text, which its file has once, by another. */
export interface FaultByHand {
  readonly file: string;
  readonly name: string;
  readonly fault: string;
  readonly from: string;
  readonly to: string;
}

export declare const byHand: readonly FaultByHand[];
