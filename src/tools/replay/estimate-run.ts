/**
 * Estimates a log that nobody recorded, from logs of the same program at other values of one number,
 * such as its batch size:
 *
 *     batch 8    a 1 MiB   b 4 MiB   free b   …
 *     batch 16   a 1 MiB   b 8 MiB   free b   …
 *     batch 32   a 1 MiB   b 16 MiB  free b   …   estimated
 *
 * Each allocation is fitted separately: by a line, or by a parabola if at least three logs show that a
 * line misses it, as with attention over longer sequences.
 */
import { ArgumentRangeError, ArgumentTypeError, formatValue, invalidValue } from '../../basics/errors.js';
import { ALLOCATION_ALIGNMENT, alignUp } from '../../basics/units.js';
import { assertBytes, assertOptions, optionNames } from '../../basics/validation.js';
import { assertRecordedRun } from '../formats/assert-recorded-run.js';
import { EventColumnsBuilder, EventKind, eventAt } from '../formats/event-columns.js';
import { allocationsOf, chosenLayer, type LayerAllocations } from '../formats/layer-allocations.js';
import { finishRun, RecordedNames, type RecordedRun } from '../formats/recorded-run.js';

/** A log, and the number at which it was recorded. */
export interface EstimateSample {
  readonly run: RecordedRun;
  /** A positive number, such as a batch size. */
  readonly value: number;
}

/** A log that an estimate is made from. */
export interface EstimateSource extends Omit<EstimateSample, 'run'> {
  /** The path or name of the log. */
  readonly source: string;
  /** The most bytes live at once. */
  readonly peakLiveBytes: number;
}

/** How well the largest log could have been estimated; see {@link RunEstimator.check}. */
export interface EstimateCheck extends EstimateSource {
  /** The peak that the other logs predict. */
  readonly estimatedBytes: number;
}

/** Options of {@link RunEstimator}. */
export interface RunEstimatorOptions {
  /**
   * The name of the layer whose allocations are estimated.
   * @defaultValue in each log, the layer nearest to the program that has allocations
   */
  readonly layer?: string | undefined;
}

const knownOptions = optionNames<RunEstimatorOptions>({ layer: true });

/** A line misses a size if it is off by more than this share of it, and by more than these bytes. */
const tolerance = { share: 0.01, bytes: 4096 };
/** The value at which {@link RunEstimator.largestValue} stops searching. */
const largestTried = 2 ** 40;
const firstAddress = 0x100000000000;

/** A log with its allocations matched. */
interface Sample extends EstimateSample, LayerAllocations {
  readonly layer: number;
  /** By allocation, in bytes. */
  readonly sizes: Float64Array;
}

/**
 * Estimates what a program would allocate at another batch size, sequence length or number of rows, from
 * two or more of its logs. The logs must have the same allocations and frees on the same streams, in the
 * same order; only their sizes differ.
 *
 * RMM has no counterpart.
 * @example
 * ```ts
 * const estimator = new RunEstimator([
 *   { run: await readRecordedRun('batch-8.cistern'), value: 8 },
 *   { run: await readRecordedRun('batch-16.cistern'), value: 16 },
 * ]);
 * console.log(estimator.peakLiveBytes(64), estimator.largestValue(24 * GiB));
 * ```
 */
export class RunEstimator {
  /** In ascending order of their values. */
  readonly #samples: readonly Sample[];
  /** By allocation: 1 if a line misses its sizes. */
  readonly #isCurved: Uint8Array;
  readonly #options: RunEstimatorOptions;

  /**
   * @throws ArgumentTypeError, ArgumentRangeError if there are fewer than two logs, if a value is not
   * positive or occurs twice, or if the logs do not have the same operations; the message says where they
   * first differ.
   * @throws InvalidLogError if a log has no layer of the given name.
   */
  constructor(samples: readonly EstimateSample[], options: RunEstimatorOptions = {}) {
    assertOptions(options, knownOptions);
    assertSamples(samples);
    this.#options = options;
    this.#samples = samples.map(({ run, value }) => matched(run, value, options.layer)).sort((a, b) => a.value - b.value);
    const [first, ...others] = this.#samples as [Sample, ...Sample[]];
    for (const other of others) {
      const difference = differenceOf(first, other);
      if (difference === undefined) continue;
      throw invalidValue(`${other.run.source} does not repeat ${first.run.source}: ${difference}`);
    }
    this.#isCurved = this.#findCurved();
  }

