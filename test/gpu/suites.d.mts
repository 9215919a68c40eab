export interface GpuSuite {
  /** What it shows, for people. */
  readonly about: string;
  readonly include: readonly string[];
  readonly exclude: readonly string[];
  readonly execArgv: readonly string[];
}

export declare const gpuSuites: Readonly<Record<string, GpuSuite>>;
