// Tries the packed package with runtimes, package managers, compilers, bundlers and test runners, and
// writes docs/compatibility.md: `node scripts/compatibility.mjs`. With words, it runs only the cases
// that have one of them in their name, and prints what it finds. Tools come from npm, into
// build/compatibility; what cannot be had is listed as not run.
import { spawn } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join } from 'node:path';
import process, { arch, argv, execPath, platform } from 'node:process';
import { fileURLToPath } from 'node:url';
import { ownPlatform, packMain, packPlatform } from './package.mjs';
import { servePackages } from './serve-packages.mjs';

const root = fileURLToPath(new URL('..', import.meta.url));
const cache = join(root, 'build', 'compatibility');
const page = join(root, 'docs', 'compatibility.md');
const scratch = mkdtempSync(join(tmpdir(), 'cistern-compatibility-'));
const timeoutMilliseconds = 180_000;

class NotRun extends Error {}

// ---- programs -----------------------------------------------------------------------------------

const body = `
  const pool = new PoolMemoryResource(new CudaAsyncMemoryResource(), { deallocationEvents: 'deferred' });
  const recording = new Recording({ file: 'run.cistern' });
  const resource = new RecordingResourceAdaptor(pool, { recording });
  const stream = new Stream();
  let calls = 0;
  stream.launchHostFunction(() => calls++);
  const buffer = new DeviceBuffer(Float32Array.of(1, 2, 3), { resource, stream });
  const bytes = await buffer.toHost();
  buffer.dispose();
  recording.dispose();
  const managed = new DeviceBuffer(Float32Array.of(4, 5), { resource: new ManagedMemoryResource(), stream });
  const view = managed.hostView(Float32Array);
  const result = new Float32Array(bytes.buffer).join() + ' ' + calls + ' ' + view.join();`;
const names =
  'CudaAsyncMemoryResource, DeviceBuffer, ManagedMemoryResource, PoolMemoryResource, Recording, RecordingResourceAdaptor, Stream';
const expected = '1,2,3 1 4,5';
const moduleProgram = `import { ${names} } from 'cistern';\n{${body}\n  console.log(result);\n}\n`;
const scriptProgram = `const { ${names} } = require('cistern');\n(async () => {${body}\n  console.log(result);\n})();\n`;
/** A test with the globals that runners have. */
const testOf = (imports) =>
  `${imports}\nimport { ${names} } from 'cistern';\ntest('cistern', async () => {${body}\n  expect(result).toBe('${expected}');\n});\n`;
const typedProgram = `import { DeviceBuffer, OutOfMemoryError, PoolMemoryResource, CudaMemoryResource, Stream, type MemoryResource, type PoolMemoryResourceOptions } from 'cistern';
import { readRecordedRun } from 'cistern/logs';
import { replayLog } from 'cistern/replay';
import { resourceConformance } from 'cistern/testing';
const options: PoolMemoryResourceOptions = { initialBytes: 1024, deallocationEvents: 'deferred' };
const pool: MemoryResource = new PoolMemoryResource(new CudaMemoryResource(), options);
const buffer: DeviceBuffer = new DeviceBuffer(16, { resource: pool, stream: new Stream() });
export const bytes: Promise<Uint8Array> = buffer.toHost();
export const error = (caught: unknown): boolean => caught instanceof OutOfMemoryError;
export const functions = [readRecordedRun, replayLog, resourceConformance];
`;

// ---- tools --------------------------------------------------------------------------------------

const binaries = `${platform}-${arch}`;

