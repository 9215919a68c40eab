import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

const root = fileURLToPath(new URL('../..', import.meta.url));
const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
  version: string;
  dependencies: Record<string, string>;
};

/** Those that Node has loaded anyway, or loads in a fraction of a millisecond. */
const quickModules = [
  'node:async_hooks',
  'node:buffer',
  'node:diagnostics_channel',
  'node:fs',
  'node:module',
  'node:os',
  'node:path',
  'node:timers/promises',
  'node:url',
  'node:util/types',
];

/**
 * The package as `npm pack` makes it, in an application that has its dependencies, after its
 * install script has run.
 */
describe('the package, once installed', () => {
  const application = mkdtempSync(join(tmpdir(), 'cistern-application-'));
  const installed = join(application, 'node_modules', 'cistern');
  let packedFiles: string[] = [];

  function run(command: string, args: readonly string[], folder: string): string {
    const env = { ...process.env, CISTERN_DEVICE: 'software', CISTERN_ADDON: '' };
    const { status, error, stdout, stderr } = spawnSync(command, args, { cwd: folder, encoding: 'utf8', env });
    expect(error).toBeUndefined();
    expect(status, `${command} ${args.join(' ')}\n${stdout}${stderr}`).toBe(0);
    return stdout;
  }

  beforeAll(() => {
    const [tarball] = JSON.parse(run('npm', ['pack', '--dry-run', '--json', '--ignore-scripts'], root)) as [{ files: { path: string }[] }];
    packedFiles = tarball.files.map(({ path }) => path);
    for (const file of packedFiles) cpSync(join(root, file), join(installed, file));
    for (const name of Object.keys(manifest.dependencies))
      symlinkSync(join(root, 'node_modules', name), join(application, 'node_modules', name));
    writeFileSync(join(application, 'package.json'), '{ "type": "module", "private": true }');
    run(process.execPath, ['scripts/install.mjs'], installed);
  }, 300_000);

  afterAll(() => rmSync(application, { recursive: true, force: true }));

  test('holds what it needs and nothing else', () => {
    const folders = new Set(packedFiles.map((file) => (file.startsWith('native/') ? 'native' : dirname(file).split('/')[0])));
    expect([...folders].sort()).toEqual(['.', 'dist', 'native', 'scripts']);
    expect(packedFiles.filter((file) => !file.includes('/')).sort()).toEqual([
      'CMakeLists.txt',
      'LICENSE',
      'NOTICE',
      'README.md',
      'package.json',
    ]);
    expect(packedFiles.filter((file) => file.startsWith('native/test'))).toEqual([]);
  });

  test('builds its addon from its own files', () => {
    expect(existsSync(join(installed, 'build', 'Release', 'cistern.node'))).toBe(true);
  });

  test('is imported without loading native code or a driver', () => {
    const module = join(application, 'import.js');
    writeFileSync(
      module,
      `import * as cistern from 'cistern';
       import { readRecordedRun } from 'cistern/logs';
       import { replayLog } from 'cistern/replay';
       import { writeReport } from 'cistern/report';
       import { sampleStatistics } from 'cistern/watch';
       import { resourceConformance } from 'cistern/testing';
       const addons = process.report.getReport().sharedObjects.filter((path) => path.endsWith('cistern.node'));
       const functions = [cistern.PoolMemoryResource, readRecordedRun, replayLog, writeReport, sampleStatistics, resourceConformance];
       console.log(functions.every((each) => typeof each === 'function'), addons.length);`,
    );
    expect(run(process.execPath, [module], application)).toBe('true 0\n');
  });

  test('is imported from three files, without libraries, and without modules of Node that take long to load', () => {
    writeFileSync(
      join(application, 'hooks.js'),
      `import { writeSync } from 'node:fs';
       export function load(url, context, next) {
         writeSync(1, url + '\\n');
         return next(url, context);
       }`,
    );
    const program = join(application, 'loaded.js');
    writeFileSync(program, `import { register } from 'node:module'; register('./hooks.js', import.meta.url); await import('cistern');`);
    const loaded = run(process.execPath, [program], application).trim().split('\n');
    const own = loaded.filter((url) => url.startsWith('file:')).map((url) => url.slice(url.lastIndexOf('/dist/')));
    expect(own.sort()).toEqual(['/dist/chunks/driver.js', '/dist/chunks/resources.js', '/dist/index.js']);
    expect(quickModules).toEqual(expect.arrayContaining(loaded.filter((url) => !url.startsWith('file:'))));
  });

  test('has every class once, so that objects and errors of one entry are known to the others', () => {
    const files = packedFiles.filter((file) => /^dist\/.*\.js$/.test(file)).map((file) => readFileSync(join(root, file), 'utf8'));
    const classes = files.flatMap((text) =>
      [...text.matchAll(/^(?:var (\w+) = class|class (\w+))/gm)].map(([, name, other]) => name ?? other),
    );
    expect(classes).toContain('PoolMemoryResource');
    expect(classes.filter((name, index) => classes.indexOf(name) !== index)).toEqual([]);

    const program = join(application, 'entries.js');
    writeFileSync(
      program,
      `import { ArgumentRangeError, HostMemoryResource, StatisticsResourceAdaptor } from 'cistern';
       import { readRecordedRun } from 'cistern/logs';
       import { sampleStatistics } from 'cistern/watch';
       const resource = new StatisticsResourceAdaptor(new HostMemoryResource(), { name: 'known' });
       const error = await readRecordedRun('', { unknown: 1 }).catch((error) => error);
       console.log(sampleStatistics().resources.map(({ name }) => name), error instanceof ArgumentRangeError);`,
    );
    expect(run(process.execPath, [program], application)).toBe("[ 'known' ] true\n");
  });

  test.each([[[]], [['--enable-source-maps']]])('leaves its own frames out of recorded stacks, with %j', (options) => {
    const program = join(application, 'stacks.js');
    writeFileSync(
      program,
      `import { DeviceBuffer, HostMemoryResource, Recording, RecordingResourceAdaptor, Stream } from 'cistern';
       import { readRecordedRun } from 'cistern/logs';
       const file = ${JSON.stringify(join(application, 'stacks.cistern'))};
       const recording = new Recording({ file });
       const resource = new RecordingResourceAdaptor(new HostMemoryResource(), { recording, stackSampleBytes: 0 });
       globalThis.buffer = new DeviceBuffer(64, { resource, stream: new Stream() });
       recording.dispose();
       console.log((await readRecordedRun(file)).stacks.join());`,
    );
    expect(run(process.execPath, [...options, program], application)).toMatch(/^,?<anonymous> \(.*\/stacks\.js:6:\d+\)\n/);
  });

  test("runs the README's example", () => {
    const example = /^```ts\n(.*?)^```/ms.exec(readFileSync(join(installed, 'README.md'), 'utf8'))?.[1] as string;
    const module = join(application, 'example.js');
    writeFileSync(module, ts.transpile(example, { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.ESNext }));
    expect(run(process.execPath, [module], application)).toMatch(/^\d+ 12\nFloat32Array\(3\) \[ 1, 2, 3 \]\n256\n$/);
  });

  test('has the command', () => {
    const command = join(installed, 'dist', 'cli', 'main.js');
    expect(run(process.execPath, [command, '--version'], application)).toBe(`${manifest.version}\n`);
    const log = join(application, 'log.csv');
    writeFileSync(
      log,
      'Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00.000001,allocate,0x100,64,0x0\n1,00:00:00.000002,free,0x100,64,0x0\n',
    );
    const [result] = JSON.parse(run(process.execPath, [command, 'replay', log, '--json'], application)) as [{ failures: number }];
    expect(result.failures).toBe(0);
  });

  test('has a command that a shell can run', () => {
    expect(readFileSync(join(installed, 'dist', 'cli', 'main.js'), 'utf8')).toMatch(/^#!\/usr\/bin\/env node\n/);
  });
});
