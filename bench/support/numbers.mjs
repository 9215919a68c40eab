/**
 * Pseudo-random numbers that are the same in every run, and in `bench_native`: xorshift32.
 * @returns {() => number} from 0 up to, not including, 1
 */
export function seededNumbers(seed = 2463534242) {
  let state = seed;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 2 ** 32;
  };
}

/**
 * Shuffles an array (Fisher and Yates).
 * @param {Float64Array | Int32Array | number[]} items
 * @param {() => number} random
 */
export function shuffle(items, random) {
  for (let i = items.length - 1; i > 0; i--) {
    const j = Math.floor(random() * (i + 1));
    [items[i], items[j]] = [items[j], items[i]];
  }
}
