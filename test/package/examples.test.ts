import { join } from 'node:path';
import ts from 'typescript';
import { describe, expect, test } from 'vitest';
import { commentExamples, entries, moduleOf, pageExamples, root } from '../support/documented-examples.js';

/** The compiler's messages for each module, by name. */
function compile(modules: ReadonlyMap<string, string>): Map<string, string[]> {
  const { config } = ts.readConfigFile(join(root, 'tsconfig.json'), ts.sys.readFile);
  const { options } = ts.parseJsonConfigFileContent({ ...config, include: [], files: [] }, ts.sys, root);
  const compilerOptions: ts.CompilerOptions = {
    ...options,
    noUnusedLocals: false,
    // Node runs TypeScript by erasing its types.
    erasableSyntaxOnly: true,
    paths: Object.fromEntries(Object.entries(entries).map(([entry, file]) => [entry, [join(root, file)]])),
  };
  const host = ts.createCompilerHost(compilerOptions);
  const { fileExists, readFile, getSourceFile } = host;
  host.fileExists = (name) => modules.has(name) || fileExists(name);
  host.readFile = (name) => modules.get(name) ?? readFile(name);
  host.getSourceFile = (name, language, ...rest) => {
    const text = modules.get(name);
    return text === undefined ? getSourceFile(name, language, ...rest) : ts.createSourceFile(name, text, language);
  };
  const program = ts.createProgram([...modules.keys()], compilerOptions, host);
  const faults = new Map([...modules.keys()].map((name) => [name, [] as string[]]));
  for (const name of modules.keys()) {
    for (const { messageText } of ts.getPreEmitDiagnostics(program, program.getSourceFile(name))) {
      faults.get(name)?.push(ts.flattenDiagnosticMessageText(messageText, '\n'));
    }
  }
  return faults;
}

describe('examples', () => {
  test('are found in the pages and in the comments', () => {
    expect(pageExamples.length).toBeGreaterThan(1);
    expect(commentExamples.length).toBeGreaterThan(10);
  });

  test('compile', { timeout: 120_000 }, () => {
    const examples = [...pageExamples, ...commentExamples];
    const wrong = { place: 'a wrong example', code: 'const bytes: string = 1;' };
    const modules = new Map(
      [...examples, wrong].map((example, i) => [join(root, 'test', `example-${i}.ts`), moduleOf(example, 'compile')]),
    );
    const faults = [...compile(modules).values()];
    expect(faults.pop(), 'the compiler finds faults').toHaveLength(1);
    const report = faults.flatMap((messages, i) => messages.map((message) => `${examples[i]?.place}: ${message}`));
    expect(report).toEqual([]);
  });
});
