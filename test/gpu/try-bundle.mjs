/**
 * Tries what scripts/bundle.mjs makes: `node test/gpu/try-bundle.mjs [SUITE …]`. Unpacks the bundle
 * into an empty root that has the C library, a shell and the strict driver as libcuda.so.1, and runs
 * it there; see docs/gpu.md. Needs Linux, and root's rights to change into that root.
 */
import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, mkdtempSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { buildStrictDriver } from '../../scripts/build-for-tests.mjs';
import { makeBundle } from '../../scripts/bundle.mjs';
import { strictDriverEnvironment } from '../../scripts/over-strict-driver.mjs';

const folder = fileURLToPath(new URL('../..', import.meta.url));
const made = join(folder, 'packages', 'cistern-gpu-linux-x64.tar.xz');
const archive = existsSync(made) ? made : makeBundle('xz');
const root = mkdtempSync(join(tmpdir(), 'cistern-root-'));
const driver = join('/', 'usr', 'lib', 'strict-driver');
const mounted = [];
let status = 1;
try {
  for (const name of ['dev', 'proc', 'tmp', driver]) mkdirSync(join(root, name), { recursive: true });
  must('tar', '--extract', '--file', archive, '--directory', root);
  // The loader, the C library and what belongs to it, which the driver needs as well.
  const libraries = [
    '/bin/sh',
    ...['libm.so.6', 'libdl.so.2', 'libpthread.so.0', 'librt.so.1'].map((name) => `/lib/x86_64-linux-gnu/${name}`),
  ];
  for (const path of ['/lib64/ld-linux-x86-64.so.2', '/lib/x86_64-linux-gnu/libc.so.6', ...libraries]) {
    mkdirSync(dirname(join(root, path)), { recursive: true });
    cpSync(realpathSync(path), join(root, path));
  }
  for (const name of ['libcuda.so.1', 'strict_driver.node'])
    cpSync(realpathSync(join(buildStrictDriver(), name)), join(root, driver, name));
  mount('--bind', '/dev', join(root, 'dev'));
  mount('-t', 'proc', 'proc', join(root, 'proc'));
  const environment = strictDriverEnvironment(driver, '/tmp/driver', { KERNELS: 1 });
  const { LD_LIBRARY_PATH: _, ...rest } = environment;
  ({ status } = spawnSync('chroot', [root, '/cistern-gpu-linux-x64/run', ...process.argv.slice(2)], {
    stdio: 'inherit',
    // Where chroot is found; in the new root, only the shell.
    env: { ...rest, PATH: '/usr/sbin:/sbin:/bin', LD_LIBRARY_PATH: driver },
  }));
} finally {
  for (const path of mounted.reverse()) must('umount', path);
  rmSync(root, { recursive: true });
}
process.exit(status ?? 1);

function mount(...args) {
  must('mount', ...args);
  mounted.push(args.at(-1));
}

function must(command, ...args) {
  const { status: ended, error } = spawnSync(command, args, { stdio: 'inherit' });
  if (error !== undefined) throw error;
  if (ended !== 0) throw new Error(`$ ${command} ${args.join(' ')}`);
}
