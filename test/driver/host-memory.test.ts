/** A host that has no memory left, while the addon asks for some where no call of the program waits for an answer. */
import { beforeAll, beforeEach, expect, test } from 'vitest';
import { builtForTests } from '../support/built-for-tests.js';
import { printed, runModule } from '../support/run-module.js';

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
