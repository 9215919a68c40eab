import type { Claim } from './claims.mjs';
import type { SeenRow } from './seen.mjs';

export declare function pagesWithSeen(seen?: Readonly<Record<string, SeenRow>>): Record<string, string>;
export declare function settling(claim: Claim): string[];
