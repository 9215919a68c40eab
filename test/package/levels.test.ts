import { spawnSync } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';

/** Imports of a file at a place. */
const refused: readonly [what: string, place: string, module: string][] = [
  ['a capability in the core', 'src/adaptors/pooling/planted.ts', '../../graphs/graph-memory-resource.js'],
  ['a capability in a file at the top of the core', 'src/resource-kind.ts', './serving/accounts/account.js'],
  ['a capability in a buffer', 'src/buffers/planted.ts', '../workers/attached-memory.js'],
  ['a capability in the main entry', 'src/index.ts', './recording/recording.js'],
  ['a room above', 'src/driver/memory/planted.ts', '../../buffers/device-buffer.js'],
  ['a driver resource in an adaptor', 'src/adaptors/planted.ts', '../resources/cuda-memory-resource.js'],
  ['native code outside the driver', 'src/collector/planted.ts', '../driver/native.js'],
  ['a capability that is not named, in another', 'src/recording/planted.ts', '../serving/accounts/account.js'],
  ['a capability in memory that outlives its process', 'src/lasting/planted.ts', '../processes/index.js'],
  ['a capability in the budget', 'src/budget/planted.ts', '../machine/allocatable-bytes.js'],
  ['a pool in the room of kept memory', 'src/kept-memory/planted.ts', '../adaptors/layers.js'],
  ['a tool in a capability', 'src/serving/admission/planted.ts', '../../tools/report/index.js'],
  ['a tool in the core', 'src/files/planted.ts', '../tools/formats/index.js'],
  ['a module of Node in a room without any', 'src/suballocation/planted.ts', 'node:fs'],
];
const accepted: readonly [what: string, place: string, module: string][] = [
  ['a room below', 'src/adaptors/pooling/other.ts', '../../driver/streams/stream.js'],
  ['a capability that is named, in another', 'src/graphs/planted.ts', '../plans/plan.js'],
  ['the same, from a folder', 'src/serving/spilling/planted.ts', '../../recording/recording.js'],
  ['another folder of a capability', 'src/serving/admission/other.ts', '../accounts/account.js'],
  ['native code in a capability', 'src/workers/planted.ts', '../driver/native.js'],
  ['a capability in a tool', 'src/tools/replay/planted.ts', '../../serving/index.js'],
];

test('the linter refuses imports that scripts/levels.mjs does not allow, and only those', () => {
  const folder = mkdtempSync(join(tmpdir(), 'cistern-levels-'));
  try {
    copyFileSync('biome.levels.json', join(folder, 'biome.levels.json'));
    writeFileSync(join(folder, 'biome.json'), '{"extends": ["./biome.levels.json"], "linter": {"rules": {"preset": "none"}}}');
    for (const [, place, module] of [...refused, ...accepted]) {
      mkdirSync(dirname(join(folder, place)), { recursive: true });
      writeFileSync(join(folder, place), `import { x } from '${module}';\nx();\n`);
    }
    const biome = fileURLToPath(import.meta.resolve('@biomejs/biome/bin/biome'));
    const { stdout, stderr } = spawnSync(process.execPath, [biome, 'lint', '--max-diagnostics=none'], { cwd: folder, encoding: 'utf8' });
    const isRefused = (place: string) =>
      new RegExp(`^${place.replaceAll('.', '\\.')}:\\d+:\\d+ lint/style/noRestrictedImports`, 'm').test(stdout + stderr);
    expect(refused.filter(([, place]) => !isRefused(place))).toEqual([]);
    expect(accepted.filter(([, place]) => isRefused(place))).toEqual([]);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
