// Makes the packages that are published, as tarballs: `npm run package`.
//
//   node scripts/package.mjs [main] [platform] [--out folder] [--platforms linux-x64-gnu,…] [--for win32-x64]
//   node scripts/package.mjs check
//
// `platform` is the package with the addon for this machine's platform, or for another one (`--for`):
// for Windows MinGW-w64 compiles it, for others CXX must. Without a name, both are made. `check` fails
// if the packages would lack what must be published. The main package is this folder without what only
// a clone needs: it has no script, no dependency that builds, and the platforms' packages as optional
// dependencies. package.json does not name them, since a clone cannot install what is not published.
import { execFile, spawnSync } from 'node:child_process';
import { copyFileSync, cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join, relative, resolve } from 'node:path';
import process, { arch, argv, env, execPath, platform } from 'node:process';
import { fileURLToPath } from 'node:url';
import { parseArgs, promisify } from 'node:util';

const root = fileURLToPath(new URL('..', import.meta.url));
const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));

/** The platforms that have a package, each with what package managers choose it by. */
export const platforms = {
  'darwin-arm64': { os: 'darwin', cpu: 'arm64' },
  'darwin-x64': { os: 'darwin', cpu: 'x64' },
  'linux-arm64-gnu': { os: 'linux', cpu: 'arm64', libc: 'glibc' },
  'linux-arm64-musl': { os: 'linux', cpu: 'arm64', libc: 'musl' },
  'linux-x64-gnu': { os: 'linux', cpu: 'x64', libc: 'glibc' },
  'linux-x64-musl': { os: 'linux', cpu: 'x64', libc: 'musl' },
  'win32-x64': { os: 'win32', cpu: 'x64' },
};

/** The name of this machine's platform. */
export function ownPlatform() {
  if (platform !== 'linux') return `${platform}-${arch}`;
  return `linux-${arch}-${process.report.getReport().header.glibcVersionRuntime === undefined ? 'musl' : 'gnu'}`;
}

/** What git knows as `origin`; empty if there is none, or no git. */
function remoteOfClone() {
  return spawnSync('git', ['config', '--get', 'remote.origin.url'], { cwd: root, encoding: 'utf8' }).stdout?.trim() ?? '';
}

/**
 * The page of a repository, from the address that git fetches it from: without a user's name and password, and only if it is on a host that others
 * may know.
 */
export function pageOf(remote) {
  const scp = /^(?:[^/@:]+@)?([^/@:]+):(?!\/)(.+)$/.exec(remote);
  const url = scp === null ? remote : `ssh://${scp[1]}/${scp[2]}`;
  if (!URL.canParse(url)) return undefined;
  const { protocol, host, hostname, pathname } = new URL(url);
  const path = pathname.replace(/\/+$/, '').replace(/\.git$/, '');
  const isKnown = hostname.includes('.') && !/^[\d.]+$/.test(hostname) && path.split('/').length > 2;
  if (!isKnown || !['http:', 'https:', 'ssh:'].includes(protocol)) return undefined;
  return protocol === 'ssh:' ? `https://${hostname}${path}` : `${protocol}//${host}${path}`;
}

/**
 * Where the packages are developed, unless package.json says so: the repository whose workflow makes
 * them, which provenance demands; or the one that this clone came from.
 */
export function originOf({ GITHUB_SERVER_URL: server, GITHUB_REPOSITORY: name }, remote = remoteOfClone()) {
  const { repository, bugs, homepage } = manifest;
  const address = server && name ? `${server}/${name}` : pageOf(remote);
  if (address === undefined) return { repository, bugs, homepage };
  return {
    repository: repository ?? { type: 'git', url: `git+${address}.git` },
    bugs: bugs ?? { url: `${address}/issues` },
    homepage: homepage ?? `${address}#readme`,
  };
}

/** What package.json of a platform's package says. */
export function platformManifest(name) {
  const { os, cpu, libc } = platforms[name];
  const { version, license, engines, author } = manifest;
  return {
    name: `@cistern/${name}`,
    version,
    description: `The native addon of cistern for ${name}. Install cistern, which depends on it.`,
    license,
    author,
    ...originOf(env),
    engines,
    os: [os],
    cpu: [cpu],
    ...(libc === undefined ? {} : { libc: [libc] }),
    main: 'cistern.node',
    // Yarn must unpack it, since the system loads the file.
    preferUnplugged: true,
    publishConfig: { access: 'public' },
  };
}

/**
 * What package.json of the main package says.
 * @param {readonly string[]} [names] the platforms whose packages are published with it: Yarn does
 * not install a package whose optional dependencies do not exist
 */
export function mainManifest(names = Object.keys(platforms)) {
  const { private: _, scripts: __, devDependencies: ___, files: ____, overrides: _____, ...rest } = manifest;
  const optionalDependencies = Object.fromEntries(names.map((name) => [`@cistern/${name}`, manifest.version]));
  // Yarn must unpack it: `cistern build` compiles its sources.
  return { ...rest, ...originOf(env), optionalDependencies, preferUnplugged: true };
}

/** Fields that a published package needs and that are not known here. */
function missingFields() {
  const known = { ...manifest, ...originOf(env) };
  return ['author', 'repository', 'bugs', 'homepage'].filter((field) => known[field] === undefined);
}

/**
 * The README without links to files that the package does not have: they lead to the repository, or, if that is not known,
 * stay as their text.
 */
