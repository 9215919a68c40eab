import { describe } from 'vitest';
import { cudaUnavailableReason } from '../../src/index.js';

const reason = cudaUnavailableReason();
if (reason !== undefined) console.warn(`skipped the GPU tests: ${reason}`);

/** Declares tests that need a GPU; where there is none, says so and skips them. */
export function describeOnGpu(name: string, declare: () => void): void {
  if (reason === undefined) describe(name, declare);
  else describe.skip(`${name} (no GPU: ${reason})`, declare);
}
