import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

/** The file that this code runs from. A bundle in CommonJS has no `import.meta.url`. */
export const ownFile: string = import.meta.url ?? pathToFileURL(__filename).href;

/**
 * The package's root folder. This file is two folders below it, both in `src/` and in the built
 * `dist/chunks/`; `scripts/build-entries.mjs` ensures this, and that no other file depends on its
 * own place. In a program's own bundle, this folder has no files of cistern: see `packageFile`.
 */
export const packageRoot: URL = new URL('../..', ownFile);

const ownFolder = import.meta.url === undefined ? __dirname : dirname(fileURLToPath(import.meta.url));

/**
 * The addon in the package of each platform, in the place where most package managers install it. Each
 * path is written out so that tools that trace a program's files (`@vercel/nft`) find it. None is an
 * argument of `require`, because bundlers would try to read the file.
 */
export const addonsBeside: Readonly<Record<string, string>> = {
  '@cistern/darwin-arm64': join(ownFolder, '../../../@cistern/darwin-arm64/cistern.node'),
  '@cistern/darwin-x64': join(ownFolder, '../../../@cistern/darwin-x64/cistern.node'),
  '@cistern/linux-arm64-gnu': join(ownFolder, '../../../@cistern/linux-arm64-gnu/cistern.node'),
  '@cistern/linux-arm64-musl': join(ownFolder, '../../../@cistern/linux-arm64-musl/cistern.node'),
  '@cistern/linux-x64-gnu': join(ownFolder, '../../../@cistern/linux-x64-gnu/cistern.node'),
  '@cistern/linux-x64-musl': join(ownFolder, '../../../@cistern/linux-x64-musl/cistern.node'),
  '@cistern/win32-x64': join(ownFolder, '../../../@cistern/win32-x64/cistern.node'),
};

/** The build defines this, so that bundles know the version too. */
declare const CISTERN_VERSION: string | undefined;

/** The version of this package. */
export function packageVersion(): string {
  if (typeof CISTERN_VERSION === 'string') return CISTERN_VERSION;
  const { version } = JSON.parse(readFileSync(new URL('package.json', packageRoot), 'utf8')) as { version: string };
  return version;
}
