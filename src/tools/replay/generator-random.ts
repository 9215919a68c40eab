/** Random numbers for generated logs: the same numbers for the same seed, on every machine. */
export interface RandomSource {
  /** An integer from `low` to `high`, inclusive. */
  between(low: number, high: number): number;
}

/**
 * Chris Doty-Humphrey's sfc32, from PractRand: small, fast, and without known weaknesses at these
 * lengths.
 */
export class Sfc32 implements RandomSource {
  #a: number;
  #b: number;
  #c: number;
  #counter = 1;

  /** @param seed an integer from 0 to 2^53 - 1 */
  constructor(seed: number) {
    this.#a = 0;
    this.#b = seed | 0;
    this.#c = Math.floor(seed / 2 ** 32) | 0;
    for (let i = 0; i < 12; i++) this.#next();
  }

  /** A number from 0 (inclusive) to 1 (exclusive). */
  fraction(): number {
    return ((this.#next() >>> 5) * 2 ** 26 + (this.#next() >>> 6)) / 2 ** 53;
  }

  between(low: number, high: number): number {
    return low + Math.floor(this.fraction() * (high - low + 1));
  }

  /** A number from `low` to `high`. */
  uniform(low: number, high: number): number {
    return low + this.fraction() * (high - low);
  }

  /** A normally distributed number (Box-Muller). */
  normal(mean: number, deviation: number): number {
    const radius = Math.sqrt(-2 * Math.log(1 - this.fraction()));
    return mean + deviation * radius * Math.cos(2 * Math.PI * this.fraction());
  }

  /** A random item. */
  choice<T>(items: readonly T[]): T {
    return items[this.between(0, items.length - 1)] as T;
  }

  /** Shuffles the items in place (Fisher-Yates). */
  shuffle<T>(items: T[]): void {
    for (let i = items.length - 1; i > 0; i--) {
      const j = this.between(0, i);
      [items[i], items[j]] = [items[j] as T, items[i] as T];
    }
  }

  #next(): number {
    const result = (this.#a + this.#b + this.#counter++) | 0;
    this.#a = this.#b ^ (this.#b >>> 9);
    this.#b = (this.#c + (this.#c << 3)) | 0;
    this.#c = (((this.#c << 21) | (this.#c >>> 11)) + result) | 0;
    return result;
  }
}

const modulus = 2147483647;

/**
 * The counterparts of `std::default_random_engine` and `std::uniform_int_distribution` in libstdc++
 * (`minstd_rand0`, rejecting the uneven rest), so that a seed gives the same numbers as in a C++
 * program.
 */
export class StandardRandom implements RandomSource {
  #state: number;

  /** @param seed 1 is C++'s default */
  constructor(seed: number) {
    this.#state = seed % modulus || 1;
  }

  /** At most 2^31 - 3 different values. */
  between(low: number, high: number): number {
    const scale = Math.floor((modulus - 2) / (high - low + 1));
    for (;;) {
      this.#state = (this.#state * 16807) % modulus;
      const value = low + Math.floor((this.#state - 1) / scale);
      if (value <= high) return value;
    }
  }
}
