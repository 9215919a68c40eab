import { totalmem } from 'node:os';
import type { Device } from '../driver/device.js';
import { ALLOCATION_ALIGNMENT } from '../units.js';

/** Maxima are multiples of this: every resource rounds what it hands out up to one. */
export const maximumGranularityBytes = ALLOCATION_ALIGNMENT;

/** How a search is going. */
export interface SearchProgress {
  /** Maxima tried so far. */
  readonly tried: number;
  /** How many are still to be tried, about. */
  readonly left: number;
}

/** A maximum beyond which a search gives up: no device and no machine has as much. */
export function mostBytes(device: Device): number {
  return Math.floor(Math.max(device.memoryInfo().totalBytes, totalmem()) / maximumGranularityBytes) * maximumGranularityBytes;
}

/**
 * A maximum that is enough, of which one granule less is not: both were tried. Whether a maximum is enough need not be monotonic, since a
 * resource grows in other steps under another one; so that some smaller one may be enough, too. To be near the least that is, this goes up from
 * `least` in steps of a 64th of it (beyond twice as much, in steps that double) to the first that is enough, and then halves the last step.
 * @param least where to begin, which is needed as a rule; a multiple of the granularity
 * @returns `undefined` where not even `most` is enough
 */
export function smallestMaximum(
  isEnough: (bytes: number) => boolean,
  least: number,
  most: number,
  onProgress: (progress: SearchProgress) => void = () => {},
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
    if (low < 0 || !attempt(low, 0)) return high;
    high = low;
    low = -granule;
  } else {
    do {
      if (high === most) return undefined;
      low = high;
      if (low >= 2 * least) step *= 2;
      high = Math.min(low + step, most);
    } while (!attempt(high, halvings(high - low)));
  }
  while (high - low > granule) {
    const middle = low + Math.floor((high - low) / 2 / granule) * granule;
    if (attempt(middle, halvings(high - low) - 1)) high = middle;
    else low = middle;
  }
  return high;
}
