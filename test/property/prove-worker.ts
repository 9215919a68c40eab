/** A process of `npm run prove`: runs the programs it is given, and reports the outcome. */
import { proveAdmission } from './admission-programs.js';
import { proveGraphs } from './graph-programs.js';
import { formatProof, type ProofOptions, prove } from './prove.js';
import { proveSpill } from './spill-programs.js';

process.once('message', async (options: ProofOptions & Readonly<Record<'graphs' | 'admission' | 'spill', boolean>>) => {
  const waits = options.admission ? proveAdmission : options.spill ? proveSpill : undefined;
  const reportOf = options.graphs ? reportOfGraphs : waits !== undefined ? reportOfWaits(waits) : reportOfPools;
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

/** Programs that the seeds alone make. */
function reportOfWaits(run: (programs: number, seed: number) => Promise<Readonly<Record<string, number>>>) {
  return async ({ programs, seed }: ProofOptions): Promise<object> => {
    const started = performance.now();
    const outcome = await run(programs, seed).catch((error: unknown) => String(error));
    const seconds = ((performance.now() - started) / 1000).toFixed(1);
    const did = typeof outcome === 'string' ? outcome : Object.entries(outcome).map(([name, count]) => `${name} ${count}`);
    return { text: `${did}, from seed ${seed}, ${seconds} s`, hasViolation: typeof outcome === 'string' };
  };
}
