import { expect, test } from 'vitest';
import { interpose, mailbox } from '../../src/driver/native.js';
import { CudaAsyncMemoryResource, CudaMemoryResource, type MemoryResource, MiB, OutOfMemoryError, Stream } from '../../src/index.js';
import { type ProcessEnd, printed } from '../support/run-module.js';
import { runWithWorkers } from '../support/workers.js';

/** The device has 64 MiB. */
function run(body: string, timeoutMilliseconds?: number): ProcessEnd {
  const everywhere = `
    const stream = new Stream({ nonBlocking: true });
    const messageOf = (action) => { try { action(); return 'served'; } catch (error) { return error.message; } };
    const leaf = new CudaMemoryResource();
    /** On a busy machine, a worker may need longer than others wait. */
    const served = async (action) => {
      for (let tries = 0; ; tries++) {
        const message = messageOf(action);
        if (message === 'served' || tries === 1000) return message;
        await new Promise((resolve) => setImmediate(resolve));
      }
    };
    /** A pool that keeps so many free blocks of a mebibyte. */
    const keeping = (count, options) => {
      const pool = new PoolMemoryResource(leaf, options);
      const pointers = Array.from({ length: count }, () => pool.allocate(MiB, stream));
      for (const pointer of pointers) pool.deallocate(pointer, MiB, stream);
      return pool;
    };
  `;
  return runWithWorkers(body, { everywhere, deviceMebibytes: 64, timeoutMilliseconds });
}

test('a pool is served with what a pool of a worker keeps, which returns no more than is missing', () => {
  const end = run(`
    const [worker] = start(\`
      const pool = keeping(60);
      post(pool.reservedBytes);
      await received();
      post(pool.reservedBytes);
    \`);
    show((await received(worker)) >= 60 * MiB);
    const pool = new PoolMemoryResource(leaf);
    show(await served(() => pool.allocate(8 * MiB, stream)));
    worker.postMessage('go on');
    show((await received(worker)) >= 30 * MiB);
    await worker.terminate();
  `);
  expect(end).toEqual(printed('true', 'served', 'true'));
});

test.each([
  ['a resource that passes each call on', 'leaf.allocate(32 * MiB, stream)'],
  ['a pool of the driver', 'new CudaAsyncMemoryResource().allocate(32 * MiB, stream)'],
  ['the first block of a pool', 'new PoolMemoryResource(leaf, { initialBytes: 32 * MiB })'],
  ['a buffer', 'new DeviceBuffer(32 * MiB, { resource: leaf, stream })'],
])('%s is served with it, too', (_, request) => {
  const end = run(`
    const [worker] = start("keeping(60); post('kept'); await received();");
    await received(worker);
    show(await served(() => ${request}));
    await worker.terminate();
  `);
  expect(end).toEqual(printed('served'));
});

test('a worker is served with what the main thread keeps', () => {
  const end = run(`
    const pool = keeping(60);
    const [worker] = start("post(await served(() => leaf.allocate(32 * MiB, stream)));");
    show(await received(worker), pool.reservedBytes < 60 * MiB);
    await worker.terminate();
  `);
  expect(end).toEqual(printed('served true'));
});

test('a pool of the driver in a worker returns what it keeps', () => {
  const end = run(`
    const [worker] = start(\`
      const pool = new CudaAsyncMemoryResource({ releaseThresholdBytes: Infinity });
      pool.deallocate(pool.allocate(60 * MiB, stream), 60 * MiB, stream);
      stream.synchronizeSync();
      post('kept');
      await received();
    \`);
    await received(worker);
    show(await served(() => leaf.allocate(32 * MiB, stream)));
    await worker.terminate();
  `);
  expect(end).toEqual(printed('served'));
});

test('what a stream of the worker still uses is returned after its work', () => {
  const end = run(`
    const checker = checkOrder();
    const [worker] = start(\`
      const checker = checkOrder();
      const pool = keeping(0);
      const buffer = new DeviceBuffer(60 * MiB, { resource: pool, stream });
      const hold = stream.hold();
      buffer.fill(1);
      buffer.dispose();
      post('freed');
      // Meanwhile the device cannot free it.
      Atomics.wait(cells, 0, 0);
      hold.release();
      post('released');
      await received();
      post(checker.violations.length);
    \`);
    await received(worker);
    show(messageOf(() => leaf.allocate(32 * MiB, stream)).includes('did not answer'));
    Atomics.store(cells, 0, 1);
    Atomics.notify(cells, 0);
    await received(worker);
    let buffer;
    // It is not waited for before it has answered.
    while (messageOf(() => { buffer = new DeviceBuffer(32 * MiB, { resource: leaf, stream }); }) !== 'served') await setTimeout(1);
    buffer.fill(2);
    await stream.synchronize();
    worker.postMessage('go on');
    show(checker.violations.length, await received(worker));
    await worker.terminate();
  `);
  expect(end).toEqual(printed('true', '0 0'));
});

test('a worker that does not answer is waited for once, for a bounded time, and named', () => {
  const end = run(`
    const [worker] = start(\`
      const pool = keeping(48, { name: 'weights' });
      post(pool.reservedBytes);
      Atomics.wait(cells, 0, 0);
    \`);
    const kept = await received(worker);
    const request = () => messageOf(() => leaf.allocate(32 * MiB, stream));
    show(request().split('; ').at(-1) === "worker 1's pool 'weights' holds " + kept / MiB + ' MiB, and did not answer');
    // If each of them waited, this would take longer than a test may.
    for (let i = 0; i < 10_000; i++) request();
    show('refused');
    Atomics.store(cells, 0, 1);
    Atomics.notify(cells, 0);
    while (request() !== 'served') await setTimeout(1);
    await worker.terminate();
  `);
  expect(end).toEqual(printed('true', 'refused'));
});

