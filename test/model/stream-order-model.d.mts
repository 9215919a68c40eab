import type { Found } from './search.d.mts';

export interface Bounds {
  readonly streams: number;
  readonly blocks: number;
  readonly work: number;
  readonly policies: readonly string[];
  readonly mayEnd?: boolean;
}
export const brokenVariants: Readonly<Record<string, Bounds>>;
export function explore(bounds: Bounds, broken?: string): Found;
