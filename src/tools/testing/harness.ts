import type { MemoryResource } from '../../memory-resource.js';

/** A fresh resource to test, and how to dispose the resources below it. */
export interface ConformanceSubject {
  /** The case disposes it, at the latest when it ends. */
  readonly resource: MemoryResource;
  /** Called after the resource is disposed. Disposes the resources below it. */
  dispose?(): void;
}

/** The promises of a resource beyond those of every resource. Each is tested. */
export interface ResourceSupport {
  /**
   * The largest supported alignment, in bytes; a larger one must be refused. Infinity if only
   * memory limits it.
   */
  readonly maximumAlignment: number;
  /**
   * Whether a free returns while its stream still has work to do. If not, the cases that stop a
   * stream are left out, because a free that waits for it would never return.
   */
  readonly streamOrdered: boolean;
  /**
   * Whether, if no other memory is left, memory freed on one stream can be allocated on another
   * while the first stream still has work to do, without making the host wait.
   * @defaultValue false
   */
  readonly reusesAcrossStreams?: boolean | undefined;
  /**
   * Whether freed memory is reused. Set it to false for a resource that does not release memory by
   * single frees; the suite then tests that it is not reused.
   * @defaultValue true
   */
  readonly reusesFreedMemory?: boolean | undefined;
  /**
   * Whether the resource refuses a second free of a pointer, a free with a wrong size, and a free
   * of a pointer into an allocation. Set it to false for a resource that does not remember single
   * allocations; the suite then tests that it accepts them.
   * @defaultValue true
   */
  readonly checksFrees?: boolean | undefined;
  /**
   * The capacity of a fresh resource in bytes, at least 1 MiB. Requests beyond it must be refused,
   * and about three fifths of it must be available in one piece.
   * @defaultValue not set: the cases that exhaust memory are left out, except for sizes that no
   * machine has
   */
  readonly capacityBytes?: number | undefined;
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
  readonly seed?: number | undefined;
}

/** One test. It passes if `run` returns, and fails if it throws. */
export interface ConformanceCase {
  readonly name: string;
  /**
   * @throws AssertionError if the resource does something wrong; any error that the resource
   * throws.
   */
  run(): void;
}
