import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import ts from 'typescript';
import { expect, test } from 'vitest';

/** Written when building. */
const generated = join('src', 'suballocation', 'index-binary.ts');

/** The files of `import 'cistern'`, types included. */
function reachOf(entry: string): Set<string> {
  const reached = new Set([entry]);
  for (const file of reached) {
    for (const { fileName } of ts.preProcessFile(readFileSync(file, 'utf8')).importedFiles) {
      const imported = join(dirname(file), fileName.replace(/\.js$/, '.ts'));
      if (fileName.startsWith('.') && imported !== generated && existsSync(imported)) reached.add(imported);
    }
  }
  return reached;
}

function linesOfCode(file: string): number {
  const code = readFileSync(file, 'utf8').replace(/\/\*.*?\*\//gs, '');
  return code.split('\n').filter((line) => line.trim() !== '' && !line.trim().startsWith('//')).length;
}

// What is new belongs in a capability, or replaces something: docs/design/051-an-edge-round-the-core.md.
test('the core has at most 150 files and 16,000 lines of code', () => {
  const files = [...reachOf(join('src', 'index.ts'))];
  expect(files).toContain(join('src', 'adaptors', 'pooling', 'pool-memory-resource.ts'));
  expect(files.length).toBeLessThanOrEqual(150);
  expect(files.reduce((sum, file) => sum + linesOfCode(file), 0)).toBeLessThanOrEqual(16_000);
});
