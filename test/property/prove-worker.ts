/** A process of `npm run prove`: runs the programs it is given, and reports the outcome. */
import { proveAdmission } from './admission-programs.js';
import { loadThreads, proveArenas } from './arena-programs.js';
import { proveCrossings } from './crossing-programs.js';
import { proveGraphs } from './graph-programs.js';
import { proveNeighbours } from './neighbour-programs.js';
import { formatProof, type ProofOptions, prove } from './prove.js';
import { proveRings } from './ring-programs.js';
import { proveSpill } from './spill-programs.js';

interface Options extends ProofOptions {
  /** The kind of programs; `undefined`: those of pools. */
  readonly only: keyof typeof bySeed | 'graphs' | 'arenas' | undefined;
  /** The path of threads.node. */
  readonly threads?: string;
}

/** Programs that the seeds alone make. */
const bySeed = { admission: proveAdmission, crossings: proveCrossings, neighbours: proveNeighbours, rings: proveRings, spill: proveSpill };

process.once('message', async (options: Options) => {
  const report = await reporterOf(options)(options);
  process.send?.(report, () => process.disconnect());
});

function reporterOf({ only, threads = '' }: Options): (options: ProofOptions) => Promise<object> {
  if (only === undefined) return reportOfPools;
  if (only === 'graphs') return reportOfGraphs;
  if (only === 'arenas') return reportOfSeeds((programs, seed) => proveArenas(programs, seed, loadThreads(threads)));
  return reportOfSeeds(bySeed[only]);
}

async function reportOfPools(options: ProofOptions): Promise<object> {
  const proof = await prove({ ...options, onProgress: (progress) => process.send?.({ progress }) });
  const { counts, seconds, violation } = proof;
  const violations = violation === undefined ? 0 : 1;
  const figures = { seeds: `${options.seed}`, programs: counts.programs, steps: counts.steps, violations, seconds };
  return { text: formatProof(proof, options.seed), hasViolation: violations > 0, figures };
}

async function reportOfGraphs({ programs, seed, path }: ProofOptions): Promise<object> {
  const started = performance.now();
  const { counts, failure } = await proveGraphs(programs, seed, path);
  const seconds = (performance.now() - started) / 1000;
  const did = Object.entries(counts).map(([name, count]) => `${name} ${count}`);
  const text = `${failure === undefined ? '' : `${failure}\n`}${did.join(', ')}, seed ${seed}, ${seconds.toFixed(1)} s`;
  const figures = { seeds: `${seed}`, ...counts, violations: failure === undefined ? 0 : 1, seconds };
  return { text, hasViolation: failure !== undefined, figures };
}

function reportOfSeeds(run: (programs: number, seed: number) => Promise<object>) {
  return async ({ programs, seed }: ProofOptions): Promise<object> => {
    const started = performance.now();
    const outcome = await run(programs, seed).catch((error: unknown) => String(error));
    const seconds = (performance.now() - started) / 1000;
    const hasViolation = typeof outcome === 'string';
    const did = hasViolation ? outcome : Object.entries(outcome).map(([name, count]) => `${name} ${count}`);
    const figures = {
      seeds: `${seed} to ${seed + programs - 1}`,
      ...(hasViolation ? {} : outcome),
      violations: hasViolation ? 1 : 0,
      seconds,
    };
    return { text: `${did}, from seed ${seed}, ${seconds.toFixed(1)} s`, hasViolation, figures };
  };
}
