import type { Found } from './search.d.mts';

export interface Bounds {
  readonly tasks: number;
  readonly limits: readonly number[];
  readonly overtakes: number;
}
export interface State {
  readonly queues: readonly { readonly limit: number; readonly line: readonly { readonly task: number; readonly bytes: number }[] }[];
  readonly tasks: readonly { readonly held: readonly number[] }[];
}
export const brokenVariants: Readonly<Record<string, Bounds>>;
export function explore(bounds: Bounds, broken?: string, visit?: (path: readonly string[], state: State) => void): Found;
