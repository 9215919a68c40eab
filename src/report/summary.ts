import { externalFragmentation, FragmentationSweep } from './fragmentation.js';
import { heldBytes, matchingAllocations, matchingBlocks } from './held-bytes.js';
import { neverEnds, type ReportRun } from './report-run.js';

/** What one layer did, in numbers. */
export interface LayerSummary {
  readonly layer: number;
  readonly allocationCount: number;
  readonly freeCount: number;
  readonly failureCount: number;
  readonly neverFreedCount: number;
  readonly neverFreedBytes: number;
  readonly peakLiveBytes: number;
  /** Nanoseconds since the first event. */
  readonly peakLiveAt: number;
  /** What the layer's allocations lie in, or `null` where the log does not say. */
  readonly peakReservedBytes: number | null;
  /** At the end of the log. */
  readonly reservedBytes: number | null;
  /** Blocks that this very layer took from its upstream. */
  readonly growthCount: number;
  readonly releaseCount: number;
  /** When most was live: see {@link externalFragmentation}. */
  readonly fragmentationAtPeak: number;
  readonly holesAtPeak: number;
  readonly largestHoleAtPeak: number;
}

/** Counts what a layer did. */
function summarizeLayer(run: ReportRun, layer: number): LayerSummary {
  const { spans, failures, times } = run;
  const mask = matchingAllocations(run, { layer });
  const count = { allocations: 0, neverFreed: 0, neverFreedBytes: 0, growths: 0, releases: 0, failures: 0 };
  for (let span = 0; span < spans.count; span++) {
    const isHeld = spans.ends[span] === neverEnds;
    if (mask[span] === 1) {
      count.allocations++;
      if (isHeld) {
        count.neverFreed++;
        count.neverFreedBytes += spans.bytes[span] as number;
      }
    } else if (spans.isBlock[span] === 1 && spans.layerOf[span] === layer) {
      count.growths++;
      if (!isHeld) count.releases++;
    }
  }
  for (let failure = 0; failure < failures.count; failure++) if (failures.layerOf[failure] === layer) count.failures++;

  const live = heldBytes(run, mask);
  let peak = 0;
  for (let change = 1; change < live.length; change++) if ((live[change] as number) > (live[peak] as number)) peak = change;
  const blocks = matchingBlocks(run, layer);
  const reserved = blocks === undefined ? undefined : heldBytes(run, blocks);
  const sweep = new FragmentationSweep(run, layer);
  sweep.sweep(peak + 1);
  const [holes, largest] = [sweep.holes[peak] ?? 0, sweep.largestHole[peak] ?? 0];
  return {
    layer,
    allocationCount: count.allocations,
    freeCount: count.allocations - count.neverFreed,
    failureCount: count.failures,
    neverFreedCount: count.neverFreed,
    neverFreedBytes: count.neverFreedBytes,
    peakLiveBytes: live[peak] ?? 0,
    peakLiveAt: times[peak] ?? 0,
    peakReservedBytes: reserved === undefined ? null : reserved.reduce((most, bytes) => Math.max(most, bytes), 0),
    reservedBytes: reserved === undefined ? null : (reserved.at(-1) ?? 0),
    growthCount: count.growths,
    releaseCount: count.releases,
    fragmentationAtPeak: externalFragmentation(largest, holes),
    holesAtPeak: holes,
    largestHoleAtPeak: largest,
  };
}

/** Counts what each layer did, in the order of the layers. */
export function summarizeLayers(run: ReportRun): LayerSummary[] {
  return run.layers.map((_, layer) => summarizeLayer(run, layer));
}
