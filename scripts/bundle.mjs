// Makes packages/cistern-gpu-linux-x64.tar.xz, with which the tests run on a machine that has a GPU's
// driver and nothing else: `npm run bundle`, or with `-- --gzip` for a machine without xz. In it are
// Node, the compiled addons, dist/, the sources and the packages that tests and benchmarks load.
// docs/gpu.md says how to run it; test/gpu/try-bundle.mjs tries it.
import { spawnSync } from 'node:child_process';
import {
  chmodSync,
  copyFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, dirname, join, relative } from 'node:path';
import { arch, argv, env, execPath, platform, version } from 'node:process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { buildDLPackAddon, buildExampleAddons, buildForeignLibrary, buildKernels, buildRefusal, buildThreads } from './build-for-tests.mjs';

const root = fileURLToPath(new URL('..', import.meta.url));
const name = `cistern-gpu-${platform}-${arch}`;
const mostMebibytes = 45;

/** What neither the tests of the suites for a GPU nor the benchmarks load, by its name in package.json. */
const tools = new Set([
  '@arethetypeswrong/cli',
  '@biomejs/biome',
  '@microsoft/api-extractor',
  '@vitest/coverage-v8',
  'apache-arrow',
  'axe-core',
  'cmake-js',
  'fastify',
  'knip',
  'node-addon-api',
  'node-api-headers',
  'playwright-core',
  'publint',
  'recheck',
  'typedoc',
  'typescript',
]);

/** Programs of a package whose library alone is loaded, of 80 MiB. */
const programs = join(root, 'node_modules', 'binaryen', 'bin');

/** Starts with what every shell has. A system without the C++ library takes the bundle's. */
const run = `#!/bin/sh
cd "\${0%/*}" || exit
export PATH="$PWD/node/bin:$PATH"
node --version > /dev/null 2>&1 || export LD_LIBRARY_PATH="$PWD/lib\${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec node test/gpu/run-gpu.mjs "$@"
`;

if (argv[1] === fileURLToPath(import.meta.url)) {
  const { values } = parseArgs({ options: { gzip: { type: 'boolean', default: false } } });
  console.log(makeBundle(values.gzip ? 'gz' : 'xz'));
}

/**
 * @param {'gz' | 'xz'} compression
 * @returns {string} the path of the archive
 */
export function makeBundle(compression) {
  const scratch = mkdtempSync(join(tmpdir(), 'cistern-bundle-'));
  const folder = join(scratch, name);
  const put = (from, to = relative(root, from)) => cpSync(from, join(folder, to), { recursive: true, filter: (path) => path !== programs });
  try {
    const tracked = output('git', 'ls-files', '-z')
      .split('\0')
      .filter((path) => path !== '' && existsSync(join(root, path)));
    for (const path of tracked) put(join(root, path));
    const cistern = join(root, 'build', 'Release', 'cistern.node');
    const examples = buildExampleAddons();
    const exampleAddons = readdirSync(examples)
      .filter((file) => file.endsWith('.node'))
      .map((file) => join(examples, file));
    const addons = [cistern, ...exampleAddons, buildKernels(), buildDLPackAddon(), buildForeignLibrary(), buildThreads(), buildRefusal()];
    for (const path of [join(root, 'dist'), join(root, 'src', 'suballocation', 'index-binary.ts'), ...addons]) put(path);
    const packages = packagesBut(tools);
    for (const path of packages) put(join(root, path));
    const node = join(folder, 'node', 'bin', 'node');
    mkdirSync(dirname(node), { recursive: true });
    copyFileSync(realpathSync(execPath), node);
    chmodSync(node, 0o755);
    output('strip', node);
    const libraries = new Set([execPath, ...addons].flatMap(compilerLibraries));
    for (const path of libraries) put(realpathSync(path), join('lib', basename(path)));
    const contents = {
      version: JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')).version,
      commit: output('git', 'describe', '--always', '--dirty').trim(),
      node: version,
      platform: `${platform}-${arch}`,
      glibc: [execPath, ...addons]
        .flatMap(glibcVersions)
        .sort((a, b) => a.localeCompare(b, 'en', { numeric: true }))
        .at(-1),
      addons: addons.map((path) => relative(root, path)),
      libraries: [...libraries].map((path) => basename(path)),
      packages: packages.filter((path) => path.lastIndexOf('node_modules/') === 0).map((path) => path.slice('node_modules/'.length)),
    };
    writeFileSync(join(folder, 'bundle.json'), `${JSON.stringify(contents, undefined, 2)}\n`);
    writeFileSync(join(folder, 'BUNDLE.md'), readme(contents));
    writeFileSync(join(folder, 'run'), run, { mode: 0o755 });
    mkdirSync(join(root, 'packages'), { recursive: true });
    const archive = join(root, 'packages', `${name}.tar.${compression}`);
    env.XZ_OPT ??= '-6 -T0';
    output(
      'tar',
      '--create',
      '--owner=0',
      '--group=0',
      compression === 'xz' ? '--xz' : '--gzip',
      '--file',
      archive,
      '--directory',
      scratch,
      name,
    );
    const mebibytes = statSync(archive).size / 2 ** 20;
    if (mebibytes > mostMebibytes) throw new Error(`${archive} has ${mebibytes.toFixed(1)} MiB, more than ${mostMebibytes}`);
    console.log(`${mebibytes.toFixed(1)} MiB; it needs glibc ${contents.glibc} or newer, and NVIDIA's driver`);
    return archive;
  } finally {
    rmSync(scratch, { recursive: true });
  }
}

