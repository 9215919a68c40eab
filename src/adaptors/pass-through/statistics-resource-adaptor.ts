import { CisternError } from '../../basics/errors.js';
import { LiveInstances } from '../../basics/live-instances.js';
import { assertBytes, assertName, optionNames } from '../../basics/validation.js';
import type { Stream } from '../../driver/streams/stream.js';
import { SharedCounts, type SharedTally } from '../../driver/workers/shared-counts.js';
import type { DeallocationEventsOption, DeallocationFence, DevicePointer, MemoryResource } from '../../memory-resource.js';
import { defineAdaptor } from '../../resource-kind.js';
import { isAllocationFailure, PassThroughAdaptor } from './pass-through-adaptor.js';

/** One quantity over time. */
export interface CounterSnapshot {
  /**
   * The live amount; may be negative in nested counters, if memory from before the push was freed.
   */
  readonly current: number;
  /** The largest value of `current`, at least 0. */
  readonly peak: number;
  /** The sum of all allocations, freed or not. */
  readonly total: number;
}

/** The counts of a {@link StatisticsResourceAdaptor}, as a frozen copy. */
export interface AllocationStatistics {
  /** Bytes, as requested. */
  readonly bytes: CounterSnapshot;
  /** Allocations of at least one byte. */
  readonly allocations: CounterSnapshot;
  /**
   * Allocations that failed for lack of memory, or in the driver; calls with invalid arguments are
   * not counted.
   */
  readonly failedAllocations: number;
}

/** Options of {@link StatisticsResourceAdaptor}. */
export interface StatisticsResourceAdaptorOptions extends DeallocationEventsOption {
  /**
   * The name in samples and metrics. If several adaptors have the same name, the first to be sampled
   * keeps it, and the others get a number.
   * @defaultValue `'statistics'`
   */
  readonly name?: string | undefined;
  /**
   * A name. Adaptors with the same name, in all workers of the process, also count in shared
   * counters, which {@link StatisticsResourceAdaptor.sharedStatistics} reads.
   * @defaultValue not set: only this adaptor's own counters
   */
  readonly shared?: string | undefined;
}

const knownOptions = optionNames<StatisticsResourceAdaptorOptions>({ deallocationEvents: true, name: true, shared: true });

/**
 * Counts the bytes and allocations that pass through it. It does not count allocations of zero
 * bytes and frees of their null pointers (RMM does, and its counts are wrong if they are not
 * freed).
 *
 * Stream order and alignment are those of the upstream. Freed memory counts as free immediately.
 *
 * Until it is disposed or garbage-collected, it appears in `sampleStatistics`, and so in `cistern
 * watch`, Prometheus and OpenTelemetry.
 *
 * With the option `shared`, the adaptor also counts in counters of the whole process.
 *
 * Counterpart of `rmm::mr::statistics_resource_adaptor`, which all threads of a process can share.
 * @example
 * ```ts
 * using upstream = new CudaAsyncMemoryResource();
 * using resource = new StatisticsResourceAdaptor(upstream, { shared: 'training' });
 * resource.pushCounters();
 * train(resource);
 * const { bytes } = resource.popCounters(); // what train() needed
 * console.log(formatBytes(bytes.peak));
 * console.log(resource.sharedStatistics().bytes.peak); // of all workers together
 * ```
 */
export class StatisticsResourceAdaptor extends PassThroughAdaptor {
  /** @internal */
  static override readonly name = 'StatisticsResourceAdaptor';
  #counters = new Counters();
  readonly #outer: Counters[] = [];
  /** The name in samples and metrics. */
  readonly name: string;
  readonly #shared: SharedCounts | undefined;
  readonly #registration: WeakRef<StatisticsResourceAdaptor>;

  /** @throws ArgumentTypeError for an invalid resource or name. */
  constructor(upstream: MemoryResource, options: StatisticsResourceAdaptorOptions = {}) {
    super(upstream, options, knownOptions);
    const { name = 'statistics', shared } = options;
    assertName(name, 'name');
    if (shared !== undefined) assertName(shared, 'shared');
    this.name = name;
    this.#shared = shared === undefined ? undefined : new SharedCounts(shared);
    this.#registration = instances.add(this);
  }

  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    this.assertUsable(stream);
    if (this.#shared !== undefined) assertBytes(bytes);
    let pointer: DevicePointer;
    try {
      pointer = this.served(this.upstream.allocate(bytes, stream, alignment), bytes, stream);
    } catch (error) {
      if (isAllocationFailure(error)) {
        this.#counters.failedAllocations++;
        if (!this.isDisposed) this.#shared?.addFailure();
      }
      throw this.passOn(error);
    }
    if (pointer !== 0) {
      if (this.#shared !== undefined) this.#countShared(this.#shared, pointer, bytes, stream);
      this.#counters.add(bytes);
    }
    return pointer;
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    this.freed(this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents));
    if (pointer === 0) return;
    this.#counters.subtract(bytes);
    if (this.#shared !== undefined) this.#shared.subtract(bytes);
  }

  /**
   * Frees memory that it cannot count, because the adaptor was disposed during the upstream's call.
   */
  #countShared(shared: SharedCounts, pointer: DevicePointer, bytes: number, stream: Stream): void {
    try {
      this.assertLive('allocate');
      shared.add(bytes);
    } catch (error) {
      this.giveBack(pointer, bytes, stream);
      throw error;
    }
  }

