import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import ts from 'typescript';
import { expect, test } from 'vitest';

/**
 * V8's `Map` and `Set` become up to a hundred times slower for addresses that come and go, so memory is looked up in an
 * `AddressMap` or an `AddressTable`.
 */
const permitted: Readonly<Record<string, string>> = {
  // A few extents, made anew for each trim and each capture.
  'graphs/capture-allocator.ts': 'used',
  'graphs/captured-memory.ts': 'usedBytes',
  'graphs/graph-memory-resource.ts': 'needed',
  'graphs/graph-region.ts': 'needed',
};

/** Addresses in files need not be multiples of 256, as an `AddressMap` has them; and `testing` imports no algorithms. */
const offline = /^tools\/(?:cli|formats|pages|planning|replay|report|testing)\//;

const collection = /^(?:Readonly|Weak)?(?:Map|Set)$/;
const keyed = new Set(['add', 'delete', 'get', 'has', 'set']);
const addressName = /(?:pointer|address)$/i;

/** The names of the maps and sets in a file whose keys are addresses, by their type or by what they are called with. */
function keyedByAddress(text: string): string[] {
  const file = ts.createSourceFile('file.ts', text, ts.ScriptTarget.Latest, true);
  const collections = new Set<string>();
  const found = new Set<string>();
  const nameOf = (node: ts.Node): string => (ts.isPropertyAccessExpression(node) ? node.name.text : node.getText());
  const declare = (node: ts.Node): void => {
    if ((ts.isPropertyDeclaration(node) || ts.isVariableDeclaration(node) || ts.isParameter(node)) && collectionOf(node) !== undefined) {
      collections.add(node.name.getText());
      if (
        /\bDevicePointer\b/.test(
          collectionOf(node)
            ?.getText()
            .match(/<\s*\w+/)?.[0] ?? '',
        )
      )
        found.add(node.name.getText());
    }
    ts.forEachChild(node, declare);
  };
  const use = (node: ts.Node): void => {
    if (ts.isCallExpression(node) && ts.isPropertyAccessExpression(node.expression) && keyed.has(node.expression.name.text)) {
      const [key] = node.arguments;
      const name = nameOf(node.expression.expression);
      if (key !== undefined && collections.has(name) && addressName.test(nameOf(key))) found.add(name);
    }
    ts.forEachChild(node, use);
  };
  declare(file);
  use(file);
  return [...found];
}

/** The type or the constructor call that makes a declaration a map or a set. */
function collectionOf(node: ts.PropertyDeclaration | ts.VariableDeclaration | ts.ParameterDeclaration): ts.Node | undefined {
  const { type, initializer } = node;
  if (type !== undefined && ts.isTypeReferenceNode(type) && collection.test(type.typeName.getText())) return type;
  if (initializer !== undefined && ts.isNewExpression(initializer) && collection.test(initializer.expression.getText())) return initializer;
  return undefined;
}

test('no map and no set has addresses of memory as its keys', () => {
  const found = readdirSync('src', { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.ts') && !offline.test(file))
    .flatMap((file) => keyedByAddress(readFileSync(join('src', file), 'utf8')).map((name) => [file, name]));
  expect(found.filter(([file, name]) => permitted[file as string] !== name)).toEqual([]);
});

test.each([
  ['of a type', 'class A { readonly #live = new Map<DevicePointer, number>(); }', '#live'],
  ['of a declared type', 'let seen: ReadonlySet<DevicePointer> = nobody;', 'seen'],
  ['that is called with a pointer', 'class A { #live = new Set<number>(); f(pointer: number) { this.#live.add(pointer); } }', '#live'],
  ['that is called with the address of a block', 'const blocks = new Map(); blocks.set(block.address, block);', 'blocks'],
])('one %s is found', (_, text, name) => {
  expect(keyedByAddress(text)).toEqual([name]);
});

test('others are not', () => {
  expect(keyedByAddress("const names = new Map<string, number>(); names.set('pointer', 1); table.get(pointer);")).toEqual([]);
});
