// Builds the addon, build/Release/cistern.node, with a C++ compiler alone: CXX, or the first of c++,
// clang++ and g++ that is there. CXXFLAGS and LDFLAGS are added to the flags below, so that they
// win. The addon is for the system that the compiler compiles for; for Windows that is MinGW-w64 or
// LLVM-MinGW, with their dlltool (DLLTOOL). The published package has this file too, for `cistern
// build`.
//
// The sources of a folder are compiled a few at a time, as one unit that includes them: the headers
// that they share take most of the compiler's time. A unit is compiled again if one of the files
// that it read is newer than its object, or if the command changed.
import { spawn, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { availableParallelism } from 'node:os';
import { dirname, join, relative, resolve } from 'node:path';
import process, { arch, argv, env, pid, platform, stdout } from 'node:process';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const root = fileURLToPath(new URL('..', import.meta.url));
const native = join(root, 'native');
const { version: ownVersion } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));
const folders = ['addon', 'cuda', 'order', 'platform', 'software'];
const sourcesPerUnit = 8;
const progressMilliseconds = 5000;

const compilerFlags = [
  ...['-std=c++17', '-O3', '-DNDEBUG', '-pthread', '-Wall', '-Wextra', '-fvisibility=hidden', '-fvisibility-inlines-hidden'],
  // Without the second, node-addon-api ends the process if it may not throw, as in a worker that is
  // being terminated.
  ...[
    `-DCISTERN_VERSION="${ownVersion}"`,
    '-DNAPI_VERSION=9',
    '-DNODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS',
    '-DNODE_ADDON_API_DISABLE_DEPRECATED',
  ],
];

/** What turns objects into an addon on each system. */
const linkerFlags = {
  darwin: ['-bundle', '-undefined', 'dynamic_lookup'],
  linux: ['-shared', '-pthread', '-ldl'],
  win32: ['-shared', '-static'],
};

/** The reason why the addon cannot be built, in a sentence, and what to do. */
export class BuildError extends Error {}

/**
 * Builds the addon, unless it is up to date.
 * @param {object} options
 * @param {string} [options.folder] where objects and, if `addon` is left out, the addon go
 * @param {string} [options.addon] the addon's path
 * @param {readonly string[]} [options.linking] more flags for the linker
 * @param {readonly string[]} [options.compiling] more flags for the compiler
 * @param {{ write(text: string): void, isTTY?: boolean }} [options.terminal] where progress is shown
 * @returns {Promise<{ addon: string, compiled: number, seconds: number }>}
 * @throws {BuildError}
 */
