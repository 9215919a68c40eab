import { readdirSync, readFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

export const root = fileURLToPath(new URL('../..', import.meta.url));

/** The file of each entry of the package. */
export const entries: Readonly<Record<string, string>> = {
  cistern: 'src/index.ts',
  'cistern/checking': 'src/checking/index.ts',
  'cistern/graphs': 'src/graphs/index.ts',
  'cistern/interchange': 'src/interchange/index.ts',
  'cistern/plans': 'src/plans/index.ts',
  'cistern/processes': 'src/processes/index.ts',
  'cistern/recording': 'src/recording/index.ts',
  'cistern/machine': 'src/machine/index.ts',
  'cistern/lasting': 'src/lasting/index.ts',
  'cistern/serving': 'src/serving/index.ts',
  'cistern/workers': 'src/workers/index.ts',
  'cistern/logs': 'src/tools/formats/index.ts',
  'cistern/planning': 'src/tools/planning/index.ts',
  'cistern/replay': 'src/tools/replay/index.ts',
  'cistern/report': 'src/tools/report/index.ts',
  'cistern/watch': 'src/tools/watch/index.ts',
  'cistern/outside': 'src/tools/outside/index.ts',
  'cistern/testing': 'src/tools/testing/index.ts',
};

/** For each name that the package exports, the statement that imports it. */
const importsByName = new Map<string, string>();
for (const [entry, file] of Object.entries(entries)) {
  const names = Object.keys(await import(join(root, file)));
  for (const name of names) if (!importsByName.has(name)) importsByName.set(name, `import { ${name} } from '${entry}';`);
  for (const name of typesIn(file)) importsByName.set(name, `import type { ${name} } from '${entry}';`);
}

/** The types that a module exports. */
function typesIn(file: string): string[] {
  const text = readFileSync(join(root, file), 'utf8');
  return [...text.matchAll(/\btype (\w+)|export type \{([^}]*)\}/g)].flatMap(([, one, many]) =>
    one === undefined ? (many?.match(/\w+/g) ?? []) : [one],
  );
}

/** Names that examples in comments take for granted, with their types, and values to run them with. */
const givens: Readonly<Record<string, readonly [type: string, value: string]>> = {
  buffer: ['cistern.DeviceBuffer', 'new cistern.DeviceBuffer(4096, { stream: cistern.Stream.perThreadDefault() })'],
  consumer: ['cistern.Stream', 'new cistern.Stream({ nonBlocking: true })'],
  device: ['cistern.Device', 'cistern.Device.get()'],
  header: ['Uint8Array', 'Uint8Array.of(1, 2, 3, 4)'],
  producer: ['cistern.Stream', 'new cistern.Stream({ nonBlocking: true })'],
  resource: ['cistern.MemoryResource', 'new cistern.CudaAsyncMemoryResource()'],
  rows: ['Uint8Array', 'new Uint8Array(1024)'],
  train: [
    '(resource: cistern.MemoryResource) => void',
    '(resource) => new cistern.DeviceBuffer(4096, { resource, stream: cistern.Stream.perThreadDefault() }).dispose()',
  ],
  worker: ["import('node:worker_threads').Worker", "new (process.getBuiltinModule('node:worker_threads').Worker)('', { eval: true })"],
  MyResource: ['new () => cistern.MemoryResource', 'cistern.CudaAsyncMemoryResource'],
};

export interface Example {
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

/**
 * An example as a module. Pages import what they use; comments need not, and may use the names taken
 * for granted. Those are declared if the module is to be compiled, and defined if it is to run.
 */
export function moduleOf({ place, code }: Example, purpose: 'compile' | 'run'): string {
  if (!place.includes('.ts,')) return `${code}\nexport {};\n`;
  const imports = code.match(/^import .*$/gm) ?? [];
  const body = code.replace(/^import .*$/gm, '');
  const declared = new Set([...code.matchAll(/\b(?:const|using|import \{) (\w+)/g)].map((match) => match[1]));
  const words = new Set(code.match(/\b\w+\b/g));
  const isCompiled = purpose === 'compile';
  const lines = [`import ${isCompiled ? 'type ' : ''}* as cistern from 'cistern';`, ...imports];
  for (const word of words) if (!declared.has(word) && importsByName.has(word)) lines.push(importsByName.get(word) as string);
  for (const [name, [type, value]] of Object.entries(givens)) {
    if (words.has(name) && !declared.has(name)) lines.push(isCompiled ? `declare const ${name}: ${type};` : `const ${name} = ${value};`);
  }
  return `${lines.join('\n')}\n{\n${body}\n}\nexport {};\n`;
}

/** The examples of the README and of docs/. */
export const pageExamples = [join(root, 'README.md'), ...filesBelow('docs', '.md')].flatMap((file) =>
  examplesOf(file, readFileSync(file, 'utf8')),
);

/** The examples of the comments in src/. */
export const commentExamples = filesBelow('src', '.ts').flatMap((file) =>
  examplesOf(file, readFileSync(file, 'utf8').replace(/^ *\* ?/gm, '')),
);