  /** The counts since construction, or since the latest push that was not popped. */
  statistics(): AllocationStatistics {
    return this.#counters.snapshot();
  }

  /** The counts since construction, ignoring pushes and pops. */
  overallStatistics(): AllocationStatistics {
    const overall = new Counters();
    for (const counters of [...this.#outer, this.#counters]) overall.absorb(counters);
    return overall.snapshot();
  }

  /**
   * The counts of all adaptors with the same option `shared`, in all workers, since the first of them
   * was constructed, ignoring pushes and pops. Every number is exact, and a peak is the largest value
   * that `current` had at any moment; but while other workers allocate, the numbers of one result may
   * be from slightly different moments. Memory that a worker held when it ended counts as `current`
   * until it has been freed. The counts end with the last of these adaptors, once all counted memory
   * is freed.
   * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) if the option `shared` is not set.
   * @throws LifetimeError (`ERR_CISTERN_DISPOSED`) if this object is disposed.
   */
  sharedStatistics(): AllocationStatistics {
    if (this.#shared === undefined) {
      throw new CisternError('ERR_CISTERN_INVALID_STATE', 'cannot read shared statistics: the option shared is not set');
    }
    this.assertLive('read shared statistics');
    const { bytes, allocations, failures } = this.#shared.read();
    return Object.freeze({ bytes: frozen(bytes), allocations: frozen(allocations), failedAllocations: failures });
  }

  /**
   * Starts new counters from zero, until {@link popCounters}. Returns the counts before the push.
   *
   * Counterpart of `push_counters`.
   */
  pushCounters(): AllocationStatistics {
    this.#outer.push(this.#counters);
    const snapshot = this.#counters.snapshot();
    this.#counters = new Counters();
    return snapshot;
  }

  /**
   * Ends the counters that the latest {@link pushCounters} began, adds them to the outer counters,
   * and returns them.
   *
   * Counterpart of `pop_counters`.
   * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) if there is no push to pop.
   */
  popCounters(): AllocationStatistics {
    const outer = this.#outer.pop();
    if (outer === undefined) {
      throw new CisternError('ERR_CISTERN_INVALID_STATE', 'cannot pop counters: every push has already been popped');
    }
    const inner = this.#counters;
    outer.absorb(inner);
    this.#counters = outer;
    return inner.snapshot();
  }

  /**
   * Ends allocation through this object, and removes it from samples and metrics. Does not dispose
   * the upstream. A second call does nothing.
   */
  override [Symbol.dispose](): void {
    super[Symbol.dispose]();
    instances.delete(this.#registration);
    this.#shared?.close();
  }
}

/** `statistics` in a specification. */
export const statisticsKind = defineAdaptor({
  name: 'statistics',
  role: 'pass-through',
  summary: 'counts bytes and allocations',
  options: {
    name: { type: 'text', summary: 'its name in samples and metrics', default: 'statistics' },
    shared: { type: 'text', summary: 'the name of counters that all workers share', default: 'none' },
  },
  example: 'statistics(cuda, name=training)',
  create: ({ upstream, options }) => new StatisticsResourceAdaptor(upstream, options),
});

const instances = new LiveInstances<StatisticsResourceAdaptor>();

/**
 * @internal The adaptors of this environment that are neither disposed nor collected, in the order
 * of construction.
 */
export function liveStatisticsAdaptors(): StatisticsResourceAdaptor[] {
  return instances.all();
}

function frozen({ current, peak, total }: SharedTally): CounterSnapshot {
  return Object.freeze({ current, peak, total });
}

class Counters {
  failedAllocations = 0;
  readonly #bytes = new Counter();
  readonly #allocations = new Counter();

  add(bytes: number): void {
    this.#bytes.add(bytes);
    this.#allocations.add(1);
  }

  subtract(bytes: number): void {
    this.#bytes.current -= bytes;
    this.#allocations.current--;
  }

  absorb(inner: Counters): void {
    this.#bytes.absorb(inner.#bytes);
    this.#allocations.absorb(inner.#allocations);
    this.failedAllocations += inner.failedAllocations;
  }

  snapshot(): AllocationStatistics {
    return Object.freeze({
      bytes: this.#bytes.snapshot(),
      allocations: this.#allocations.snapshot(),
      failedAllocations: this.failedAllocations,
    });
  }
}

class Counter {
  current = 0;
  peak = 0;
  total = 0;

  add(amount: number): void {
    this.current += amount;
    this.total += amount;
    if (this.current > this.peak) this.peak = this.current;
  }

  /** Adds a counter that started at zero when this one had its current value. */
  absorb(inner: Counter): void {
    this.peak = Math.max(this.peak, this.current + inner.peak);
    this.current += inner.current;
    this.total += inner.total;
  }

  snapshot(): CounterSnapshot {
    return Object.freeze({ current: this.current, peak: this.peak, total: this.total });
  }
}
