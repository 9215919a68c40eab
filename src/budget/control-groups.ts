/**
 * The limits of Linux control groups, which containers set: version 2, version 1, and both at the same time. Groups
 * nest, and the lowest limit on the way up applies.
 *
 *     /proc/self/mountinfo   where the hierarchy is mounted, and which part of it (a container sees its own as the root)
 *     /proc/self/cgroup      the group of this process
 *     <group>/memory.max     version 2, with memory.high, from where on the kernel slows the process down
 *     <group>/memory.limit_in_bytes   version 1
 */
import { readFileSync } from 'node:fs';
import { resultOrNothing } from '../basics/errors.js';

/** A limit that a control group sets. */
export interface ControlGroupLimit {
  /** The file that has it. */
  readonly file: string;
  readonly bytes: number;
  /** What the group uses, without the file cache that it gives up when it is short of memory; not set if unknown. */
  readonly usedBytes: number | undefined;
}

interface Version {
  readonly type: 'cgroup2' | 'cgroup';
  readonly limits: readonly string[];
  readonly usage: string;
  readonly inactive: RegExp;
  /** The controllers that the line of its hierarchy names in `/proc/self/cgroup`: none for version 2. */
  readonly controller: string;
}

const versions: readonly Version[] = [
  {
    type: 'cgroup2',
    limits: ['memory.max', 'memory.high'],
    usage: 'memory.current',
    inactive: /^inactive_file (\d+)$/m,
    controller: '',
  },
  {
    type: 'cgroup',
    limits: ['memory.limit_in_bytes'],
    usage: 'memory.usage_in_bytes',
    inactive: /^total_inactive_file (\d+)$/m,
    controller: 'memory',
  },
];

/** Version 1 writes a number near 2^63 for "no limit". */
const noLimit = 2 ** 60;

/**
 * All limits that apply to this process; none where there are no control groups.
 * @param root the folder that stands for `/`, for tests
 */
export function controlGroupLimits(root = ''): ControlGroupLimit[] {
  const groups = read(`${root}/proc/self/cgroup`) ?? '';
  const mounts = read(`${root}/proc/self/mountinfo`) ?? '';
  return versions.flatMap((version) => {
    const group = groupOf(groups, version.controller);
    const mount = group === undefined ? undefined : mountOf(mounts, version.type);
    return group === undefined || mount === undefined ? [] : limitsOf(version, root, mount.point, within(group, mount.root));
  });
}

/** The group of the process: `5:cpu,memory:/docker/abc` is that of two controllers of version 1, and `0::/app` that of version 2. */
function groupOf(groups: string, controller: string): string | undefined {
  for (const line of groups.split('\n')) {
    const [, controllers, ...path] = line.split(':');
    if (controllers?.split(',').includes(controller) === true) return path.join(':');
  }
  return undefined;
}

/** From the group up to the mount. */
function limitsOf(version: Version, root: string, point: string, group: string): ControlGroupLimit[] {
  const limits: ControlGroupLimit[] = [];
  for (let path = group; ; path = path.slice(0, path.lastIndexOf('/'))) {
    const folder = `${point}${path}`;
    for (const name of version.limits) {
      const bytes = numberIn(`${root}${folder}/${name}`);
      if (bytes !== undefined && bytes < noLimit)
        limits.push({ file: `${folder}/${name}`, bytes, usedBytes: usedIn(version, root + folder) });
    }
    if (path === '') return limits;
  }
}

function usedIn({ usage, inactive }: Version, folder: string): number | undefined {
  const used = numberIn(`${folder}/${usage}`);
  const reclaimable = inactive.exec(read(`${folder}/memory.stat`) ?? '')?.[1] ?? '0';
  return used === undefined ? undefined : Math.max(0, used - Number(reclaimable));
}

/** The last mount hides those before it. */
function mountOf(mounts: string, type: Version['type']): { readonly root: string; readonly point: string } | undefined {
  for (const line of mounts.split('\n').reverse()) {
    const [before = '', after = ''] = line.split(' - ', 2);
    const [, , , root, point] = before.split(' ');
    const [mountType, , options = ''] = after.split(' ');
    if (mountType !== type || root === undefined || point === undefined) continue;
    if (type === 'cgroup2' || options.split(',').includes('memory')) return { root: unescaped(root), point: unescaped(point) };
  }
  return undefined;
}

/** The path of a group below the part of the hierarchy that is mounted; the mount itself for a group outside it. */
function within(group: string, mountRoot: string): string {
  const root = mountRoot === '/' ? '' : mountRoot;
  if (group === root || group === '/' || group.includes('/..')) return '';
  return group.startsWith(`${root}/`) ? group.slice(root.length) : '';
}

/** The kernel writes a space as `\040`. */
function unescaped(path: string): string {
  return path.replace(/\\([0-7]{3})/g, (_, octal: string) => String.fromCharCode(Number.parseInt(octal, 8)));
}

/** `undefined` for `max`, which is no limit. */
function numberIn(file: string): number | undefined {
  const text = read(file)?.trim() ?? '';
  return /^\d+$/.test(text) ? Number(text) : undefined;
}

/** The text of a file, if it can be read. */
export function read(file: string): string | undefined {
  return resultOrNothing(() => readFileSync(file, 'utf8'));
}
