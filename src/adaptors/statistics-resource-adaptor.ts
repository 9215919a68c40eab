import type { Stream } from '../driver/stream.js';
import { ArgumentTypeError, CisternError, formatValue } from '../errors.js';
import type { DeallocationEventsOption, DeallocationFence, DevicePointer, MemoryResource } from '../memory-resource.js';
import { defineAdaptor, definedFields } from '../resource-kind.js';
import { optionNames } from '../validation.js';
import { isAllocationFailure, PassThroughAdaptor } from './pass-through-adaptor.js';

/** One quantity over time. */
export interface CounterSnapshot {
  /** What is live now; may be negative in nested counters, where memory from before the push was freed. */
  readonly current: number;
  /** The most that `current` has been, at least 0. */
  readonly peak: number;
  /** The sum of all that was allocated, whatever was freed. */
  readonly total: number;
}

/** What went through a {@link StatisticsResourceAdaptor}: a frozen copy. */
export interface AllocationStatistics {
  /** Bytes, as they were asked for. */
  readonly bytes: CounterSnapshot;
  /** Allocations of at least one byte. */
  readonly allocations: CounterSnapshot;
  /** Allocations that failed for want of memory, or in the driver; mistakes in an argument are none. */
  readonly failedAllocations: number;
}

/** Options of {@link StatisticsResourceAdaptor}. */
export interface StatisticsResourceAdaptorOptions extends DeallocationEventsOption {
  /**
   * What samples and metrics call it. Those that are asked for it first have the name alone; others with the same name get a number.
   * @defaultValue `'statistics'`
   */
  readonly name?: string;
}

const knownOptions = optionNames<StatisticsResourceAdaptorOptions>({ deallocationEvents: true, name: true });

/**
 * Counts the bytes and the allocations that pass through it. Allocations of zero bytes, and frees of the null pointer that they give, are
 * not counted (RMM counts them, and goes wrong where they are not freed).
 *
 * Stream order, alignment: those of the upstream. What is freed counts as free at once.
 *
 * While it is neither disposed nor collected, `sampleStatistics` has it, and with that `cistern watch`, Prometheus and OpenTelemetry.
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
  /** What samples and metrics call it. */
  readonly name: string;
  readonly #registration: WeakRef<StatisticsResourceAdaptor>;

  /** @throws ArgumentTypeError for what is no resource or no name. */
  constructor(upstream: MemoryResource, options: StatisticsResourceAdaptorOptions = {}) {
    super(upstream, options, knownOptions);
    const { name = 'statistics' } = options;
    if (typeof name !== 'string' || name === '')
      throw new ArgumentTypeError(`name must be a string of some length, got ${formatValue(name)}`);
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

  /** What was counted since this was made, or since the latest push that was not popped. */
  statistics(): AllocationStatistics {
    return this.#counters.snapshot();
  }

  /** What was counted since this was made, whatever was pushed and popped. */
  overallStatistics(): AllocationStatistics {
    const overall = new Counters();
    for (const counters of [...this.#outer, this.#counters]) overall.absorb(counters);
    return overall.snapshot();
  }

  /**
   * Begins to count from zero; {@link popCounters} goes back. Returns what was counted so far.
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
   * Ends what the latest {@link pushCounters} began, adds it to the counters around it, and returns it.
   *
   * Counterpart of `pop_counters`.
   * @throws CisternError (`ERR_CISTERN_INVALID_STATE`) where nothing was pushed.
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

  /** Ends the use of this object, which samples and metrics forget. The upstream stays as it is. Does nothing the second time. */
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
  options: { name: { type: 'text', summary: 'what samples and metrics call it', default: 'statistics' } },
  example: 'statistics(cuda, name=training)',
  create: ({ upstream, options }) =>
    new StatisticsResourceAdaptor(upstream, definedFields({ name: options.name, deallocationEvents: options.events })),
});

/** Weak, and swept whenever it has doubled: a program may make any number of them and dispose none. */
const instances = new Set<WeakRef<StatisticsResourceAdaptor>>();
const minimumSweepSize = 64;
let sweepSize = minimumSweepSize;

function register(adaptor: StatisticsResourceAdaptor): WeakRef<StatisticsResourceAdaptor> {
  if (instances.size >= sweepSize) sweepSize = Math.max(minimumSweepSize, 2 * liveStatisticsAdaptors().length);
  const registration = new WeakRef(adaptor);
  instances.add(registration);
  return registration;
}

/** @internal Those of this environment that are neither disposed nor collected, in the order in which they were made. */
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

  /** Adds what was counted apart from this, beginning at zero when this stood where it stands now. */
  absorb(inner: Counter): void {
    this.peak = Math.max(this.peak, this.current + inner.peak);
    this.current += inner.current;
    this.total += inner.total;
  }

  snapshot(): CounterSnapshot {
    return Object.freeze({ current: this.current, peak: this.peak, total: this.total });
  }
}
