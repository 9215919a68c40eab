import { readFileSync } from 'node:fs';
import { packageRoot } from './root.js';

/** The build puts the version here, so that bundles know it too. */
declare const CISTERN_VERSION: string | undefined;

/** The version of this package. */
export function packageVersion(): string {
  if (typeof CISTERN_VERSION === 'string') return CISTERN_VERSION;
  const { version } = JSON.parse(readFileSync(new URL('package.json', packageRoot), 'utf8')) as { version: string };
  return version;
}
