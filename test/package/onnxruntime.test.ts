import { createRequire } from 'node:module';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { runModule, wholePackage } from '../support/run-module.js';

const require = createRequire(import.meta.url);

/** The path of onnxruntime-node, which takes 291 MB and is no dependency: `npm install --no-save --ignore-scripts onnxruntime-node`. */
function installed(): string | undefined {
  try {
    return require.resolve('onnxruntime-node');
  } catch {
    return undefined;
  }
}

const ort = installed();
let addon: string;

beforeAll(async () => {
  const { buildExampleAddons } = await import(new URL('../../scripts/build-for-tests.mjs', import.meta.url).href);
  addon = join(buildExampleAddons(), 'onnxruntime.node');
}, 240_000);

/** A field of a message in the encoding of protocol buffers: a number, a text, or bytes. */
function field(number: number, value: number | string | Uint8Array): Uint8Array {
  const varint = (rest: number): number[] => (rest < 128 ? [rest] : [(rest % 128) | 128, ...varint(Math.floor(rest / 128))]);
  if (typeof value === 'number') return Uint8Array.of(...varint(number * 8), ...varint(value));
  const bytes = Buffer.from(value as string);
  return Buffer.concat([Uint8Array.of(...varint(number * 8 + 2), ...varint(bytes.length)), bytes]);
}

function message(...fields: Uint8Array[]): Uint8Array {
  return Buffer.concat(fields);
}

const width = 128;

/** y = sigmoid(sigmoid(x * weights)) + x, with `rows` rows of x. */
function model(rows: number): Uint8Array {
  const weights = Float32Array.from({ length: width * width }, (_, i) => Math.sin(i));
  const tensor = (name: string) => {
    const shape = message(...[rows, width].map((size) => field(1, field(1, size))));
    return message(field(1, name), field(2, field(1, message(field(1, 1), field(2, shape)))));
  };
  const node = (operator: string, inputs: string[], output: string) =>
    field(1, message(...inputs.map((input) => field(1, input)), field(2, output), field(4, operator)));
  const initializer = message(field(1, width), field(1, width), field(2, 1), field(8, 'weights'), field(9, new Uint8Array(weights.buffer)));
  const graph = message(
    node('MatMul', ['x', 'weights'], 'a'),
    node('Sigmoid', ['a'], 'b'),
    node('Sigmoid', ['b'], 'c'),
    node('Add', ['c', 'x'], 'y'),
    field(2, 'graph'),
    field(5, initializer),
    field(11, tensor('x')),
    field(12, tensor('y')),
  );
  return message(field(1, 8), field(8, message(field(1, ''), field(2, 13))), field(7, graph));
}

const rows = 64;

/** A program with `ort`, `cistern`, the addon, and `run(session)`, which returns a text of the output. */
function program(body: string): string {
  return `
    import { createHash } from 'node:crypto';
    import { once } from 'node:events';
    import { createRequire } from 'node:module';
    import { Worker } from 'node:worker_threads';
    import { KiB, MiB, CudaMemoryResource } from 'cistern';
    import { addonInterface } from 'cistern/interchange';
    import { ThreadSafeArenaMemoryResource } from 'cistern/workers';
    const require = createRequire(import.meta.url);
    const addon = require(${JSON.stringify(addon)});
    addon.open(addonInterface);
    const load = () => require(${JSON.stringify(ort)});
    const model = Buffer.from('${Buffer.from(model(rows)).toString('base64')}', 'base64');
    const shared = { extra: { session: { use_env_allocators: '1' } } };
    const resourceOf = (arenaBytes, name = 'onnx') =>
      new ThreadSafeArenaMemoryResource({ name, arenaBytes, superblockBytes: 64 * KiB, memoryKind: 'pinned-host' });
    const input = () => {
      const { Tensor } = load();
      return { x: new Tensor('float32', Float32Array.from({ length: ${rows * width} }, (_, i) => Math.cos(i)), [${rows}, ${width}]) };
    };
    const run = async (session) => {
      const { y } = await session.run(input());
      return createHash('sha256').update(new Uint8Array(y.data.buffer, y.data.byteOffset, y.data.byteLength)).digest('hex');
    };
    const refusal = async (act) => {
      try {
        await act();
        return 'none';
      } catch (error) {
        return error.message;
      }
    };
    const { InferenceSession } = ${ort === undefined ? '{}' : 'load()'};
    ${body}`;
}

function resultOf(body: string): unknown {
  const { status, signal, stdout, stderr } = runModule(program(`console.log(JSON.stringify(await (async () => { ${body} })()));`));
  // ONNX Runtime logs what it makes errors of.
  expect({ status, signal }, stderr).toEqual({ status: 0, signal: null });
  return JSON.parse(stdout);
}

