import { mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { GiB, MiB } from '../../src/index.js';
import { printed, runModule, wholePackage } from '../support/run-module.js';
import { skipTest } from '../support/skip-test.js';

/** A control group of 1 GiB below that of this process, of version 1 or 2, if one may be made. */
function makeGroup(): { readonly folder: string; readonly procs: string } | undefined {
  const own = process.platform === 'linux' ? readFileSync('/proc/self/cgroup', 'utf8') : '';
  const first = /^\d+:memory:(.*)$/m.exec(own)?.[1];
  const second = /^0::(.*)$/m.exec(own)?.[1];
  const places = [
    ...(first === undefined ? [] : [['/sys/fs/cgroup/memory', first, 'memory.limit_in_bytes'] as const]),
    ...(second === undefined ? [] : [['/sys/fs/cgroup', second, 'memory.max'] as const]),
  ];
  for (const [mount, group, file] of places) {
    const folder = join(mount, group, `cistern-test-${process.pid}`);
    try {
      mkdirSync(folder);
    } catch {
      continue; // it is read-only, or another user's
    }
    try {
      writeFileSync(join(folder, file), String(GiB));
      return { folder, procs: join(folder, 'cgroup.procs') };
    } catch {
      rmdirSync(folder); // it has no memory controller
    }
  }
  return undefined;
}

test('in a control group of 1 GiB, that is what a process may use of the host, and what shares are shares of', () => {
  const group = makeGroup();
  if (group === undefined) return skipTest('this process may not make a control group with a limit of memory');
  const { folder, procs } = group;
  try {
    const end = runModule(
      `
      import { writeFileSync } from 'node:fs';
      writeFileSync(${JSON.stringify(procs)}, String(process.pid));
      const { HostMemoryResource, LimitingResourceAdaptor, memoryBudget } = await import('${wholePackage}');
      const { bytes, availableBytes, limits } = memoryBudget('host');
      const { source } = limits.reduce((lowest, each) => (each.bytes < lowest.bytes ? each : lowest));
      const limiting = new LimitingResourceAdaptor(new HostMemoryResource(), { limitBytes: '50%' });
      console.log(bytes, availableBytes > ${256 * MiB} && availableBytes < bytes, source, limiting.limitBytes);
    `,
      {},
      60_000,
    );
    expect(end).toEqual(printed(`${GiB} true control group ${GiB / 2}`));
  } finally {
    rmdirSync(folder);
  }
});
