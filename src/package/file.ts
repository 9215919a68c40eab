import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';
import { ownFile, packageRoot } from './root.js';

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
