// `npm run dev` builds what has changed, whenever a file is saved: the addon, the index, the entries and
// the pages, each a moment after its sources; and shows errors of types. Ctrl+C ends it.
import { spawn } from 'node:child_process';
import { watch } from 'node:fs';
import { join } from 'node:path';
import process, { execPath } from 'node:process';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
/** Editors write a file in several steps. */
const settleMilliseconds = 100;

/** What is built, in the order in which one needs the other, and the files that it is built from. */
const targets = [
  { name: 'native index', script: 'scripts/build-native-index.mjs', sources: /^assembly\/|^src\/suballocation\/index-layout\.ts$/ },
  { name: 'addon', script: 'scripts/build-native.mjs', sources: /^native\/(?!test|fuzz)/ },
  { name: 'index', script: 'scripts/build-wasm.mjs', sources: /^assembly\/|^src\/suballocation\/index-layout\.ts$/ },
  { name: 'entries', script: 'scripts/build-entries.mjs', sources: /^src\/(?!tools\/pages\/).*\.ts$/ },
  { name: 'pages', script: 'scripts/build-pages.mjs', sources: /^src\/tools\/(pages|report|watch)\// },
];

const stale = new Set(targets);
let timer;
/** What runs, and must end with this. */
const children = new Set();
let isBuilding = false;

process.on('exit', () => {
  for (const child of children) child.kill();
});
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => process.exit());
for (const folder of ['native', 'assembly', 'src']) {
  watch(join(root, folder), { recursive: true }, (_, file) => changed(`${folder}/${String(file).replaceAll('\\', '/')}`));
}
run(
  'types',
  'node_modules/typescript/bin/tsc',
  '--watch',
  '--preserveWatchOutput',
  '--incremental',
  '--tsBuildInfoFile',
  'node_modules/.cache/types-tsconfig.json.tsbuildinfo',
);
await build();

function changed(file) {
  for (const target of targets) if (target.sources.test(file)) stale.add(target);
  clearTimeout(timer);
  if (stale.size > 0) timer = setTimeout(build, settleMilliseconds);
}

async function build() {
  if (isBuilding) return;
  isBuilding = true;
  for (;;) {
    const target = targets.find((each) => stale.has(each));
    if (target === undefined) break;
    stale.delete(target);
    const start = performance.now();
    const code = await run(target.name, target.script);
    console.log(`${target.name}: ${code === 0 ? 'built' : 'FAILED'} in ${((performance.now() - start) / 1000).toFixed(1)} s`);
  }
  isBuilding = false;
}

/** Runs a script of Node, and prints what it prints with a name before each line. Returns its exit status. */
function run(name, script, ...args) {
  const child = spawn(execPath, [script, ...args], { cwd: root, stdio: ['ignore', 'pipe', 'pipe'] });
  children.add(child);
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (text) => process.stdout.write(text.replace(/^(?=.)/gm, `${name}: `)));
  return new Promise((resolve) => {
    child.on('close', (code) => {
      children.delete(child);
      resolve(code);
    });
  });
}
