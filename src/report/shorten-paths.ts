const place = /\(((?:file:\/\/)?\/[^()\n]*):\d+:\d+\)/g;

/**
 * Stacks without the folder that contains all of their files: it would fill most of a line, and
 * depends on the machine, not the program.
 */
export function shortenPaths(stacks: readonly string[]): string[] {
  let common: string | undefined;
  for (const stack of stacks) {
    for (const [, path = ''] of stack.matchAll(place)) {
      common ??= path.slice(0, path.lastIndexOf('/') + 1);
      while (!path.startsWith(common)) common = common.slice(0, common.lastIndexOf('/', common.length - 2) + 1);
    }
  }
  const folder = common ?? '';
  return stacks.map((stack) => stack.replace(place, (whole, path: string) => whole.replace(path, () => path.slice(folder.length))));
}