describe('the addon for ONNX Runtime', () => {
  it('refuses a process that has not loaded it', () => {
    const text = program('').replace(/const \{ InferenceSession \}.*/, '');
    const { stdout } = runModule(`${text}\nconsole.log(await refusal(() => addon.register(resourceOf(MiB))));`);
    expect(stdout).toBe('ONNX Runtime is not loaded: import onnxruntime-node first\n');
  });
});

describe.skipIf(ort === undefined)('a session of onnxruntime-node', () => {
  it('has its weights, intermediate results and outputs from a resource, and the same numbers', () => {
    const result = resultOf(`
      const expected = await run(await InferenceSession.create(model));
      const resource = resourceOf(4 * MiB);
      addon.register(resource);
      const unasked = await InferenceSession.create(model);
      const before = resource.statistics().liveBytes;
      const session = await InferenceSession.create(model, shared);
      const weights = resource.statistics().liveBytes;
      const numbers = [await run(unasked), await run(session), await run(session)].map((each) => each === expected);
      const parallel = await InferenceSession.create(model, { ...shared, executionMode: 'parallel', interOpNumThreads: 2 });
      numbers.push(...(await Promise.all([1, 2, 3, 4].map(() => run(parallel)))).map((each) => each === expected));
      resource.dispose();
      numbers.push((await run(session)) === expected);
      await session.release();
      await parallel.release();
      return { before, hasWeights: weights >= ${4 * width * width}, numbers: numbers.every(Boolean) };`);
    expect(result).toEqual({ before: 0, hasWeights: true, numbers: true });
  });

  it('gives all back at its end, and fails with an error if memory is out', () => {
    const result = resultOf(`
      const resource = resourceOf(4 * MiB);
      addon.register(resource);
      const session = await InferenceSession.create(model, shared);
      const expected = await run(session);
      const held = resourceOf(4 * MiB);
      const stream = (await import('cistern')).Stream.legacyDefault(held.device);
      const blocks = [];
      try {
        for (;;) blocks.push(held.allocate(32 * KiB, stream));
      } catch {}
      const inRun = await refusal(() => run(session));
      const inCreation = await refusal(() => InferenceSession.create(model, shared));
      for (const block of blocks) held.deallocate(block, 32 * KiB, stream);
      const isAlive = (await run(session)) === expected;
      await session.release();
      return { inRun: inRun.includes('bad_alloc'), inCreation: inCreation.includes('bad_alloc'), isAlive, left: resource.statistics().liveAllocations };`);
    expect(result).toEqual({ inRun: true, inCreation: true, isAlive: true, left: 0 });
  });

  it('has one resource at a time, of memory that the host can use', () => {
    const result = resultOf(`
      const first = resourceOf(4 * MiB);
      const refusals = [
        await refusal(() => addon.unregister()),
        await refusal(() => addon.register(new CudaMemoryResource())),
        await refusal(() => addon.register(new ThreadSafeArenaMemoryResource({ name: 'device', arenaBytes: MiB }))),
      ];
      addon.register(first);
      const old = await InferenceSession.create(model, shared);
      refusals.push(await refusal(() => addon.register(first)));
      addon.unregister();
      const second = resourceOf(4 * MiB, 'second');
      addon.register(second);
      const session = await InferenceSession.create(model, shared);
      const same = (await run(old)) === (await run(session));
      const held = [first, second].map((each) => each.statistics().liveBytes > 0);
      await old.release();
      await session.release();
      return { refusals, same, held, left: [first, second].map((each) => each.statistics().liveBytes) };`);
    expect(result).toEqual({
      refusals: [
        'no resource is registered',
        expect.stringContaining('ThreadSafeArenaMemoryResource'),
        'the memory of the resource must be accessible from the host',
        'a resource is registered already: unregister it first',
      ],
      same: true,
      held: [true, true],
      left: [0, 0],
    });
  });

  it('goes on after the worker that has registered its resource', () => {
    const inWorker = `(async () => {
      const { addonInterface, MiB, ThreadSafeArenaMemoryResource } = await import('${wholePackage}');
      const { createRequire } = await import('node:module');
      const addon = createRequire(import.meta.url)(${JSON.stringify(addon)});
      addon.open(addonInterface);
      addon.register(new ThreadSafeArenaMemoryResource({ name: 'of a worker', arenaBytes: 4 * MiB, memoryKind: 'pinned-host' }));
    })();`;
    const result = resultOf(`
      const [code] = await once(new Worker(${JSON.stringify(inWorker)}, { eval: true }), 'exit');
      const expected = await run(await InferenceSession.create(model));
      const session = await InferenceSession.create(model, shared);
      const refused = await refusal(() => addon.register(resourceOf(MiB)));
      const same = (await run(session)) === expected;
      await session.release();
      return { code, same, refused };`);
    expect(result).toEqual({ code: 0, same: true, refused: 'a resource is registered already: unregister it first' });
  });
});
