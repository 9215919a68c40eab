import { assertInteger, assertOneOf, assertOptions, optionNames } from '../../basics/validation.js';
import { type WorkloadName, workloads } from './generate-workloads.js';
import { GeneratedRows } from './generated-rows.js';

/** Options of {@link generateLog}. */
export interface GenerateLogOptions {
  /**
   * An integer from 0 to 2^53 - 1. The same seed gives the same log on every machine.
   * @defaultValue 1
   */
  readonly seed?: number | undefined;
  /**
   * Approximate number of allocations and frees, from 2 to 2^31. Slightly exceeded, because
   * everything still live at the end is freed.
   * @defaultValue depends on the workload; see {@link workloadNames}
   */
  readonly events?: number | undefined;
  /** Called after each piece with the number of events generated. */
  readonly onProgress?: ((events: number) => void) | undefined;
}

const knownOptions = optionNames<GenerateLogOptions>({ events: true, onProgress: 'function', seed: true });

const pieceBytes = 64 * 1024;
const maximumEvents = 2 ** 31;

/** The names of {@link generateLog}'s workloads. */
export const workloadNames = Object.freeze(Object.keys(workloads)) as readonly WorkloadName[];

/**
 * Generates a log of a typical kind of program, in RMM's log format, piece by piece.
 * `readAllocationLog` reads the pieces as they come. Everything is freed at the end.
 *
 * | workload | what it does |
 * |---|---|
 * | `random` | allocations up to 4 MiB at random, at most 4 GiB live |
 * | `dl-training` | training of a network of 100 layers |
 * | `dataframe` | sizes and lifetimes with long tails |
 * | `multi-stream` | four streams whose memory use rises and falls in turn |
 * | `small-hot` | 10,000 small live allocations, replaced one at a time |
 * | `rmm-random` | RMM's benchmark `RANDOM_ALLOCATIONS`; seed 1 is the seed it uses |
 *
 * @throws ArgumentRangeError if the workload is unknown, or the seed or number of events is out of
 * range.
 * @example
 * ```ts
 * const log = await readAllocationLog(generateLog('multi-stream', { seed: 7, events: 10_000 }));
 * const result = replayLog(log, () => createResourceStack('pool(host, deallocationEvents=deferred)'));
 * ```
 */
export function generateLog(workload: WorkloadName, options: GenerateLogOptions = {}): AsyncGenerator<Uint8Array> {
  assertOneOf(workload, workloadNames, 'workload');
  assertOptions(options, knownOptions);
  const { seed = 1, events = workloads[workload].defaultEvents, onProgress } = options;
  assertInteger(seed, 'seed', 0);
  assertInteger(events, 'events', 2, maximumEvents);
  return pieces(workload, seed, events, onProgress);
}

async function* pieces(
  workload: WorkloadName,
  seed: number,
  events: number,
  onProgress: ((events: number) => void) | undefined,
): AsyncGenerator<Uint8Array> {
  const { strideBytes, run } = workloads[workload];
  const rows = new GeneratedRows(strideBytes);
  for (const _ of run(rows, seed, events)) {
    if (rows.length < pieceBytes) continue;
    yield rows.take();
    onProgress?.(rows.count);
  }
  if (rows.length > 0) yield rows.take();
  onProgress?.(rows.count);
}
