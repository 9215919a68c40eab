import { execFile, spawnSync } from 'node:child_process';
import {
  cpSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import ts from 'typescript';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ownPlatform, packMain, packPlatform, platforms } from '../../scripts/package.mjs';
import { servePackages } from '../../scripts/serve-packages.mjs';

const root = fileURLToPath(new URL('../..', import.meta.url));
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
  'node:util',
  'node:util/types',
];

/**
 * The package as `npm run package` makes it, installed with npm from a registry on this machine:
 * without scripts, without a network, and with nothing on PATH that compiles.
 */
describe('the package, once installed', () => {
  const application = mkdtempSync(join(tmpdir(), 'cistern-application-'));
  const installed = join(application, 'node_modules', 'cistern');
  const tools = mkdtempSync(join(tmpdir(), 'cistern-tools-'));
  const platformPackage = join(application, 'node_modules', '@cistern', ownPlatform());
  let packedFiles: string[] = [];

  function run(command: string, args: readonly string[], folder: string, environment: Record<string, string> = {}): string {
    const env = { ...process.env, CISTERN_DEVICE: 'software', CISTERN_ADDON: '', ...environment };
    const { status, error, stdout, stderr } = spawnSync(command, args, { cwd: folder, encoding: 'utf8', env });
    expect(error).toBeUndefined();
    expect(status, `${command} ${args.join(' ')}\n${stdout}${stderr}`).toBe(0);
    return stdout;
  }

  beforeAll(async () => {
    for (const [name, path] of [
      ['node', process.execPath],
      ['npm', run('which', ['npm'], root).trim()],
      ['sh', '/bin/sh'],
    ] as const)
      symlinkSync(path, join(tools, name));
    writeFileSync(join(application, 'package.json'), '{ "type": "module", "private": true }');
    const registry = await servePackages({ main: packMain(tools), platform: await packPlatform(tools) });
    try {
      const args = ['install', 'cistern', '--ignore-scripts', `--registry=${registry.address}`, `--cache=${join(tools, 'cache')}`];
      await promisify(execFile)('npm', args, { cwd: application, env: { PATH: tools, HOME: tools } });
    } finally {
      registry.close();
    }
    packedFiles = readdirSync(installed, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map((entry) => relative(installed, join(entry.parentPath, entry.name)));
  }, 900_000);

  afterAll(() => {
    for (const folder of [application, tools]) rmSync(folder, { recursive: true, force: true });
  });

  test('holds what it needs and nothing else', () => {
    const folders = new Set(packedFiles.map((file) => (file.startsWith('native/') ? 'native' : dirname(file).split('/')[0])));
    expect([...folders].sort()).toEqual(['.', 'dist', 'include', 'native']);
    expect(packedFiles.filter((file) => !file.includes('/')).sort()).toEqual([
      'CHANGELOG.md',
      'CMakeLists.txt',
      'LICENSE',
      'NOTICE',
      'README.md',
      'package.json',
    ]);
    const nativeFolders = new Set(packedFiles.filter((file) => file.startsWith('native/')).map((file) => dirname(file)));
    expect([...nativeFolders].sort()).toEqual([
      'native',
      ...['addon', 'arenas', 'cuda', 'def', 'include', 'interpose', 'order', 'platform', 'software', 'suballocation'].map(
        (name) => `native/${name}`,
      ),
    ]);
  });

  test('has no source maps, and no code that refers to one', () => {
    expect(packedFiles.filter((file) => file.endsWith('.map'))).toEqual([]);
    const code = packedFiles.filter((file) => file.endsWith('.js'));
    expect(code.filter((file) => readFileSync(join(installed, file), 'utf8').includes('//# sourceMappingURL'))).toEqual([]);
  });

  test('consists of two packages, and runs no script', () => {
    const packages = readdirSync(join(application, 'node_modules')).filter((name) => !name.startsWith('.'));
    expect(packages).toEqual(['@cistern', 'cistern']);
    expect(readdirSync(dirname(platformPackage))).toEqual([ownPlatform()]);
    const { scripts, dependencies, optionalDependencies } = JSON.parse(readFileSync(join(installed, 'package.json'), 'utf8'));
    expect({ scripts, dependencies }).toEqual({});
    expect(Object.keys(optionalDependencies)).toEqual(Object.keys(platforms).map((name) => `@cistern/${name}`));
  });

  // A function of Node that has the name of one of the addon's would use another state.
  test.skipIf(process.platform !== 'linux')('has an addon that shows nothing but its entry points', () => {
    const symbols = run('nm', ['--dynamic', '--defined-only', '--format=just-symbols', join(platformPackage, 'cistern.node')], root);
    expect(symbols.trim().split('\n').sort()).toEqual(['napi_register_module_v1', 'node_api_module_get_api_version_v1']);
  });

  test.skipIf(!ownPlatform().endsWith('-gnu'))(
    'has the library that `cistern run` preloads, which needs no C++ library of the system',
    () => {
      const library = join(platformPackage, 'libcistern-run.so');
      expect(run('ldd', [library], root)).not.toMatch(/libstdc\+\+|libgcc/);
      const main = join(installed, 'dist', 'tools', 'cli', 'main.js');
      const output = run(process.execPath, [main, 'run', '--', 'sh', '-c', 'echo $LD_PRELOAD'], application);
      expect(output.trim()).toBe(realpathSync(library));
    },
  );

  test('looks for the package of every platform', () => {
    const text = readFileSync(join(installed, 'dist', 'chunks', 'package.js'), 'utf8');
    const named = [...text.matchAll(/"(?:\.\.\/){3}@cistern\/(.*?)\/cistern\.node"/g)].map(([, name]) => name);
    expect(named).toEqual(Object.keys(platforms));
  });

  test.each([
    ['package-lock.json', {}, /npm install --include=optional.*npx cistern build/],
    ['pnpm-lock.yaml', {}, /pnpm install.*pnpm exec cistern build/],
    ['yarn.lock', {}, /yarn install.*yarn cistern build/],
    ['bun.lock', {}, /bun install.*bunx cistern build/],
    ['yarn.lock', { npm_config_user_agent: 'pnpm/9.0.0 npm/? node/v20' }, /pnpm install/],
  ])('without the package of its platform says what to do, with %s and %j', (lockFile, environment, advice) => {
    const program = join(application, 'missing.js');
    writeFileSync(
      program,
      `import { Stream } from 'cistern'; try { new Stream(); } catch (error) { console.log(error.code, error.message); }`,
    );
    renameSync(join(application, 'package-lock.json'), join(tools, 'package-lock.json'));
    renameSync(platformPackage, join(tools, 'platform'));
    writeFileSync(join(application, lockFile), '');
    try {
      const output = run(process.execPath, [program], application, { npm_config_user_agent: '', XDG_CACHE_HOME: tools, ...environment });
      expect(output).toMatch(
        new RegExp(`^ERR_CISTERN_ADDON_MISSING .*@cistern/${ownPlatform()}, an optional dependency, is not installed`),
      );
      expect(output).toMatch(advice);
      expect(output).toContain(`if cistern was installed from a tarball, install that of @cistern/${ownPlatform()} with it`);
    } finally {
      rmSync(join(application, lockFile));
      renameSync(join(tools, 'package-lock.json'), join(application, 'package-lock.json'));
      renameSync(join(tools, 'platform'), platformPackage);
    }
  });

  test("with an addon that does not fit says so, with the loader's own error", () => {
    const program = join(application, 'unfit.js');
    writeFileSync(
      program,
      `import { Stream } from 'cistern'; try { new Stream(); } catch (error) { console.log(error.message, error.cause.code); }`,
    );
    const addon = join(platformPackage, 'cistern.node');
    renameSync(addon, join(tools, 'cistern.node'));
    writeFileSync(addon, 'no addon');
    try {
      expect(run(process.execPath, [program], application)).toMatch(
        /does not fit this system: compile it with "npx cistern build".* ERR_DLOPEN_FAILED$/m,
      );
    } finally {
      renameSync(join(tools, 'cistern.node'), addon);
    }
  });

  describe('with an addon of another version', () => {
    const addon = join(platformPackage, 'cistern.node');
    const other = join(application, 'other', 'cistern.node');
    const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string };
    const program = `import { Stream } from 'cistern'; try { new Stream(); console.log('works'); } catch (error) { console.log(error.code, error.message, error.cause); }`;
    const attempt = (environment: Record<string, string> = {}) =>
      run(process.execPath, ['--input-type=module', '--eval', program], application, environment);

    beforeAll(() => {
      const bytes = readFileSync(addon, 'latin1');
      const parts = bytes.split(`\0${version}\0`);
      expect(parts).toHaveLength(2);
      mkdirSync(dirname(other));
      writeFileSync(other, parts.join(`\0${'9'.repeat(version.length)}\0`), 'latin1');
    });

    test('names both versions and what to do', () => {
      renameSync(addon, join(tools, 'cistern.node'));
      cpSync(other, addon);
      try {
        const output = attempt();
        expect(output).toMatch(/^ERR_CISTERN_ADDON_MISSING .* undefined\n$/);
        for (const part of [addon, `99999, not ${version}`, 'npm install --include=optional', 'npx cistern build'])
          expect(output).toContain(part);
      } finally {
        renameSync(join(tools, 'cistern.node'), addon);
      }
    });

    test('says so of the one that CISTERN_ADDON names', () => {
      const output = attempt({ CISTERN_ADDON: other });
      expect(output).toMatch(
        /^ERR_CISTERN_ADDON_MISSING .*CISTERN_ADDON names .*99999, not .*\): name an addon of version .* undefined\n$/,
      );
    });

    test('takes the one that fits instead of one built for an older version', () => {
      const built = join(installed, 'build', 'Release', 'cistern.node');
      cpSync(other, built);
      expect(attempt()).toBe('works\n');
      rmSync(join(installed, 'build'), { recursive: true });
    });

    test('knows an addon from before versions were compared', () => {
      const older = join(application, 'other', 'older.cjs');
      writeFileSync(older, 'exports.functionNames = [];');
      expect(attempt({ CISTERN_ADDON: older })).toContain(`(an older one, not ${version})`);
    });
  });

  test('builds its addon from its own files, twice at once too, and takes that', { timeout: 900_000 }, async () => {
    const main = join(installed, 'dist', 'tools', 'cli', 'main.js');
    const built = join(installed, 'build', 'Release', 'cistern.node');
    const broken = mkdtempSync(join(tools, 'broken-'));
    writeFileSync(join(broken, 'ccache'), '#!/bin/sh\necho "the cache cannot be written" >&2\nexit 1\n', { mode: 0o755 });
    const build = async () => {
      const launcher = fileURLToPath(new URL('take-object.mjs', import.meta.url));
      const env = { ...process.env, PATH: `${broken}${delimiter}${process.env['PATH']}`, CMAKE_CXX_COMPILER_LAUNCHER: launcher };
      const options = { cwd: application, env };
      return (await promisify(execFile)(process.execPath, [main, 'build'], options)).stdout;
    };
    for (const output of await Promise.all([build(), build()])) {
      expect(output).toMatch(/^built .*\/node_modules\/cistern\/build\/Release\/cistern\.node in \d+ s$/m);
    }
    expect(JSON.parse(run(process.execPath, [main, 'doctor', '--json'], application))).toMatchObject({ addon: built, backend: 'software' });
    rmSync(join(installed, 'build'), { recursive: true });
  });

  test.each([
    ['without CMake', [], /^error: CMake is not on PATH: install it and a C\+\+17 compiler \(.*\)\n$/],
    [
      'without a compiler',
      ['cmake', 'make'],
      /No CMAKE_CXX_COMPILER could be found(?:.|\n)*\nerror: CMake cannot configure the build, .*\)\n$/,
    ],
  ])('%s, says what to install instead of building', (_, programs, message) => {
    const main = join(installed, 'dist', 'tools', 'cli', 'main.js');
    const some = mkdtempSync(join(tools, 'some-'));
    for (const program of programs) symlinkSync(run('which', [program], root).trim(), join(some, program));
    const { status, stderr } = spawnSync(process.execPath, [main, 'build'], {
      cwd: application,
      encoding: 'utf8',
      env: { PATH: some, HOME: tools },
    });
    expect({ status, stderr }).toEqual({ status: 1, stderr: expect.stringMatching(message) });
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

  test('is imported from three files, without capabilities, libraries, and without modules of Node that take long to load', () => {
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
    expect(own.sort()).toEqual(['/dist/chunks/driver.js', '/dist/chunks/package.js', '/dist/index.js']);
    expect(quickModules).toEqual(expect.arrayContaining(loaded.filter((url) => !url.startsWith('file:'))));
  });

  test('has every class once, so that objects and errors of one entry are known to the others', () => {
    const files = packedFiles.filter((file) => /^dist\/.*\.js$/.test(file)).map((file) => readFileSync(join(installed, file), 'utf8'));
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

  test('refuses objects of another copy, and names both', () => {
    const other = join(application, 'library', 'node_modules', 'cistern');
    cpSync(join(installed, 'dist'), join(other, 'dist'), { recursive: true });
    cpSync(join(installed, 'package.json'), join(other, 'package.json'));
    writeFileSync(join(application, 'library', 'index.js'), "export * from 'cistern';");
    const program = join(application, 'copies.js');
    writeFileSync(
      program,
      `import * as own from 'cistern';
       import * as other from './library/index.js';
       const attempt = (use) => { try { use(); } catch (error) { console.log(error.code, error.message); } };
       const streams = { own: new own.Stream(), other: new other.Stream() };
       attempt(() => new own.PoolMemoryResource(new own.CudaMemoryResource()).allocate(8, streams.other));
       attempt(() => new own.PoolMemoryResource(new other.CudaMemoryResource()).allocate(8, streams.own));
       attempt(() => new own.Event().record(streams.other));
       attempt(() => new own.Stream({ device: other.Device.get(0) }));
       for (const [name, { DeviceBuffer }] of Object.entries({ own, other })) {
         const bytes = await new DeviceBuffer(Uint8Array.of(7), { stream: streams[name] }).toHost();
         console.log(name, bytes[0]);
       }`,
    );
    const lines = run(process.execPath, [program], application).trim().split('\n');
    expect(lines.splice(4)).toEqual(['own 7', 'other 7']);
    for (const line of lines) {
      expect(line).toMatch(/^ERR_INVALID_ARG_(TYPE|VALUE) .*another copy of cistern .*peer dependency/);
      for (const folder of [installed, other]) expect(line).toContain(folder);
    }
  });

  test.each([[[]], [['--enable-source-maps']]])('leaves its own frames out of recorded stacks, with %j', (options) => {
    const program = join(application, 'stacks.js');
    writeFileSync(
      program,
      `import { DeviceBuffer, HostMemoryResource, Stream } from 'cistern'; import { Recording, RecordingResourceAdaptor } from 'cistern/recording';
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
    const command = join(installed, 'dist', 'tools', 'cli', 'main.js');
    expect(run(process.execPath, [command, '--version'], application)).toBe(
      `${JSON.parse(readFileSync(join(installed, 'package.json'), 'utf8')).version}\n`,
    );
    const log = join(application, 'log.csv');
    writeFileSync(
      log,
      'Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00.000001,allocate,0x100,64,0x0\n1,00:00:00.000002,free,0x100,64,0x0\n',
    );
    const [result] = JSON.parse(run(process.execPath, [command, 'replay', log, '--json'], application)) as [{ failures: number }];
    expect(result.failures).toBe(0);
  });

  test('has a command that a shell can run', () => {
    expect(readFileSync(join(installed, 'dist', 'tools', 'cli', 'main.js'), 'utf8')).toMatch(/^#!\/usr\/bin\/env node\n/);
  });

  describe('runs the projects of examples/', () => {
    const project = (name: string) => join(application, 'examples', name);

    beforeAll(() => {
      for (const name of ['application', 'arrow', 'library', 'server', 'workers'])
        cpSync(join(root, 'examples', name), project(name), { recursive: true });
      // Their other dependencies come from the clone.
      for (const name of ['apache-arrow', 'fastify'])
        symlinkSync(join(root, 'node_modules', name), join(application, 'node_modules', name));
    });

    test('a program with a stack from a file', () => {
      const output = run(process.execPath, ['main.js', 'memory.json'], project('application'));
      expect(output).toMatch(/^memory from limiting\(pool\(cuda-async, .*\n24 MiB, of which all arrived\n$/);
    });

    test('a library, by its own tests', () => {
      expect(run(process.execPath, ['--test', '--test-reporter=tap'], project('library'))).toMatch(/^# pass 2$/m);
    });

    test('a pool of workers within one limit', () => {
      const output = run(process.execPath, ['main.js', '50', '3'], project('workers'));
      expect(output).toMatch(/^50 jobs by 3 workers \(\d+, \d+, \d+\), 50 right\nat most 1[3-6] MiB live in all threads, 0 B now; /);
    });

    test('columns of Arrow', () => {
      const output = run(process.execPath, ['main.js'], project('arrow'));
      expect(output).toMatch(/^city: Dictionary<Int32, Utf8>, 2500 nulls, [\s\S]*every column came back as it was\n$/m);
    });

    test('a server with a limit for each request, and the way to the lines of a leak in it', { timeout: 60_000 }, () => {
      const handlers = join(project('server'), 'handlers.js');
      const program = join(project('server'), 'visit.js');
      writeFileSync(
        program,
        `import { createServer } from './server.js';
         const server = createServer();
         const status = async (size) => (await server.inject('/picture/' + size)).statusCode;
         const sum = await server.inject({ method: 'POST', url: '/sum', headers: { 'content-type': 'application/octet-stream' }, payload: Buffer.of(1, 2, 4) });
         console.log(await status(65536), await status(6553600), await status(65536), sum.body, (await server.inject('/memory')).body);
         process.exit();`,
      );
      expect(run(process.execPath, [program], project('server'))).toBe('200 503 200 {"sum":7} {"liveBytes":0}\n');

      const source = readFileSync(handlers, 'utf8');
      const leaky = source
        .replace('const scratch = ', "kept.push(new DeviceBuffer(size, { stream: memory.stream, label: 'kept' }));\n  const scratch = ")
        .replace('const bytes = ', 'kept.push(new DeviceBuffer(body, { stream: memory.stream }));\n  const bytes = ');
      writeFileSync(handlers, `import { DeviceBuffer } from 'cistern';\nconst kept = [];\n${leaky}`);
      run(process.execPath, [program], project('server'), { CISTERN_LOG_FILE: 'run.cistern', CISTERN_LOG_STACKS: '0' });
      writeFileSync(handlers, source);
      const reader = join(application, 'leaks.js');
      writeFileSync(
        reader,
        `import { readRecordedRun } from 'cistern/logs';
         const { kinds, firsts, layerOf, layers, stackOf, stacks } = await readRecordedRun(process.argv[2]);
         const live = new Map();
         for (const [event, kind] of kinds.entries()) {
           if (kind === 1) live.set(firsts[event], stacks[stackOf[event]].split('\\n')[0]);
           if (kind === 2) live.delete(firsts[event]);
         }
         console.log(layers.map(({ name }) => name).join(), [...live.values()].sort().join());`,
      );
      const found = run(process.execPath, [reader, join(project('server'), 'run.cistern')], application);
      expect(found).toMatch(/^limiting,pool render \(.*handlers\.js:\d+:13\),render \(.*\),sum \(.*handlers\.js:\d+:13\)\n$/);
      const command = join(installed, 'dist', 'tools', 'cli', 'main.js');
      expect(run(process.execPath, [command, 'report', 'run.cistern'], project('server'))).toMatch(/^report\.html: \d+ events/);
    });
  });
});