  /** The logs, in ascending order of their values. */
  get sources(): readonly EstimateSource[] {
    return this.#samples.map(({ run, value, operations, sizes }) => ({
      source: run.source,
      value,
      peakLiveBytes: peakOf(operations, sizes),
    }));
  }

  /**
   * Estimates the largest log from all others, and compares. If this estimate is far off, do not trust
   * the others. `undefined` for two logs, because none can be left out.
   */
  check(): EstimateCheck | undefined {
    const others = this.#samples.slice(0, -1);
    const largest = this.sources.at(-1) as EstimateSource;
    if (others.length < 2) return undefined;
    return { ...largest, estimatedBytes: new RunEstimator(others, this.#options).peakLiveBytes(largest.value) };
  }

  /**
   * The most bytes that would be live at once.
   * @param value a positive number
   * @throws ArgumentTypeError, ArgumentRangeError if it is not.
   */
  peakLiveBytes(value: number): number {
    assertValue(value);
    return peakOf(this.#base.operations, this.#sizesAt(value));
  }

  /**
   * The largest whole value at which at most `bytes` would be live at once: `undefined` if there is none,
   * infinite if the peak does not grow. A pool needs more than the live bytes; `fitLog` finds out how
   * much.
   * @throws ArgumentTypeError, ArgumentRangeError if `bytes` is not a positive integer.
   */
  largestValue(bytes: number): number | undefined {
    assertBytes(bytes, 'bytes');
    const fits = (value: number) => this.peakLiveBytes(value) <= bytes;
    if (!fits(1)) return undefined;
    let most = 1;
    while (most <= largestTried && fits(2 * most)) most *= 2;
    if (most > largestTried) return Number.POSITIVE_INFINITY;
    for (let step = most / 2; step >= 1; step /= 2) if (fits(most + step)) most += step;
    return most;
  }

  /**
   * The whole log at a value. Times, streams, threads, phases, stacks and labels are those of the log with
   * the largest value; addresses are new.
   * @param value a positive number
   * @throws ArgumentTypeError, ArgumentRangeError if it is not.
   */
  run(value: number): RecordedRun {
    assertValue(value);
    const { run, layer, operations, operationEvents, labels } = this.#base;
    const sizes = this.#sizesAt(value);
    const addresses = addressesOf(operations, sizes);
    const names = Object.assign(new RecordedNames(), {
      layers: [{ name: run.layers[layer]?.name ?? '', upstream: undefined }],
      streams: [...run.streams],
      threads: [...run.threads],
      phases: [...run.phases],
      stacks: [...run.stacks],
      labels: [...run.labels],
      accounts: [...run.accounts],
      notes: [...run.notes],
    });
    const builder = new EventColumnsBuilder();
    let next = 0;
    for (let i = 0; i < run.eventCount; i++) {
      const event = { ...eventAt(run, i), layer: 0 };
      if (event.kind >= EventKind.eventRecord && event.kind <= EventKind.phaseEnd) builder.append(event);
      for (; operationEvents[next] === i; next++) {
        const operation = operations[next] as number;
        const allocation = operation < 0 ? ~operation : operation;
        const [first, second] = [addresses[allocation] as number, sizes[allocation] as number];
        builder.append({ ...event, kind: operation < 0 ? EventKind.free : EventKind.allocate, first, second });
        const label = labels[allocation] as number;
        if (operation >= 0 && label !== 0) builder.append({ ...event, kind: EventKind.label, first, second: label });
      }
    }
    const { startedAt, utcOffsetMinutes } = run;
    const origin = { startedAt, utcOffsetMinutes, damage: undefined, skippedRecordCount: 0, csv: undefined };
    return finishRun({ source: `estimate at ${value}`, ...origin }, names, builder);
  }

  get #base(): Sample {
    return this.#samples.at(-1) as Sample;
  }

  #sizesAt(value: number): Float64Array {
    const values = this.#samples.map((sample) => sample.value);
    const line = weightsAt(value, values, 1);
    const parabola = weightsAt(value, values, 2);
    return this.#base.sizes.map((size, allocation) => {
      const estimated = this.#weighted(allocation, this.#isCurved[allocation] === 1 ? parabola : line);
      // An allocation with bytes keeps at least one, however small the value.
      return size === 0 ? 0 : Math.max(1, Math.round(estimated));
    });
  }

  #findCurved(): Uint8Array {
    const samples = this.#samples;
    const isCurved = new Uint8Array(this.#base.sizes.length);
    if (samples.length < 3) return isCurved;
    const values = samples.map((sample) => sample.value);
    for (const { value, sizes } of samples) {
      const line = weightsAt(value, values, 1);
      for (const [allocation, size] of sizes.entries()) {
        const error = Math.abs(this.#weighted(allocation, line) - size);
        if (error > tolerance.bytes && error > tolerance.share * size) isCurved[allocation] = 1;
      }
    }
    return isCurved;
  }

  #weighted(allocation: number, weights: readonly number[]): number {
    return this.#samples.reduce((sum, { sizes }, i) => sum + (weights[i] as number) * (sizes[allocation] as number), 0);
  }
}

