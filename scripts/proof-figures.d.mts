export function saveFigures(topic: string, rows: readonly Readonly<Record<string, string | number>>[]): void;
export function pageWithTables(): string;
export function today(): string;
