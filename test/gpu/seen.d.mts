export type SeenRow = Readonly<Record<string, unknown>>;

export declare function hashOfDriverCode(): string;
export declare function hashOfFile(file: string): string | undefined;
export declare function hashOfRow(name: string): string | undefined;
export declare function isCurrent(name: string, row: SeenRow | undefined, driver?: string): boolean;
export declare function rowsOf(lines: readonly object[]): Record<string, SeenRow>;