function readme({ commit, node, glibc, addons }) {
  return `# cistern's tests for a GPU, without anything to install

Made from ${commit}. It needs a ${platform}-${arch} system with glibc ${glibc} or newer and NVIDIA's driver.

    ./run                  every suite
    ./run driver kernels   some; docs/gpu.md lists them, and says what the output means

In it: Node ${node} (\`node/bin/node\`), the compiled addons (${addons.map((path) => `\`${path}\``).join(', ')}),
\`dist/\`, the sources with tests and benchmarks, the packages that they load (\`node_modules/\`), and the C++
library (\`lib/\`), for a system that has none. Without a shell:
\`LD_LIBRARY_PATH=$PWD/lib node/bin/node test/gpu/run-gpu.mjs\`. A benchmark: \`node/bin/node bench/run.mjs pool\`.
`;
}

/** The folders of the installed packages that are needed if some in package.json are not. */
function packagesBut(excluded) {
  const { packages } = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8'));
  const found = new Set();
  const visit = (path) => {
    if (found.has(path) || !existsSync(join(root, path))) return;
    found.add(path);
    const { dependencies, optionalDependencies, peerDependencies } = packages[path];
    for (const each of Object.keys({ ...dependencies, ...optionalDependencies, ...peerDependencies })) resolve(path, each);
  };
  const resolve = (from, each) => {
    for (let base = from; ; base = base.slice(0, Math.max(0, base.lastIndexOf('/node_modules/')))) {
      const path = join(base, 'node_modules', each);
      if (packages[path] !== undefined && !excluded.has(each)) return visit(path);
      if (base === '') return;
    }
  };
  for (const each of Object.keys(packages[''].devDependencies)) resolve('', each);
  // A package brings those that lie in it.
  return [...found].filter((path) => ![...found].some((other) => path.startsWith(`${other}/`))).sort();
}

/** The libraries of the compiler that a program or addon needs. */
function compilerLibraries(path) {
  return [...output('ldd', path).matchAll(/=> (\S*\/lib(?:stdc\+\+|gcc_s)\.so\S*)/g)].map(([, library]) => library);
}

/** The versions of glibc that a program or addon asks for. */
function glibcVersions(path) {
  return [...output('objdump', '--dynamic-syms', path).matchAll(/GLIBC_([\d.]+)/g)].map(([, each]) => each);
}

function output(command, ...args) {
  const { status, error, stdout, stderr } = spawnSync(command, args, { cwd: root, encoding: 'utf8', maxBuffer: 2 ** 28 });
  if (error !== undefined) throw error;
  if (status !== 0) throw new Error(`$ ${command} ${args.join(' ')}\n${stderr}`);
  return stdout;
}