export async function buildAddon({ folder = join(root, 'build'), addon, linking = [], compiling = [], terminal = stdout } = {}) {
  const started = performance.now();
  const seconds = () => (performance.now() - started) / 1000;
  const output = addon ?? join(folder, 'Release', 'cistern.node');
  const { compiler, target, system } = findCompiler();
  if (linkerFlags[system] === undefined) throw new BuildError(`the native addon does not build on ${system}`);
  const flags = [
    ...compilerFlags,
    ...(system === 'win32' ? [] : ['-fPIC']),
    `-I${native}`,
    `-I${join(root, 'include')}`,
    ...headerFolders().flatMap((each) => ['-isystem', each]),
    ...compiling,
  ];
  const command = [...compiler, ...flags, ...words(env.CXXFLAGS)];
  // One folder for each command and target, so that builds of both do not disturb each other.
  const hash = createHash('sha256')
    .update([arch, target, ...command].join('\0'))
    .digest('hex');
  const objects = join(folder, 'objects', hash.slice(0, 12));
  const units = writeUnits(objects);
  removeOthers(objects, units);
  const stale = units.filter(isStale);
  const linker = [
    ...compiler,
    ...linkerFlags[system],
    ...(system === 'win32' ? [importLibrary(objects)] : []),
    ...linking,
    ...words(env.LDFLAGS),
  ];
  const record = [hash, ...linker].join('\n');
  const linkerRecord = `${output}.txt`;
  const isLinked =
    stale.length === 0 &&
    existsSync(linkerRecord) &&
    readFileSync(linkerRecord, 'utf8') === record &&
    units.every(({ object }) => modifiedAt(object) <= modifiedAt(output));
  if (isLinked) return { addon: output, compiled: 0, seconds: seconds() };

  const jobs = Math.max(1, Math.min(availableParallelism(), stale.length));
  let done = 0;
  const progress = () =>
    `cistern: compiling the native addon with ${compiler.join(' ')}, ${done} of ${stale.length} units, ${seconds().toFixed(0)} s`;
  const show = () => terminal.write(terminal.isTTY ? `\r${progress()}` : `${progress()}\n`);
  if (stale.length > 0) show();
  const timer = setInterval(show, terminal.isTTY ? 1000 : progressMilliseconds);
  try {
    const waiting = [...stale];
    const worker = async () => {
      for (let unit = waiting.shift(); unit !== undefined; unit = waiting.shift()) {
        // The object appears last: an interrupted build leaves none that looks finished.
        const part = partOf(unit.object);
        await run([...command, '-MD', '-MF', `${part}.d`, '-c', unit.source, '-o', part]);
        renameSync(`${part}.d`, `${unit.object}.d`);
        renameSync(part, unit.object);
        done++;
      }
    };
    await Promise.all(Array.from({ length: jobs }, worker));
    mkdirSync(dirname(output), { recursive: true });
    rmSync(linkerRecord, { force: true });
    // Processes that have loaded the old addon keep it.
    await run([
      ...linker.slice(0, compiler.length),
      ...units.map(({ object }) => object),
      ...linker.slice(compiler.length),
      '-o',
      partOf(output),
    ]);
    renameSync(partOf(output), output);
    writeFileSync(linkerRecord, record);
  } finally {
    clearInterval(timer);
    if (terminal.isTTY && stale.length > 0) terminal.write('\n');
  }
  return { addon: output, compiled: stale.length, seconds: seconds() };
}

/** Where this process writes a file until it is whole: another build may be writing the same one. */
function partOf(file) {
  return `${file}.${pid}.part`;
}

/**
 * The command of the compiler, what it says of itself, and the system that it compiles for. The
 * command may begin with a launcher: `CXX="ccache g++"`.
 */
function findCompiler() {
  const usual = platform === 'win32' ? ['g++', 'clang++'] : ['c++', 'clang++', 'g++'];
  const candidates = env.CXX ? [env.CXX] : usual;
  for (const compiler of candidates.map(words)) {
    const ask = (option) => spawnSync(compiler[0], [...compiler.slice(1), option], { encoding: 'utf8' });
    const { status, stdout: version } = ask('--version');
    if (status !== 0) continue;
    const machine = ask('-dumpmachine').stdout;
    return { compiler, target: `${version}${machine}`, system: systemOf(machine) };
  }
  const remedy = { darwin: 'xcode-select --install', win32: 'MinGW-w64 or LLVM-MinGW' }[platform] ?? 'Debian: apt install g++';
  throw new BuildError(`there is no C++ compiler: looked for ${candidates.join(', ')} on PATH. Install one (${remedy}), or set CXX.`);
}

/** The system that a compiler's target names, in Node's words. */
function systemOf(machine) {
  const names = { mingw: 'win32', 'windows-gnu': 'win32', apple: 'darwin', darwin: 'darwin', macos: 'darwin', linux: 'linux' };
  return Object.entries(names).find(([part]) => machine.includes(part))?.[1] ?? platform;
}

/** Folders with the headers of Node-API and node-addon-api: the published package has copies. */
export function headerFolders() {
  const packed = join(native, 'include');
  if (existsSync(packed)) return [packed];
  const require = createRequire(import.meta.url);
  return [join(dirname(require.resolve('node-api-headers')), 'include'), dirname(require.resolve('node-addon-api'))];
}

