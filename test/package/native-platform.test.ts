import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';

const native = fileURLToPath(new URL('../../native', import.meta.url));

/** The lines of the addon's sources outside `native/platform`, with their places. */
const lines = ['addon', 'cuda', 'order', 'software'].flatMap((folder) =>
  readdirSync(join(native, folder)).flatMap((file) =>
    readFileSync(join(native, folder, file), 'utf8')
      .split('\n')
      .map((text, index) => `native/${folder}/${file}:${index + 1}: ${text}`),
  ),
);

describe('only native/platform knows operating systems', () => {
  test('other files include headers of C++, of Node-API and their own', () => {
    const includes = lines.filter((line) => line.includes('#include <'));
    expect(includes.length).toBeGreaterThan(100);
    expect(includes.filter((line) => !/#include <(?:[a-z_]+|napi\.h|node_api\.h)>/.test(line))).toEqual([]);
  });

  test('other files have no code for one system', () => {
    expect(lines.filter((line) => /__linux__|__APPLE__|_WIN32|__GLIBC__|\/proc\/|\bsyscall\(/.test(line))).toEqual([]);
  });
});
