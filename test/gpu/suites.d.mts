export interface GpuSuite {
  /** What it shows, for people. */
  readonly about: string;
  /** Folders and files. */
  readonly paths: readonly string[];
  readonly include: readonly string[];
  readonly exclude: readonly string[];
  readonly execArgv: readonly string[];
}

export declare const gpuSuites: Readonly<Record<string, GpuSuite>>;
export declare const trialSuite: GpuSuite;
export declare const visitOrder: readonly string[];
export declare function filesOf(suite: GpuSuite): string[];