/** Each tool's packages. */
const tools = {
  ...Object.fromEntries(['22', '24', '26'].map((version) => [`node ${version}`, [`node-${binaries}@${version}`]])),
  pnpm: ['pnpm@9'],
  yarn: ['@yarnpkg/cli-dist@4'],
  'yarn 1': ['yarn@1'],
  bun: [`@oven/bun-${binaries}@1`],
  deno: [`@deno/${binaries === 'linux-x64' ? 'linux-x64-glibc' : binaries}@2`],
  'typescript 5.4': ['typescript@5.4', '@types/node@20'],
  'typescript 5.7': ['typescript@5.7', '@types/node@20'],
  'typescript 5.9': ['typescript@5.9', '@types/node@20'],
  'typescript 6.0': ['typescript@6.0', '@types/node@20'],
  'typescript 7.0': ['typescript@7.0', '@types/node@20'],
  esbuild: ['esbuild'],
  rollup: ['rollup', '@rollup/plugin-node-resolve'],
  webpack: ['webpack'],
  vite: ['vite@8'],
  jest: ['jest@30'],
  vitest: ['vitest@4'],
  postject: ['postject', 'esbuild'],
  nft: ['@vercel/nft'],
  next: ['next@16', 'react@19', 'react-dom@19'],
  electron: ['electron@45'],
};

const folders = new Map();

/** The node_modules of a tool. */
async function tool(name) {
  if (!folders.has(name)) folders.set(name, install(name));
  return folders.get(name);
}

async function install(name) {
  const folder = join(cache, name.replaceAll(' ', '-'));
  const stamp = join(folder, 'installed.txt');
  if (!existsSync(stamp)) {
    mkdirSync(folder, { recursive: true });
    writeFileSync(join(folder, 'package.json'), '{ "private": true }');
    try {
      await run('npm', ['install', '--no-audit', '--no-fund', '--no-package-lock', ...tools[name]], { folder, environment: {} });
    } catch {
      throw new NotRun(`${tools[name][0]} could not be installed`);
    }
    writeFileSync(stamp, '');
  }
  return join(folder, 'node_modules');
}

/** The version of a tool's first package. */
async function versionOf(name) {
  const packageName = tools[name][0].replace(/(?<=.)@[^@/]*$/, '');
  return JSON.parse(readFileSync(join(await tool(name), packageName, 'package.json'), 'utf8')).version;
}

async function nodeOf(version) {
  return version === process.versions.node.split('.')[0]
    ? execPath
    : join(await tool(`node ${version}`), `node-${binaries}`, 'bin', 'node');
}

// ---- running ------------------------------------------------------------------------------------

let registry;
/** An application with cistern, to copy. */
let installed;

function folderFor(files, options = {}) {
  const folder = mkdtempSync(join(scratch, 'case-'));
  if (options.isEmpty !== true) cpSync(installed, folder, { recursive: true });
  for (const [name, text] of Object.entries({
    'package.json': JSON.stringify({ private: true, type: options.type ?? 'commonjs' }),
    ...files,
  })) {
    mkdirSync(dirname(join(folder, name)), { recursive: true });
    writeFileSync(join(folder, name), text);
  }
  return folder;
}

/** Makes the packages of tools resolvable in an application. */
async function withTools(folder, ...toolNames) {
  for (const name of toolNames)
    cpSync(await tool(name), join(folder, 'node_modules'), { recursive: true, force: false, verbatimSymlinks: true });
  return folder;
}

function run(command, args, { folder, environment = {} }) {
  return new Promise((settle, reject) => {
    const env = {
      ...process.env,
      CISTERN_ADDON: '',
      CISTERN_DEVICE: 'software',
      NO_COLOR: '1',
      FORCE_COLOR: '0',
      CI: '1',
      npm_config_user_agent: '',
      ...environment,
    };
    for (const name of ['NODE_OPTIONS', 'NODE_ENV', 'VITEST']) delete env[name];
    const child = spawn(command, args, { cwd: folder, env, timeout: timeoutMilliseconds, stdio: ['ignore', 'pipe', 'pipe'] });
    let output = '';
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (text) => (output += text));
    child.on('error', reject);
    child.on('close', (status, signal) => {
      if (status === 0) settle(output);
      else reject(new Error(`$ ${[command, ...args].join(' ')}\n${output}\nended with ${signal ?? status}`));
    });
  });
}

