import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { rolldown } from 'rolldown';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { formatSpecification } from '../../src/index.js';
import { everyKind } from '../../src/tools/every-kind.js';
import { exampleOf } from '../support/kind-stacks.js';
import { readRecording } from '../support/read-recording.js';
import { runModule } from '../support/run-module.js';

const addon = fileURLToPath(new URL('../../build/Release/cistern.node', import.meta.url));
const specifications = everyKind.map((kind) => formatSpecification(exampleOf(kind)));

const capabilities = ['checking', 'graphs', 'plans', 'serving', 'workers'];

/** Prints, for each kind, the classes of its stack, the path of an error, and the layers of a recording. */
const program = `
  import { addResourceKinds, createResourceStack, FailureCallbackResourceAdaptor, Stream } from 'cistern';
  import { Recording, RecordingResourceAdaptor, resourceKinds as recording } from 'cistern/recording';
  ${capabilities.map((entry) => `import { resourceKinds as ${entry} } from 'cistern/${entry}';`).join('\n')}
  for (const kinds of [recording, ${capabilities}]) addResourceKinds(kinds);
  const stream = new Stream();
  const file = process.env.RECORDING;
  const outcomes = ${JSON.stringify(specifications)}.map((specification, i) => {
    const stack = createResourceStack(specification);
    const recording = new Recording({ file: file + i });
    const resource = new RecordingResourceAdaptor(new FailureCallbackResourceAdaptor(stack.resource, () => false), { recording });
    new RecordingResourceAdaptor(stack.resource, { recording });
    let path;
    try {
      resource.allocate(2 ** 50, stream);
    } catch (error) {
      path = error.path ?? error.message;
    }
    recording.dispose();
    const layers = stack.layers.map((layer) => layer.constructor.name);
    stack.dispose();
    return { layers, path };
  });
  console.log(JSON.stringify(outcomes));
`;

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'cistern-minified-'));
});
afterAll(() => rmSync(folder, { recursive: true }));

test('a bundler that shortens names changes no layer, no path of an error and no class in a list', async () => {
  writeFileSync(join(folder, 'program.mjs'), program);
  const bundle = await rolldown({
    input: join(folder, 'program.mjs'),
    platform: 'node',
    resolve: {
      alias: {
        cistern$: built('index.js'),
        ...Object.fromEntries(['recording', ...capabilities].map((entry) => [`cistern/${entry}`, built(`${entry}/index.js`)])),
      },
    },
    onLog: () => {},
  });
  const bundled = join(folder, 'bundled.mjs');
  const { output } = await bundle.write({ file: bundled, format: 'esm', minify: true, codeSplitting: false });
  expect(output[0].code).not.toContain('class PoolMemoryResource');

  const plain = await outcomesOf(program, 'plain');
  const minified = await outcomesOf(`await import(${JSON.stringify(pathToFileURL(bundled).href)})`, 'minified');
  expect(minified).toEqual(plain);
  for (const [i, { name }] of everyKind.entries()) expect(plain.recorded[i]).toContain(name);
});

function built(file: string): string {
  return fileURLToPath(new URL(`../../dist/${file}`, import.meta.url));
}

/** What a program printed and recorded. */
async function outcomesOf(text: string, name: string): Promise<{ readonly printed: unknown; readonly recorded: readonly string[][] }> {
  const file = join(folder, `${name}.cistern.`);
  const { status, stdout, stderr } = runModule(text, { CISTERN_ADDON: addon, RECORDING: file });
  expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  const recorded = await Promise.all(specifications.map((_, i) => readRecording(`${file}${i}`)));
  return { printed: JSON.parse(stdout), recorded: recorded.map(({ layers }) => layers.map((layer) => layer.name)) };
}
