import { UnsupportedError } from '../basics/errors.js';
import { ALLOCATION_ALIGNMENT } from '../basics/units.js';
import { assertInteger, assertOptions, optionNames } from '../basics/validation.js';
import { deviceOption } from '../driver/device.js';
import { lackForRegisteredMemory, PlainMemory } from '../driver/memory/plain-memory.js';
import { defineUpstream } from '../resource-kind.js';
import { PlainMemoryResource, type PlainMemoryResourceOptions } from './plain-memory-resource.js';

/** Options of {@link PinnedHostMemoryResource}. */
export interface PinnedHostMemoryResourceOptions extends PlainMemoryResourceOptions {
  /**
   * How many threads clear the pages of an allocation side by side before the driver pins them, 1 to 128. Most of the
   * time that pinning takes is the clearing, which the driver does on one thread. As many as the machine has processors
   * to spare; with one, large pages may still make it faster.
   *
   * The memory comes from the NUMA node that is closest to the device, as long as that has some, unless the process has a memory
   * policy of its own (`numactl`). It is then mapped by cistern and registered with the driver (`cuMemHostRegister`), as with PyTorch's
   * `pinned_use_cuda_host_register`. Each allocation is a mapping of its own, in whole pages, so use it below a pool.
   * @defaultValue the driver allocates and clears the memory itself (`cuMemHostAlloc`)
   */
  readonly populateThreads?: number | undefined;
}

const knownOptions = optionNames<PinnedHostMemoryResourceOptions>({ device: true, populateThreads: true });

const mostThreads = 128;

/**
 * Page-locked host memory (`cuMemHostAlloc`), which devices access directly, and from which copies
 * run at full speed. Pinning is slow, about 0.5 seconds for each GiB: allocate large pieces, such as the
 * `initialBytes` of a pool, with {@link PinnedHostMemoryResourceOptions.populateThreads}.
 *
 * Stream order: any stream can use an allocation immediately. A free waits for its stream, and the
 * driver may make it wait for all devices. Alignment: 256 bytes, no more.
 *
 * Counterpart of `rmm::mr::pinned_host_memory_resource`, which cannot populate memory itself yet (rapidsai/rmm#2496).
 * @example
 * ```ts
 * using pinned = new PinnedHostMemoryResource({ populateThreads: 8 });
 * using pool = new PoolMemoryResource(pinned, { initialBytes: 64 * MiB });
 * using stream = new Stream();
 * using staging = new DeviceBuffer(16 * MiB, { resource: pool, stream });
 * ```
 */
export class PinnedHostMemoryResource extends PlainMemoryResource {
  /** @internal */
  static override readonly name = 'PinnedHostMemoryResource';
  /**
   * @throws UnsupportedError for `populateThreads`, if a device cannot use registered host memory at the addresses that
   * the host uses.
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid option.
   */
  constructor(options: PinnedHostMemoryResourceOptions = {}) {
    assertOptions(options, knownOptions);
    const { populateThreads } = options;
    if (populateThreads !== undefined) {
      assertInteger(populateThreads, 'populateThreads', 1, mostThreads, `1 to ${mostThreads}`);
      assertRegisteredMemory();
    }
    const memory = PlainMemory.of('pinned-host', deviceOption(options.device), populateThreads !== undefined);
    super(memory, ALLOCATION_ALIGNMENT, populateThreads);
  }
}

function assertRegisteredMemory(): void {
  const lack = lackForRegisteredMemory();
  if (lack === undefined) return;
  throw new UnsupportedError(
    `populateThreads needs devices that use registered host memory at the addresses of the host, but ${lack.attribute} of device ${lack.device} is 0: leave populateThreads out`,
  );
}

/** `pinned-host` in a specification. */
export const pinnedHostKind = defineUpstream({
  name: 'pinned-host',
  summary: 'page-locked host memory, which devices access directly',
  options: {
    populateThreads: { type: 'integer', summary: 'the threads that clear pages before the driver pins them', default: "the driver's own" },
  },
  example: 'pinned-host',
  create: ({ device, options }) => new PinnedHostMemoryResource({ device, ...options }),
});