function expectIn(output, text = expected) {
  if (!output.includes(text)) throw new Error(`the output lacks "${text}":\n${output}`);
}

async function runsProgram(command, args = [], folder = folderFor({ 'program.mjs': moduleProgram })) {
  expectIn(await run(command, [...args, 'program.mjs'], { folder }));
}

// ---- cases --------------------------------------------------------------------------------------

const cases = [];
const add = (group, name, attempt, note = '') => cases.push({ group, name, attempt, note });

for (const version of ['20', '22', '24', '26']) {
  add('Runtimes', `Node ${version}`, async () => {
    await runsProgram(await nodeOf(version));
    return (await run(await nodeOf(version), ['--version'], { folder: scratch })).trim();
  });
  add('Runtimes', `Node ${version}, require`, async () => {
    expectIn(await run(await nodeOf(version), ['program.cjs'], { folder: folderFor({ 'program.cjs': scriptProgram }) }));
  });
}
const bun = async () => join(await tool('bun'), '@oven', `bun-${binaries}`, 'bin', 'bun');
const deno = async () => join(await tool('deno'), tools.deno[0].replace(/@2$/, ''), 'deno');
add('Runtimes', 'Bun', async () => {
  await runsProgram(await bun(), ['run']);
  return versionOf('bun');
});
add('Runtimes', 'Deno', async () => {
  await runsProgram(await deno(), ['run', '--allow-all', '--node-modules-dir=manual']);
  return versionOf('deno');
});
add(
  'Runtimes',
  'single executable application',
  async () => {
    const node = await nodeOf('22');
    const modules = await tool('postject');
    const folder = folderFor({
      'program.cjs': `const { writeFileSync, mkdtempSync } = require('node:fs');
        const path = require('node:path').join(mkdtempSync(require('node:os').tmpdir() + '/cistern-'), 'cistern.node');
        writeFileSync(path, new Uint8Array(require('node:sea').getRawAsset('cistern.node')));
        process.env.CISTERN_ADDON = path;\n${scriptProgram}`,
    });
    const addon = `node_modules/@cistern/${ownPlatform()}/cistern.node`;
    writeFileSync(
      join(folder, 'sea.json'),
      JSON.stringify({ main: 'bundle.cjs', output: 'sea.blob', disableExperimentalSEAWarning: true, assets: { 'cistern.node': addon } }),
    );
    const bundling = ['program.cjs', '--bundle', '--platform=node', '--format=cjs', '--outfile=bundle.cjs', '--log-level=error'];
    await run(join(modules, '.bin', 'esbuild'), bundling, { folder });
    await run(node, ['--experimental-sea-config', 'sea.json'], { folder });
    cpSync(node, join(folder, 'program'));
    const fuse = 'NODE_SEA_FUSE_fce680ab2cc467b6e072b8b5df1996b2';
    await run(join(modules, '.bin', 'postject'), ['program', 'NODE_SEA_BLOB', 'sea.blob', '--sentinel-fuse', fuse], { folder });
    rmSync(join(folder, 'node_modules'), { recursive: true });
    expectIn(await run(join(folder, 'program'), [], { folder }));
  },
  'the program writes the addon, an asset, to a file, and names that in `CISTERN_ADDON` before it uses cistern',
);
add(
  'Runtimes',
  'Electron',
  async () => {
    const modules = await tool('electron');
    try {
      await run(execPath, [join(modules, 'electron', 'install.js')], { folder: cache });
    } catch {
      throw new NotRun("Electron's program could not be downloaded");
    }
    // Electron's V8 has no arrays over foreign memory.
    const refusal = 'try { managed.hostView(Float32Array); } catch (error) { view.push(error.code); }';
    const program = moduleProgram
      .replace('const view = managed.hostView(Float32Array);', `const view = [];\n  ${refusal}`)
      .replace('console.log(result);', 'console.log(result);\n  app.quit();');
    const folder = folderFor({ 'program.mjs': `import { app } from 'electron';\n${program}` });
    const electron = readFileSync(join(modules, 'electron', 'path.txt'), 'utf8');
    const flags = ['--no-sandbox', '--ozone-platform=headless', '--disable-gpu'];
    expectIn(
      await run(join(modules, 'electron', 'dist', electron), [...flags, 'program.mjs'], { folder }),
      '1,2,3 1 ERR_CISTERN_NOT_SUPPORTED',
    );
    return versionOf('electron');
  },
  'in its main process; without host views, which its V8 does not allow',
);

