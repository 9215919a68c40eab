import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import {
  CudaAsyncMemoryResource,
  CudaMemoryResource,
  Device,
  DeviceBuffer,
  HostMemoryResource,
  type MemoryResource,
  PinnedHostMemoryResource,
  Stream,
} from '../../src/index.js';
import { type AddonInterface, addonInterface } from '../../src/interchange/index.js';
import { ThreadSafeArenaMemoryResource } from '../../src/workers/index.js';
import { code } from '../support/errors.js';
import { runModule } from '../support/run-module.js';

interface Histogram {
  open(cistern: AddonInterface): void;
  histogram(buffer: DeviceBuffer, resource: MemoryResource): DeviceBuffer;
}

interface Arena {
  readonly live: number;
  take(bytes: number): DeviceBuffer;
  close(): void;
}

interface ArenaAddon {
  open(cistern: AddonInterface): void;
  readonly Arena: new (resource: MemoryResource, bytes: number, stream: number) => Arena;
}

interface SquaresAddon {
  open(cistern: AddonInterface): void;
  squares(resource: MemoryResource, count: number, stream: number): Promise<DeviceBuffer>;
}

let folder: string;
let inC: Histogram;
let inCpp: ArenaAddon;
let onThreads: SquaresAddon;
const require = createRequire(import.meta.url);

beforeAll(async () => {
  const { buildExampleAddons } = await import(new URL('../../scripts/build-for-tests.mjs', import.meta.url).href);
  folder = buildExampleAddons();
  inC = require(join(folder, 'histogram.node')) as Histogram;
  inCpp = require(join(folder, 'arena.node')) as ArenaAddon;
  onThreads = require(join(folder, 'squares.node')) as SquaresAddon;
}, 240_000);

describe('an addon before it is opened', () => {
  it('refuses everything but the interface of cistern', () => {
    expect(() => inC.histogram({} as DeviceBuffer, {} as MemoryResource)).toThrow('open was not called');
    for (const wrong of [undefined, null, 1, {}, { version: 0 }, { version: 'x' }] as never[]) {
      for (const addon of [inC, inCpp]) {
        expect(() => addon.open(wrong)).toThrow(expect.objectContaining({ name: 'TypeError', code: 'ERR_INVALID_ARG_TYPE' }));
      }
    }
    inC.open({ version: 1 } as AddonInterface);
    expect(() => inC.histogram({} as DeviceBuffer, {} as MemoryResource)).toThrow(TypeError);
  });
});

describe('the addon in C', () => {
  const stream = new Stream();

  it('takes a buffer and a resource, and gives a buffer back', () => {
    inC.open(addonInterface);
    for (const resource of [new PinnedHostMemoryResource(), new HostMemoryResource()]) {
      using buffer = new DeviceBuffer(Uint8Array.of(7, 1, 7, 7), { resource, stream });
      stream.synchronizeSync();
      using counts = inC.histogram(buffer, resource);
      expect(counts).toBeInstanceOf(DeviceBuffer);
      expect([counts.byteLength, counts.resource, counts.stream.id]).toEqual([1024, resource, stream.id]);
      const expected = new Uint32Array(256);
      expected.set([1], 1);
      expected.set([3], 7);
      expect(counts.hostView(Uint32Array)).toEqual(expected);
    }
  });

  it('passes the errors of cistern and of a resource on', () => {
    inC.open(addonInterface);
    const resource = new PinnedHostMemoryResource();
    using buffer = new DeviceBuffer(Uint8Array.of(1), { resource, stream });
    const gone = new DeviceBuffer(1, { resource, stream });
    gone.dispose();
    expect(() => inC.histogram(gone, resource)).toThrow(code('ERR_CISTERN_DISPOSED'));
    for (const wrong of [undefined, 1, {}, resource] as never[]) expect(() => inC.histogram(wrong, resource)).toThrow(TypeError);
    for (const wrong of [undefined, 1, {}, buffer] as never[]) expect(() => inC.histogram(buffer, wrong)).toThrow(TypeError);
    const ended = new PinnedHostMemoryResource();
    ended.dispose();
    expect(() => inC.histogram(buffer, ended)).toThrow(code('ERR_CISTERN_DISPOSED'));
    using device = new DeviceBuffer(1, { resource: new CudaMemoryResource(), stream });
    expect(() => inC.histogram(device, resource)).toThrow('the host cannot use device memory');
  });

  it('works in several environments', async () => {
    const script = (load: (names: string, module: string) => string) => `
      ${load('createRequire', 'node:module')}
      ${load('DeviceBuffer, PinnedHostMemoryResource, Stream', 'cistern')}
      ${load('addonInterface', 'cistern/interchange')}
      const addon = createRequire(${JSON.stringify(import.meta.url)})(${JSON.stringify(join(folder, 'histogram.node'))});
      addon.open(addonInterface);
      const resource = new PinnedHostMemoryResource();
      const stream = new Stream();
      const buffer = new DeviceBuffer(new Uint8Array(9), { resource, stream });
      stream.synchronizeSync();
      console.log(addon.histogram(buffer, resource).hostView(Uint32Array)[0]);`;
    const inWorker = script((names, module) => `const { ${names} } = await import('${module}');`);
    const result = runModule(`${script((names, module) => `import { ${names} } from '${module}';`)}
      const { Worker } = await import('node:worker_threads');
      new Worker(${JSON.stringify(`(async () => { ${inWorker} })();`)}, { eval: true });`);
    expect(result).toEqual({ status: 0, signal: null, stdout: '9\n9\n', stderr: '' });
  });
});

