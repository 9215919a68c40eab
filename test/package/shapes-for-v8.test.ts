import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';

const root = new URL('../..', import.meta.url);
const page = readFileSync(new URL('docs/design/062-shapes-for-v8.md', root), 'utf8');
const known = [...page.matchAll(/^\| `V8: ([^`]+)` \|/gm)].map((row) => row[1]);

test('each comment that names a shape for V8 names one of the page, and each of the page is in use', () => {
  const used = new Set<string>();
  for (const file of readdirSync('src', { recursive: true, encoding: 'utf8' }).filter((name) => name.endsWith('.ts'))) {
    const text = readFileSync(join('src', file), 'utf8');
    for (const [, names] of text.matchAll(/V8: ([a-z ,]+)[).]/g)) for (const name of (names as string).split(', ')) used.add(name);
  }
  const explained = ['addresses as keys'];
  expect([...used, ...explained].sort()).toEqual(known.toSorted());
});
