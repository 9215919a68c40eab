import { execFile } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import ts from 'typescript';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { commentExamples, moduleOf, pageExamples, root } from '../support/documented-examples.js';
import { startKeep } from '../support/keep.js';
import { GiB, generateLog, readAllocationLog, recordReplay, setShare, writeWhole } from '../support/package.js';

const problem = 'id,lower,upper,size\na,0,3,1024\nb,2,5,2048\nc,4,8,1024\n';

let folder: string;

/** A folder with the files that examples read. */
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'cistern-examples-'));
  mkdirSync(join(folder, 'node_modules', '@opentelemetry'), { recursive: true });
  symlinkSync(root, join(folder, 'node_modules', 'cistern'));
  symlinkSync(join(root, 'node_modules/@opentelemetry/api'), join(folder, 'node_modules/@opentelemetry/api'));
  await writeWhole(join(folder, 'trace.csv.gz'), async (sink) => {
    for await (const piece of generateLog('multi-stream', { events: 400 })) await sink.write(piece);
  });
  const log = await readAllocationLog(join(folder, 'trace.csv.gz'));
  await recordReplay(log, 'pool(cuda)', join(folder, 'run.cistern'));
  for (const name of ['pool', 'arena', 'batch-8', 'batch-16', 'monday', 'tuesday'])
    copyFileSync(join(folder, 'run.cistern'), join(folder, `${name}.cistern`));
  writeFileSync(join(folder, 'A.1048576.csv'), problem);
});

afterAll(() => rmSync(folder, { recursive: true, force: true }));

test('every example in the pages and in the comments runs', { timeout: 120_000 }, async () => {
  const compilerOptions = { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext };
  const wrong = { place: 'a wrong example', code: "throw new Error('wrong');" };
  const examples = [...pageExamples, ...commentExamples, wrong];
  const files = examples.map((example, i) => {
    const file = join(folder, `example-${i}.mjs`);
    const code = moduleOf(example, 'run')
      // A port that is in use on this machine must not fail a test.
      .replace(/\b9464\b/g, '0')
      // A longer log shows nothing else, and to plan for one takes all the time that a plan may take.
      .replace(/\bevents: [\d_]+/g, 'events: 400');
    writeFileSync(file, ts.transpileModule(code, { compilerOptions }).outputText);
    return file;
  });
  const keep = await startKeep();
  setShare('caches', 4 * GiB, { socket: keep.socket });
  const run = promisify(execFile);
  const output = join(folder, 'failures.json');
  await run(process.execPath, [join(root, 'test/support/run-examples.mjs'), output, ...files], {
    cwd: folder,
    env: {
      PATH: process.env['PATH'],
      CISTERN_DEVICE: 'software',
      CISTERN_SOFTWARE_MEMORY: '4GiB',
      CISTERN_SOFTWARE_DEVICES: '2',
      CISTERN_KEEP: keep.socket,
    },
    timeout: 110_000,
  });
  const failures = Object.entries(JSON.parse(readFileSync(output, 'utf8')) as Record<string, string>);
  const report = failures.map(([file, failure]) => `${examples[files.indexOf(file)]?.place}: ${failure}`);
  expect(report.pop(), 'the wrong example fails').toMatch(/^a wrong example: Error: wrong/);
  expect(report).toEqual([]);
});
