import { basename, isAbsolute } from 'node:path';
import { isOwnCode } from './call-sites.js';

/** The file, the line and perhaps the column of a frame; names of files have slashes of either kind. */
const places = /\((?:file:\/\/)?((?:\/|[A-Za-z]:[\\/])[^()\n]*?)(:\d+(?::\d+)?)\)/g;
/** What is above these folders depends on the machine. */
const dependencies = ['/node_modules/', '/site-packages/', '/dist-packages/'];

/**
 * Stacks without the folder that contains all of the program's files, which would fill most of a
 * line, and depends on the machine instead of the program. The paths of dependencies begin with
 * `node_modules` or `site-packages`.
 */
export function shortenPaths(stacks: readonly string[], folder = programFolder(stacks)): string[] {
  const shorten = (path: string) => {
    const plain = path.replaceAll('\\', '/');
    const dependency = Math.max(...dependencies.map((name) => plain.lastIndexOf(name)));
    return path.slice(dependency >= 0 ? dependency + 1 : path.startsWith(folder) ? folder.length : 0);
  };
  return stacks.map((stack) => stack.replace(places, (_, path: string, line: string) => `(${shorten(path)}${line})`));
}

/** The folder that contains all of the program's own files, with a slash at its end. */
export function programFolder(stacks: readonly string[]): string {
  let common: string | undefined;
  const seen = new Set<string>();
  for (const stack of stacks) {
    for (const frame of stack.split('\n')) {
      const [path] = [...frame.matchAll(places)].map(([, found]) => found);
      if (path === undefined || seen.has(path)) continue;
      seen.add(path);
      if (!isOwnCode(frame)) continue;
      common ??= folderOf(path);
      while (!path.startsWith(common)) common = folderOf(common.slice(0, -1));
    }
  }
  return common ?? '';
}

/** With the slash at its end; empty for a name alone. */
function folderOf(path: string): string {
  return path.slice(0, Math.max(path.lastIndexOf('/'), path.lastIndexOf('\\')) + 1);
}

/** The name of a log in its report: the file's, without the folders of this machine. */
export function shownName(source: string): string {
  return isAbsolute(source) ? basename(source) : source;
}
