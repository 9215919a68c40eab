/** Finds the library that `cistern run` preloads: it lies beside an addon. */
import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { cacheFolder, platformPackages } from '../../package/addon.js';
import { requireFrom } from '../../package/file.js';
import { addonsBeside, ownFile, packageRoot } from '../../package/root.js';
import { setting } from '../../settings.js';

/** The name of the library. */
export const runLibraryName = 'libcistern-run.so';

/** Its path; `undefined` if there is none. */
export function runLibrary(): string | undefined {
  const explicit = setting('CISTERN_ADDON');
  const names = platformPackages[`${process.platform}-${process.arch}`] ?? [];
  const folders = [
    ...(explicit === undefined ? [] : [dirname(explicit)]),
    join(fileURLToPath(packageRoot), 'build/Release'),
    ...names.map((name) => dirname(addonsBeside[name] as string)),
    ...names.flatMap(folderOf),
    join(cacheFolder(), 'build/Release'),
  ];
  return folders.map((folder) => join(folder, runLibraryName)).find((path) => existsSync(path));
}

/** The folder of a platform's package, where package managers do not put it beside this one. */
function folderOf(name: string): string[] {
  try {
    return [dirname(requireFrom(ownFile).resolve(`${name}/cistern.node`))];
  } catch {
    return [];
  }
}
