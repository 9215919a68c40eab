import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { setting } from '../settings.js';

/** How to get the package for this platform, and how to run the command, with a package manager. */
export interface PackageManagerAdvice {
  /** A clause that says how to install optional dependencies. */
  readonly install: string;
  /** What to type for the command `cistern`. */
  readonly command: string;
}

const advice = {
  npm: {
    install: 'run "npm install --include=optional" (after a change of platform, first remove node_modules and package-lock.json)',
    command: 'npx cistern',
  },
  pnpm: {
    install: 'run "pnpm install" without --no-optional (for another platform, set supportedArchitectures in pnpm-workspace.yaml)',
    command: 'pnpm exec cistern',
  },
  yarn: { install: 'run "yarn install" (for another platform, set supportedArchitectures in .yarnrc.yml)', command: 'yarn cistern' },
  bun: { install: 'run "bun install" without --omit=optional', command: 'bunx cistern' },
  deno: { install: 'run "deno install"', command: 'deno run --allow-all npm:cistern' },
} satisfies Record<string, PackageManagerAdvice>;

/** The lock files by which to recognize a project's package manager. */
const lockFiles: readonly (readonly [string, keyof typeof advice])[] = [
  ['pnpm-lock.yaml', 'pnpm'],
  ['yarn.lock', 'yarn'],
  ['bun.lock', 'bun'],
  ['bun.lockb', 'bun'],
  ['deno.lock', 'deno'],
  ['package-lock.json', 'npm'],
];

/**
 * Advice for the package manager in use: the one that runs this process, otherwise the one whose
 * lock file is nearest above a folder, otherwise npm.
 */
export function packageManagerAdvice(folder: string): PackageManagerAdvice {
  const agent = setting('npm_config_user_agent')?.split('/')[0] ?? '';
  if (Object.hasOwn(advice, agent)) return advice[agent as keyof typeof advice];
  for (let place = folder, last = ''; place !== last; last = place, place = dirname(place)) {
    const folder = place;
    const found = lockFiles.find(([name]) => existsSync(join(folder, name)));
    if (found !== undefined) return advice[found[1]];
  }
  return advice.npm;
}
