import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { markdownTable } from 'markdown-table';
import { expect, test } from 'vitest';
import { foreignSettings, type SettingDescription, settings } from '../../src/tools/cli/setting-descriptions.js';

const ours = Object.entries<SettingDescription>(settings);

function filesIn(folder: string, ending: RegExp): string[] {
  return readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((file) => ending.test(file))
    .map((file) => join(folder, file));
}

test('only src/settings.ts reads environment variables', () => {
  const readers = filesIn('src', /\.ts$/).filter((file) =>
    /\bprocess(\.env|\['env'\])|\benv\b.*from 'node:process'/.test(readFileSync(file, 'utf8')),
  );
  expect(readers).toEqual([join('src', 'settings.ts')]);
});

test('native code reads none', () => {
  const sources = ['addon', 'arenas', 'cuda', 'order', 'platform', 'software', 'suballocation'];
  const readers = sources
    .flatMap((folder) => filesIn(join('native', folder), /\.(cc|h)$/))
    .filter((file) => /getenv\("(?!LD_LIBRARY_PATH")|GetEnvironmentVariable/.test(readFileSync(file, 'utf8')));
  expect(readers).toEqual([]);
});

test('docs/settings.md has the table', () => {
  const page = readFileSync('docs/settings.md', 'utf8');
  expect(page).toContain(tableOf(ours));
  expect(page).toContain(tableOf(Object.entries(foreignSettings)));
});

function tableOf(rows: readonly [string, SettingDescription][]): string {
  const linked = (name: string, page?: string) => (page === undefined ? `\`${name}\`` : `[\`${name}\`](${page})`);
  const cells = [
    ['environment variable', 'values', 'default'],
    ...rows.map(([name, { values, default: otherwise, page }]) => [linked(name, page), values, otherwise]),
  ];
  return markdownTable(cells, { alignDelimiters: false });
}
