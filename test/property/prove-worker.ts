/** A process of `npm run prove`: runs the programs it is given, and reports the outcome. */
import { formatProof, type ProofOptions, prove } from './prove.js';

process.once('message', async (options: ProofOptions) => {
  const proof = await prove({ ...options, onProgress: (progress) => process.send?.({ progress }) });
  const { counts, seconds, violation } = proof;
  const violations = violation === undefined ? 0 : 1;
  const figures = { seeds: `${options.seed}`, programs: counts.programs, steps: counts.steps, violations, seconds };
  process.send?.({ text: formatProof(proof, options.seed), hasViolation: violations > 0, figures });
  process.disconnect();
});
