// Builds the JavaScript of dist/: one file for each entry of the package, at the place of its
// source, and dist/chunks/ with what they share, so that importing an entry reads a few files and
// every class exists once. The command's libraries are bundled, in a file that only it reads.
import { readdirSync, readFileSync, rmSync } from 'node:fs';
import { dirname, join, posix, relative } from 'node:path';
import { argv } from 'node:process';
import { fileURLToPath } from 'node:url';
import { rolldown } from 'rolldown';

const root = fileURLToPath(new URL('..', import.meta.url));
const { bin, exports, version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'));

const main = source(exports['.'].default);
const command = source(bin.cistern);
/** What imports each part of the command when it is called. */
const program = join(root, 'src/tools/cli/program.ts');
/** The module that `cistern watch` makes Node import is no entry of the package, but a file of its own. */
const entries = [
  ...Object.values(exports).flatMap((target) => (typeof target === 'string' ? [] : [source(target.default)])),
  command,
  'src/tools/watch/preload.ts',
];

/**
 * Builds the entries.
 *
 * @param {string} [folder] where they go; the package is the folder around it
 * @param {ReadonlyMap<string, string>} [texts] other texts of modules, by their paths
 * @param {string} [banner] a line that begins each file
 */
export async function buildEntries(folder = join(root, 'dist'), texts = new Map(), banner = undefined) {
  const bundle = await rolldown({
    cwd: root,
    platform: 'node',
    tsconfig: false,
    transform: { target: 'es2023', define: { CISTERN_VERSION: JSON.stringify(version) } },
    // `sideEffects` of package.json is about what is built here.
    treeshake: { moduleSideEffects: [{ test: /[\\/]src[\\/]/, sideEffects: true }] },
    input: Object.fromEntries(entries.map((entry) => [posix.relative('src', entry).replace(/\.ts$/, ''), entry])),
    external: /^node:/,
    plugins: texts.size === 0 ? [] : [{ name: 'other-texts', load: (id) => texts.get(id) }],
  });
  const { output: files } = await bundle.write({
    dir: folder,
    banner,
    format: 'esm',
    comments: false,
    sourcemap: true,
    chunkFileNames: 'chunks/[name].js',
    minifyInternalExports: false,
    // A chunk takes along what its modules import, unless a group before it has that.
    codeSplitting: {
      groups: [
        { debugName: 'package', name: ofAll, priority: 1 },
        { debugName: 'shared', name: chunkOf },
      ],
    },
  });
  removeOthers(folder, new Set(files.map(({ fileName }) => fileName)));
  assertPlace(files);
}

/** The chunk of what every run of the command and the main entry need. */
function ofAll(id, context) {
  return neededByCommand(context).has(id) && entriesOf(id, context).has(main) ? 'package' : null;
}

/** The chunk of a module that every run of the command needs, or the main entry and another one; Rolldown places the rest. */
function chunkOf(id, context) {
  if (neededByCommand(context).has(id)) return id === join(root, command) ? null : 'command';
  const reaching = entriesOf(id, context);
  if (!reaching.has(main) || reaching.size === 1) return null;
  return 'driver';
}

/** The entries from which a module can be reached by static imports, or as a part of the command. */
function entriesOf(id, context) {
  const known = new Set();
  const visit = (each) => {
    if (known.has(each)) return;
    known.add(each);
    const { importers, dynamicImporters } = context.getModuleInfo(each);
    importers.forEach(visit);
    if (dynamicImporters.includes(program)) visit(program);
  };
  visit(id);
  return new Set(entries.filter((entry) => known.has(join(root, entry))));
}

/** The modules that the command imports statically. */
function neededByCommand(context) {
  const known = new Set([join(root, command)]);
  for (const each of known) for (const imported of context.getModuleInfo(each).importedIds) known.add(imported);
  return known;
}

/** Removes what an earlier build left. */
function removeOthers(folder, names) {
  for (const name of readdirSync(folder, { recursive: true })) {
    if (/\.js(\.map)?$/.test(name) && !names.has(name)) rmSync(join(folder, name));
  }
}

/**
 * `src/package/` finds the package's files from where it lies, and nothing else may depend on that.
 */
function assertPlace(files) {
  for (const { fileName, moduleIds = [] } of files) {
    for (const id of moduleIds) {
      const path = relative(root, id);
      if (path === join('src', 'package', 'root.ts') && dirname(fileName) !== 'chunks')
        throw new Error(`${path} is in dist/${fileName}, not in dist/chunks`);
      if (!path.startsWith('src') || path.startsWith(join('src', 'package'))) continue;
      if (readFileSync(id, 'utf8').includes('import.meta')) throw new Error(`only src/package may use import.meta, but ${path} does`);
    }
  }
}

/** The source of a file in dist. */
function source(path) {
  return path.replace('./dist/', 'src/').replace(/\.js$/, '.ts');
}

if (argv[1] === fileURLToPath(import.meta.url)) await buildEntries();
