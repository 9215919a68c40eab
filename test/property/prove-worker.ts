/** A process of `npm run prove`: runs the programs it is given, and reports the outcome. */
import { formatProof, type ProofOptions, prove } from './prove.js';

process.once('message', async (options: ProofOptions) => {
  const proof = await prove({ ...options, onProgress: (progress) => process.send?.({ progress }) });
  process.send?.({ text: formatProof(proof, options.seed), hasViolation: proof.violation !== undefined });
  process.disconnect();
});
