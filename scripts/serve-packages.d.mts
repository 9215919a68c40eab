export declare function servePackages(tarballs: {
  readonly main: string;
  readonly platform: string;
}): Promise<{ readonly address: string; readonly requests: readonly string[]; close(): void }>;
