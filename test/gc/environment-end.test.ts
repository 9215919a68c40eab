import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { beforeAll, expect, it } from 'vitest';

const entry = new URL('../../dist/index.js', import.meta.url);

beforeAll(() => {
  expect(existsSync(fileURLToPath(entry)), 'dist/index.js, which npm run build makes').toBe(true);
});

const makeBuffers = `
  const { CudaAsyncMemoryResource, CudaMemoryResource, Device, DeviceBuffer, Stream } = await import(${JSON.stringify(entry.href)});
  const stream = new Stream();
  const resources = [new CudaMemoryResource()];
  if (Device.get().attribute('memoryPoolsSupported') === 1) resources.push(new CudaAsyncMemoryResource());
  const buffers = resources.flatMap((resource) =>
    Array.from({ length: 100 }, () => new DeviceBuffer(1 << 20, { resource, stream })));
  for (const buffer of buffers.splice(50)) buffer.fill(1);
  globalThis.live = buffers;
`;

function run(script: string) {
  const { status, signal, stdout, stderr } = spawnSync(process.execPath, ['--expose-gc', '--input-type=module', '-e', script], {
    encoding: 'utf8',
    timeout: 100_000,
    env: { ...process.env, NODE_OPTIONS: '' },
  });
  return { status, signal, stdout, stderr };
}

const clean = { status: 0, signal: null, stdout: '', stderr: '' };

it('a process that ends with live and with dropped buffers ends cleanly', () => {
  expect(run(makeBuffers)).toEqual(clean);
});

it('a process that exits right after a collection ends cleanly', () => {
  expect(run(`${makeBuffers} gc(); process.exit(0);`)).toEqual(clean);
});

it('a process that exits from the event loop while copies are pending ends cleanly', () => {
  expect(run(`${makeBuffers} for (const buffer of buffers) void buffer.toHost(); setImmediate(() => process.exit(0));`)).toEqual(clean);
});

it('a process that fails with live buffers says why', () => {
  const result = run(`${makeBuffers} throw new Error('on purpose');`);
  expect(result.status).toBe(1);
  expect(result.stderr).toContain('on purpose');
});

it('workers that end, exit or are terminated with buffers do not harm the process', () => {
  const script = `
    import { once } from 'node:events';
    import { Worker } from 'node:worker_threads';
    const source = ${JSON.stringify(makeBuffers)};
    const endings = ['', 'process.exit(0);', 'setInterval(() => {}, 1000); (await import("node:worker_threads")).parentPort.postMessage("ready");'];
    for (const ending of endings) {
      const body = '(async () => {' + source + ending + '})()';
      const workers = [1, 2].map(() => new Worker(body, { eval: true }));
      await Promise.all(workers.map(async (worker) => {
        const exit = once(worker, 'exit');
        if (ending.includes('ready')) {
          await once(worker, 'message');
          await worker.terminate();
        }
        await exit;
      }));
    }
    ${makeBuffers}
    await buffers[0].toHost();
  `;
  expect(run(script)).toEqual(clean);
});
