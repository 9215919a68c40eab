export declare const platforms: Readonly<Record<string, { readonly os: string; readonly cpu: string; readonly libc?: string }>>;
export declare function pageOf(remote: string): string | undefined;
export declare function originOf(
  environment: Readonly<Record<string, string | undefined>>,
  remote?: string,
): {
  readonly repository?: { readonly type: string; readonly url: string };
  readonly bugs?: { readonly url: string };
  readonly homepage?: string;
};
export declare function packedReadme(
  text: string,
  files: readonly string[],
  origin?: { readonly repository?: { readonly url: string } },
): string;
export declare function ownPlatform(): string;
export declare function packMain(out: string): string;
export declare function packPlatform(out: string, name?: string): string;