/** Runs a command in a container, beside the packages' tarballs and the program. */
async function runsInContainer(image, command) {
  try {
    await run('docker', ['info'], { folder: scratch });
  } catch {
    throw new NotRun('no Docker here');
  }
  const folder = folderFor({ 'program.mjs': moduleProgram }, { isEmpty: true });
  for (const file of Object.values(tarballs)) cpSync(file, join(folder, basename(file)));
  const mount = ['--rm', '--volume', `${folder}:/app`, '--workdir', '/app', '--env', 'CISTERN_DEVICE=software'];
  expectIn(await run('docker', ['run', ...mount, image, 'sh', '-ec', `${command}; node program.mjs`], { folder }));
}
add('Systems', 'Docker, node:22-slim', () => runsInContainer('node:22-slim', `npm install ${inApp('alone', 'platform')}`));
add(
  'Systems',
  'Docker, node:22-alpine',
  () => runsInContainer('node:22-alpine', `apk add cmake g++ make; npm install ${inApp('alone')}; npx cistern build`),
  'compiles its own addon; the published packages have one for musl',
);

const registryArguments = () => `--registry=${registry.address}`;
const isolated = (folder) => ({
  folder,
  environment: { HOME: folder, XDG_CACHE_HOME: join(folder, 'cache'), npm_config_cache: join(folder, 'cache') },
});
/** In an empty folder: installs, then replays a log and runs a program. */
async function installs(commands, execute = [execPath], cistern = [execPath, 'node_modules/cistern/dist/tools/cli/main.js']) {
  const folder = folderFor({ 'program.mjs': moduleProgram, ...commands.files }, { isEmpty: true });
  const started = performance.now();
  for (const [command, ...args] of commands.steps) await run(command, args, isolated(folder));
  const installation = (performance.now() - started) / 1000;
  const inFolder = { ...isolated(folder) };
  await run(cistern[0], [...cistern.slice(1), 'generate', 'multi-stream', '-o', 'trace.csv.gz'], inFolder);
  expectIn(
    await run(cistern[0], [...cistern.slice(1), 'replay', 'trace.csv.gz', '--repeat', '1'], inFolder),
    'pool(cuda, deallocationEvents=deferred)',
  );
  expectIn(await run(execute[0], [...execute.slice(1), 'program.mjs'], inFolder));
  const total = (performance.now() - started) / 1000;
  return `installed in ${installation.toFixed(1)} s; a log replayed and a program run after ${total.toFixed(1)} s`;
}
add('Package managers', 'npm', () => installs({ steps: [['npm', 'install', 'cistern', registryArguments()]] }));
add('Package managers', 'npm, --ignore-scripts', () =>
  installs({ steps: [['npm', 'install', 'cistern', '--ignore-scripts', registryArguments()]] }),
);
add('Package managers', 'pnpm', async () => {
  const pnpm = [execPath, join(await tool('pnpm'), 'pnpm', 'bin', 'pnpm.cjs')];
  return `${await versionOf('pnpm')}, ${await installs({ steps: [[...pnpm, 'add', 'cistern', registryArguments(), '--store-dir=store']] })}`;
});
const yarnFiles = (linker) => ({
  '.yarnrc.yml': `nodeLinker: ${linker}\nnpmRegistryServer: "${registry.address}"\nunsafeHttpWhitelist: ["127.0.0.1"]\nenableTelemetry: false\nenableGlobalCache: false\nnpmMinimalAgeGate: 0\n`,
  'yarn.lock': '',
});
const yarn = async () => [execPath, join(await tool('yarn'), '@yarnpkg', 'cli-dist', 'bin', 'yarn.js')];
add('Package managers', 'Yarn, node-modules', async () => {
  return `${await versionOf('yarn')}, ${await installs({ files: yarnFiles('node-modules'), steps: [[...(await yarn()), 'add', 'cistern']] })}`;
});
add('Package managers', "Yarn, Plug'n'Play", async () => {
  const command = await yarn();
  return installs({ files: yarnFiles('pnp'), steps: [[...command, 'add', 'cistern']] }, [...command, 'node'], [...command, 'cistern']);
});
add('Package managers', 'Bun', async () => installs({ steps: [[await bun(), 'add', 'cistern', registryArguments()]] }));

