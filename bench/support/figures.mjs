/**
 * Figures of repeated measurements.
 * @typedef {object} Figures
 * @property {number} median
 * @property {number} minimum
 * @property {number} maximum
 */

/**
 * @param {readonly number[]} samples
 * @returns {Figures}
 */
export function figuresOf(samples) {
  const sorted = samples.toSorted((a, b) => a - b);
  return { median: medianOf(sorted), minimum: sorted[0], maximum: /** @type {number} */ (sorted.at(-1)) };
}

/**
 * The figures of several processes as one: the median of their medians, the least minimum, the greatest maximum.
 * @param {readonly Figures[]} figures
 * @returns {Figures}
 */
export function combined(figures) {
  return {
    median: medianOf(figures.map(({ median }) => median).toSorted((a, b) => a - b)),
    minimum: Math.min(...figures.map(({ minimum }) => minimum)),
    maximum: Math.max(...figures.map(({ maximum }) => maximum)),
  };
}

/** @param {readonly number[]} sorted */
function medianOf(sorted) {
  const middle = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/**
 * Whether figures keep within a limit: the median decides; the minimum distinguishes noise from
 * cost.
 * @param {{ median: number, minimum: number }} figures
 * @param {number | undefined} limit
 * @returns {'yes' | 'no' | 'minimum only' | '-'}
 */
export function verdict({ median, minimum }, limit) {
  if (limit === undefined) return '-';
  if (median <= limit) return 'yes';
  return minimum <= limit ? 'minimum only' : 'no';
}

/** @param {number | undefined} value @param {number} [digits] */
export function formatNumber(value, digits = 1) {
  return value === undefined ? '-' : value.toFixed(digits);
}

/** The spread of the samples, as a share of the median. @param {Figures} figures */
export function formatSpread({ median, minimum, maximum }) {
  return `${(((maximum - minimum) / median) * 100).toFixed(0)} %`;
}

/** @param {number} value @param {number | undefined} reference */
export function formatRatio(value, reference) {
  return reference === undefined ? '-' : `${(value / reference).toFixed(reference > value ? 2 : 1)}`;
}
