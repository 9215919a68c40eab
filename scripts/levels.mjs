/**
 * The parts of `src/`, and what each may import: a room of the core imports the rooms before it, a capability
 * imports the core and the capabilities that its row names, and the tools import anything. `npm run levels`
 * writes the rules for the linter; `npm ci` and `npm run check` do, too.
 */
import { existsSync, readdirSync, writeFileSync } from 'node:fs';
import { argv } from 'node:process';
import { fileURLToPath } from 'node:url';

const root = new URL('..', import.meta.url);
const written = new URL('biome.levels.json', root);

/** The rooms of the core, from the bottom to the top; `node` lists the Node modules that one may import, if not all. */
const core = [
  { name: 'settings', node: ['node:process'] },
  { name: 'package', node: ['node:fs', 'node:module', 'node:os', 'node:path', 'node:url'] },
  { name: 'basics', node: ['node:url'] },
  { name: 'driver' },
  { name: 'budget', node: ['node:fs', 'node:os'] },
  { name: 'suballocation', node: [], not: ['driver'] },
  { name: 'memory-resource', node: [] },
  { name: 'resource-kind', node: [] },
  { name: 'ownership' },
  { name: 'scopes' },
  { name: 'observing' },
  { name: 'stream-ordering' },
  { name: 'collector' },
  { name: 'kept-memory' },
  { name: 'files' },
  { name: 'resources' },
  // An adaptor names no driver resource.
  { name: 'adaptors', not: ['resources'] },
  { name: 'specification' },
  { name: 'buffers' },
];

/** The capabilities, each with those that it uses. A program that does not use one does not load it. */
const capabilities = [
  { name: 'checking', uses: [] },
  { name: 'recording', uses: [] },
  { name: 'plans', uses: [] },
  { name: 'graphs', uses: ['plans', 'recording'] },
  { name: 'workers', uses: [] },
  { name: 'machine', uses: [] },
  { name: 'lasting', uses: [] },
  { name: 'processes', uses: [] },
  { name: 'interchange', uses: ['workers'] },
  { name: 'serving', uses: ['recording', 'interchange', 'processes'] },
];

const nativeOnly = ['driver/native'];

if (argv[1] === fileURLToPath(import.meta.url)) {
  const rooms = core.map(({ name, node, not = [] }, place) => {
    const imports = core.slice(0, place).flatMap((room) => (not.includes(room.name) ? [] : [room.name]));
    return { name, node, imports, without: name === 'driver' ? [] : nativeOnly };
  });
  const outer = capabilities.map(({ name, uses }) => ({ name, imports: [...core.map((room) => room.name), ...uses], without: [] }));
  const overrides = [...rooms, ...outer].flatMap(rulesOf).concat(tools(), entry());
  writeFileSync(written, `${JSON.stringify({ overrides: overrides.map(overrideOf) }, null, 2)}\n`);
}

/** A rule for each depth of folders in a part. */
function rulesOf({ name, node, imports, without }) {
  const message = `src/${name} may import ${imports.join(', ') || 'nothing'}: see scripts/levels.mjs.`;
  const rule = (includes, toTop) => ({
    includes: [includes],
    message,
    group: [
      ...(node === undefined ? ['cistern', 'cistern/**', `${toTop}**`] : ['**', ...(toTop === './' ? [] : ['!./**'])]),
      ...(toTop === '../../' ? ['!../*', '!../*/**', '../../**'] : []),
      ...(node ?? []).map((module) => `!${module}`),
      ...imports.map((part) => `!${toTop}${part}${isModule(part) ? '.js' : '/**'}`),
      ...without.map((file) => `${toTop}${file}.js`),
    ],
  });
  if (isModule(name)) return [rule(`src/${name}.ts`, './')];
  const hasFolders = readdirSync(new URL(`src/${name}`, root), { withFileTypes: true }).some((each) => each.isDirectory());
  return [rule(`src/${name}/*.ts`, '../'), ...(hasFolders ? [rule(`src/${name}/*/**`, '../../')] : [])];
}

function tools() {
  return [
    {
      includes: ['src/tools/**'],
      group: ['cistern', 'cistern/**'],
      message: 'Only programs import the package by its name.',
    },
    {
      includes: ['src/tools/testing/**'],
      group: ['cistern', 'cistern/**', 'vitest', 'vitest/**', 'node:test', 'node:test/**'],
      message: 'It runs under any test runner.',
    },
    {
      includes: ['src/tools/outside/**'],
      group: [
        'cistern',
        'cistern/**',
        '../**',
        ...['settings.js', 'package/**', 'basics/**', 'files/**', 'driver/native.js'].map((part) => `!../../${part}`),
      ],
      message: 'Programs that never call cistern: nothing here knows a resource.',
    },
    {
      includes: ['src/tools/pages/**'],
      group: [
        ...['cistern', 'cistern/**', 'node:*', '../../**', '!../../watch/**', '!../../report/**', '!../../formats/report/**'],
        ...['../../../**', '!../../../basics/units.js'],
      ],
      message: 'Pages run in a browser: they share units, and the types of what they are given.',
    },
  ];
}

function entry() {
  return [
    {
      includes: ['src/index.ts'],
      group: [...['cistern', 'cistern/**', './tools/**', './driver/native.js'], ...capabilities.map(({ name }) => `./${name}/**`)],
      message: 'The main entry exports the core: each capability has an entry of its own.',
    },
  ];
}

function isModule(part) {
  return existsSync(new URL(`src/${part}.ts`, root));
}

function overrideOf({ includes, group, message }) {
  const noRestrictedImports = { level: 'error', options: { patterns: [{ group, message }] } };
  return { includes, linter: { rules: { style: { noRestrictedImports } } } };
}
