import type { Found } from './search.d.mts';

export interface Bounds {
  readonly leaves: number;
  readonly pages: number;
  readonly writes: number;
  readonly refusals: number;
  readonly calls: number;
}
export const brokenVariants: Readonly<Record<string, Bounds>>;
export function explore(bounds: Bounds, broken?: string): Found;
