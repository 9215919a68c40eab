// Finds the browser that pages are tested in.
import { accessSync, constants } from 'node:fs';
import { delimiter, join } from 'node:path';
import { env, getuid } from 'node:process';

export const noChromium = 'no Chromium was found; set CHROMIUM_PATH, or install one (Debian: apt install chromium)';

/** How playwright-core starts it, or `undefined` if there is none. */
export function chromiumOptions() {
  const executablePath = env.CHROMIUM_PATH || firstOnPath(['chromium', 'chromium-browser', 'google-chrome']);
  if (executablePath === undefined) return undefined;
  // Chromium's sandbox does not work for root in a container.
  return { executablePath, args: getuid?.() === 0 ? ['--no-sandbox'] : [] };
}

function firstOnPath(names) {
  const folders = (env.PATH ?? '').split(delimiter);
  return names
    .flatMap((name) => folders.map((folder) => join(folder, name)))
    .find((path) => {
      try {
        accessSync(path, constants.X_OK);
        return true;
      } catch {
        return false;
      }
    });
}
