// Runs a command with the strict driver as libcuda.so.1: `node scripts/over-strict-driver.mjs
// [SETTING=value …] COMMAND …`, for example `node scripts/over-strict-driver.mjs ALLOC_SYNCS=1 npx
// vitest run --project gpu`. native/strict_driver/settings.h lists the settings. Tests, sweep and
// proof then use the CUDA backend. Exits with the command's status, or with 1 if the driver's log
// has a misuse.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { argv, env, exit } from 'node:process';
import { fileURLToPath } from 'node:url';
import { buildStrictDriver } from './build-for-tests.mjs';

/**
 * Two devices with 1 GiB free in addition to the context, as the software device has in tests, and
 * no wait that lasts forever.
 */
const usual = { DEVICES: 2, MEMORY_MB: 1088, ABORT_SECONDS: 60 };

/**
 * The environment variables with which a program, and the tests, use the strict driver in `folder`.
 */
export function strictDriverEnvironment(folder, log, settings = {}) {
  const path = env.LD_LIBRARY_PATH ? `${folder}:${env.LD_LIBRARY_PATH}` : folder;
  const variables = Object.entries({ ...usual, LOG: log, ...settings }).map(([name, value]) => [`STRICT_DRIVER_${name}`, String(value)]);
  return {
    ...Object.fromEntries(variables),
    STRICT_DRIVER_CONTROL: join(folder, 'strict_driver.node'),
    LD_LIBRARY_PATH: path,
    CISTERN_TEST_DEVICE: 'cuda',
    CISTERN_DEVICE: 'cuda',
  };
}

/**
 * The log's lines about faults of the caller: broken rules, and memory that is used out of order.
 * Tests deliberately use memory out of order, to see whether that is found.
 */
export function faultsIn(log, kinds = ['MISUSE', 'ORDER']) {
  let text;
  try {
    text = readFileSync(log, 'utf8');
  } catch {
    return [];
  }
  return text.split('\n').filter((line) => kinds.some((kind) => line.includes(`] ${kind} `)));
}

if (argv[1] === fileURLToPath(import.meta.url)) {
  const assignments = argv.slice(2).findIndex((word) => !/^[A-Z_0-9]+=/.test(word));
  if (assignments < 0) {
    console.error('usage: node scripts/over-strict-driver.mjs [SETTING=value …] COMMAND …');
    exit(2);
  }
  const [command, ...args] = argv.slice(2 + assignments);
  const settings = Object.fromEntries(argv.slice(2, 2 + assignments).map((word) => word.split(/=(.*)/s, 2)));
  const scratch = mkdtempSync(join(tmpdir(), 'cistern-strict-'));
  const log = settings.LOG ?? join(scratch, 'log');
  const environment = strictDriverEnvironment(buildStrictDriver(), log, settings);
  const { status } = spawnSync(command, args, { stdio: 'inherit', env: { ...env, ...environment } });
  const faults = faultsIn(log);
  for (const line of faults.slice(0, 20)) console.error(line);
  if (faults.length > 0) console.error(`${faults.length} misuses of the driver`);
  rmSync(scratch, { recursive: true });
  exit(status ?? 1);
}
