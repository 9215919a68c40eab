import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { controlGroupLimits } from '../../src/budget/control-groups.js';
import { budgetBytes, servedBytes, setMachineRoot } from '../../src/budget/memory-budget.js';
import {
  CudaMemoryResource,
  createResource,
  currentBackend,
  Device,
  GiB,
  HostMemoryResource,
  LimitingResourceAdaptor,
  MiB,
  PinnedHostMemoryResource,
} from '../../src/index.js';
import { memoryBudget } from '../../src/machine/index.js';
import { observeBudget } from '../../src/serving/index.js';
import { code } from '../support/errors.js';

let root: string;

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'cistern-budget-'));
});

afterEach(() => {
  setMachineRoot('');
  rmSync(root, { recursive: true });
});

/** Files by their paths. */
function tree(files: Readonly<Record<string, string | number>>): string {
  for (const [path, text] of Object.entries(files)) {
    mkdirSync(dirname(join(root, path)), { recursive: true });
    writeFileSync(join(root, path), `${text}\n`);
  }
  return root;
}

const v2 = '31 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate';
const v1 = '33 32 0:29 / /sys/fs/cgroup/memory rw shared:15 - cgroup cgroup rw,memory';

/** A container of 1 GiB on a machine of 64 GiB, which uses 400 MiB, 100 of them for files. */
function container(): string {
  return tree({
    'proc/self/cgroup': '0::/',
    'proc/self/mountinfo': v2,
    'proc/meminfo': `MemTotal:       ${64 * 1024 * 1024} kB\nMemAvailable:   ${48 * 1024 * 1024} kB`,
    'sys/fs/cgroup/memory.max': GiB,
    'sys/fs/cgroup/memory.current': 400 * MiB,
    'sys/fs/cgroup/memory.stat': `anon 5\ninactive_file ${100 * MiB}`,
  });
}

describe('control groups', () => {
  test('version 2: the limits of the group and of those around it', () => {
    tree({
      'proc/self/cgroup': '0::/user.slice/app',
      'proc/self/mountinfo': v2,
      'sys/fs/cgroup/user.slice/app/memory.max': 'max',
      'sys/fs/cgroup/user.slice/app/memory.high': 2 * GiB,
      'sys/fs/cgroup/user.slice/memory.max': 4 * GiB,
    });
    expect(controlGroupLimits(root)).toEqual([
      { file: '/sys/fs/cgroup/user.slice/app/memory.high', bytes: 2 * GiB, usedBytes: undefined },
      { file: '/sys/fs/cgroup/user.slice/memory.max', bytes: 4 * GiB, usedBytes: undefined },
    ]);
  });

  test('version 1, where a huge number is no limit', () => {
    tree({
      'proc/self/cgroup': '12:cpuset:/\n5:cpu,memory:/docker/abc\n1:name=systemd:/docker/abc',
      'proc/self/mountinfo': v1,
      'sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes': GiB,
      'sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes': 500 * MiB,
      'sys/fs/cgroup/memory/docker/abc/memory.stat': `inactive_file 7\ntotal_inactive_file ${100 * MiB}`,
      'sys/fs/cgroup/memory/docker/memory.limit_in_bytes': '9223372036854771712',
    });
    expect(controlGroupLimits(root)).toEqual([
      { file: '/sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes', bytes: GiB, usedBytes: 400 * MiB },
    ]);
  });

  test('in a container whose own group is mounted as the root, and a path with a space', () => {
    tree({
      'proc/self/cgroup': '5:memory:/docker/abc',
      'proc/self/mountinfo': '33 32 0:29 /docker/abc /sys/fs/my\\040groups rw - cgroup cgroup rw,memory',
      'sys/fs/my groups/memory.limit_in_bytes': GiB,
    });
    expect(controlGroupLimits(root).map(({ bytes }) => bytes)).toEqual([GiB]);
  });

  test('both versions at the same time', () => {
    tree({
      'proc/self/cgroup': '5:memory:/a\n0::/a',
      'proc/self/mountinfo': `${v1}\n${v2}`,
      'sys/fs/cgroup/memory/a/memory.limit_in_bytes': 3 * GiB,
      'sys/fs/cgroup/a/memory.max': 2 * GiB,
    });
    expect(controlGroupLimits(root).map(({ bytes }) => bytes)).toEqual([2 * GiB, 3 * GiB]);
  });

  test.each([
    ['no files', {}],
    ['no mount', { 'proc/self/cgroup': '0::/' }],
    ['no group', { 'proc/self/mountinfo': v2 }],
    ['nonsense', { 'proc/self/cgroup': '0::/', 'proc/self/mountinfo': 'a b c - \n\n -  - ', 'sys/fs/cgroup/memory.max': 'many' }],
    ['a group outside the namespace', { 'proc/self/cgroup': '0::/../x', 'proc/self/mountinfo': v2, 'sys/fs/cgroup/memory.max': 'max' }],
  ])('%s: no limit', (_, files) => {
    expect(controlGroupLimits(tree(files as Record<string, string>))).toEqual([]);
  });
});

