import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { ownFile, packageRoot } from './root.js';

/**
 * The `require` of a file. The function that makes it is taken from the runtime, because bundlers replace one
 * that is imported by its name.
 */
export function requireFrom(file: string | URL): NodeJS.Require {
  return process.getBuiltinModule('node:module').createRequire(file);
}

/** The root of the cistern that is installed for the file that this code runs from. */
export function installedRoot(): URL | undefined {
  try {
    return new URL('.', pathToFileURL(createRequire(ownFile).resolve('cistern/package.json')));
  } catch {
    return undefined;
  }
}

/**
 * A file of this package. In a program's own bundle, it is looked up in the installed package, if
 * that can be found from the bundle.
 */
export function packageFile(path: string): URL {
  const file = new URL(path, packageRoot);
  return existsSync(file) ? file : new URL(path, installedRoot() ?? packageRoot);
}

const loaded = new Set<string>();

/** An entry that environment variables start says that it is there. */
export function noteLoaded(entry: string): void {
  loaded.add(entry);
}

export function isLoaded(entry: string): boolean {
  return loaded.has(entry);
}

/**
 * Loads another entry of this package, synchronously: its exports; or `undefined` if this code does not run from
 * the built package, but from a program's bundle, which has no other entries than those that it imports.
 */
export function loadEntry(entry: string): unknown {
  const dist = new URL('dist/', packageRoot);
  const folder = entry === 'watch' ? 'tools/watch' : entry;
  const file = new URL(`${folder}/index.js`, dist);
  if (!ownFile.startsWith(dist.href) || !existsSync(file)) return undefined;
  return requireFrom(ownFile)(fileURLToPath(file));
}
