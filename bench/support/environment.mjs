import { execFileSync } from 'node:child_process';
import { availableParallelism, cpus, loadavg, release, totalmem, type } from 'node:os';
import { root } from './cistern.mjs';

/**
 * The origin of the figures.
 * @param {import('./cistern.mjs').Cistern} cistern
 * @param {import('./native.mjs').NativeBench} native
 */
export function environment(cistern, native) {
  const device = cistern.Device.get();
  return {
    cpu: cpus()[0]?.model.trim() ?? 'unknown',
    cores: availableParallelism(),
    memoryBytes: totalmem(),
    system: `${type()} ${release()}`,
    node: process.version,
    v8: process.versions.v8,
    commit: git('rev-parse', 'HEAD'),
    uncommittedChanges: !['', 'unknown'].includes(git('status', '--porcelain')),
    device: device.name,
    backend: device.backend,
    nativeAllocator: native.allocatorName,
    nativeBench: native.isAvailable,
    /** Above about 1 on two cores, something else ran at the same time. */
    loadAverageBefore: loadavg()[0],
  };
}

/** @param {string[]} gitArguments */
function git(...gitArguments) {
  try {
    return execFileSync('git', gitArguments, { cwd: root, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim();
  } catch {
    return 'unknown';
  }
}