describe('a container of 1 GiB', () => {
  beforeEach(() => setMachineRoot(container()));

  test('limits the memory of the host, pinned and managed memory, and says who does', () => {
    for (const kind of ['host', 'pinned-host', 'managed'] as const) {
      const { bytes, availableBytes, limits } = memoryBudget(kind);
      expect([bytes, availableBytes]).toEqual([GiB, GiB - 300 * MiB]);
      expect(limits).toEqual([
        { source: 'control group', detail: '/sys/fs/cgroup/memory.max', bytes: GiB, availableBytes: GiB - 300 * MiB },
        { source: 'machine', detail: '64 GiB of memory', bytes: 64 * GiB, availableBytes: 48 * GiB },
      ]);
    }
  });

  test.runIf(currentBackend() === 'software')('limits a device that uses the memory of the host', () => {
    expect(budgetBytes('device', Device.get())).toBe(Math.min(GiB, Device.get().totalBytes));
    const sources = memoryBudget().limits.map(({ source }) => source);
    expect(sources.sort()).toEqual(['control group', 'device', 'machine']);
  });

  test('every share follows', () => {
    expect(new LimitingResourceAdaptor(new HostMemoryResource(), { limitBytes: '50%' }).limitBytes).toBe(512 * MiB);
    expect(new LimitingResourceAdaptor(new PinnedHostMemoryResource(), { limitBytes: '25%' }).limitBytes).toBe(256 * MiB);
    using stack = createResource('limiting(pinned-host, limitBytes=75%)') as LimitingResourceAdaptor;
    expect(stack.limitBytes).toBe(768 * MiB);
  });

  test.runIf(currentBackend() === 'software')('the observer of the budget tells of what the container has left', () => {
    const seen: number[] = [];
    using budget = observeBudget(({ share, totalBytes }) => seen.push(share, totalBytes), { shares: [0.5, 0.9] });
    budget.check();
    expect(seen).toEqual([]);
    tree({ 'sys/fs/cgroup/memory.current': 900 * MiB });
    budget.check();
    expect(seen).toEqual([0.5, Math.min(GiB, Device.get().totalBytes)]);
  });
});

test('a limit can be a size as text', () => {
  const limit = (limitBytes: string) => new LimitingResourceAdaptor(new CudaMemoryResource(), { limitBytes }).limitBytes;
  expect(limit('8MiB')).toBe(8 * MiB);
  for (const wrong of ['', '8 gibs', '0%', '101%', '-5%']) expect(() => limit(wrong)).toThrow(code('ERR_INVALID_ARG_VALUE'));
});

test.each([
  ['0=2G,1=512M', 0, 2 * GiB],
  ['0=2G,1=512M', 1, 512 * MiB],
  ['0=2GB', 0, 2 * GiB],
  ['0=2G', 1, undefined],
  ['', 0, undefined],
  ['GPU-5=3G', 0, undefined],
])('an MPS server that says %j leaves device %i %s bytes', (variable, index, bytes) => {
  expect(servedBytes(variable, { index })).toBe(bytes);
});
