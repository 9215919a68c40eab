import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { homedir, tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';

const root = fileURLToPath(new URL('../..', import.meta.url));

function output(command: string, ...args: readonly string[]): string | undefined {
  const { status, stdout } = spawnSync(command, args, { cwd: root, encoding: 'utf8' });
  return status === 0 ? stdout.trim() : undefined;
}

interface LockedPackage {
  readonly resolved?: string;
  readonly optionalDependencies?: Record<string, string>;
}

const trackedFiles = output('git', 'ls-files', '-z')
  ?.split('\0')
  .filter((file) => file !== '');

describe.skipIf(trackedFiles === undefined)('the files of the repository (skipped if git does not know them)', () => {
  function filesWith(text: string): string[] {
    return (trackedFiles ?? []).filter((file) => {
      try {
        return readFileSync(join(root, file), 'latin1').includes(text);
      } catch {
        return false; // deleted, but not yet committed
      }
    });
  }

  test('name no folder of the machine on which they were written', () => {
    const parent = dirname(dirname(join(root, 'package.json')));
    for (const folder of [parent, homedir()].filter((path) => path.length > 1 && path !== tmpdir())) {
      for (const quote of ['"', "'", '`', ' ', '(']) expect(filesWith(`${quote}${folder}/`), folder).toEqual([]);
    }
  });

  test('name no package registry', () => {
    const registry = output('npm', 'config', 'get', 'registry');
    expect(registry).toMatch(/^https?:/);
    expect(filesWith(new URL(registry as string).host)).toEqual([]);
  });
});

describe('the lock file', () => {
  const { packages } = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8')) as { packages: Record<string, LockedPackage> };

  test('holds no download address', () => {
    expect(Object.keys(packages).filter((name) => packages[name]?.resolved !== undefined)).toEqual([]);
  });

  // npm ci refuses a lock file without them, and npm leaves out those that it cannot see for
  // another platform.
  test('holds the optional packages of every platform', () => {
    const missing = Object.entries(packages).flatMap(([name, { optionalDependencies = {} }]) =>
      Object.keys(optionalDependencies).filter(
        (dependency) =>
          packages[`${name}/node_modules/${dependency}`] === undefined && packages[`node_modules/${dependency}`] === undefined,
      ),
    );
    expect(missing).toEqual([]);
  });
});