/** Tarballs as a container sees them. */
function inApp(...names) {
  return names.map((name) => `./${basename(tarballs[name])}`).join(' ');
}

/** The two tarballs of `npm run package`, which need no registry. */
const both = () => [`cistern@${tarballs.alone}`, `@cistern/${ownPlatform()}@${tarballs.platform}`];
add('Package managers', 'npm, from the two tarballs', () => installs({ steps: [['npm', 'install', ...both()]] }));
add('Package managers', 'pnpm, from the two tarballs', async () =>
  installs({ steps: [[execPath, join(await tool('pnpm'), 'pnpm', 'bin', 'pnpm.cjs'), 'add', ...both(), '--store-dir=store']] }),
);
add('Package managers', 'Yarn, from the two tarballs', async () =>
  installs({ files: yarnFiles('node-modules'), steps: [[...(await yarn()), 'add', ...both()]] }),
);
add('Package managers', 'Yarn 1, from the two tarballs', async () => {
  const command = [execPath, join(await tool('yarn 1'), 'yarn', 'bin', 'yarn.js'), 'add', tarballs.alone, tarballs.platform];
  return `${await versionOf('yarn 1')}, ${await installs({ steps: [command] })}`;
});
add('Package managers', 'Bun, from the two tarballs', async () =>
  installs({ steps: [[await bun(), 'add', tarballs.alone, tarballs.platform]] }),
);

for (const version of ['5.4', '5.7', '5.9', '6.0', '7.0']) {
  const isTooOld = version === '5.4' ? 'typed arrays have a type parameter, `Uint8Array<ArrayBuffer>`, since 5.7' : '';
  for (const [module, moduleResolution] of [
    ['node16', 'node16'],
    ['nodenext', 'nodenext'],
    ['esnext', 'bundler'],
  ]) {
    add(
      'TypeScript',
      `${version}, ${moduleResolution}`,
      async () => {
        const compilerOptions = {
          module,
          moduleResolution,
          target: 'es2022',
          lib: ['es2023', 'esnext.disposable'],
          types: ['node'],
          strict: true,
          exactOptionalPropertyTypes: true,
          skipLibCheck: false,
          noEmit: true,
        };
        const folder = folderFor(
          { 'program.ts': typedProgram, 'tsconfig.json': JSON.stringify({ compilerOptions, files: ['program.ts'] }) },
          { type: 'module' },
        );
        await withTools(folder, `typescript ${version}`);
        await run(execPath, ['node_modules/typescript/bin/tsc', '-p', '.'], { folder });
      },
      isTooOld,
    );
  }
  add(
    'TypeScript',
    `${version}, CommonJS`,
    async () => {
      const compilerOptions = {
        module: 'nodenext',
        target: 'es2022',
        lib: ['es2023', 'esnext.disposable'],
        types: ['node'],
        strict: true,
        noEmit: true,
      };
      const folder = folderFor({ 'program.ts': typedProgram, 'tsconfig.json': JSON.stringify({ compilerOptions, files: ['program.ts'] }) });
      await withTools(folder, `typescript ${version}`);
      await run(execPath, ['node_modules/typescript/bin/tsc', '-p', '.'], { folder });
    },
    isTooOld || (version === '5.7' ? 'CommonJS may import ES modules since 5.8' : ''),
  );
}

