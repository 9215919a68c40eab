// A pipeline of scratch buffers: every frame has some, and every tile of a frame has more, which
// the next tile reuses. With marks, a bump allocator frees a tile or a frame at once; a pool frees
// each buffer separately.
//
//     node examples/scratch-pipeline.mjs [frames]
import process from 'node:process';
import { CudaMemoryResource, formatBytes, KiB, MiB, MonotonicMemoryResource, PoolMemoryResource, Stream, set } from 'cistern';
import { driverCallCounts } from 'cistern/testing';

const parts = 20;
const framesPerPart = Math.ceil(Number(process.argv[2] ?? 1000) / parts);
const tilesPerFrame = 24;
const frameBuffers = [4 * MiB, 1 * MiB, 256 * KiB];
const tileBuffers = [512 * KiB, 512 * KiB, 96 * KiB, 4 * KiB, 200, 64 * KiB, 1 * KiB, 32 * KiB];

/** The work on a buffer: on a GPU a kernel, here a few bytes that are set. */
const work = (pointer, stream) => set(pointer, 1, 1, 64, stream);

/** One frame after another: every buffer is freed when its tile or frame is done. A pool needs neither `mark` nor `rewind`. */
function pipeline({ resource, mark, rewind }, stream) {
  /** The time spent on memory so far, in milliseconds. */
  let elapsed = 0;

  const withBuffers = (sizes, use) => {
    const start = performance.now();
    const before = mark();
    const pointers = sizes.map((bytes) => resource.allocate(bytes, stream));
    elapsed += performance.now() - start;
    use(pointers);
    const end = performance.now();
    for (let i = 0; i < sizes.length; i++) resource.deallocate(pointers[i], sizes[i], stream);
    rewind(before);
    elapsed += performance.now() - end;
  };

  return (count) => {
    elapsed = 0;
    for (let frame = 0; frame < count; frame++) {
      withBuffers(frameBuffers, () => {
        for (let tile = 0; tile < tilesPerFrame; tile++) withBuffers(tileBuffers, ([pointer]) => work(pointer, stream));
      });
      stream.synchronizeSync();
    }
    return elapsed;
  };
}

const nothing = () => undefined;

const subjects = {
  'monotonic, a mark per tile': (upstream) => {
    const resource = new MonotonicMemoryResource(upstream);
    return { resource, mark: () => resource.mark(), rewind: (mark) => resource.rewind(mark) };
  },
  'monotonic, a reset per frame': (upstream) => {
    const resource = new MonotonicMemoryResource(upstream);
    let depth = 0;
    return { resource, mark: () => depth++, rewind: () => --depth === 0 && resource.reset() };
  },
  'pool, deferred': (upstream) => {
    const resource = new PoolMemoryResource(upstream, { deallocationEvents: 'deferred' });
    return { resource, mark: nothing, rewind: nothing };
  },
  'pool, eager': (upstream) => ({ resource: new PoolMemoryResource(upstream), mark: nothing, rewind: nothing }),
};

const rows = {};
for (const [name, create] of Object.entries(subjects)) {
  const upstream = new CudaMemoryResource();
  const stream = new Stream({ nonBlocking: true });
  const subject = create(upstream);
  const { resource } = subject;
  const run = pipeline(subject, stream);
  const first = driverCallCounts();
  run(200); // so that the code is compiled, and the memory allocated
  const before = driverCallCounts();
  // The least of several: on a machine that does other work, the others say more about that work.
  const milliseconds = Math.min(...Array.from({ length: parts }, () => run(framesPerPart))) / framesPerPart;
  const after = driverCallCounts();
  rows[name] = {
    'bytes reserved': formatBytes(resource.peakReservedBytes),
    'upstream allocations': after.allocations - first.allocations,
    'of them after warming up': after.allocations - before.allocations,
    'event records per frame': (after.eventRecords - before.eventRecords) / (parts * framesPerPart),
    'µs per frame for memory': Number((milliseconds * 1000).toFixed(1)),
  };
  resource.dispose();
  stream.dispose();
  upstream.dispose();
}

const perFrame = frameBuffers.length + tilesPerFrame * tileBuffers.length;
console.log(`${parts * framesPerPart} frames of ${tilesPerFrame} tiles: ${perFrame} allocations and as many frees each, one stream`);
console.table(rows);
console.log('A mark per tile lets each tile reuse what the last one had: without it, a frame needs the scratch of all its tiles.');
