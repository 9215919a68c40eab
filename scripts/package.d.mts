export declare const platforms: Readonly<Record<string, { readonly os: string; readonly cpu: string; readonly libc?: string }>>;
export declare function ownPlatform(): string;
export declare function packMain(out: string): string;
export declare function packPlatform(out: string, name?: string): Promise<string>;
