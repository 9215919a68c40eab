/**
 * The package's root folder. This file lies two folders below it, in `src/` as in the built
 * `dist/chunks/`. `scripts/build-entries.mjs` makes sure of that, and that no other file depends on
 * where it lies.
 */
export const packageRoot = new URL('../..', import.meta.url);
