import { neverEnds, type ReportRun } from '../formats/report/report-run.js';

/** The sort keys of allocations. */
export type AllocationOrder = 'bytes' | 'lifetime' | 'start' | 'address' | 'stream' | 'phase' | 'label';

/** Which allocations to list, and how. */
export interface AllocationQuery {
  readonly order: AllocationOrder;
  readonly isDescending: boolean;
  /** Only allocations that are never freed. */
  readonly neverFreed?: boolean | undefined;
  /** Only allocations whose label or stack contains this text, ignoring case. */
  readonly text?: string | undefined;
  /** Only allocations of at least this many bytes. */
  readonly minimumBytes?: number | undefined;
  /** Only allocations that are live at some time from here … */
  readonly from: number;
  /** … to here, in nanoseconds since the first event. */
  readonly to: number;
  /** How many to skip, before the number to list. */
  readonly offset: number;
  readonly limit: number;
}

/** The allocations listed, and the total number found. */
export interface FoundAllocations {
  readonly count: number;
  readonly bytes: number;
  readonly spans: readonly number[];
}

/** Nanoseconds from the start of a span to its end, or to the end of the log if it never ends. */
export function lifetimeOf(run: ReportRun, span: number): number {
  return endTimeOf(run, span) - startTimeOf(run, span);
}

/** The start of a span, in nanoseconds since the first event. */
export function startTimeOf(run: ReportRun, span: number): number {
  return run.times[run.spans.starts[span] as number] as number;
}

/** The end of a span, in nanoseconds since the first event; the end of the log if it never ends. */
export function endTimeOf(run: ReportRun, span: number): number {
  const end = run.spans.ends[span] as number;
  return end === neverEnds ? run.durationNanoseconds : (run.times[end] as number);
}

/** Lists allocations among those in `mask`. Ties are in order of their starts. */
export function findAllocations(run: ReportRun, mask: Uint8Array, query: AllocationQuery): FoundAllocations {
  const { spans } = run;
  const { from, to, minimumBytes = 0, neverFreed = false } = query;
  const hasText = textMatcher(run, query.text ?? '');
  const matches = new Uint32Array(spans.count);
  let count = 0;
  let bytes = 0;
  for (let span = 0; span < spans.count; span++) {
    if (mask[span] !== 1 || (spans.bytes[span] as number) < minimumBytes) continue;
    if (neverFreed && spans.ends[span] !== neverEnds) continue;
    if (startTimeOf(run, span) > to || endTimeOf(run, span) < from) continue;
    if (hasText !== undefined && !hasText(span)) continue;
    matches[count++] = span;
    bytes += spans.bytes[span] as number;
  }
  const keyOf = keyFunction(run, query.order);
  const sign = query.isDescending ? -1 : 1;
  const keys = new Float64Array(count);
  for (let i = 0; i < count; i++) keys[i] = sign * keyOf(matches[i] as number);
  const wanted = Math.min(count, query.offset + query.limit);
  // Sort only what can appear in the list.
  const limit = wanted === 0 ? 0 : nthSmallest(keys.slice(), wanted - 1);
  const candidates: { span: number; key: number }[] = [];
  let ties = 0;
  let below = 0;
  for (const key of keys) if (key < limit) below++;
  for (let i = 0; i < count; i++) {
    const key = keys[i] as number;
    if (key < limit || (key === limit && ties++ < wanted - below)) candidates.push({ span: matches[i] as number, key });
  }
  candidates.sort((a, b) => a.key - b.key || a.span - b.span);
  return { count, bytes, spans: candidates.slice(query.offset, wanted).map(({ span }) => span) };
}

/** The value that sorting would put at an index. Reorders the values. */
function nthSmallest(values: Float64Array, index: number): number {
  let low = 0;
  let high = values.length - 1;
  while (low < high) {
    const pivot = values[(low + high) >>> 1] as number;
    let left = low;
    let right = high;
    while (left <= right) {
      while ((values[left] as number) < pivot) left++;
      while ((values[right] as number) > pivot) right--;
      if (left > right) break;
      const swapped = values[left] as number;
      values[left++] = values[right] as number;
      values[right--] = swapped;
    }
    if (index <= right) high = right;
    else if (index >= left) low = left;
    else break;
  }
  return values[index] as number;
}

function textMatcher(run: ReportRun, text: string): ((span: number) => boolean) | undefined {
  const wanted = text.trim().toLowerCase();
  if (wanted === '') return undefined;
  const isIn = (texts: readonly string[]) => Uint8Array.from(texts, (each) => (each.toLowerCase().includes(wanted) ? 1 : 0));
  const labels = isIn(run.labels);
  const stacks = isIn(run.stacks);
  const { labelOf, stackOf } = run.spans;
  return (span) => labels[labelOf[span] as number] === 1 || stacks[stackOf[span] as number] === 1;
}

function keyFunction(run: ReportRun, order: AllocationOrder): (span: number) => number {
  const { spans } = run;
  const rankOf = (names: readonly string[], columns: ArrayLike<number>) => {
    const ranks = new Uint32Array(names.length);
    const sorted = [...names.keys()].sort((a, b) => ((names[a] as string) < (names[b] as string) ? -1 : 1));
    for (const [rank, index] of sorted.entries()) ranks[index] = rank;
    return (span: number) => ranks[columns[span] as number] as number;
  };
  switch (order) {
    case 'bytes':
      return (span) => spans.bytes[span] as number;
    case 'lifetime':
      return (span) => lifetimeOf(run, span);
    case 'start':
      return (span) => spans.starts[span] as number;
    case 'address':
      return (span) => spans.addressOf[span] as number;
    case 'stream':
      return (span) => spans.streamOf[span] as number;
    case 'phase':
      return rankOf(
        run.phases.map(({ name }) => name),
        spans.phaseOf,
      );
    case 'label':
      return rankOf(run.labels, spans.labelOf);
  }
}
