import type { ResourceKind } from '../resource-kind.js';
import { resourceKinds } from '../resource-kinds.js';

const kindsByName: ReadonlyMap<string, ResourceKind> = new Map(resourceKinds.map((kind) => [kind.name, kind]));

/** The names of all kinds. */
export const kindNames: readonly string[] = resourceKinds.map((kind) => kind.name);

/** The kind with a name, or `undefined`. */
export function resourceKind(name: string): ResourceKind | undefined {
  return kindsByName.get(name);
}
