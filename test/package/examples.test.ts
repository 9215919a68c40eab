import { readdirSync, readFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';
import { describe, expect, test } from 'vitest';

const root = fileURLToPath(new URL('../..', import.meta.url));

/** The file of each entry of the package. */
const entries: Readonly<Record<string, string>> = {
  cistern: 'src/index.ts',
  'cistern/logs': 'src/formats/index.ts',
  'cistern/planning': 'src/planning/index.ts',
  'cistern/replay': 'src/replay/index.ts',
  'cistern/report': 'src/report/index.ts',
  'cistern/watch': 'src/watch/index.ts',
  'cistern/testing': 'src/testing/index.ts',
};

/** For each name that the package exports, the statement that imports it. */
const importsByName = new Map<string, string>();
for (const [entry, file] of Object.entries(entries)) {
  for (const name of Object.keys(await import(join(root, file)))) importsByName.set(name, `import { ${name} } from '${entry}';`);
  for (const name of typesIn(file)) importsByName.set(name, `import type { ${name} } from '${entry}';`);
}
// "export type *" does not list names.
for (const name of typesIn('src/resource-kinds.ts')) importsByName.set(name, `import type { ${name} } from 'cistern';`);

/** The types that a module exports. */
function typesIn(file: string): string[] {
  const text = readFileSync(join(root, file), 'utf8');
  return [...text.matchAll(/\btype (\w+)|export type \{([^}]*)\}/g)].flatMap(([, one, many]) =>
    one === undefined ? (many?.match(/\w+/g) ?? []) : [one],
  );
}

/** Names that examples in comments take for granted, with their types. */
const givens: Readonly<Record<string, string>> = {
  buffer: 'cistern.DeviceBuffer',
  consumer: 'cistern.Stream',
  device: 'cistern.Device',
  header: 'Uint8Array',
  producer: 'cistern.Stream',
  resource: 'cistern.MemoryResource',
  rows: 'Uint8Array',
  train: '(resource: cistern.MemoryResource) => void',
  MyResource: 'new () => cistern.MemoryResource',
};

interface Example {
  /** Where it is. */
  readonly place: string;
  readonly code: string;
}

/** The blocks of TypeScript in a page. */
function examplesOf(file: string, text: string): Example[] {
  return [...text.matchAll(/^```ts\n(.*?)^```/gms)].map(({ 1: code, index }) => {
    const line = text.slice(0, index).split('\n').length;
    return { place: `${relative(root, file)}, line ${line}`, code: code as string };
  });
}

function filesBelow(folder: string, ending: string): string[] {
  const names = readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' });
  return names.filter((name) => name.endsWith(ending) && !name.startsWith('api')).map((name) => join(root, folder, name));
}

/** Pages import what they use; comments need not, and may use the names taken for granted. */
function moduleOf({ place, code }: Example): string {
  if (!place.includes('.ts,')) return `${code}\nexport {};\n`;
  const imports = code.match(/^import .*$/gm) ?? [];
  const body = code.replace(/^import .*$/gm, '');
  const declared = new Set([...code.matchAll(/\b(?:const|using|import \{) (\w+)/g)].map((match) => match[1]));
  const words = new Set(code.match(/\b\w+\b/g));
  const lines = ["import type * as cistern from 'cistern';", ...imports];
  for (const word of words) if (!declared.has(word) && importsByName.has(word)) lines.push(importsByName.get(word) as string);
  for (const [name, type] of Object.entries(givens)) {
    if (words.has(name) && !declared.has(name)) lines.push(`declare const ${name}: ${type};`);
  }
  return `${lines.join('\n')}\n{\n${body}\n}\nexport {};\n`;
}

/** The compiler's messages for each module, by name. */
function compile(modules: ReadonlyMap<string, string>): Map<string, string[]> {
  const { config } = ts.readConfigFile(join(root, 'tsconfig.json'), ts.sys.readFile);
  const { options } = ts.parseJsonConfigFileContent({ ...config, include: [], files: [] }, ts.sys, root);
  const compilerOptions: ts.CompilerOptions = {
    ...options,
    noUnusedLocals: false,
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

const pages = [join(root, 'README.md'), ...filesBelow('docs', '.md')].flatMap((file) => examplesOf(file, readFileSync(file, 'utf8')));
const comments = filesBelow('src', '.ts').flatMap((file) => examplesOf(file, readFileSync(file, 'utf8').replace(/^ *\* ?/gm, '')));

describe('examples', () => {
  test('are found in the pages and in the comments', () => {
    expect(pages.length).toBeGreaterThan(1);
    expect(comments.length).toBeGreaterThan(10);
  });

  test('compile', { timeout: 120_000 }, () => {
    const examples = [...pages, ...comments];
    const wrong = { place: 'a wrong example', code: 'const bytes: string = 1;' };
    const modules = new Map([...examples, wrong].map((example, i) => [join(root, 'test', `example-${i}.ts`), moduleOf(example)]));
    const faults = [...compile(modules).values()];
    expect(faults.pop(), 'the compiler finds faults').toHaveLength(1);
    const report = faults.flatMap((messages, i) => messages.map((message) => `${examples[i]?.place}: ${message}`));
    expect(report).toEqual([]);
  });
});
