// Builds the entries in dist/ again if a source is newer: tests that start the command, workers or other
// processes use these. vitest.config.ts imports this file for every run, which takes some milliseconds if
// nothing has changed. Declarations and pages are built by `npm run build`.
import { existsSync, readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const built = join(root, 'dist', 'index.js');

/** When the file changed, or a file was added to the folder or removed. */
const changedAt = (path) => statSync(join(root, path)).mtimeMs;

/** The sources, and their folders. */
function* sources() {
  yield* ['package.json', 'scripts/build-entries.mjs', 'src'];
  for (const name of readdirSync(join(root, 'src'), { recursive: true, encoding: 'utf8' }))
    if (!name.startsWith('tools/pages')) yield join('src', name);
}

// What scripts/bundle.mjs makes has everything, and nothing with which to build.
if (!existsSync(join(root, 'bundle.json')) && existsSync(built)) {
  const age = statSync(built).mtimeMs;
  if ([...sources()].some((path) => changedAt(path) > age)) {
    const { buildEntries } = await import('./build-entries.mjs');
    await buildEntries();
  }
}
