/** A process of `npm run prove`: runs the programs it is given, and reports the outcome. */
import { proveAdmission } from './admission-programs.js';
import { loadThreads, proveArenas } from './arena-programs.js';
import { proveGraphs } from './graph-programs.js';
import { formatProof, type ProofOptions, prove } from './prove.js';
import { proveSpill } from './spill-programs.js';

interface Options extends ProofOptions, Readonly<Record<'graphs' | 'admission' | 'spill', boolean>> {
  /** The path of threads.node. */
  readonly arenas?: string;
}

process.once('message', async (options: Options) => {
  const bySeed = options.admission ? proveAdmission : options.spill ? proveSpill : arenaProof(options.arenas);
  const reportOf = options.graphs ? reportOfGraphs : bySeed !== undefined ? reportOfSeeds(bySeed) : reportOfPools;
  const report = await reportOf(options);
  process.send?.(report, () => process.disconnect());
});

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

function arenaProof(threads: string | undefined) {
  if (threads === undefined) return undefined;
  return (programs: number, seed: number) => proveArenas(programs, seed, loadThreads(threads));
}

/** Programs that the seeds alone make. */
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
