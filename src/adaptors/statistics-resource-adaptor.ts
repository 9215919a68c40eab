import type { Stream } from '../driver/stream.js';
import { ArgumentTypeError, CisternError, formatValue } from '../errors.js';
import type { DeallocationEventsOption, DeallocationFence, DevicePointer, MemoryResource } from '../memory-resource.js';
import { defineAdaptor, definedFields } from '../resource-kind.js';
import { optionNames } from '../validation.js';
import { isAllocationFailure, PassThroughAdaptor } from './pass-through-adaptor.js';

/** One quantity over time. */
export interface CounterSnapshot {
  /**
   * The live amount; may be negative in nested counters, if memory from before the push was freed.
   */
  readonly current: number;
  /** The most that `current` has been, at least 0. */
  readonly peak: number;
  /** The sum of all allocations, freed or not. */
  readonly total: number;
}

/** What a {@link StatisticsResourceAdaptor} counted: a frozen copy. */
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
  readonly name?: string;
}

const knownOptions = optionNames<StatisticsResourceAdaptorOptions>({ deallocationEvents: true, name: true });

/**
 * Counts the bytes and the allocations that pass through it. Allocations of zero bytes, and frees
 * of the null pointers that they return, are not counted (RMM counts them, and its counts are wrong
 * if they are not freed).
 *
 * Stream order, alignment: those of the upstream. Freed memory counts as free at once.
 *
 * Until it is disposed or collected, it appears in `sampleStatistics`, and so in `cistern watch`,
 * Prometheus and OpenTelemetry.
 *
 * Counterpart of `rmm::mr::statistics_resource_adaptor`.
 * @example
 * ```ts
 * using upstream = new CudaAsyncMemoryResource();
 * using resource = new StatisticsResourceAdaptor(upstream);
 * resource.pushCounters();
 * train(resource);
 * const { bytes } = resource.popCounters(); // what train() needed
 * console.log(formatBytes(bytes.peak));
 * ```
 */
export class StatisticsResourceAdaptor extends PassThroughAdaptor {
  #counters = new Counters();
  readonly #outer: Counters[] = [];
  /** The name in samples and metrics. */
  readonly name: string;
  readonly #registration: WeakRef<StatisticsResourceAdaptor>;

  /** @throws ArgumentTypeError for an invalid resource or name. */
  constructor(upstream: MemoryResource, options: StatisticsResourceAdaptorOptions = {}) {
    super(upstream, options, knownOptions);
    const { name = 'statistics' } = options;
    if (typeof name !== 'string' || name === '') throw new ArgumentTypeError(`name must be a non-empty string, got ${formatValue(name)}`);
    this.name = name;
    this.#registration = register(this);
  }

  allocate(bytes: number, stream: Stream, alignment?: number): DevicePointer {
    if (this.isDisposed) this.assertLive('allocate');
    let pointer: DevicePointer;
    try {
      pointer = this.upstream.allocate(bytes, stream, alignment);
    } catch (error) {
      if (isAllocationFailure(error)) this.#counters.failedAllocations++;
      throw this.passOn(error);
    }
    if (pointer !== 0) this.#counters.add(bytes);
    return pointer;
  }

  deallocate(pointer: DevicePointer, bytes: number, stream: Stream, fence?: DeallocationFence): void {
    this.upstream.deallocate(pointer, bytes, stream, fence ?? this.deallocationEvents);
    if (pointer !== 0) this.#counters.subtract(bytes);
  }

  /** The counts since construction, or since the latest push that was not popped. */
  statistics(): AllocationStatistics {
    return this.#counters.snapshot();
  }

  /** The counts since construction, regardless of pushes and pops. */
  overallStatistics(): AllocationStatistics {
    const overall = new Counters();
    for (const counters of [...this.#outer, this.#counters]) overall.absorb(counters);
    return overall.snapshot();
  }

  /**
   * Starts counting from zero; {@link popCounters} goes back. Returns the counts before the push.
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
      throw new CisternError('ERR_CISTERN_INVALID_STATE', 'cannot pop the last counters: there were as many pops as pushes');
    }
    const inner = this.#counters;
    outer.absorb(inner);
    this.#counters = outer;
    return inner.snapshot();
  }

  /**
   * Ends allocation through this object, and removes it from samples and metrics. The upstream is
   * left to its owner. A second call does nothing.
   */
  override [Symbol.dispose](): void {
    super[Symbol.dispose]();
    instances.delete(this.#registration);
  }
}

/** `statistics` in a specification. */
export const statisticsKind = defineAdaptor({
  name: 'statistics',
  role: 'pass-through',
  summary: 'counts bytes and allocations',
  options: { name: { type: 'text', summary: 'its name in samples and metrics', default: 'statistics' } },
  example: 'statistics(cuda, name=training)',
  create: ({ upstream, options }) =>
    new StatisticsResourceAdaptor(upstream, definedFields({ name: options.name, deallocationEvents: options.events })),
});

/**
 * Weak references, swept whenever their number has doubled: a program may make any number of
 * adaptors and dispose none.
 */
const instances = new Set<WeakRef<StatisticsResourceAdaptor>>();
const minimumSweepSize = 64;
let sweepSize = minimumSweepSize;

function register(adaptor: StatisticsResourceAdaptor): WeakRef<StatisticsResourceAdaptor> {
  if (instances.size >= sweepSize) sweepSize = Math.max(minimumSweepSize, 2 * liveStatisticsAdaptors().length);
  const registration = new WeakRef(adaptor);
  instances.add(registration);
  return registration;
}

/**
 * @internal The adaptors of this environment that are neither disposed nor collected, in the order
 * of construction.
 */
export function liveStatisticsAdaptors(): StatisticsResourceAdaptor[] {
  const live: StatisticsResourceAdaptor[] = [];
  for (const reference of instances) {
    const adaptor = reference.deref();
    if (adaptor === undefined) instances.delete(reference);
    else live.push(adaptor);
  }
  return live;
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
