/**
 * What the pages promise and only a GPU can show: the test files of the suites, or the probes, that settle it, and where it was seen
 * before seen.json was kept. docs/gpu.md shows them with what was seen since.
 */
export const claims = [
  {
    claim: 'memory that is reused is not used too early: kernels find no wrong word',
    page: 'docs/guides/stream-order.md',
    by: ['test/gpu/kernels.test.ts'],
    before: 'H200, 27 November 2026, twice: no word was wrong',
  },
  {
    claim: 'every resource and adaptor does what its interface promises',
    page: 'docs/adaptors.md',
    by: ['test/conformance', 'test/tools/testing'],
    before: 'H200, 27 November 2026: 1,667 tests, and not those of adaptors that keep memory',
  },
  {
    claim: 'every pooling resource keeps stream order',
    page: 'docs/architecture.md',
    by: ['test/adaptors/stream-order.test.ts', 'test/stream-ordering', 'test/property'],
  },
  {
    claim: 'captures of other libraries are left alone',
    page: 'docs/guides/graphs.md',
    by: ['test/driver/foreign-captures.test.ts', 'test/driver/shared-captures.test.ts'],
  },
  {
    claim: 'graphs keep their memory, and share one region',
    page: 'docs/guides/graphs.md',
    by: ['test/graphs', 'test/gpu/captures.test.ts', 'test/driver/graphs.test.ts'],
  },
  {
    claim:
      'a decoder computes rightly in graphs whose memory is shared, and finishes all requests with half of the memory for their caches',
    page: 'docs/guides/decoder.md',
    by: ['test/gpu/decoder-example.test.ts'],
  },
  {
    claim: 'an array may be changed after `copyFromHost` has returned',
    page: 'README.md',
    by: ['probe lateReads', 'test/driver/host-copies.test.ts'],
  },
  { claim: '`toHost` does not block, and promises come soon after the work', page: 'README.md', by: ['probe completions'] },
  {
    claim: 'buffers that nothing refers to are freed',
    page: 'docs/guides/tutorial.md',
    by: ['test/gc'],
    before: 'H200, 27 November 2026: 389 tests passed, 15 failed, since mended',
  },
  { claim: 'other processes open buffers', page: 'docs/processes.md', by: ['test/processes', 'probe processes'] },
  {
    claim: 'memory outlives its process: a descriptor keeps it, and others map it at the same addresses, read-only',
    page: 'docs/guides/lasting-memory.md',
    by: ['test/lasting', 'probe lasting'],
  },
  { claim: 'buffers are handed to workers, which share arenas', page: 'docs/workers.md', by: ['test/workers'] },
  { claim: 'sleeping memory comes back with its contents', page: 'docs/guides/sleeping.md', by: ['test/serving/sleep', 'probe sleep'] },
  {
    claim:
      'a process, this one and another, gives its devices away and has the same contents at the same addresses when it wakes; refusals leave it running',
    page: 'docs/guides/sleeping.md',
    by: ['test/serving/sleep/process-sleep.test.ts', 'probe processSleep'],
  },
  {
    claim: 'spilled buffers come back with their contents, as fast as the bus allows',
    page: 'docs/guides/serving.md',
    by: ['test/serving/spilling', 'probe spill', 'probe copies'],
  },
  {
    claim: 'requests wait for memory, accounts have limits',
    page: 'docs/guides/serving.md',
    by: ['test/serving/admission', 'test/serving/accounts'],
  },
  {
    claim: 'a device that is really full is told as such, and works afterwards',
    page: 'docs/guides/out-of-memory.md',
    by: ['probe outOfMemory'],
  },
  { claim: 'a held stream may stop others, as the device has few queues', page: 'docs/guides/install.md', by: ['probe queues'] },
  {
    claim: 'memory of other libraries is used, and theirs of cistern’s',
    page: 'docs/foreign-memory.md',
    by: ['test/interchange', 'test/gpu/example-addon.test.ts'],
  },
  { claim: 'threads of addons allocate', page: 'docs/guides/native-threads.md', by: ['test/workers/thread-safe-arena-threads.test.ts'] },
  {
    claim: 'more managed memory than the device has',
    page: 'docs/guides/managed-memory.md',
    by: ['test/gpu/oversubscription.test.ts', 'test/buffers/managed-buffers.test.ts'],
  },
  {
    claim: 'an error that stays in the context is told, and the process ends',
    page: 'docs/errors.md',
    by: ['test/gpu/sticky-errors.test.ts'],
  },
  {
    claim: 'the order checker finds missing waits, and reports no right order',
    page: 'docs/order-violations.md',
    by: ['test/checking/order-checker.test.ts'],
  },
  {
    claim: 'compute-sanitizer finds a kernel that writes past the end of a block of a pool',
    page: 'docs/order-violations.md',
    by: ['probe sanitizer'],
  },
  { claim: 'devices use each other’s memory (needs two GPUs)', page: 'docs/peers.md', by: ['test/driver/peers.test.ts'] },
  {
    claim: 'a free of `virtual`, and an allocation, take what the page of measurements says',
    page: 'docs/measurements.md',
    by: ['probe virtual', 'probe pairs'],
  },
];
