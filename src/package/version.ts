import { readFileSync } from 'node:fs';
import { packageRoot } from './root.js';

/** The version of this package. */
export function packageVersion(): string {
  const { version } = JSON.parse(readFileSync(new URL('package.json', packageRoot), 'utf8')) as { version: string };
  return version;
}
