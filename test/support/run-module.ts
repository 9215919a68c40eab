import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { needMemoryPools, needSecondDevice } from './device-memory.js';
import { allocationsMayWait, heldBackReason } from './direct-faults.mjs';
import { isGpu } from './real-gpu.js';
import { skipTest } from './skip-test.js';

const root = fileURLToPath(new URL('../..', import.meta.url));
/** The folder of the package that programs import: mutants have a copy with other entries. */
const packageFolder = () => process.env['CISTERN_TEST_PACKAGE'] ?? root;
const warmUpOfPrograms = new URL('warm-up-of-programs.mjs', import.meta.url).href;
const preloadOfPrograms = new URL('direct-faults-of-programs.mjs', import.meta.url).href;

/** How a process ended. */
export interface ProcessEnd {
  readonly status: number | null;
  readonly signal: string | null;
  readonly stdout: string;
  readonly stderr: string;
}

/**
 * Runs the text of a module in its own process, where `cistern` is the built package (from
 * `npm run build`).
 * @param environment variables that differ from this process's; `undefined` removes one
 * @param timeoutMilliseconds after which it is killed: less than a test may take, and far more than a busy machine needs
 */
export function runModule(
  text: string,
  environment: Readonly<Record<string, string | undefined>> = {},
  timeoutMilliseconds = 100_000,
): ProcessEnd {
  const env = { ...process.env, ...environment };
  const isCuda = env['CISTERN_DEVICE'] === 'cuda';
  const isStrict = isCuda && env['STRICT_DRIVER_CONTROL'] !== undefined;
  if (isCuda && !isStrict && /\bfailCall\b/.test(text)) skipTest('a GPU cannot be made to fail');
  if (isCuda && /\bDevice\.get\(1\)/.test(text)) needSecondDevice();
  if (isCuda && /\bnew CudaAsyncMemoryResource\(/.test(text)) needMemoryPools();
  if (allocationsMayWait && /\bhold\(/.test(text)) skipTest(heldBackReason);
  const countsBytes = isGpu && /\bfreeBytes\b/.test(text);
  const preload = isStrict ? ['--import', preloadOfPrograms] : countsBytes ? ['--import', warmUpOfPrograms] : [];
  const { status, signal, stdout, stderr } = spawnSync(process.execPath, [...preload, '--input-type=module', '--eval', text], {
    cwd: packageFolder(),
    encoding: 'utf8',
    env,
    timeout: timeoutMilliseconds,
    killSignal: 'SIGKILL',
  });
  return { status, signal, stdout, stderr };
}

/** Everything printed, and nothing else. */
export function printed(...lines: readonly string[]): unknown {
  return { status: 0, signal: null, stdout: lines.map((line) => `${line}\n`).join(''), stderr: '' };
}

/** Everything that the built package exports, as a module that programs of tests import. A copy of the package has its own. */
export const wholePackage: string =
  packageFolder() === root
    ? new URL('whole-package.mjs', import.meta.url).href
    : pathToFileURL(join(packageFolder(), 'whole-package.mjs')).href;
