import { UnsupportedError } from '../basics/errors.js';
import { loadEntry } from '../package/entry.js';
import type { ResourceKind } from '../resource-kind.js';
import { resourceKinds } from './core-kinds.js';

/** The kinds of the capabilities, with the entries of the package that have them. */
const entryOfKind: Readonly<Record<string, string>> = {
  'global-arena': 'workers',
  'thread-safe-arena': 'workers',
  planned: 'plans',
  graph: 'graphs',
  accounting: 'serving',
  admitting: 'serving',
  spilling: 'serving',
  recording: 'recording',
};

const known = new Map<string, ResourceKind>();

/**
 * Makes kinds known to specifications. Those of `cistern`, and of its other entries in a program that is not
 * bundled, are known already; a bundle contains only what it imports.
 * @param kinds the `resourceKinds` of an entry
 * @example
 * ```ts
 * import { resourceKinds } from 'cistern/serving';
 *
 * addResourceKinds(resourceKinds);
 * using resource = createResource('accounting(pool(cuda))');
 * ```
 */
export function addResourceKinds(kinds: readonly ResourceKind[]): void {
  for (const kind of kinds) known.set(kind.name, kind);
}

addResourceKinds(resourceKinds);

/** The names of all kinds. */
export const kindNames: readonly string[] = [...known.keys(), ...Object.keys(entryOfKind)];

/**
 * The kind with a name, or `undefined`. Loads the entry that has it.
 * @throws UnsupportedError if the entry is not in the program's bundle
 */
export function resourceKind(name: string): ResourceKind | undefined {
  const kind = known.get(name);
  if (kind !== undefined || !Object.hasOwn(entryOfKind, name)) return kind;
  const entry = entryOfKind[name] as string;
  const loaded = loadEntry(entry) as { readonly resourceKinds: readonly ResourceKind[] } | undefined;
  if (loaded === undefined) {
    throw new UnsupportedError(
      `this program is bundled without the kind ${name}: call addResourceKinds with the resourceKinds of 'cistern/${entry}' before`,
    );
  }
  addResourceKinds(loaded.resourceKinds);
  return known.get(name);
}
