import { basename, isAbsolute } from 'node:path';

const place = /\((?:file:\/\/)?(\/[^()\n]*):\d+:\d+\)/g;
const dependencies = '/node_modules/';

/**
 * Stacks without the folder that contains all of the program's files, which would fill most of a
 * line, and depends on the machine instead of the program. The paths of dependencies begin with
 * `node_modules`.
 */
export function shortenPaths(stacks: readonly string[], folder = programFolder(stacks)): string[] {
  const shorten = (path: string) => path.slice(path.includes(dependencies) ? path.lastIndexOf(dependencies) + 1 : folder.length);
  return stacks.map((stack) =>
    stack.replace(place, (whole, path: string) => whole.replace('file://', '').replace(path, () => shorten(path))),
  );
}

/** The folder that contains all of the program's files, with a slash at its end. */
export function programFolder(stacks: readonly string[]): string {
  let common: string | undefined;
  for (const stack of stacks) {
    for (const [, path = ''] of stack.matchAll(place)) {
      if (path.includes(dependencies)) continue;
      common ??= path.slice(0, path.lastIndexOf('/') + 1);
      while (!path.startsWith(common)) common = common.slice(0, common.lastIndexOf('/', common.length - 2) + 1);
    }
  }
  return common ?? '';
}

/** The name of a log in its report: the file's, without the folders of this machine. */
export function shownName(source: string): string {
  return isAbsolute(source) ? basename(source) : source;
}
