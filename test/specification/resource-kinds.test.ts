import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import * as cistern from '../../src/index.js';
import { createResourceStack, formatSpecification, parseSpecification, resourceKinds } from '../../src/index.js';
import { exampleOf } from '../support/kind-stacks.js';

const page = readFileSync(new URL('../../docs/adaptors.md', import.meta.url), 'utf8');

test.each(resourceKinds.map((kind) => [kind.name, kind] as const))('%s is created from its example', (name, kind) => {
  expect(formatSpecification(parseSpecification(kind.example))).toBe(kind.example);
  expect(parseSpecification(kind.example).kind).toBe(name);
  using stack = createResourceStack(exampleOf(kind));
  const type = stack.resource.constructor;
  const words = name.replace(/(?:^|-)(.)/g, (_, letter: string) => letter.toUpperCase());
  expect([`${words}MemoryResource`, `${words}ResourceAdaptor`]).toContain(type.name);
  expect(cistern).toHaveProperty(type.name, type);
  if (kind.role !== 'upstream') expect(page, 'docs/adaptors.md has it in a table').toContain(`\n| \`${name}\` | \`${type.name}\` | `);
});

test('no two kinds have the same name', () => {
  expect(new Set(resourceKinds.map(({ name }) => name)).size).toBe(resourceKinds.length);
});