test('memory that a worker uses stays, and the error names its pool', () => {
  const end = run(`
    const [worker] = start(\`
      const pool = new PoolMemoryResource(leaf, { initialBytes: 60 * MiB, maximumBytes: 60 * MiB, name: 'used' });
      const pointer = pool.allocate(MiB, stream);
      post('used');
      await received();
      post(pool.reservedBytes === 60 * MiB);
    \`);
    await received(worker);
    let message = 'did not answer';
    while (message.includes('did not answer')) message = messageOf(() => new PoolMemoryResource(leaf).allocate(32 * MiB, stream));
    show(message.split('; ').at(-1));
    worker.postMessage('go on');
    show(await received(worker));
    await worker.terminate();
  `);
  expect(end).toEqual(printed("worker 1's pool 'used' holds 60 MiB", 'true'));
});

test('what the next request could get includes it, and a summary names it', () => {
  const end = run(`
    const before = cistern.allocatableBytes(leaf).atMostBytes;
    const [worker] = start("const pool = keeping(40, { name: 'idle' }); post(pool.reservedBytes); await received();");
    const kept = await received(worker);
    const { atMostBytes } = cistern.allocatableBytes(leaf);
    show(before === 64 * MiB, atMostBytes === 64 * MiB, cistern.memorySummary(leaf).includes("worker 1's pool 'idle' holds " + kept / MiB + ' MiB'));
    await worker.terminate();
  `);
  expect(end).toEqual(printed('true true true'));
});

test('what a worker left that has ended is served', () => {
  const end = run(`
    const [first, second] = start("globalThis.pool = keeping(24); post('kept'); await received();", 2);
    await Promise.all([received(first), received(second)]);
    await first.terminate();
    const ended = second.terminate();
    // While it ends, it may be asked and not answer.
    while (messageOf(() => leaf.allocate(60 * MiB, stream)) !== 'served') await setTimeout(1);
    await ended;
    show('served');
  `);
  expect(end).toEqual(printed('served'));
});

test('workers that ask one another at once wait no longer than one of them', () => {
  const end = run(`
    const workers = start(\`
      const pool = keeping(10);
      post('kept');
      await received();
      let count = 0;
      for (let i = 0; i < 300; i++) {
        const own = new PoolMemoryResource(leaf);
        if (messageOf(() => own.deallocate(own.allocate(30 * MiB, stream), 30 * MiB, stream)) === 'served') count++;
        if (i % 3 === 0) await new Promise((resolve) => setImmediate(resolve));
        own.dispose();
      }
      post(count);
    \`, 4);
    await Promise.all(workers.map((worker) => received(worker)));
    const results = workers.map((worker) => received(worker));
    for (const worker of workers) worker.postMessage('go on');
    show((await Promise.all(results)).some((count) => count > 0));
    await Promise.all(workers.map((worker) => worker.terminate()));
  `);
  expect(end).toEqual(printed('true'));
});

test('one request asks other workers for as long as they return something, but only a few times', () => {
  const returned = [MiB, 256, 0];
  let asked = 0;
  interpose(() => ({
    askForKept: (_kind, _device, bytes, milliseconds) => {
      expect([bytes, milliseconds]).toEqual([2 ** 46, 20]);
      mailbox[1] = returned[asked++] ?? 0;
    },
  }));
  try {
    const stream = new Stream();
    const request = (resource: MemoryResource) => expect(() => resource.allocate(2 ** 46, stream)).toThrow(OutOfMemoryError);
    request(new CudaMemoryResource());
    expect(asked).toBe(3);
    returned.fill(MiB);
    returned.length = 100;
    returned.fill(MiB);
    for (const resource of [new CudaMemoryResource(), new CudaAsyncMemoryResource()]) {
      asked = 0;
      request(resource);
      expect(asked).toBe(8);
    }
  } finally {
    interpose();
  }
});

test('a limit of one worker asks no other', () => {
  const end = run(`
    const [worker] = start("const pool = keeping(8); post('kept'); await received(); post(pool.reservedBytes >= 8 * MiB);");
    await received(worker);
    const limited = new LimitingResourceAdaptor(leaf, { limitBytes: MiB });
    show(messageOf(() => limited.allocate(2 * MiB, stream)).includes('holds'));
    worker.postMessage('go on');
    show(await received(worker));
    await worker.terminate();
  `);
  expect(end).toEqual(printed('false', 'true'));
});

test('a worker in a capture returns nothing', () => {
  const end = run(`
    const [worker] = start(\`
      const pool = keeping(60);
      const other = new Stream({ nonBlocking: true });
      other.beginCapture();
      post('kept');
      await received();
      other.endCapture();
      post(pool.reservedBytes >= 60 * MiB);
    \`);
    await received(worker);
    show(messageOf(() => leaf.allocate(32 * MiB, stream)).includes("worker 1's pool holds"));
    worker.postMessage('go on');
    show(await received(worker));
    await worker.terminate();
  `);
  expect(end).toEqual(printed('true', 'true'));
});
