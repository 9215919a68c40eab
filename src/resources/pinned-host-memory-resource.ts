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
   * How many threads clear the pages of an allocation side by side before the driver pins them, 1 to 128; or 0: the driver allocates
   * and clears the memory itself (`cuMemHostAlloc`), on one thread, which is most of the time that pinning takes.
   *
   * What threads clear comes from the NUMA node that is closest to the device, as long as that has some, unless the process has a memory
   * policy of its own (`numactl`). It is then mapped by cistern and registered with the driver (`cuMemHostRegister`), as with PyTorch's
   * `pinned_use_cuda_host_register`. The system counts it as memory of the process, and of its container. Each allocation is a mapping of
   * its own, in whole pages.
   * @defaultValue for less than 16 MiB 0; otherwise a thread for each 16 MiB, at most 16, and at most as many as the process has processors.
   * If that fails, as with confidential computing, the driver allocates the memory itself. Also 0 on the software device, which clears nothing;
   * on devices that use the host's page tables, where registered memory is not locked; on integrated devices; and on systems other than Linux
   */
  readonly populateThreads?: number | undefined;
}

const knownOptions = optionNames<PinnedHostMemoryResourceOptions>({ device: true, populateThreads: true });

const mostThreads = 128;

/**
 * Page-locked host memory, which devices access directly, and from which copies run at full speed. Pinning is slow, about
 * 0.5 seconds for each GiB if the driver clears the memory. So allocate large pieces, such as the `initialBytes` of a pool, which several
 * threads clear: {@link PinnedHostMemoryResourceOptions.populateThreads}.
 *
 * Stream order: any stream can use an allocation immediately. A free waits for its stream, and the
 * driver may make it wait for all devices. Alignment: 256 bytes, no more.
 *
 * Counterpart of `rmm::mr::pinned_host_memory_resource`, which cannot populate memory itself yet (rapidsai/rmm#2496).
 * @example
 * ```ts
 * using pinned = new PinnedHostMemoryResource();
 * using pool = new PoolMemoryResource(pinned, { initialBytes: 64 * MiB });
 * using stream = new Stream();
 * using staging = new DeviceBuffer(16 * MiB, { resource: pool, stream });
 * ```
 */
export class PinnedHostMemoryResource extends PlainMemoryResource {
  /** @internal */
  static override readonly name = 'PinnedHostMemoryResource';
  /**
   * @throws UnsupportedError for `populateThreads` above 0, if a device cannot use registered host memory at the addresses that
   * the host uses.
   * @throws ArgumentTypeError, ArgumentRangeError for an invalid option.
   */
  constructor(options: PinnedHostMemoryResourceOptions = {}) {
    assertOptions(options, knownOptions);
    const { populateThreads } = options;
    if (populateThreads !== undefined) {
      assertInteger(populateThreads, 'populateThreads', 0, mostThreads, `0 to ${mostThreads}`);
      if (populateThreads > 0) assertRegisteredMemory();
    }
    super(PlainMemory.of('pinned-host', deviceOption(options.device)), ALLOCATION_ALIGNMENT, populateThreads);
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
    populateThreads: {
      type: 'integer',
      summary: 'the threads that clear pages before the driver pins them; 0: the driver clears them',
      default: 'by size and processors',
    },
  },
  example: 'pinned-host',
  create: ({ device, options }) => new PinnedHostMemoryResource({ device, ...options }),
});
