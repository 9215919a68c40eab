import { readFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';

/** The file that this code runs from. A bundle in CommonJS has no `import.meta.url`. */
export const ownFile: string = import.meta.url ?? pathToFileURL(__filename).href;

/**
 * The package's root folder. This file lies two folders below it, in `src/` as in the built
 * `dist/chunks/`. `scripts/build-entries.mjs` makes sure of that, and that no other file depends on
 * where it lies. In a program's own bundle, nothing is there: see `packageFile`.
 */
export const packageRoot: URL = new URL('../..', ownFile);

/** The build puts the version here, so that bundles know it too. */
declare const CISTERN_VERSION: string | undefined;

/** The version of this package. */
export function packageVersion(): string {
  if (typeof CISTERN_VERSION === 'string') return CISTERN_VERSION;
  const { version } = JSON.parse(readFileSync(new URL('package.json', packageRoot), 'utf8')) as { version: string };
  return version;
}
