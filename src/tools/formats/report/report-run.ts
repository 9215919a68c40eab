import type { RecordedLayer } from '../layers.js';
import { nearestLayer } from '../layers.js';
import type { RunDescription } from '../recorded-run.js';

/** The value in `ends` of a span that the log never ends. */
export const neverEnds = 0xffff_ffff;

/**
 * Spans in columns, in order of their starts. A span is a range of addresses and the time for which
 * it was held: an allocation or, if `isBlock` is 1, memory that a layer took from its upstream to
 * serve allocations from.
 */
interface SpanColumns {
  readonly count: number;
  /** Indexes into {@link ReportRun.addresses}. */
  readonly addressOf: Uint32Array;
  readonly bytes: Float64Array;
  /** The change that begins a span. */
  readonly starts: Uint32Array;
  /** The change that ends a span, or {@link neverEnds}. */
  readonly ends: Uint32Array;
  readonly isBlock: Uint8Array;
  /** Indexes into {@link ReportRun.layers}. */
  readonly layerOf: Uint8Array;
  /** Indexes into {@link ReportRun.streams}. */
  readonly streamOf: Uint16Array;
  /** The streams on which spans were freed; the span's own stream if it never was. */
  readonly endStreamOf: Uint16Array;
  /** Indexes into {@link ReportRun.threads}. */
  readonly threadOf: Uint16Array;
  /** Indexes into {@link ReportRun.phases}. */
  readonly phaseOf: Uint16Array;
  /** Indexes into {@link ReportRun.stacks}. */
  readonly stackOf: Uint32Array;
  /** Indexes into {@link ReportRun.labels}. */
  readonly labelOf: Uint32Array;
  /** Indexes into {@link ReportRun.accounts}. */
  readonly accountOf: Uint16Array;
}

/** Allocations that failed, in columns. */
interface FailureColumns {
  readonly count: number;
  /** Nanoseconds since the first event. */
  readonly times: Float64Array;
  readonly bytes: Float64Array;
  readonly layerOf: Uint8Array;
  readonly streamOf: Uint16Array;
  readonly phaseOf: Uint16Array;
  readonly accountOf: Uint16Array;
}

/** Where named phases begin and end, in columns. */
interface PhaseColumns {
  readonly count: number;
  /** Nanoseconds since the first event. */
  readonly times: Float64Array;
  readonly phaseOf: Uint16Array;
  /** 0 where a phase begins, 1 where it ends; 2 if it was the capture of a graph that was given up. */
  readonly isEnd: Uint8Array;
}

/**
 * A report's data about a log. The texts of the log are untrusted input. `startedAt` is the time of
 * the first event.
 */
export interface ReportRun extends RunDescription {
  /** Number of events in the log. */
  readonly eventCount: number;
  readonly eventRecordCount: number;
  readonly eventWaitCount: number;
  /** Frees of memory that the log never allocated, which occur if a log begins late. */
  readonly unmatchedFreeCount: number;
  /** From the first event to the last. */
  readonly durationNanoseconds: number;
  /**
   * The time of each change, in nanoseconds since the first event; ascending. A change begins or
   * ends a span.
   */
  readonly times: Float64Array;
  /** The span that a change begins, or `~span` (a negative number) for a span that it ends. */
  readonly changes: Int32Array;
  /** The distinct addresses at which spans begin; ascending. */
  readonly addresses: Float64Array;
  readonly spans: SpanColumns;
  readonly failures: FailureColumns;
  readonly phaseMarks: PhaseColumns;
}

/**
 * The layer whose blocks contain a layer's allocations: the layer itself, or the nearest below it
 * that took blocks from its upstream. `undefined` if the log has no such blocks.
 */
export function poolOf({ layers, spans }: ReportRun, layer: number): number | undefined {
  const pools = new Set<number>();
  for (let span = 0; span < spans.count; span++) if (spans.isBlock[span] === 1) pools.add(spans.layerOf[span] as number);
  return poolAmong(layers, pools, layer);
}

/** The same, for layers among which those that took blocks are known. */
export function poolAmong(layers: readonly RecordedLayer[], pools: ReadonlySet<number>, layer: number): number | undefined {
  if (layers[layer]?.isPlace) return undefined;
  const below = layersFrom(layers, layer);
  const known = below.find((index) => pools.has(index));
  if (known !== undefined) return known;
  // If a layer's upstream is unknown, the layer counts as above every layer that is not above it.
  if (layers[below.at(-1) as number]?.upstream !== undefined) return undefined;
  return nearestLayer(layers, (index) => pools.has(index) && !layersFrom(layers, index).includes(layer));
}

/** A layer and those below it. */
function layersFrom(layers: readonly RecordedLayer[], layer: number): number[] {
  const found = [layer];
  for (let next = layers[layer]?.upstream; next !== undefined && !found.includes(next); next = layers[next]?.upstream) found.push(next);
  return found;
}
