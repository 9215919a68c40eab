import { readdirSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { describe, expect, test } from 'vitest';

/** Functions that create or change a file at a path. */
const writing =
  /\b(?:appendFile|copyFile|cp|createWriteStream|link|open|rename|symlink|truncate|writeFile)(?:Sync)?\b(?=[^;]*\bfrom 'node:fs)/g;

/** Where files are created: for logs that run, for results of tools, and the file without a name that spilled buffers go to. */
const writers = ['files/', 'tools/files/', 'serving/spilling/unnamed-file.ts'];
const isWriter = (file: string) => writers.some((each) => file.startsWith(each));

/**
 * Who may, besides these, and why it is no way around it: results are written by `writeWhole`, and every other
 * new file is made by `createFile`.
 */
const permitted: Readonly<Record<string, readonly string[]>> = {
  // Appends to a file that the program names, as RMM does; it is not replaced, nor written as a whole.
  'adaptors/pooling/arena-memory-resource.ts': ['appendFileSync'],
  // Copies the addon to a new file, under a name that nobody can guess, which then replaces the old one.
  'tools/cli/build.ts': ['copyFileSync', 'renameSync'],
};

test('only the writers create files or change them', () => {
  const found: Record<string, string[]> = {};
  for (const file of readdirSync('src', { recursive: true, encoding: 'utf8' })) {
    if (!file.endsWith('.ts') || isWriter(file) || file.startsWith('tools/pages/')) continue;
    const imports = readFileSync(join('src', file), 'utf8').match(/^import [^;]*? from 'node:fs(?:\/promises)?';$/gms) ?? [];
    const names = imports.flatMap((line) => line.match(writing) ?? []);
    if (names.length > 0) found[file] = names;
  }
  expect(found).toEqual(permitted);
});

describe('the files that the writers write', () => {
  test('are opened by a path that the program names, or are new', () => {
    const opening = /\b(?:openSync|createWriteStream|writeFileSync)\([^;\n]*/g;
    const files = readdirSync('src', { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.ts') && isWriter(file));
    const calls = files.flatMap((file) =>
      [...readFileSync(join('src', file), 'utf8').matchAll(opening)].map(([call]) => `${basename(file)}: ${call}`),
    );
    expect(calls.sort()).toEqual([
      // A log grows while the program runs and is read if it is killed, so it is not written as a whole, and its path may be a link or a pipe.
      'log-target.ts: openSync(path, constants.O_WRONLY | constants.O_CREAT)',
      "new-file.ts: openSync(path, access === 'write' ? 'wx' : 'wx+', mode)",
      // A file without a name.
      'unnamed-file.ts: openSync(folder, constants.O_RDWR | constants.O_DIRECTORY | temporary, 0o600)',
      // A device or a pipe that the program names: neither created nor emptied.
      "write-whole.ts: createWriteStream(path, { fd: createFile(path, 'write', mode & 0o777) })",
      'write-whole.ts: createWriteStream(path, { flags: constants.O_WRONLY as unknown as string })',
    ]);
  });
});
