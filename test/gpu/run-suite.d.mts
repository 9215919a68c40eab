export interface SuiteResult {
  readonly passed: number;
  readonly failures: readonly { readonly file: string; readonly name: string; readonly message: string }[];
  readonly skips: ReadonlyMap<string, number>;
  readonly seconds: number;
}

export declare function runTests(
  which: readonly string[],
  environment: Readonly<Record<string, string>>,
  log: string,
  longestMilliseconds: number,
): Promise<SuiteResult>;