/** A bundle runs where it lies, below the application's node_modules. */
async function runsBundle(folder, file) {
  expectIn(await run(execPath, [file], { folder }));
}
for (const [format, file] of [
  ['esm', 'out/bundle.mjs'],
  ['cjs', 'out/bundle.cjs'],
]) {
  add('Bundlers', `esbuild, ${format}`, async () => {
    // CommonJS has no await outside of functions.
    const folder = folderFor({
      'program.mjs':
        format === 'esm' ? moduleProgram : `import { ${names} } from 'cistern';\n(async () => {${body}\n console.log(result); })();`,
    });
    await run(
      join(await tool('esbuild'), '.bin', 'esbuild'),
      ['program.mjs', '--bundle', '--platform=node', `--format=${format}`, `--outfile=${file}`, '--log-level=error'],
      { folder },
    );
    await runsBundle(folder, file);
    return versionOf('esbuild');
  });
}
add('Bundlers', 'Rollup', async () => {
  const folder = await withTools(
    folderFor({
      'program.mjs': moduleProgram,
      'rollup.config.mjs': `import { nodeResolve } from '@rollup/plugin-node-resolve';
        export default { input: 'program.mjs', output: { dir: 'out', entryFileNames: 'bundle.mjs', chunkFileNames: '[name].mjs' }, plugins: [nodeResolve({ exportConditions: ['node'] })], external: /^node:/ };`,
    }),
    'rollup',
  );
  await run(execPath, ['node_modules/rollup/dist/bin/rollup', '-c'], { folder });
  await runsBundle(folder, 'out/bundle.mjs');
  return versionOf('rollup');
});
add('Bundlers', 'webpack', async () => {
  const folder = await withTools(
    folderFor({
      'program.mjs': moduleProgram,
      'build.cjs': `require('webpack')({ mode: 'production', target: 'node20', entry: './program.mjs', experiments: { outputModule: true },
        output: { path: __dirname + '/out', filename: 'bundle.mjs', module: true } }, (error, stats) => {
        if (error ?? stats.hasErrors()) { console.error(error ?? stats.toString()); process.exit(1); } });`,
    }),
    'webpack',
  );
  await run(execPath, ['build.cjs'], { folder });
  await runsBundle(folder, 'out/bundle.mjs');
  return versionOf('webpack');
});
add(
  'Bundlers',
  'Next.js, a route handler',
  async () => {
    const folder = await withTools(
      folderFor(
        {
          'app/layout.js': 'export default ({ children }) => <html><body>{children}</body></html>;',
          'app/page.js': 'export default () => <p>cistern</p>;',
          'app/memory/route.js': `import { ${names} } from 'cistern';
export const dynamic = 'force-dynamic';
export async function GET() {${body}
  return new Response(result);
}`,
          // Asks once, and ends.
          'serve.cjs': `const app = require('next')({ dev: false, dir: __dirname });
app.prepare().then(() => {
  const server = require('node:http').createServer(app.getRequestHandler()).listen(0, '127.0.0.1', async () => {
    console.log(await (await fetch('http://127.0.0.1:' + server.address().port + '/memory')).text());
    process.exit();
  });
});`,
          'next.config.mjs': "export default { serverExternalPackages: ['cistern'], experimental: { cpus: 1 } };",
        },
        { type: 'module' },
      ),
      'next',
    );
    const environment = { NEXT_TELEMETRY_DISABLED: '1' };
    await run(execPath, ['node_modules/next/dist/bin/next', 'build'], { folder, environment });
    expectIn(await run(execPath, ['serve.cjs'], { folder, environment }));
    return versionOf('next');
  },
  "`serverExternalPackages: ['cistern']`, as Next.js needs for every package with an addon",
);
for (const [name, ssr] of [
  ['dependencies outside', {}],
  ['dependencies inside (`ssr.noExternal`)', { noExternal: true }],
]) {
  add('Bundlers', `Vite SSR, ${name}`, async () => {
    const folder = await withTools(
      folderFor({
        'program.mjs': moduleProgram,
        'vite.config.mjs': `export default { logLevel: 'error', ssr: ${JSON.stringify(ssr)}, build: { ssr: 'program.mjs', outDir: 'out', target: 'node20', rollupOptions: { output: { entryFileNames: 'bundle.mjs' } } } };`,
      }),
      'vite',
    );
    await run(execPath, ['node_modules/vite/bin/vite.js', 'build'], { folder });
    await runsBundle(folder, 'out/bundle.mjs');
    return versionOf('vite');
  });
}
add('Bundlers', 'Bun build', async () => {
  const folder = folderFor({ 'program.mjs': moduleProgram });
  await run(await bun(), ['build', 'program.mjs', '--target=node', '--outfile=out/bundle.mjs'], { folder });
  await runsBundle(folder, 'out/bundle.mjs');
});
add(
  'Bundlers',
  '@vercel/nft',
  async () => {
    const folder = folderFor({ 'program.mjs': moduleProgram });
    const trace = `require(${JSON.stringify(join(await tool('nft'), '@vercel', 'nft'))}).nodeFileTrace(['program.mjs']).then(({ fileList }) => console.log([...fileList].join()))`;
    const files = (await run(execPath, ['-e', trace], { folder })).trim().split(',');
    expectIn(files.join(), `@cistern/${ownPlatform()}/cistern.node`);
    // The traced files alone are enough.
    const copy = mkdtempSync(join(scratch, 'traced-'));
    for (const file of files) cpSync(join(folder, file), join(copy, file));
    await runsProgram(execPath, [], copy);
    return versionOf('nft');
  },
  'finds the addon',
);

