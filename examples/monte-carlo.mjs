// The loop of rapidsai/rmm#1995: short kernels on temporaries, and a decision by the host at each
// step. What does freeing them cost?
//
//     node examples/monte-carlo.mjs [steps]
import { once } from 'node:events';
import process from 'node:process';
import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import { copyToHostSync, createResourceStack, KiB, MonotonicMemoryResource, Stream, set } from 'cistern';
import { driverCallCounts } from 'cistern/testing';

const steps = isMainThread ? Number(process.argv[2] ?? 2000) : workerData.steps;
const temporaryBytes = [4 * KiB, 64 * KiB, 16 * KiB, 256 * KiB, 4 * KiB, 32 * KiB, 8 * KiB, 128 * KiB, 512, 1 * KiB];

const stacks = [
  'cuda',
  'cuda-async',
  'pool(cuda, initialBytes=16MiB, deallocationEvents=eager)',
  'pool(cuda, initialBytes=16MiB, deallocationEvents=deferred)',
  'pool(cuda, initialBytes=16MiB, deallocationEvents=off)',
  'arena(cuda, arenaBytes=16MiB)',
  'monotonic(cuda, initialBytes=16MiB)',
];

/** One run of the simulation: its draws, its time, and the driver calls for its memory. */
function simulate(specification) {
  const stack = createResourceStack(specification);
  const stream = new Stream({ nonBlocking: true });
  try {
    return simulateOn(stack.resource, stream);
  } finally {
    stack.dispose();
    stream.dispose();
  }
}

function simulateOn(resource, stream) {
  const scratch = resource instanceof MonotonicMemoryResource ? resource : undefined;
  const verdict = new Uint8Array(1);
  const pointers = temporaryBytes.map(() => 0);
  let accepted = 0;

  let memoryMilliseconds = 0;
  const step = (number) => {
    const begin = performance.now();
    const mark = scratch?.mark();
    for (let i = 0; i < temporaryBytes.length; i++) pointers[i] = resource.allocate(temporaryBytes[i], stream);
    const allocated = performance.now();
    for (let i = 0; i < temporaryBytes.length; i++) set(pointers[i], (number * 31 + i) & 255, 1, 256, stream); // the kernels
    copyToHostSync(verdict, pointers[0], stream); // the host decides
    if (verdict[0] < 128) accepted++;
    const decided = performance.now();
    for (let i = 0; i < temporaryBytes.length; i++) resource.deallocate(pointers[i], temporaryBytes[i], stream);
    if (mark !== undefined) scratch.rewind(mark);
    memoryMilliseconds += allocated - begin + performance.now() - decided;
  };

  for (let number = 0; number < 2000; number++) step(number); // so that the code is compiled
  accepted = 0;
  memoryMilliseconds = 0;
  const before = driverCallCounts();
  const start = performance.now();
  for (let number = 0; number < steps; number++) step(number);
  const milliseconds = performance.now() - start;
  const after = driverCallCounts();
  const perStep = (name) => (after[name] - before[name]) / steps;
  const microseconds = (total) => Number(((total * 1000) / steps).toFixed(2));
  return {
    accepted,
    row: {
      'driver allocs': perStep('allocations'),
      'driver frees': perStep('frees'),
      'event records': perStep('eventRecords'),
      'event waits': perStep('eventWaits'),
      'µs for memory': microseconds(memoryMilliseconds),
      'µs in all': microseconds(milliseconds),
    },
  };
}

/**
 * Runs in a separate thread, so that no stack is measured with code that V8 compiled for another
 * one.
 */
async function simulateApart(specification) {
  const [result] = await once(new Worker(new URL(import.meta.url), { workerData: { specification, steps } }), 'message');
  return result;
}

if (isMainThread) {
  const results = [];
  for (const specification of stacks) results.push([specification, await simulateApart(specification)]);
  const verdicts = new Set(results.map(([, { accepted }]) => accepted));
  if (verdicts.size !== 1) throw new Error(`the stacks disagree: ${[...verdicts].join(', ')} steps were accepted`);

  console.log(`${steps} steps, ${temporaryBytes.length} temporaries each, one stream; per step:`);
  console.table(Object.fromEntries(results.map(([specification, { row }]) => [specification, row])));
  console.log(
    `Only an eager pool records an event at every free, which nobody waits for here. The rest of the time goes to queueing kernels and to the
host waiting for its verdict; it varies from run to run.`,
  );
} else {
  parentPort.postMessage(simulate(workerData.specification));
}