it('the addon with kernels refuses a process without a driver of CUDA', () => {
  const addon = require(join(folder, 'step.node')) as { open(cistern: AddonInterface, module: string): void; step(): void };
  expect(() => addon.step()).toThrow('open was not called');
  expect(() => addon.open({} as AddonInterface, '')).toThrow(TypeError);
  expect(() => addon.open(addonInterface, 1 as never)).toThrow('module must be a string');
  expect(() => addon.open(addonInterface, '')).toThrow('the process has loaded no driver of CUDA');
  expect(() => addon.step()).toThrow('open was not called');
});

describe('the addon in C++', () => {
  it('wraps memory of its own, and learns of its release', () => {
    inCpp.open(addonInterface);
    using resource = new CudaAsyncMemoryResource();
    using stream = new Stream();
    const arena = new inCpp.Arena(resource, 4096, stream.nativeHandle);
    const first = arena.take(100);
    const second = arena.take(300);
    first.fill(1);
    second.fill(2);
    expect([second.ptr - first.ptr, first.byteLength, second.byteLength, first.resource.memoryKind]).toEqual([256, 100, 300, 'device']);
    expect(first.toHostSync()).toEqual(new Uint8Array(100).fill(1));
    expect(arena.live).toBe(2);
    expect(() => arena.close()).toThrow('buffers of the arena are live');
    expect(() => arena.take(4096)).toThrow('the arena is full');
    stream.synchronizeSync();
    first.dispose();
    second.dispose();
    expect(arena.live).toBe(0);
    arena.close();
    Device.get().synchronizeSync();
    expect(resource.usage().usedBytes).toBe(0);
    expect(() => arena.take(1)).toThrow('the arena is full');
    expect(() => new inCpp.Arena({} as MemoryResource, 1, 1)).toThrow(TypeError);
    expect(() => new inCpp.Arena(resource, 2 ** 52, 1)).toThrow(code('ERR_CISTERN_OUT_OF_MEMORY'));
    expect(() => new inCpp.Arena(resource, -1, 1)).toThrow(code('ERR_OUT_OF_RANGE'));
    expect(() => new inCpp.Arena(resource, 1, -1)).toThrow(code('ERR_OUT_OF_RANGE'));
  });

  it('has its memory released when the process ends', () => {
    const result = runModule(`
      import { createRequire } from 'node:module';
      import { CudaAsyncMemoryResource, Stream } from 'cistern';
      import { addonInterface } from 'cistern/interchange';
      const addon = createRequire(import.meta.url)(${JSON.stringify(join(folder, 'arena.node'))});
      addon.open(addonInterface);
      const arena = new addon.Arena(new CudaAsyncMemoryResource(), 4096, 1);
      globalThis.kept = [arena.take(100), arena.take(100)];
      process.on('exit', () => console.log(arena.live));`);
    expect(result).toEqual({ status: 0, signal: null, stdout: '0\n', stderr: '' });
  });
});