add('Test runners', 'node --test', async () => {
  const folder = folderFor({
    'a.test.mjs': `import test from 'node:test'; import assert from 'node:assert';\nimport { ${names} } from 'cistern';\ntest('cistern', async () => {${body}\n assert.equal(result, '${expected}'); });`,
  });
  await run(execPath, ['--test', 'a.test.mjs'], { folder });
});
const twoTests = (imports) => ({ 'a.test.mjs': testOf(imports), 'b.test.mjs': testOf(imports) });
for (const pool of ['forks', 'threads', 'vmForks', 'vmThreads']) {
  add('Test runners', `Vitest, ${pool}`, async () => {
    const folder = await withTools(
      folderFor({
        ...twoTests(`import { expect, test } from 'vitest';`),
        'vitest.config.mjs': `export default { test: { pool: '${pool}', maxWorkers: 1 } };`,
      }),
      'vitest',
    );
    await run(execPath, ['node_modules/vitest/vitest.mjs', 'run'], { folder });
    return versionOf('vitest');
  });
}
add(
  'Test runners',
  'Jest, ES modules',
  async () => {
    const folder = await withTools(
      folderFor({
        ...twoTests(''),
        'jest.config.json': JSON.stringify({
          testMatch: ['**/*.test.mjs'],
          transform: {},
          testEnvironment: 'node',
          moduleFileExtensions: ['mjs', 'js', 'json', 'node'],
        }),
      }),
      'jest',
    );
    await run(execPath, ['--experimental-vm-modules', 'node_modules/jest/bin/jest.js', '--runInBand', '--forceExit'], { folder });
    return versionOf('jest');
  },
  '`node --experimental-vm-modules`, as Jest needs for every ES module',
);
add(
  'Test runners',
  'Jest, CommonJS',
  async () => {
    const test = `const { ${names} } = require('cistern');\ntest('cistern', async () => {${body}\n expect(result).toBe('${expected}'); });`;
    const config = { testMatch: ['**/*.test.js'], transform: {}, testEnvironment: 'node' };
    const folder = await withTools(folderFor({ 'a.test.js': test, 'b.test.js': test, 'jest.config.json': JSON.stringify(config) }), 'jest');
    await run(await nodeOf('24'), ['--experimental-vm-modules', 'node_modules/jest/bin/jest.js', '--runInBand', '--forceExit'], { folder });
  },
  'Node 24 with `--experimental-vm-modules`: before Node 24.9, Jest cannot `require` an ES module',
);
add('Test runners', 'bun test', async () => {
  const folder = folderFor({
    'a.test.mjs': testOf(`import { expect, test } from 'bun:test';`),
    'b.test.mjs': testOf(`import { expect, test } from 'bun:test';`),
  });
  await run(await bun(), ['test'], { folder });
});
add('Test runners', 'deno test', async () => {
  const folder = folderFor({
    'a.test.mjs': `import { ${names} } from 'cistern';\nDeno.test('cistern', async () => {${body}\n  if (result !== '${expected}') throw new Error(result);\n});`,
  });
  await run(await deno(), ['test', '--allow-all', '--node-modules-dir=manual', 'a.test.mjs'], { folder });
});

