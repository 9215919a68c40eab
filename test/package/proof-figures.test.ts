import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { pageWithTables } from '../../scripts/proof-figures.mjs';

test('the tables of docs/proof.md have the figures that were saved', () => {
  const page = readFileSync('docs/proof.md', 'utf8');
  expect(page, 'run node scripts/proof-figures.mjs').toBe(pageWithTables());
  const tables = JSON.parse(readFileSync('docs/proof-figures.json', 'utf8'));
  for (const topic of Object.keys(tables)) expect(page).toMatch(new RegExp(`<!-- (?:figures|sums): (?:[\\w-]+, )*${topic}[,: ]`));
});
