/** A fault of native code, and the test that must find it. */
export interface NativeFault {
  readonly fault: string;
  /** A text that its file has once, and what replaces it. */
  readonly from: string;
  readonly to: string;
  /** The beginning of the name of a case, or what the name of a test has. */
  readonly test: string;
  /** The file of the test, for a fault of the addon. */
  readonly file?: string;
}

/** Faults by the file that they are in. */
export type NativeFaults = Readonly<Record<string, readonly NativeFault[]>>;

export declare const nativeFaults: NativeFaults;
export declare const addonFaults: NativeFaults;
