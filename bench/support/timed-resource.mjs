/** The least time of each call of a trace over several replays, in nanoseconds. */
export class LeastTimes {
  #times;
  #isAllocation;
  #next = 0;

  /** @param {number} count the calls of one replay; later ones are not taken */
  constructor(count) {
    this.#times = new Float64Array(count).fill(Number.POSITIVE_INFINITY);
    this.#isAllocation = new Uint8Array(count);
  }

  /** A replay begins. */
  begin() {
    this.#next = 0;
  }

  /** @param {number} milliseconds @param {boolean} isAllocation */
  add(milliseconds, isAllocation) {
    const call = this.#next++;
    if (call >= this.#times.length) return;
    this.#isAllocation[call] = Number(isAllocation);
    const nanoseconds = milliseconds * 1e6;
    if (nanoseconds < this.#times[call]) this.#times[call] = nanoseconds;
  }

  /**
   * The allocation and the free that took longest, even at their quickest: a pause of the scheduler or of
   * the garbage collector does not come at the same call each time.
   */
  longest() {
    const longest = { allocation: 0, free: 0 };
    for (const [call, nanoseconds] of this.#times.entries()) {
      const kind = this.#isAllocation[call] === 1 ? 'allocation' : 'free';
      if (nanoseconds > longest[kind]) longest[kind] = nanoseconds;
    }
    return longest;
  }
}

/**
 * Times each call of another resource.
 * @implements {MemoryResource}
 * @typedef {import('../../src/index.js').MemoryResource} MemoryResource
 * @typedef {import('../../src/index.js').Stream} Stream
 */
export class TimedResource {
  #upstream;
  #times;

  /**
   * @param {MemoryResource} upstream
   * @param {LeastTimes} times
   */
  constructor(upstream, times) {
    this.#upstream = upstream;
    this.#times = times;
    this.device = upstream.device;
    this.memoryKind = upstream.memoryKind;
    times.begin();
  }

  /** @param {number} bytes @param {Stream} stream */
  allocate(bytes, stream) {
    const start = performance.now();
    const pointer = this.#upstream.allocate(bytes, stream);
    this.#times.add(performance.now() - start, true);
    return pointer;
  }

  /** @param {number} pointer @param {number} bytes @param {Stream} stream */
  deallocate(pointer, bytes, stream) {
    const start = performance.now();
    this.#upstream.deallocate(pointer, bytes, stream);
    this.#times.add(performance.now() - start, false);
  }

  /** @param {MemoryResource} other @returns {boolean} */
  isEqual(other) {
    return other === this;
  }

  [Symbol.dispose]() {
    this.#upstream[Symbol.dispose]();
  }
}