function peakOf(operations: readonly number[], sizes: Float64Array): number {
  let live = 0;
  let peak = 0;
  for (const operation of operations) {
    live += operation < 0 ? -(sizes[~operation] as number) : (sizes[operation] as number);
    if (live > peak) peak = live;
  }
  return peak;
}

/**
 * How much each sample counts in the polynomial of least squares through all of them, at a value: the
 * polynomial there is the sum of the sizes times these weights, whatever the sizes are. It is built from
 * polynomials that are orthogonal over the samples.
 */
function weightsAt(value: number, values: readonly number[], degree: number): number[] {
  const points = [...values, value];
  const weights = values.map(() => 0);
  let before = points.map(() => 0);
  let current = points.map(() => 1);
  let normBefore = 1;
  for (let k = 0; k <= Math.min(degree, values.length - 1); k++) {
    const norm = values.reduce((sum, _, i) => sum + (current[i] as number) ** 2, 0);
    const center = values.reduce((sum, x, i) => sum + x * (current[i] as number) ** 2, 0) / norm;
    for (const i of values.keys()) weights[i] = (weights[i] as number) + ((current[i] as number) * (current.at(-1) as number)) / norm;
    const next = points.map((x, i) => (x - center) * (current[i] as number) - (k === 0 ? 0 : norm / normBefore) * (before[i] as number));
    [before, current, normBefore] = [current, next, norm];
  }
  return weights;
}

function matched(run: RecordedRun, value: number, name: string | undefined): Sample {
  const layer = chosenLayer(run, name);
  const allocations = allocationsOf(run, layer);
  return { run, value, layer, ...allocations, sizes: Float64Array.from(allocations.events, (event) => run.seconds[event] as number) };
}

/** Where two logs first differ; `undefined` if nowhere. */
function differenceOf(a: Sample, b: Sample): string | undefined {
  const [streamOfA, streamOfB] = [streamsOf(a), streamsOf(b)];
  const count = Math.min(a.operations.length, b.operations.length);
  const word = (operation: number) => (operation < 0 ? `a free of allocation ${~operation}` : 'an allocation');
  for (let i = 0; i < count; i++) {
    const [inA, inB] = [a.operations[i] as number, b.operations[i] as number];
    if (inA !== inB) return `operation ${i} is ${word(inB)}, not ${word(inA)}`;
    if (streamOfA[i] !== streamOfB[i]) return `operation ${i} is on another stream`;
  }
  if (a.operations.length !== b.operations.length) return `it has ${b.operations.length} operations, not ${a.operations.length}`;
  return undefined;
}

/** By operation: its stream, numbered in the order of first use. */
function streamsOf({ run, operationEvents }: Sample): Int32Array {
  const numbers = new Map<number, number>();
  return Int32Array.from(operationEvents, (event) => {
    const stream = run.streamOf[event] as number;
    const number = numbers.get(stream) ?? numbers.size;
    numbers.set(stream, number);
    return number;
  });
}

/** Addresses by allocation, used again after a free, where nothing overlaps. */
function addressesOf(operations: readonly number[], sizes: Float64Array): Float64Array {
  const slotOf = new Int32Array(sizes.length);
  const widths: number[] = [];
  const vacant: number[] = [];
  for (const operation of operations) {
    if (operation < 0) vacant.push(slotOf[~operation] as number);
    else {
      const slot = vacant.pop() ?? widths.push(0) - 1;
      slotOf[operation] = slot;
      widths[slot] = Math.max(widths[slot] as number, alignUp(sizes[operation] as number, ALLOCATION_ALIGNMENT));
    }
  }
  const starts: number[] = [];
  let end = firstAddress;
  for (const width of widths) {
    starts.push(end);
    end += width;
  }
  return sizes.map((size, allocation) => (size === 0 ? 0 : (starts[slotOf[allocation] as number] as number)));
}

function assertSamples(samples: readonly EstimateSample[]): void {
  if (!Array.isArray(samples)) throw new ArgumentTypeError(`samples must be an array, got ${formatValue(samples)}`);
  if (samples.length < 2) throw new ArgumentRangeError(`an estimate needs at least two logs, got ${samples.length}`);
  for (const sample of samples) {
    assertRecordedRun(sample?.run, 'the run of each sample');
    assertValue(sample.value);
  }
  const values = samples.map(({ value }) => value);
  const twice = values.find((value, i) => values.indexOf(value) !== i);
  if (twice !== undefined) throw invalidValue(`two logs have the value ${twice}`);
}

function assertValue(value: number): void {
  if (typeof value !== 'number') throw new ArgumentTypeError(`value must be a number, got ${formatValue(value)}`);
  if (!(value > 0 && value <= Number.MAX_SAFE_INTEGER))
    throw new ArgumentRangeError(`value must be above 0 and at most 2^53 - 1, got ${value}`);
}
