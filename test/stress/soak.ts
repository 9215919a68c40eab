/** The soak: all of cistern, mixed in rounds. After each round, the state must be as before it. */
import { setImmediate } from 'node:timers/promises';
import fc from 'fast-check';
import { checkOrder, formatOrderViolation } from '../../src/checking/index.js';
import { formatBytes } from '../../src/index.js';
import { Random } from '../../src/tools/testing/random.js';
import { programs } from '../property/program.js';
import { describeViolation, noCounts, type ProgramCounts, ProgramRunner } from '../property/program-runner.js';
import { Violation } from '../property/violation.js';
import { ScenarioRun } from '../sweep/scenario-run.js';
import { allScenarios } from '../sweep/scenarios.js';
import { stackScenarios } from '../sweep/stack-scenarios.js';
import { churn } from './churn.js';
import { growthOf } from './growth.js';
import { allowances, collect, type Measures, prepare, takeBooks, takeMeasures } from './measures.js';
import { runTraffic, type TrafficCounts } from './traffic.js';
import { runWorker } from './workers.js';

/** Options of {@link soak}. */
export interface SoakOptions {
  /** The same seed gives the same rounds, as far as threads allow. */
  readonly seed: number;
  /** Asked after each round whether to run another. */
  readonly goesOn: (rounds: number) => boolean;
  /** Called after each round. */
  readonly onRound?: (soaked: Soaked) => void;
}

/** The outcome. */
export interface Soaked {
  readonly seed: number;
  rounds: number;
  /** Rounds whose traffic was checked by the order checker; the programs always are. */
  checkedRounds: number;
  scenarios: number;
  workers: number;
  readonly programs: ProgramCounts;
  readonly traffic: TrafficCounts;
  /** Objects that were created in large numbers, and ended at once. */
  churned: number;
  /** After each round, with garbage collected. */
  readonly measures: Measures[];
  /** The peak resident memory at the end of a round's work, before any collection. */
  peakResidentBytes: number;
  seconds: number;
  /** Violations, one sentence each. */
  readonly violations: string[];
}

/** The amount of each in a round. */
const mix = { programs: 24, scenarios: 8, actors: 4, steps: 120, workers: 1 };
/** One round in this many is checked as a whole. */
const checkEvery = 3;
/** However short a turn is. */
const patienceMilliseconds = 20_000;

/** Runs rounds until told to stop, or until a fault could make later rounds fail as well. */
export async function soak({ seed, goesOn, onRound }: SoakOptions): Promise<Soaked> {
  const started = performance.now();
  const soaked: Soaked = {
    seed,
    rounds: 0,
    checkedRounds: 0,
    scenarios: 0,
    workers: 0,
    programs: { ...noCounts },
    traffic: { operations: 0, refusals: 0, dropped: 0, comparisons: 0, hostFunctions: 0 },
    churned: 0,
    measures: [],
    peakResidentBytes: 0,
    seconds: 0,
    violations: [],
  };
  prepare();
  let books: Readonly<Record<string, number>> | undefined;
  do {
    const round = soaked.rounds++;
    try {
      await makeRound(soaked, new Random(seed + round));
      soaked.peakResidentBytes = Math.max(soaked.peakResidentBytes, process.memoryUsage().rss);
      books = await balance(books);
    } catch (error) {
      soaked.violations.push(`round ${round} of seed ${seed}: ${describeViolation(error)}`);
    }
    soaked.measures.push(takeMeasures());
    soaked.seconds = (performance.now() - started) / 1000;
    onRound?.(soaked);
  } while (soaked.violations.length === 0 && goesOn(soaked.rounds));
  soaked.violations.push(...growths(soaked.measures));
  return soaked;
}

async function makeRound(soaked: Soaked, random: Random): Promise<void> {
  // Alone: a worker that uses the legacy default stream orders every blocking stream of the process after
  // those that a program holds, and the program's model knows only of its own waits.
  await runPrograms(random.below(2 ** 30), soaked.programs);
  const workers = Array.from({ length: mix.workers }, () => runWorker(random));
  // They run at the same time as the rest; their errors are checked at the end.
  const ended = Promise.allSettled(workers);
  await playScenarios(random, soaked);
  soaked.churned += await churn();
  const randoms = () => new Random(random.below(2 ** 30));
  const options = { actors: mix.actors, steps: mix.steps, stacks: specifications, counts: soaked.traffic };
  if (soaked.rounds % checkEvery === 0) {
    soaked.checkedRounds++;
    using checker = checkOrder({ stacks: false });
    await runTraffic(randoms, options);
    const [report] = checker.violations;
    if (report !== undefined) throw new Violation(formatOrderViolation(report));
  } else {
    await runTraffic(randoms, options);
  }
  for (const result of await ended) if (result.status === 'rejected') throw result.reason;
  soaked.workers += workers.length;
}

async function runPrograms(seed: number, counts: ProgramCounts): Promise<void> {
  using runner = new ProgramRunner();
  for (const program of fc.sample(programs(), { seed, numRuns: mix.programs })) {
    runner.run(program);
    await runner.settle();
  }
  for (const name of Object.keys(counts) as (keyof ProgramCounts)[]) counts[name] += runner.counts[name];
}

const scenarios = allScenarios();
const specifications = stackScenarios().map(({ name }) => name);

async function playScenarios(random: Random, soaked: Soaked): Promise<void> {
  for (let i = 0; i < mix.scenarios; i++) {
    const scenario = scenarios[random.below(scenarios.length)] as (typeof scenarios)[number];
    const run = new ScenarioRun(new Map());
    await run.play(scenario);
    const [problem] = [...run.problems, ...run.errors];
    if (problem !== undefined) throw new Violation(`${scenario.name}: ${problem}`);
    soaked.scenarios++;
    await setImmediate();
  }
}

/**
 * Waits until the ledger is as before: collection may take several turns, and what others had is looked for by timers.
 * @throws Violation if it stays different.
 */
async function balance(before: Readonly<Record<string, number>> | undefined): Promise<Readonly<Record<string, number>>> {
  let differences: string[] = [];
  const ended = performance.now() + patienceMilliseconds;
  do {
    await collect();
    const books = takeBooks();
    if (before === undefined) return books;
    differences = Object.entries(books).flatMap(([name, value]) =>
      value === before[name] ? [] : [`${name}: ${before[name]}, now ${value}`],
    );
    if (differences.length === 0) return before;
  } while (performance.now() < ended);
  throw new Violation(`the ledger differs after the round: ${differences.join('; ')}`);
}

const bytes = (value: number) => formatBytes(Math.round(value));
const count = (value: number) => String(Number(value.toFixed(1)));
const format = {
  residentBytes: ['resident memory', bytes],
  heapBytes: ['the heap of V8', bytes],
  externalBytes: ['memory that V8 knows of outside its heap', bytes],
  descriptors: ['the number of open files', count],
  threads: ['the number of threads', count],
  handles: ['the number of handles of Node', count],
  eventPlaces: ['the table of events', count],
  streamPlaces: ['the table of streams', count],
  driverStreamPlaces: ["the software device's table of streams", count],
} as const;

/** One sentence for everything that grows. */
function growths(measures: readonly Measures[]): string[] {
  return (Object.keys(format) as (keyof Measures)[]).flatMap((name) => {
    const [title, formatValue] = format[name];
    const series = measures.map((each) => each[name]);
    return growthOf(title, series, allowances[name], formatValue) ?? [];
  });
}