export function packedReadme(text, files, { repository } = originOf(env)) {
  const address = repository?.url.replace(/^git\+/, '').replace(/\.git$/, '');
  return text.replace(/(!?)\[([^\]]*)\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)/g, (link, image, words, path, anchor = '') => {
    if (files.includes(path)) return link;
    if (address === undefined) return image === '!' ? '' : words;
    return `${image}[${words}](${address}/${image === '!' ? 'raw' : 'blob'}/v${manifest.version}/${path}${anchor})`;
  });
}

/** The maps of a clone, as large as the code, are not in the package. */
function withoutSourceMap(code) {
  return code.replace(/\n\/\/# sourceMappingURL=.*\n?$/, '\n');
}

/** @returns {string} the tarball's path */
export function packMain(out, names) {
  return inScratch((scratch) => {
    const [{ files }] = JSON.parse(npm(root, 'pack', '--dry-run', '--json', '--ignore-scripts'));
    for (const { path } of files) {
      mkdirSync(dirname(join(scratch, path)), { recursive: true });
      if (path.endsWith('.js')) writeFileSync(join(scratch, path), withoutSourceMap(readFileSync(join(root, path), 'utf8')));
      else copyFileSync(join(root, path), join(scratch, path));
    }
    const readme = readFileSync(join(root, 'README.md'), 'utf8');
    writeFileSync(
      join(scratch, 'README.md'),
      packedReadme(
        readme,
        files.map(({ path }) => path),
      ),
    );
    // The headers that the addon is compiled with, and on Windows the list of Node's functions.
    const require = createRequire(import.meta.url);
    const nodeApi = dirname(require.resolve('node-api-headers'));
    for (const folder of [join(nodeApi, 'include'), dirname(require.resolve('node-addon-api'))]) {
      const headers = readdirSync(folder).filter((name) => name.endsWith('.h'));
      for (const name of headers) cpSync(join(folder, name), join(scratch, 'native', 'include', name));
    }
    cpSync(join(nodeApi, 'def', 'node_api.def'), join(scratch, 'native', 'def', 'node_api.def'));
    return pack(scratch, mainManifest(names), out);
  });
}

/**
 * @param {string} [name] the platform that is compiled for
 * @returns {Promise<string>} the tarball's path
 */
export async function packPlatform(out, name = ownPlatform()) {
  if (platforms[name] === undefined) throw new Error(`there is no package for ${name}: only for ${Object.keys(platforms).join(', ')}`);
  // For another platform of this system, CXX must compile for it.
  const folder = join(root, 'build', ...(name === ownPlatform() ? [] : [name]));
  const isCross = platform !== 'win32' && platforms[name].os === 'win32';
  const toolchain = isCross ? [`--define=CMAKE_TOOLCHAIN_FILE=${join(root, 'cmake', 'mingw-w64.cmake')}`] : [];
  const script = join(root, 'scripts', 'build-native.mjs');
  await promisify(execFile)(execPath, [script, 'published_addon', `--out=${folder}`, ...toolchain]);
  const addon = join(folder, 'Release', 'published', 'cistern.node');
  // Throws if this system cannot load it.
  if (name === ownPlatform()) createRequire(import.meta.url)(addon);
  return inScratch((scratch) => {
    for (const file of ['LICENSE', 'NOTICE']) copyFileSync(join(root, file), join(scratch, file));
    copyFileSync(addon, join(scratch, 'cistern.node'));
    // What `cistern run` preloads, on Linux with glibc.
    const library = join(folder, 'Release', 'libcistern-run.so');
    if (existsSync(library)) copyFileSync(library, join(scratch, 'libcistern-run.so'));
    const { description } = platformManifest(name);
    writeFileSync(join(scratch, 'README.md'), `# @cistern/${name}\n\n${description}\n`);
    return pack(scratch, platformManifest(name), out);
  });
}

function pack(folder, contents, out) {
  writeFileSync(join(folder, 'package.json'), `${JSON.stringify(contents, undefined, 2)}\n`);
  mkdirSync(out, { recursive: true });
  const [{ filename }] = JSON.parse(npm(folder, 'pack', '--json', '--ignore-scripts', '--pack-destination', out));
  return join(out, filename);
}

function inScratch(use) {
  const scratch = mkdtempSync(join(tmpdir(), 'cistern-package-'));
  try {
    return use(scratch);
  } finally {
    rmSync(scratch, { recursive: true });
  }
}

function npm(folder, ...args) {
  const options = { cwd: folder, encoding: 'utf8', maxBuffer: 2 ** 26, shell: platform === 'win32' };
  const { status, error, stdout, stderr } = spawnSync('npm', args, options);
  if (error !== undefined) throw error;
  if (status !== 0) throw new Error(`$ npm ${args.join(' ')}\n${stdout}${stderr}`);
  return stdout;
}

if (argv[1] === fileURLToPath(import.meta.url)) {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: { out: { type: 'string', default: join(root, 'packages') }, platforms: { type: 'string' }, for: { type: 'string' } },
  });
  const out = resolve(values.out);
  if (positionals[0] === 'check') {
    const missing = missingFields();
    if (missing.length > 0) {
      console.error(
        `package.json lacks ${missing.join(', ')}, and neither a workflow nor the remote origin names its repository: see CONTRIBUTING.md, under "Packages"`,
      );
      process.exit(1);
    }
    process.exit();
  }
  const wanted = positionals.length === 0 ? ['main', 'platform'] : positionals;
  // Two tarballs that are installed together: no registry has what the main one would depend on, and Yarn insists.
  const platformNames = positionals.length === 0 ? [] : values.platforms?.split(',');
  for (const each of wanted) {
    if (each !== 'main' && each !== 'platform') throw new Error(`main or platform, got ${each}`);
    console.log(relative('.', each === 'main' ? packMain(out, platformNames) : await packPlatform(out, values.for)));
  }
}
