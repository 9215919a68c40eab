/**
 * What environment variables ask for when cistern is imported: each starts an entry that the program need not
 * import, and a misspelt one is named. This is the only side effect of importing cistern.
 */
import { misspeltSettings } from './basics/checked-settings.js';
import { isLoaded, loadEntry } from './package/file.js';
import { setting } from './settings.js';

const entries = {
  CISTERN_CHECK_ORDER: 'checking',
  CISTERN_LOG_FILE: 'recording',
  CISTERN_DUMP_ON_OUT_OF_MEMORY: 'serving',
  CISTERN_WATCH: 'watch',
} as const;

for (const [name, entry] of Object.entries(entries)) {
  const value = setting(name as keyof typeof entries) ?? '0';
  if (value === '0' || loadEntry(entry) !== undefined) continue;
  // The bundle may import it later.
  process.nextTick(() => {
    if (isLoaded(entry)) return;
    process.emitWarning(`${name} does nothing, because this program is bundled without 'cistern/${entry}': import that in it`, {
      code: 'CISTERN_BUNDLE',
    });
  });
}

const misspelt = misspeltSettings();
// Loading the module takes long, and tells the end of the process that there may be workers.
if (misspelt.length > 0 && process.getBuiltinModule('node:worker_threads').isMainThread) {
  for (const { name, meant } of misspelt) {
    process.emitWarning(`the environment variable ${name} has no effect: did you mean ${meant}?`, { code: 'CISTERN_UNKNOWN_SETTING' });
  }
}