describe('the addon with threads', () => {
  const options = { name: 'squares', arenaBytes: 2 ** 20, superblockBytes: 2 ** 16, memoryKind: 'pinned-host' } as const;
  const stream = new Stream();

  it('computes on other threads, and hands their memory to JavaScript', async () => {
    onThreads.open(addonInterface);
    using resource = new ThreadSafeArenaMemoryResource(options);
    const counts = Array.from({ length: 40 }, (_, i) => 1 + i * 50);
    const buffers = await Promise.all(counts.map((count) => onThreads.squares(resource, count, stream.nativeHandle)));
    expect(resource.statistics()).toMatchObject({ liveAllocations: 40, liveBytes: 8 * counts.reduce((sum, count) => sum + count) });
    expect(resource.statistics().threads).toBeGreaterThan(0);
    for (const [i, buffer] of buffers.entries()) {
      const count = counts[i] as number;
      expect([buffer.resource, buffer.byteLength]).toEqual([resource, 8 * count]);
      expect(buffer.hostView(Float64Array)).toEqual(Float64Array.from({ length: count }, (_, n) => n * n));
      buffer.dispose();
    }
    expect(resource.statistics().liveAllocations).toBe(0);
  });

  it('says why a thread got no memory, and lets a thread go on after the JavaScript object', async () => {
    onThreads.open(addonInterface);
    const resource = new ThreadSafeArenaMemoryResource(options);
    await expect(onThreads.squares(resource, 1_000_000, 1)).rejects.toThrow('out of memory: 8000000 bytes were asked for');
    const late = onThreads.squares(resource, 10, stream.nativeHandle);
    resource.dispose();
    // The thread has its memory all the same, and frees it; only a buffer of the disposed resource there can be none.
    await expect(late).rejects.toThrow(code('ERR_CISTERN_DISPOSED'));
  });

  it('is refused a resource that only JavaScript can call', () => {
    onThreads.open(addonInterface);
    expect(() => onThreads.squares(new PinnedHostMemoryResource(), 1, 1)).toThrow(code('ERR_CISTERN_NOT_SUPPORTED'));
    expect(() => onThreads.squares({} as MemoryResource, 1, 1)).toThrow(TypeError);
    const ended = new ThreadSafeArenaMemoryResource(options);
    ended.dispose();
    expect(() => onThreads.squares(ended, 1, 1)).toThrow(code('ERR_CISTERN_DISPOSED'));
  });

  it('may be at work when its worker is terminated, and when the process exits', () => {
    const text = (load: (names: string, module: string) => string, end: string) => `
      ${load('createRequire', 'node:module')}
      ${load('Stream', 'cistern')}
      ${load('addonInterface', 'cistern/interchange')}
      ${load('ThreadSafeArenaMemoryResource', 'cistern/workers')}
      const addon = createRequire(${JSON.stringify(import.meta.url)})(${JSON.stringify(join(folder, 'squares.node'))});
      addon.open(addonInterface);
      const resource = new ThreadSafeArenaMemoryResource(${JSON.stringify({ ...options, arenaBytes: 2 ** 26 })});
      for (let i = 0; i < 200; i++) addon.squares(resource, 10_000, 1).catch(() => {});
      ${end}`;
    const inWorker = text(
      (names, module) => `const { ${names} } = await import('${module}');`,
      "process.getBuiltinModule('node:worker_threads').parentPort.postMessage(0);",
    );
    const result = runModule(`${text((names, module) => `import { ${names} } from '${module}';`, '')}
      const { once } = await import('node:events');
      const { Worker } = await import('node:worker_threads');
      for (let i = 0; i < 3; i++) {
        const worker = new Worker(${JSON.stringify(`(async () => { ${inWorker} })();`)}, { eval: true });
        await once(worker, 'message');
        await worker.terminate();
      }
      console.log('ends');
      process.exit(0);`);
    expect(result).toEqual({ status: 0, signal: null, stdout: 'ends\n', stderr: '' });
  });
});

it('the header is found through the package, and its program is the documented one', () => {
  expect(require('cistern/include')).toBe(join(process.cwd(), 'include'));
  const page = readFileSync('docs/addons.md', 'utf8');
  const [, program = ''] = /```js\n(.*?)```/s.exec(page) ?? [];
  const text = program.replaceAll('./build/', `${folder}/`);
  expect(runModule(text)).toEqual({ status: 0, signal: null, stdout: '3\n', stderr: '' });
});
