import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';
import { expect, test } from 'vitest';

const root = new URL('../..', import.meta.url);

/** Declarations are stripped of what is internal, which others may still refer to. */
test('the declarations of the built package are correct by themselves', { timeout: 60_000 }, () => {
  const { exports } = JSON.parse(readFileSync(new URL('package.json', root), 'utf8')) as {
    readonly exports: Readonly<Record<string, { readonly types?: string } | string>>;
  };
  const entries = Object.values(exports).flatMap((entry) => (typeof entry === 'object' && entry.types !== undefined ? [entry.types] : []));
  expect(entries).toContain('./dist/index.d.ts');
  const program = ts.createProgram({
    rootNames: entries.map((entry) => fileURLToPath(new URL(entry, root))),
    options: {
      module: ts.ModuleKind.NodeNext,
      target: ts.ScriptTarget.ES2022,
      lib: ['lib.es2023.d.ts', 'lib.esnext.disposable.d.ts'],
      types: ['node'],
      strict: true,
      exactOptionalPropertyTypes: true,
      skipLibCheck: false,
      noEmit: true,
    },
  });
  const problems = ts.getPreEmitDiagnostics(program).map(({ file, messageText }) => {
    return `${file?.fileName}: ${ts.flattenDiagnosticMessageText(messageText, ' ')}`;
  });
  expect(problems).toEqual([]);
});
