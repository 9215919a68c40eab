import { accessSync, constants } from 'node:fs';
import { delimiter, join } from 'node:path';

/** The path of a Chromium: CHROMIUM_PATH, else the one in PATH. @returns {string | undefined} */
export function findChromium() {
  const explicit = process.env['CHROMIUM_PATH'];
  if (explicit) return explicit;
  const folders = (process.env['PATH'] ?? '').split(delimiter);
  return ['chromium', 'chromium-browser', 'google-chrome']
    .flatMap((name) => folders.map((folder) => join(folder, name)))
    .find(isExecutable);
}

/** @param {string} path */
function isExecutable(path) {
  try {
    accessSync(path, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}
