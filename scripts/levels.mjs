/**
 * The parts of `src/` and what each may import: its own files, and those parts above it in this
 * table that it names. `npm run levels` writes `biome.levels.json` for the linter from it; `npm run
 * check` fails if that file is out of date.
 */
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { argv, exit } from 'node:process';
import { fileURLToPath } from 'node:url';

const root = new URL('..', import.meta.url);
const written = new URL('biome.levels.json', root);
const basics = ['settings', 'package', 'basics'];
const interfaces = [...basics, 'driver', 'memory-resource'];
const ordered = [...interfaces, 'suballocation', 'lifetimes', 'stream-ordering', 'collector'];
const resources = [...ordered, 'files', 'formats', 'plans', 'resource-kind', 'resources', 'adaptors', 'resource-kinds'];
const everything = [...resources, 'specification', 'buffers', 'replay', 'planning', 'report', 'watch'];

/**
 * Each part and its permitted imports. `node` lists the Node modules that it may import, if not
 * all; `never` lists packages that it must not import. Only the driver layer loads native code.
 */
const parts = [
  { name: 'settings', imports: [], node: ['node:process'] },
  { name: 'package', imports: ['settings'], node: ['node:fs', 'node:module', 'node:os', 'node:path', 'node:url'] },
  { name: 'basics', imports: ['settings', 'package'], node: ['node:url'] },
  { name: 'driver', imports: basics, hasFolders: true },
  { name: 'suballocation', imports: basics, node: [] },
  { name: 'memory-resource', imports: [...basics, 'driver'], node: [] },
  { name: 'resource-kind', imports: [...basics, 'driver', 'memory-resource'], node: [] },
  { name: 'lifetimes', imports: [...interfaces, 'suballocation'], node: ['node:async_hooks', 'node:timers/promises'] },
  { name: 'files', imports: basics },
  { name: 'plans', imports: basics, node: [] },
  { name: 'stream-ordering', imports: [...interfaces, 'suballocation'] },
  { name: 'collector', imports: [...interfaces, 'lifetimes'] },
  { name: 'formats', imports: [...interfaces, 'suballocation', 'lifetimes', 'files'], hasFolders: true },
  // A resource that calls the driver does not suballocate; it lists segments.
  { name: 'resources', imports: [...interfaces, 'suballocation/blocks', 'lifetimes', 'collector', 'resource-kind'] },
  // An adaptor names no driver resource.
  { name: 'adaptors', imports: [...ordered, 'files', 'formats', 'plans', 'resource-kind'], hasFolders: true },
  { name: 'resource-kinds', imports: ['resource-kind', 'resources', 'adaptors'], node: [] },
  { name: 'specification', imports: resources },
  { name: 'buffers', imports: [...resources, 'specification'], hasFolders: true },
  { name: 'replay', imports: [...resources, 'specification', 'buffers'] },
  {
    name: 'planning',
    imports: [...basics, 'suballocation', 'formats', 'plans', 'replay/allocation-log', 'replay/project-allocations'],
    node: [],
  },
  { name: 'report', imports: [...basics, 'driver/workers/local-object', 'suballocation', 'files', 'formats'] },
  { name: 'watch', imports: [...ordered, 'resources', 'adaptors', 'specification', 'buffers'] },
  { name: 'cli', imports: everything },
  // Runs under any test runner.
  { name: 'testing', imports: interfaces, never: ['vitest', 'vitest/**', 'node:test', 'node:test/**'] },
];

/** Code that runs in a browser, and the package's exports. */
const others = [
  {
    includes: ['src/pages/**'],
    group: [
      'cistern',
      'cistern/**',
      'node:*',
      '../../**',
      '!../../basics/units.js',
      '!../../watch/**',
      '!../../report/**',
      '!../../formats/report/**',
    ],
    message: 'Pages run in a browser: they share units, and the types of what they are given.',
  },
  {
    includes: ['src/index.ts'],
    group: [
      ...[
        'cistern',
        'cistern/**',
        './cli/**',
        './testing/**',
        './driver/native.js',
        './planning/**',
        './replay/**',
        './report/**',
        './watch/**',
      ],
      ...['!./watch/start-if-asked.js', './formats/**', '!./formats/recording/annotate.js', '!./formats/recording/recording.js'],
    ],
    message: 'The main entry exports what allocates: logs, replays, reports and live statistics have entries of their own.',
  },
];

if (argv[1] === fileURLToPath(import.meta.url)) {
  const text = `${JSON.stringify({ overrides: [...parts.flatMap(rulesOf), ...others].map(overrideOf) }, null, 2)}\n`;
  if (argv[2] !== '--check') {
    writeFileSync(written, text);
  } else if (readFileSync(written, 'utf8') !== text) {
    console.error('biome.levels.json is out of date: run npm run levels');
    exit(1);
  }
}

function rulesOf({ name, imports, node, never = [], hasFolders = false }, place) {
  const above = parts.slice(0, place).map((part) => part.name);
  for (const each of imports) if (!above.includes(each.split('/')[0])) throw new Error(`${name} imports ${each}, which is not above it`);
  const message = `src/${name} may import ${imports.length === 0 ? 'nothing' : imports.join(', ')}: see scripts/levels.mjs.`;
  const rule = (includes, toTop) => {
    const group = [
      ...(node === undefined ? ['cistern', 'cistern/**', '../**'] : ['**']),
      // Files within the part.
      ...(toTop === './' ? [] : ['!./**']),
      ...(toTop === '../../' ? ['!../**', '../../**'] : []),
      ...(node ?? []).map((module) => `!${module}`),
      ...imports.map((part) => `!${toTop}${part}${isModule(part) ? '.js' : '/**'}`),
      ...(imports.includes('driver') ? [`${toTop}driver/native.js`] : []),
      ...never,
    ];
    return { includes: [includes], group, message };
  };
  if (isModule(name)) return [rule(`src/${name}.ts`, './')];
  if (!hasFolders) return [rule(`src/${name}/**`, '../')];
  return [rule(`src/${name}/*.ts`, '../'), rule(`src/${name}/*/**`, '../../')];
}

function isModule(part) {
  return existsSync(new URL(`src/${part}.ts`, root));
}

function overrideOf({ includes, group, message }) {
  const noRestrictedImports = { level: 'error', options: { patterns: [{ group, message }] } };
  return { includes, linter: { rules: { style: { noRestrictedImports } } } };
}
