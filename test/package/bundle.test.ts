import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';

test('the bundle for a machine with a GPU has every addon that its tests build', () => {
  const folders = ['adaptors', 'buffers', 'collector', 'conformance', 'driver', 'gc', 'property', 'resources', 'stream-ordering'];
  const files = folders.flatMap((folder) =>
    readdirSync(join('test', folder), { recursive: true, encoding: 'utf8' }).map((file) => join('test', folder, file)),
  );
  const texts = files.filter((file) => file.endsWith('.test.ts')).map((file) => readFileSync(file, 'utf8'));
  const built = new Set(texts.flatMap((text) => [...text.matchAll(/\bbuild[A-Z]\w+(?=\(\)|')/g)].map(([name]) => name)));
  const bundle = readFileSync('scripts/bundle.mjs', 'utf8');
  expect(built.size).toBeGreaterThan(2);
  expect([...built].filter((name) => !bundle.includes(`${name}()`))).toEqual([]);
});
