import type { MemoryResource } from '../memory-resource.js';

/** A fresh resource to test, and what to dispose after it. */
export interface ConformanceSubject {
  /** The case disposes it, at its end at the latest. */
  readonly resource: MemoryResource;
  /** Called after the resource is disposed. Disposes what is below it. */
  dispose?(): void;
}

/** What a resource claims beyond what every resource must do. Every claim is tested. */
export interface ResourceSupport {
  /**
   * The greatest supported alignment, in bytes; a greater one must be refused. Infinity if only
   * memory limits it.
   */
  readonly maximumAlignment: number;
  /**
   * Whether a free returns while its stream still has work to do. If not, the cases that stop a
   * stream are left out, since a free that waits for it would never return.
   */
  readonly streamOrdered: boolean;
  /**
   * Whether memory freed on one stream serves another stream, if no other memory is left, while the
   * first stream still has work to do and without waiting on the host.
   * @defaultValue false
   */
  readonly reusesAcrossStreams?: boolean;
  /**
   * Whether freed memory is reused. If false, for a resource that releases memory in another way
   * than by single frees, the suite tests that it is not.
   * @defaultValue true
   */
  readonly reusesFreedMemory?: boolean;
  /**
   * Whether the resource refuses a second free of a pointer, a free with another size, and a free
   * of a pointer into an allocation. If false, for a resource that does not remember single
   * allocations, the suite tests that it accepts them.
   * @defaultValue true
   */
  readonly checksFrees?: boolean;
  /**
   * The capacity of a fresh resource in bytes, at least 1 MiB. Requests beyond it must be refused,
   * and about three fifths must be possible in one piece.
   * @defaultValue not set: the cases that exhaust memory are left out, except for sizes that no
   * machine has
   */
  readonly capacityBytes?: number;
}

/** How to test one resource; see {@link resourceConformance}. */
export interface ResourceHarness {
  /** The prefix of every case's name. */
  readonly name: string;
  /** Makes a fresh resource; called at least once per case. */
  create(): ConformanceSubject;
  readonly supports: ResourceSupport;
  /**
   * The seed of the random cases. A failure names it.
   * @defaultValue a different one each time
   */
  readonly seed?: number;
}

/** One test. It passes if `run` returns, and fails if it throws. */
export interface ConformanceCase {
  readonly name: string;
  /**
   * @throws AssertionError if the resource does something wrong, or whatever the resource throws.
   */
  run(): void;
}
