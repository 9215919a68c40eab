// The loop of rapidsai/rmm#1995: short kernels on temporaries, and a decision of the host at each step. What does freeing them cost?
//
//     node examples/monte-carlo.mjs [steps]
import process from 'node:process';
import { copyToHostSync, createResourceStack, driverCallCounts, KiB, MonotonicMemoryResource, Stream, set } from 'cistern';

const steps = Number(process.argv[2] ?? 2000);
const temporaryBytes = [4 * KiB, 64 * KiB, 16 * KiB, 256 * KiB, 4 * KiB, 32 * KiB, 8 * KiB, 128 * KiB, 512, 1 * KiB];

const stacks = [
  'cuda',
  'cuda-async',
  'pool(cuda, initial=16MiB, events=eager)',
  'pool(cuda, initial=16MiB, events=deferred)',
  'pool(cuda, initial=16MiB, events=off)',
  'arena(cuda, size=16MiB)',
  'monotonic(cuda, initial=16MiB)',
];

/** One run of the simulation: what it drew, how long it took, and what the driver had to do for the memory. */
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

  const step = (number) => {
    const mark = scratch?.mark();
    for (let i = 0; i < temporaryBytes.length; i++) {
      pointers[i] = resource.allocate(temporaryBytes[i], stream);
      set(pointers[i], (number * 31 + i) & 255, 1, 256, stream); // the kernel
    }
    copyToHostSync(verdict, pointers[0], stream); // the host decides
    if (verdict[0] < 128) accepted++;
    for (let i = 0; i < temporaryBytes.length; i++) resource.deallocate(pointers[i], temporaryBytes[i], stream);
    if (mark !== undefined) scratch.rewind(mark);
  };

  for (let number = 0; number < 200; number++) step(number); // so that the code is compiled
  accepted = 0;
  const before = driverCallCounts();
  const start = performance.now();
  for (let number = 0; number < steps; number++) step(number);
  const milliseconds = performance.now() - start;
  const after = driverCallCounts();
  const perStep = (name) => (after[name] - before[name]) / steps;
  return {
    accepted,
    row: {
      'driver allocs': perStep('allocations'),
      'driver frees': perStep('frees'),
      'event records': perStep('eventRecords'),
      'event waits': perStep('eventWaits'),
      'µs per step': Number(((milliseconds * 1000) / steps).toFixed(2)),
    },
  };
}

const results = stacks.map((specification) => [specification, simulate(specification)]);
const verdicts = new Set(results.map(([, { accepted }]) => accepted));
if (verdicts.size !== 1) throw new Error(`the stacks disagree: ${[...verdicts].join(', ')} steps were accepted`);

console.log(`${steps} steps, ${temporaryBytes.length} temporaries each, one stream; per step:`);
console.table(Object.fromEntries(results.map(([specification, { row }]) => [specification, row])));
console.log(
  'Only an eager pool records an event at every free, which nobody waits for here. The time is mostly the host waiting for its verdict.',
);
