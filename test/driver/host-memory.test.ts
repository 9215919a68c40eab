/** A host that has no memory left, while the addon asks for some where no call of the program waits for an answer. */

import { beforeAll, beforeEach, expect, test } from 'vitest';
import { builtForTests } from '../support/built-for-tests.js';
import { printed, runModule, wholePackage } from '../support/run-module.js';

let library: string | undefined;
let missing: string | undefined;

beforeAll(async () => {
  if (process.platform !== 'linux') missing = 'a library that is loaded first needs Linux';
  else ({ path: library, missing } = await builtForTests('buildRefusal', 'the library that refuses host memory'));
}, 240_000);

beforeEach(({ skip }) => {
  if (missing !== undefined) skip(missing);
});

test('a worker that ends without host memory does not end the process', () => {
  const end = runModule(
    `
    import { once } from 'node:events';
    import { createRequire } from 'node:module';
    import { Worker } from 'node:worker_threads';
    import { CudaMemoryResource, LimitingResourceAdaptor, Stream } from 'cistern';
    const library = ${JSON.stringify(library)};
    const refusal = createRequire(import.meta.url)(library);
    const options = { limitBytes: 1_000_000, shared: 'budget' };
    const budget = new LimitingResourceAdaptor(new CudaMemoryResource(), options);
    const worker = new Worker(\`
      import('cistern').then(({ CudaMemoryResource, LimitingResourceAdaptor, Stream }) => {
        globalThis.stream = new Stream();
        globalThis.budget = new LimitingResourceAdaptor(new CudaMemoryResource(), \${JSON.stringify(options)});
        globalThis.budget.allocate(4096, globalThis.stream);
        require(\${JSON.stringify(library)}).refuse(true);
      });\`, { eval: true, execArgv: [] });
    const [code] = await once(worker, 'exit');
    refusal.refuse(false);
    const stream = new Stream();
    budget.deallocate(budget.allocate(900_000, stream), 900_000, stream);
    console.log(code, refusal.refused() > 0, budget.allocatedBytes);
  `,
    { LD_PRELOAD: library },
  );
  expect(end).toEqual(printed('0 true 0'));
});

/** The beginning of a program with a global arena, in which `refused(call)` makes a call without host memory and tells what it threw. */
const withArena = () => `
  import { createRequire } from 'node:module';
  import { Device, MiB, Stream } from 'cistern';
  import { driverCallCounts } from 'cistern/testing';
  import { GlobalArenaMemoryResource } from 'cistern/workers';
  const refusal = createRequire(import.meta.url)(${JSON.stringify(library)});
  const refused = (call) => {
    refusal.refuse(true);
    try {
      call();
    } catch (error) {
      return error.code;
    } finally {
      refusal.refuse(false);
    }
  };
  const stream = new Stream();
  const freeBytes = () => Device.get().memoryInfo().freeBytes;
  const before = freeBytes();
  const arena = new GlobalArenaMemoryResource({ arenaBytes: 16 * MiB, superblockBytes: 2 * MiB });
`;

test('what a worker had of an arena is free for others if it ended without host memory', () => {
  const end = runModule(
    `
    ${withArena()}
    import { once } from 'node:events';
    import { Worker } from 'node:worker_threads';
    const worker = new Worker(\`
      import('${wholePackage}').then(({ GlobalArenaMemoryResource, MiB, Stream }) => {
        globalThis.stream = new Stream();
        globalThis.arena = new GlobalArenaMemoryResource();
        globalThis.arena.allocate(8 * MiB, globalThis.stream);
        require(\${JSON.stringify(${JSON.stringify(library)})}).refuse(true);
      });\`, { eval: true, execArgv: [] });
    await once(worker, 'exit');
    refusal.refuse(false);
    console.log(refusal.refused() > 0);
    arena.deallocate(arena.allocate(16 * MiB, stream), 16 * MiB, stream);
    console.log(arena.statistics().usedBytes);
  `,
    { LD_PRELOAD: library },
  );
  expect(end).toEqual(printed('true', '0'));
});

test('the block of an arena that is closed without host memory is freed later', () => {
  const end = runModule(
    `
    ${withArena()}
    console.log(freeBytes() < before, refused(() => arena[Symbol.dispose]()), refusal.refused() > 0);
    new Stream().dispose();
    console.log(freeBytes() === before);
  `,
    { LD_PRELOAD: library },
  );
  expect(end).toEqual(printed('true undefined true', 'true'));
});

test('a free of a part of what was allocated from an arena that is refused without host memory keeps no event', () => {
  const end = runModule(
    `
    ${withArena()}
    arena.deallocate(arena.allocate(8 * MiB, stream), 8 * MiB, stream);
    const pointer = arena.allocate(16 * MiB, stream);
    const events = driverCallCounts().byFunction.cuEventCreate;
    console.log(refused(() => arena.deallocate(pointer, 2 * MiB, stream)), refusal.refused() > 0);
    arena.deallocate(pointer, 2 * MiB, stream);
    console.log(driverCallCounts().byFunction.cuEventCreate - events);
  `,
    { LD_PRELOAD: library },
  );
  expect(end).toEqual(printed('ERR_CISTERN_DRIVER true', '0'));
});