// ---- the table ----------------------------------------------------------------------------------

async function attemptAll(words) {
  const rows = [];
  for (const { group, name, attempt, note } of cases) {
    if (words.length > 0 && !words.some((word) => `${group} ${name}`.includes(word))) continue;
    let outcome;
    let details = note;
    try {
      const found = await attempt();
      outcome = 'works';
      if (found !== undefined) details = [found, note].filter((text) => text !== '').join('; ');
    } catch (error) {
      outcome = error instanceof NotRun ? 'not run' : 'does not work';
      details = error instanceof NotRun ? error.message : note;
      if (!(error instanceof NotRun)) console.error(`${error.message}\n`);
    }
    console.log(`${group}: ${name}: ${outcome}${details === '' ? '' : ` (${details})`}`);
    rows.push({ group, name, outcome, details });
  }
  return rows;
}

function pageOf(rows) {
  const groups = [...new Set(rows.map(({ group }) => group))];
  const tables = groups.map((group) => {
    const lines = rows.filter((row) => row.group === group).map(({ name, outcome, details }) => `| ${name} | ${outcome} | ${details} |`);
    return `## ${group}\n\n| with | the packed package | |\n| --- | --- | --- |\n${lines.join('\n')}\n`;
  });
  return `# Compatibility

This page lists the runtimes, package managers, TypeScript versions, bundlers and test runners that cistern was tried
with. \`node scripts/compatibility.mjs\` installs the packed package, runs it in each of these environments and writes
this page. Its program makes a pool, a stream with a host function, a buffer and a recording, and reads the buffer back,
once as a copy and once as a host view. TypeScript checks a program and cistern's declarations, with \`strict\` and
\`exactOptionalPropertyTypes\`. Package managers install into an empty folder, from a registry on the same machine, with
empty caches. This page is from ${ownPlatform()}, Node ${process.version}, with the software device. See also [the
platforms](guides/install.md#installing) and [what was run on them](design/043-other-systems.md#what-was-run).

${tables.join('\n')}`;
}

const words = argv.slice(2);
const packed = join(scratch, 'packed');
const tarballs = { main: packMain(packed), platform: await packPlatform(packed), alone: packMain(join(scratch, 'alone'), []) };
registry = await servePackages(tarballs);
try {
  installed = folderFor({}, { isEmpty: true });
  await run('npm', ['install', 'cistern', registryArguments()], isolated(installed));
  rmSync(join(installed, 'cache'), { recursive: true, force: true });
  const rows = await attemptAll(words);
  if (words.length === 0) writeFileSync(page, pageOf(rows));
  if (rows.some(({ outcome, details }) => outcome === 'does not work' && details === '')) process.exitCode = 1;
} finally {
  registry.close();
  rmSync(scratch, { recursive: true, force: true });
}
