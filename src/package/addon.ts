/**
 * Finds the addon. It tries, in this order: the file that `CISTERN_ADDON` names, an addon built
 * inside this package, the package for this platform, and an addon that `cistern build` put into
 * the user's cache because it could not write to this package.
 */
import { existsSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { setting } from '../settings.js';
import { installedRoot, requireFrom } from './file.js';
import { packageManagerAdvice } from './package-manager.js';
import { addonsBeside, ownFile, packageRoot, packageVersion } from './root.js';

/** The file from which this copy of cistern has loaded the addon. */
export function addonPath(): string | undefined {
  return loadedFrom;
}

let loadedFrom: string | undefined;

/** The path of a built addon, below the package's root or the cache. */
const builtAddon = 'build/Release/cistern.node';

/** The packages of each platform, in the order in which they are tried. */
export const platformPackages: Readonly<Record<string, readonly string[]>> = {
  'darwin-arm64': ['@cistern/darwin-arm64'],
  'darwin-x64': ['@cistern/darwin-x64'],
  'linux-arm64': ['@cistern/linux-arm64-gnu', '@cistern/linux-arm64-musl'],
  'linux-x64': ['@cistern/linux-x64-gnu', '@cistern/linux-x64-musl'],
  'win32-x64': ['@cistern/win32-x64'],
};

/** Where `cistern build` puts the addon if it cannot write to the package. */
export function cacheFolder(): string {
  const base = setting('XDG_CACHE_HOME') ?? join(homedir(), '.cache');
  const libc = process.platform === 'linux' ? (isMusl() ? '-musl' : '-gnu') : '';
  return join(base, 'cistern', `${packageVersion()}-${process.platform}-${process.arch}${libc}`);
}

/**
 * Loads the addon.
 * @throws the error that `fail` makes of the reason, which says what to do, and of the loader's own
 * error
 */
export function loadAddon(fail: (reason: string, cause: unknown) => Error): unknown {
  const explicit = setting('CISTERN_ADDON');
  if (explicit !== undefined) {
    try {
      // The tests load an addon built with sanitizers in this way, and a single executable its own
      // copy.
      return load(requireFrom(ownFile), explicit);
    } catch (cause) {
      if (cause instanceof OtherVersion)
        throw fail(`CISTERN_ADDON names ${cause.message}: name an addon of version ${packageVersion()}, or unset it`, undefined);
      throw fail(`CISTERN_ADDON names ${explicit}, which is not an addon that can be loaded here`, cause);
    }
  }
  const failures: unknown[] = [];
  for (const attempt of [() => loadBuilt(fileURLToPath(packageRoot)), loadFromPackage, () => loadBuilt(cacheFolder())]) {
    try {
      const addon = attempt();
      if (addon !== undefined) return addon;
    } catch (error) {
      failures.push(error);
    }
  }
  const [failure] = failures;
  throw fail(reason(failure), failure instanceof OtherVersion ? undefined : failure);
}

/** Thrown for an addon that was built for another version of cistern. The message is a clause. */
class OtherVersion extends Error {
  constructor(path: string, version: unknown) {
    const theirs = typeof version === 'string' ? version : 'an older one';
    super(`${path}, which was built for another version of cistern (${theirs}, not ${packageVersion()})`);
  }
}

/**
 * Loads the file and removes it from Node's cache. Another copy of cistern that finds the same file
 * must get its own functions, which use its own mailbox: the addon has separate state for each time
 * that it is loaded.
 * @throws OtherVersion
 */
function load(require: NodeJS.Require, path: string): unknown {
  const addon = require(path) as { readonly version?: unknown };
  const file = require.resolve(path);
  Reflect.deleteProperty(require.cache, file);
  if (addon.version !== packageVersion()) throw new OtherVersion(file, addon.version);
  loadedFrom = file;
  return addon;
}

function loadBuilt(folder: string): unknown {
  const path = join(folder, builtAddon);
  return existsSync(path) ? load(requireFrom(ownFile), path) : undefined;
}

/** @throws the loader's error if a package for this platform is there, but none can be loaded */
function loadFromPackage(): unknown {
  let failure: unknown;
  const names = platformPackages[`${process.platform}-${process.arch}`] ?? [];
  const root = installedRoot();
  const tries = [
    ...names.flatMap((name) => (existsSync(addonsBeside[name] as string) ? [[ownFile, addonsBeside[name] as string] as const] : [])),
    // The second place is for a bundle, if the program's package manager shows each package only
    // its own dependencies.
    ...[ownFile, ...(root === undefined ? [] : [root])].flatMap((from) => names.map((name) => [from, `${name}/cistern.node`] as const)),
  ];
  for (const [from, path] of tries) {
    try {
      return load(requireFrom(from), path);
    } catch (error) {
      if (!String((error as NodeJS.ErrnoException).code).endsWith('MODULE_NOT_FOUND')) failure ??= error;
    }
  }
  if (failure !== undefined) throw failure;
  return undefined;
}

/** Why no addon was loaded, given the first failure if there was one, and what to do. */
function reason(failure: unknown): string {
  const names = platformPackages[`${process.platform}-${process.arch}`];
  if (names === undefined)
    return `there is none for ${process.platform}-${process.arch}: ${Object.keys(platformPackages).join(', ')} are supported`;
  const name = names[names.length > 1 && isMusl() ? 1 : 0] as string;
  const root = fileURLToPath(packageRoot);
  const found = failure instanceof OtherVersion ? `the one found is ${failure.message}` : undefined;
  if (existsSync(join(root, 'native', 'test'))) return `${found ?? 'it is not built'}: run "npm ci" in the clone, ${root}`;
  const { install, command } = packageManagerAdvice(root);
  const build = `compile it with "${command} build", which needs CMake and a C++ compiler`;
  if (found !== undefined) return `${found}; ${name} must have the version of cistern: ${install}, or ${build}`;
  return failure !== undefined
    ? `${name} does not fit this system: ${build}`
    : `${name}, an optional dependency, is not installed: ${install}; if cistern was installed from a tarball, install that of ${name} with it; or ${build}`;
}

/** Whether the C library is musl. Reading the report takes some milliseconds. */
function isMusl(): boolean {
  const { header } = process.report.getReport() as { header?: { glibcVersionRuntime?: string } };
  return header?.glibcVersionRuntime === undefined;
}
