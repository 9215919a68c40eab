import { readdirSync, readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { CudaMemoryResource, PoolMemoryResource } from '../../src/index.js';

const root = new URL('../../', import.meta.url);
const text = (path: string) => readFileSync(new URL(path, root), 'utf8');

/** Names that guides use and that others have defined. */
const foreignNames = new Set(['cudaMemFree', 'numBytes', 'serverExternalPackages']);

/** Names in camel case that a page puts in code within its sentences. */
function namesIn(page: string): string[] {
  const code = [...page.replace(/```.*?```/gs, '').matchAll(/`([^`\n]+)`/g)].map(([, words = '']) => words);
  return code.flatMap((words) => words.match(/\b[a-z]+[A-Z]\w*/g) ?? []).filter((name) => !foreignNames.has(name));
}

const api = readdirSync(new URL('api/', root))
  .map((file) => text(`api/${file}`))
  .join('\n');

test.each(readdirSync(new URL('docs/guides/', root)))('every name in %s is in the public interface', (guide) => {
  const unknown = namesIn(text(`docs/guides/${guide}`)).filter((name) => !new RegExp(`\\b${name}\\b`).test(api));
  expect(unknown).toEqual([]);
});

test('what the guide on out of memory reads of a pool, a pool has', () => {
  using upstream = new CudaMemoryResource();
  using pool = new PoolMemoryResource(upstream, { initialBytes: 1024 });
  const [, causes = ''] = /## What is the cause\?(.*?)\n## /s.exec(text('docs/guides/out-of-memory.md')) ?? [];
  const options = ['idleMilliseconds', 'initialBytes', 'keepBytes', 'maximumBytes'];
  const names = namesIn(causes).filter((name) => !options.includes(name));
  expect(names.length).toBeGreaterThan(3);
  expect(names.filter((name) => !(name in pool) && !(name in pool.statistics()))).toEqual([]);
});
