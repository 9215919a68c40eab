/**
 * Prepares a visit to a machine with a GPU: `npm run visit` makes the bundle, and puts it, the command to run there and what was
 * seen so far into the folder .gpu, which git ignores and which can be copied to the machine as it is.
 */
import { copyFileSync, mkdirSync, readdirSync, renameSync, rmSync, statSync } from 'node:fs';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { findTraces, traceNames } from '../../bench/support/traces.mjs';
import { makeBundle } from '../../scripts/bundle.mjs';

const mostMebibytes = 45;
const root = fileURLToPath(new URL('../..', import.meta.url));
const folder = join(root, '.gpu');
rmSync(folder, { recursive: true, force: true });
mkdirSync(folder);
const archive = makeBundle('xz');
renameSync(archive, join(folder, basename(archive)));
copyFileSync(join(root, 'test', 'gpu', 'visit.sh'), join(folder, 'visit.sh'));
// For the figures; they are not in the bundle, which may be given away.
mkdirSync(join(folder, 'traces'));
const logs = findTraces(
  traceNames.filter((name) => name.startsWith('torch-')),
  console.log,
);
for (const { path } of logs) copyFileSync(path, join(folder, 'traces', basename(path)));
const bytes = readdirSync(folder, { recursive: true }).reduce((sum, name) => sum + statSync(join(folder, name)).size, 0);
if (bytes > mostMebibytes * 2 ** 20) throw new Error(`${folder} has ${(bytes / 2 ** 20).toFixed(1)} MiB, more than ${mostMebibytes}`);
console.log(`.gpu has ${(bytes / 2 ** 20).toFixed(1)} MiB. On the machine with the GPU: sh .gpu/visit.sh [seconds] [SUITE …]
Then, here: npm run seen -- FOLDER/results.jsonl`);
