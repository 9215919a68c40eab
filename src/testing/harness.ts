import type { MemoryResource } from '../memory-resource.js';

/** A fresh resource to be tested, and what has to be disposed after it. */
export interface ConformanceSubject {
  /** Disposed by the case, at its end at the latest. */
  readonly resource: MemoryResource;
  /** Called after the resource was disposed: disposes what is below it. */
  dispose?(): void;
}

/** What a resource is held to beyond what all must do. Every claim is tested. */
export interface ResourceSupport {
  /** The greatest alignment that is given, in bytes; a greater one must be refused. Infinity where there is no bound but memory. */
  readonly maximumAlignment: number;
  /**
   * Whether a free returns although its stream still has work to do. If not, the cases that stop a stream are left out, since a free that waits
   * for it would never return.
   */
  readonly streamOrdered: boolean;
  /**
   * Whether memory that was freed on one stream serves another stream, when there is no other left, although the first stream still has work
   * to do, and without waiting on the host.
   * @defaultValue false
   */
  readonly reusesAcrossStreams?: boolean;
  /**
   * Whether memory that is freed is given out again. One that lets memory go in another way than by single frees says false, and is held to
   * that.
   * @defaultValue true
   */
  readonly reusesFreedMemory?: boolean;
  /**
   * Whether a free is refused that is the second for its pointer, or has another size than the allocation, or points into it. One that
   * remembers no single allocation says false, and is held to that.
   * @defaultValue true
   */
  readonly checksFrees?: boolean;
  /**
   * Bytes that a fresh resource has at most, at least 1 MiB. More must be refused, and about three fifths must be possible in one piece.
   * @defaultValue not set: the cases that need memory to run out are left out, but for sizes that no machine has
   */
  readonly capacityBytes?: number;
}

/** How to test one resource; see {@link resourceConformance}. */
export interface ResourceHarness {
  /** Stands in front of every case's name. */
  readonly name: string;
  /** Makes a fresh resource; called at least once per case. */
  create(): ConformanceSubject;
  readonly supports: ResourceSupport;
  /**
   * Where the random cases begin. A failure names it.
   * @defaultValue another one each time
   */
  readonly seed?: number;
}

/** One test. It passes if `run` returns, and fails if it throws. */
export interface ConformanceCase {
  readonly name: string;
  /** @throws AssertionError for what the resource does wrong; or what it throws itself. */
  run(): void;
}