/** One file for each group of sources, which includes them. Files that would not change are left alone. */
function writeUnits(objects) {
  mkdirSync(objects, { recursive: true });
  return folders.flatMap((folder) => {
    const sources = readdirSync(join(native, folder))
      .filter((name) => name.endsWith('.cc'))
      .sort();
    const count = Math.ceil(sources.length / sourcesPerUnit);
    return Array.from({ length: count }, (_, index) => {
      const own = sources.slice(Math.ceil((index * sources.length) / count), Math.ceil(((index + 1) * sources.length) / count));
      const source = join(objects, `${folder}-${index + 1}.cc`);
      const text = own.map((name) => `#include "${folder}/${name}"\n`).join('');
      if (!existsSync(source) || readFileSync(source, 'utf8') !== text) {
        writeFileSync(partOf(source), text);
        renameSync(partOf(source), source);
      }
      return { source, object: join(objects, `${folder}-${index + 1}.o`) };
    });
  });
}

/** Removes what earlier sources left. */
function removeOthers(objects, units) {
  const known = new Set(units.flatMap(({ source, object }) => [source, object, `${object}.d`]));
  for (const name of readdirSync(objects))
    if (!name.includes('.part') && !known.has(join(objects, name))) rmSync(join(objects, name), { force: true });
}

function isStale({ source, object }) {
  const built = modifiedAt(object);
  if (built === 0 || !existsSync(`${object}.d`)) return true;
  const files = readFileSync(`${object}.d`, 'utf8')
    .replaceAll('\\\n', ' ')
    .replace(/^.*?\.o(\.\d+\.part)?:/, '')
    .match(/(?:\\ |\S)+/g);
  return [source, ...(files ?? [])].some((file) => modifiedAt(file.replaceAll('\\ ', ' ')) >= built);
}

/** Infinity for a file that is missing: what was made from it is out of date. */
function modifiedAt(file) {
  const stats = statSync(file, { throwIfNoEntry: false });
  return stats?.mtimeMs ?? (file.endsWith('.o') || file.endsWith('.node') ? 0 : Number.POSITIVE_INFINITY);
}

/** The file that lists the functions of Node-API. */
export function importDefinitions() {
  return join(headerFolders()[0], '..', 'def', 'node_api.def');
}

/**
 * On Windows an addon is linked with a library that names the functions of node.exe. They are looked
 * up at the first call, in whatever program has loaded the addon: `FindNode` of
 * native/platform/windows.cc.
 */
function importLibrary(objects) {
  const library = join(objects, 'libnode_api.a');
  const { status, error, stderr } = spawnSync(env.DLLTOOL ?? 'dlltool', ['-d', importDefinitions(), '-D', 'node.exe', '-y', library], {
    encoding: 'utf8',
  });
  if (status !== 0) throw new BuildError(`dlltool, which comes with MinGW-w64, failed: ${error?.message ?? stderr}`);
  return library;
}

/** Runs a compiler. Warnings of a successful run are shown too. */
function run([command, ...args]) {
  return new Promise((settle, reject) => {
    const child = spawn(command, args, { cwd: root, stdio: ['ignore', 'pipe', 'pipe'] });
    let output = '';
    for (const stream of [child.stdout, child.stderr]) stream.setEncoding('utf8').on('data', (text) => (output += text));
    child.on('error', reject);
    child.on('close', (status, signal) => {
      if (status === 0) {
        if (output !== '') console.error(output.trimEnd());
        settle();
        return;
      }
      const lines = output.trimEnd().split('\n');
      const shown = lines.slice(0, 60).join('\n') + (lines.length > 60 ? `\n… and ${lines.length - 60} more lines` : '');
      reject(
        new BuildError(
          `the compiler failed with ${signal ?? status}; a C++17 compiler is needed.\n$ ${[command, ...args].join(' ')}\n${shown}`,
        ),
      );
    });
  });
}

function words(text) {
  return text?.match(/\S+/g) ?? [];
}

if (argv[1] === fileURLToPath(import.meta.url)) {
  const { values } = parseArgs({ options: { out: { type: 'string' } } });
  try {
    const { addon, compiled, seconds } = await buildAddon(values.out === undefined ? {} : { folder: resolve(values.out) });
    if (compiled > 0) console.log(`cistern: built ${relative('.', addon)} in ${seconds.toFixed(0)} s`);
  } catch (error) {
    if (!(error instanceof BuildError)) throw error;
    console.error(`cistern: ${error.message}`);
    process.exitCode = 1;
  }
}
