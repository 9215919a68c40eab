import { beforeAll, beforeEach, expect, test } from 'vitest';
import { builtForTests } from '../support/built-for-tests.js';
import { type ProcessEnd, printed } from '../support/run-module.js';
import { runWithWorkers } from '../support/workers.js';

let path: string;
/** Why the addon is not there. */
let missing: string | undefined;

beforeAll(async () => {
  const built = await builtForTests('buildThreads', 'the addon with threads of its own');
  ({ missing } = built);
  path = built.path ?? '';
}, 240_000);

beforeEach(({ skip }) => {
  if (missing !== undefined) skip(missing);
});

/** Everywhere, `resource()` is a new one of the same arena, of four superblocks, and `addon` has threads. */
const everywhere = () => `
  const { createRequire } = await import('node:module');
  const addon = createRequire(${JSON.stringify(path)})(${JSON.stringify(path)});
  addon.open(cistern.addonInterface);
  const resource = () => new ThreadSafeArenaMemoryResource(
    { name: 'ended', arenaBytes: 256 * KiB, superblockBytes: 64 * KiB, memoryKind: 'pinned-host' });
  const stream = Stream.legacyDefault();`;

/** Runs a module that has `own`, a resource, and `takeAll`, which allocates all of its arena. */
function run(body: string): ProcessEnd {
  const own = `
    const own = resource();
    const takeAll = () => own.deallocate(own.allocate(256 * KiB, stream), 256 * KiB, stream);`;
  return runWithWorkers(`${own}${body}`, { everywhere: everywhere() });
}

const deliverFour = `
  const shared = resource();
  for (let i = 0; i < 4; i++) addon.deliver(shared, 64 * KiB, stream.nativeHandle, () => {});`;

test.each(['worker.terminate();', "worker.postMessage('exit');"])(
  'threads that deliver after their worker has ended by %s free what nobody takes',
  (endOfWorker) => {
    const end = run(`
      addon.holdDeliveries();
      const [worker] = start(\`${deliverFour}
        post('begun');
        await received();
        process.exit();\`);
      await received(worker);
      ${endOfWorker}
      await once(worker, 'exit');
      addon.finishDeliveries();
      takeAll();
      show(own.statistics().liveBytes);`);
    expect(end).toEqual(printed('0'));
  },
);

test('what threads have delivered to a worker that ends before it takes it is freed', () => {
  const end = run(`
    const [worker] = start(\`${deliverFour}
      post('begun');
      Atomics.wait(cells, 0, 0);\`);
    await received(worker);
    addon.finishDeliveries();
    await worker.terminate();
    takeAll();
    show(own.statistics().liveBytes);`);
  expect(end).toEqual(printed('0'));
});

test('threads go on delivering while their worker is terminated', () => {
  const end = run(`
    for (let round = 0; round < 20; round++) {
      const [worker] = start(\`
        const shared = resource();
        let rest = 50;
        const next = () => rest-- > 0 && addon.deliver(shared, 256, stream.nativeHandle, (error, buffer) => { buffer?.dispose(); next(); });
        for (let i = 0; i < 4; i++) next();
        post('begun');\`);
      await received(worker);
      await worker.terminate();
    }
    addon.finishDeliveries();
    takeAll();
    show('done');`);
  expect(end).toEqual(printed('done'));
});

test('what a worker had is freed after its end, although a table of its resource is still in use', () => {
  const end = run(`
    const [worker] = start(\`
      const lent = resource();
      addon.lend(lent);
      const pointers = [0, 1, 2].map(() => lent.allocate(64 * KiB, stream));
      DeviceBuffer.adopt({ ptr: pointers[0], byteLength: 64 * KiB, resource: lent, stream });
      lent.allocateMany(Float64Array.of(32 * KiB, 32 * KiB), stream);
      post('allocated');
      await received();\`);
    await received(worker);
    await worker.terminate();
    takeAll();
    show(own.statistics().liveBytes);
    addon.endLoan();`);
  expect(end).toEqual(printed('0'));
});
