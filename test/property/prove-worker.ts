/** A process of `npm run prove`: runs the programs that it is told of, and says what came of them. */
import { formatProof, type ProofOptions, prove } from './prove.js';

process.once('message', async (options: ProofOptions) => {
  const proof = await prove({ ...options, onProgress: (progress) => process.send?.({ progress }) });
  process.send?.({ text: formatProof(proof, options.seed), hasViolation: proof.violation !== undefined });
  process.disconnect();
});
