import { totalmem } from 'node:os';
import { ALLOCATION_ALIGNMENT } from '../../basics/units.js';
import type { Device } from '../../driver/device.js';

/** Maxima are multiples of this, because every resource rounds allocations up to it. */
export const maximumGranularityBytes = ALLOCATION_ALIGNMENT;

/** The progress of a search. */
export interface SearchProgress {
  /** Number of maxima tried. */
  readonly tried: number;
  /** Approximate number of maxima still to be tried. */
  readonly left: number;
}

/** The maximum at which a search gives up: no device or machine has that much memory. */
export function mostBytes(device: Device): number {
  return Math.floor(Math.max(device.memoryInfo().totalBytes, totalmem()) / maximumGranularityBytes) * maximumGranularityBytes;
}

/**
 * Finds a maximum that is enough, while one granule less is not: both were tried. This need not be
 * monotonic, because a resource grows in different steps under another maximum, so a smaller one
 * may be enough, too. To stay near the smallest, the search goes up from `least` in steps of a 64th
 * of it (beyond twice `least`, in steps that double) to the first maximum that is enough, and then
 * bisects the last step.
 * @param least where to start: a lower bound as a rule, and a multiple of the granularity
 * @param isTimeUp asked before each further attempt; if true, the search ends with the smallest maximum
 * that was found to be enough
 * @returns `undefined` if not even `most` is enough, or none was found in time
 */
export function smallestMaximum(
  isEnough: (bytes: number) => boolean,
  least: number,
  most: number,
  onProgress: (progress: SearchProgress) => void = () => {},
  isTimeUp: () => boolean = () => false,
): number | undefined {
  const granule = maximumGranularityBytes;
  let tried = 0;
  const halvings = (bytes: number) => Math.max(0, Math.ceil(Math.log2(bytes / granule)));
  const attempt = (bytes: number, left: number) => {
    const result = isEnough(bytes);
    onProgress({ tried: ++tried, left });
    return result;
  };

  if (least > most) return undefined;
  let high = least;
  let low = least - granule;
  let step = Math.max(granule, Math.floor(least / 64 / granule) * granule);
  if (attempt(high, 1 + halvings(step))) {
    if (low < 0 || isTimeUp() || !attempt(low, 0)) return high;
    high = low;
    low = -granule;
  } else {
    do {
      if (high === most || isTimeUp()) return undefined;
      low = high;
      if (low >= 2 * least) step *= 2;
      high = Math.min(low + step, most);
    } while (!attempt(high, halvings(high - low)));
  }
  while (high - low > granule && !isTimeUp()) {
    const middle = low + Math.floor((high - low) / 2 / granule) * granule;
    if (attempt(middle, halvings(high - low) - 1)) high = middle;
    else low = middle;
  }
  return high;
}
